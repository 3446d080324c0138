"""A hung rank is named from the login node, in each start mode; a hung run is queued again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests import forking
from tests.awaiting import await_true
from tests.fakes.chosen import stand_in

from .conftest import Probe
from .test_coming_back import hpc, states

APP = """
import os, sys, time
from pathlib import Path
import hydra

RANK = int(os.environ.get("RANK", "-1"))

def load_data(cfg):
    if RANK == 2 or not cfg.waits:
        time.sleep(600)

def barrier(cfg):
    if not cfg.collective:
        while True:
            time.sleep(0.5)
    import hpc_hydra
    import torch.distributed
    with hpc_hydra.distributed(cfg):
        begun(cfg)
        load_data(cfg)
        torch.distributed.barrier()

def begun(cfg):
    (Path(cfg.keep) / f"begun.{RANK}").touch()

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    checkpoint = Path(cfg.keep) / f"checkpoint.{RANK}"
    if checkpoint.exists():
        return {"step": int(checkpoint.read_text())}
    checkpoint.write_text("7")
    if cfg.collective:
        barrier(cfg)
    begun(cfg)
    load_data(cfg)
    barrier(cfg)

if __name__ == "__main__":
    main()
"""
CONFIG = "defaults: [hpc, _self_]\nkeep: ???\nwaits: true\ncollective: false\nout: ''\n"
FOUR = ("resources.procs_per_node=2", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")


class Hanging(Probe):
    """A program of which rank 2 sleeps before a barrier; if it is started again it has a checkpoint, and completes."""

    @property
    def kept(self) -> Path:
        return self.tmp / "kept"

    def command(self, *args: str) -> list[str]:
        return self.argv(f"keep={self.kept}", *FOUR, "resources.time_limit=20m", *args, app=self.tmp / "app.py")

    def begun(self, count: int) -> bool:
        return await_true(lambda: len(list(self.kept.glob("begun.*"))) == count)


def hanging(folder: Path, scheduler: str) -> Hanging:
    probe = Hanging(folder, scheduler)
    (folder / "app.py").write_text(APP)
    (folder / "config.yaml").write_text(CONFIG)
    probe.kept.mkdir()
    return probe


SCHEDULERS = ["flux", pytest.param("slurm", marks=pytest.mark.cluster)]


@pytest.fixture(params=SCHEDULERS)
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Hanging:
    if request.param == "slurm":
        request.getfixturevalue("slurm_cluster")
    else:
        stand_in(request, request.param)
    return hanging(tmp_path, request.param)


def test_the_rank_that_hangs_on_another_node_is_named_and_status_tells_the_hung_run(elsewhere: Hanging) -> None:
    """Without a launcher. On SLURM, the others wait in a real collective."""
    collective = elsewhere.scheduler == "slurm"
    keys = ("resources.nodes=2", f"collective={collective}", "launch.hang_after=2s", "launch.bg=true")
    done = forking.run(elsewhere.command(*keys), env=elsewhere.env(), cwd=elsewhere.tmp, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        assert elsewhere.begun(4)
        text = await_true(lambda: named(elsewhere))
        assert "rank 2 on " in text, hpc(elsewhere, "stacks", "--wait", "60", code=None)
        if collective:
            assert "3 ranks (0-1 3 on node" in text and " in barrier (app.py:" in text
        assert await_true(lambda: "no progress for " in hpc(elsewhere, "status"))
    finally:
        hpc(elsewhere, "cancel")


def named(probe: Probe) -> str:
    """What `stacks` says, once all ranks are where they will stay."""
    text = hpc(probe, "stacks", "--wait", "60", code=None)
    found = re.search(r"^rank 2 on \S+ in load_data \(app\.py:\d+\): time\.sleep\(600\)$", text, re.M)
    return text if found and len(re.findall(r"^(rank|\d ranks) .* in ", text, re.M)) >= 2 else ""


MODES = [
    pytest.param("rendezvous.fork_server=true", marks=pytest.mark.torch),
    pytest.param("rendezvous=torchrun", marks=pytest.mark.torch),
    pytest.param("rendezvous=mpi", marks=pytest.mark.needs("mpi")),
    "launch.pack=2",
]


@pytest.mark.parametrize("mode", MODES)
def test_every_start_mode_tells_its_stacks(mode: str, tmp_path: Path) -> None:
    probe = hanging(tmp_path, "local")
    with probe.started(argv=probe.command(mode, "waits=false", "resources.oversubscribe=true")):
        assert probe.begun(2)
        text = hpc(probe, "stacks", "--wait", "60")
        assert re.search(r"^2 ranks \(0-1 on \S+\) in load_data \(app\.py:\d+\): time\.sleep\(600\)$", text, re.M), text
        hpc(probe, "cancel")


def test_a_hung_run_is_told_queued_again_with_its_stacks_and_completes_from_its_checkpoint(elsewhere: Hanging) -> None:
    keys = (
        "resources.nodes=2",
        "launch.hang_after=20s",
        "launch.on_hang=restart",
        "launch.max_requeues=3",
    )  # a slow start is silent, too
    with elsewhere.started(argv=elsewhere.command(*keys)) as launcher:
        text, _ = launcher.communicate(timeout=280)
    assert launcher.returncode == 0, text
    assert states(elsewhere) == ["completed"]
    folder = elsewhere.sweep / "0"
    ended = json.loads((folder / "outcome.json").read_text())
    assert ended["requeues"] >= 1 and ended["result"] == {"step": 7}
    first, *_ = sorted(path for path in (folder / "logs").iterdir() if path.is_dir())
    why = json.loads((first / "outcome.json").read_text())["reason"]
    assert why.startswith("hung; no progress for ")
    *_, newest = sorted((first / "stacks").iterdir())
    assert len(list(newest.glob("rank_*.json"))) == 4
    assert "was hung and requeued (1 of 3)" in text or "no progress for " in text, text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launch.on_hang=restart", "launch.hang_after=30m"], "launch.on_hang: restart queues the run again"),
        (["launch.on_hang=stacks"], "launch.on_hang: stacks needs to know when a run hangs"),
    ],
)
def test_what_cannot_be_done_at_a_hang_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hpc_hydra.cli", "run", "-m", "scheduler=local", *words, "--", "true"]
    done = forking.run(argv, cwd=tmp_path, env=Probe(tmp_path, "local").env())
    assert done.returncode == 2 and message in done.stderr
