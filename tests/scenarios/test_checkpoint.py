"""Running training saves a checkpoint on request and goes on, or ends and is resumed: to the same weights."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.node.rank.requests import Page
from tests import forking
from tests.awaiting import PATIENCE, await_true
from tests.chaos.app.answers import answer
from tests.fakes.chosen import stand_in

from .conftest import DIGITS, ROOT, Probe
from .test_coming_back import hpc, runs, states

CHAOS = Path(__file__).parents[1] / "chaos"
SIZE = ("resources.procs_per_node=2", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")

# Appended to PLAIN: rank 0 lets the others wait until the request has come.
HELD = """
save_now = save

def save(folder, epoch, state):
    import time
    from hpc_hydra.node.rank.requests import Page
    path = save_now(folder, epoch, state)
    page = Page.open(os.environ["HPC_HYDRA_REQUESTS"])
    while (epoch == 1 and not page.save) or (epoch == 3 and not page.stop):
        time.sleep(0.05)
    return path
"""


# A training without torch.
PLAIN = """
import json, os, sys
import hydra
import torch.distributed
import hpc_hydra
from answers import gradient, updated

def save(folder, epoch, weights):
    folder.mkdir(exist_ok=True)
    path = folder / f"checkpoint_epoch_{epoch}.pt"
    path.with_suffix(".new").write_text(json.dumps(weights))
    path.with_suffix(".new").rename(path)

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        folder, epoch, weights = dist.output_dir / "checkpoints", 0, [0] * 4
        while (path := folder / f"checkpoint_epoch_{epoch + 1}.pt").exists():
            epoch, weights = epoch + 1, json.loads(path.read_text())
        dist.barrier()  # nobody looks while another one saves
        for epoch in range(epoch, 4):
            total = gradient(7, epoch, dist.rank)
            torch.distributed.all_reduce(total)
            weights = updated(weights, total)
            if dist.is_main:
                save(folder, epoch + 1, weights)
            if (warned := dist.any_warned()) and warned.stop:
                sys.exit(75)
        return weights
"""
RUN = "\nif __name__ == '__main__':\n    main()\n"


def lay_out(folder: Path, name: str, program: str) -> None:
    """Write a program with its configuration and the stand-in for torch."""
    (folder / name).write_text(program)
    (folder / "config.yaml").write_text("defaults: [hpc, _self_]\n")
    shutil.copytree(CHAOS / "light" / "torch", folder / "torch")


class Training(Probe):
    """A training that waits for requests after its first and its third epoch."""

    more: tuple[str, ...] = ()

    def command(self) -> list[str]:
        words = self.argv(*SIZE, *self.more, app=self.tmp / "plain.py")
        return [word for word in words if word != f"out={self.out}"]

    def saved(self, epoch: int) -> Path:
        return self.sweep / "0" / "checkpoints" / f"checkpoint_epoch_{epoch}.pt"


TRAININGS = [
    pytest.param(("local",), id="local"),
    pytest.param(("slurm", "launch.pack=2", "launch.allocations=1"), id="slurm, packed", marks=pytest.mark.cluster),
    pytest.param(("flux", "launch.max_requeues=1"), id="flux"),
]


@pytest.fixture(params=TRAININGS)
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Training]:
    scheduler, *more = request.param
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")
    elif scheduler != "local":
        stand_in(request, scheduler)
    made = Training(tmp_path, scheduler)
    made.more = tuple(more)
    lay_out(tmp_path, "plain.py", PLAIN + HELD + RUN)
    shutil.copy(CHAOS / "app" / "answers.py", tmp_path)
    yield made


def test_training_saves_and_goes_on_then_saves_and_ends_and_is_resumed_to_the_same_weights(training: Training) -> None:
    with training.started(argv=training.command()) as launcher:
        assert await_true(training.saved(1).exists), training.saved(1)
        said = hpc(training, "checkpoint", "--wait", "2m")
        assert "asked to save and go on: run 0" in said and "run 0 has saved and goes on" in said
        assert launcher.poll() is None and states(training) == ["running"]
        said = hpc(training, "checkpoint", "0", "--stop", "--wait", "2m")
        assert "it saves and ends" in said or "run 0 has ended" in said
        text, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1, text
    (ended,) = runs(training)
    assert (ended["state"], ended["exit_code"]) == ("cancelled", 75), ended
    assert "stopped on request, after saving a checkpoint" in ended["reason"]
    assert training.saved(3).exists() and not training.saved(4).exists()
    assert "nothing to ask: none of these runs is running" in hpc(training, "checkpoint")
    hpc(training, "resume")
    assert states(training) == ["completed"]
    assert len([path for path in (training.sweep / "0" / "logs").iterdir() if path.is_dir()]) == 2
    assert json.loads(training.saved(4).read_text()) == answer(7, steps=4, ranks=2)


@pytest.mark.torch
def test_the_digits_example_saves_and_ends_on_request_and_goes_on(tmp_path: Path) -> None:
    page = Page.create()
    page.stop = 1
    words = [sys.executable, str(DIGITS), "epochs=2", "width=4", "launch.seed=7", f"hydra.run.dir={tmp_path}/out"]
    words += [f"checkpoint_dir={tmp_path}/checkpoints"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = forking.run(words, env={**env, "HPC_HYDRA_REQUESTS": page.path}, cwd=tmp_path, torch=True)
    assert ended.returncode == 75 and "Saved after epoch 1 (" in ended.stdout, ended.stdout + ended.stderr
    ended = forking.run(words, env=env, cwd=tmp_path, torch=True)
    assert ended.returncode == 0 and "Going on after epoch 1 (" in ended.stdout, ended.stdout + ended.stderr


ASKS = """
import sys, time
from pathlib import Path
import hydra
import hpc_hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        while not (warned := dist.any_warned()).stop:
            (dist.output_dir / "began").touch()
            time.sleep(0.1)
        sys.exit(75)

if __name__ == "__main__":
    main()
"""


def test_a_run_at_the_console_ends_because_of_a_file_in_its_directory(local_probe: Probe) -> None:
    lay_out(local_probe.tmp, "app.py", ASKS)
    argv = [sys.executable, "app.py", "scheduler=local", *SIZE, f"hydra.run.dir={local_probe.sweep}"]
    with local_probe.started(argv=argv) as launcher:
        assert await_true((local_probe.sweep / "began").exists)
        (local_probe.sweep / "STOP").touch()
        text, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 75 and "stopped on request" in text, text


BUSY = """
import os, sys, time
from pathlib import Path
import hydra

def await_file(name):
    while not Path(f"{name}.{os.environ['RANK']}").exists():
        time.sleep(0.05)

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    await_file("begin")
    import hpc_hydra
    with hpc_hydra.distributed(cfg):
        await_file("end")

if __name__ == "__main__":
    main()
"""


def test_a_run_that_does_not_answer_is_told_with_what_its_program_is_at(local_probe: Probe) -> None:
    here = local_probe.tmp
    lay_out(here, "app.py", BUSY)

    def told(text: str) -> bool:
        said = hpc(local_probe, "checkpoint", "--wait", "2s", code=1)
        return f"no answer after 2s: run 0: rank 0 {text}\n" in said and "the request stays" in said

    argv = [sys.executable, "app.py", "scheduler=local", *SIZE, f"hydra.run.dir={local_probe.sweep}"]
    with local_probe.started(argv=argv) as launcher:
        assert await_true((local_probe.sweep / "logs").exists)
        assert await_true(lambda: told("still imports, or has not reached hpc_hydra.distributed() yet"))
        (here / "begin.0").touch()
        assert await_true(lambda: told("waits in hpc_hydra.distributed() for the other ranks"))
        (here / "begin.1").touch()
        assert await_true(lambda: told("has not looked for requests since"))
        for rank in (0, 1):
            (here / f"end.{rank}").touch()
        text, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, text


def test_a_run_that_never_looks_is_told_and_goes_on(local_probe: Probe) -> None:
    with local_probe.started("sleep=300", "resources.cpus_per_proc=1") as launcher:
        assert await_true(lambda: local_probe.saw())
        said = hpc(local_probe, "checkpoint", "--wait", "2s", code=1)
        assert "no answer after 2s: run 0" in said
        assert launcher.poll() is None and states(local_probe) == ["running"]
