"""Sweeps launched from a program by `hpc_hydra.launch`, without a command line; and runs that nobody waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpc_hydra
from hpc_hydra.errors import ConfigError, SweepError
from hpc_hydra.hydra_compat.command_line import of_hydra_main
from hpc_hydra.launcher import background
from hpc_hydra.sweep import processes

from .conftest import App

LOOP = """
import hydra
import hpc_hydra

offset = 10

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    if cfg.x == 3:
        raise ValueError("boom")
    print("x is", cfg.x)
    return {"y": cfg.x + offset}

if __name__ == "__main__":
    small = ("scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1")
    sweep = hpc_hydra.launch(main, "x=1,3", *small, quiet=True)
    assert not sweep.wait(100)
    assert [run.value for run in sweep.results()] == [{"y": 11}, None], sweep.results()
    assert [run.state for run in sweep.status()] == ["completed", "failed"]
    assert [run.params for run in sweep.status()] == [{"x": 1}, {"x": 3}]
    assert all(run.hosts and run.seconds > 0 and run.attempts == 1 and run.metrics == {} for run in sweep.status())
    assert all("launch.bg" not in text for run in sweep.status() for text in run.overrides)
    assert "boom" in sweep.logs(1) and "x is 1" in sweep.logs(0, rank=0)
    assert sweep.cancel() == []
    sweep.resume("failed")
    assert not hpc_hydra.Sweep(sweep.dir).wait(100)
    squares = hpc_hydra.launch(lambda cfg: cfg.n ** 2, "n=3", *small, config={"n": 0}, quiet=True)
    print([run.value for run in squares.results()])
"""


def test_a_program_launches_waits_looks_and_resumes(app: App) -> None:
    """Decorated or not, from ``__main__`` by value: one payload for all runs."""
    (app.folder / "app.py").write_text(LOOP)
    done = app.start()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[9]"
    assert len(list(app.folder.rglob("task.pkl"))) == 2


PLACES = """
import os
from pathlib import Path
import hydra
import hpc_hydra

@hydra.main(config_path=".", config_name="config")  # the process has the defaults of Hydra 1.1, or of 1.4
def decorated(cfg):
    return os.getcwd()

def plain(cfg):
    if cfg.x == 1 and not Path("again").exists():
        Path("again").touch()
        raise ValueError
    return os.getcwd()

if __name__ == "__main__":
    small = ("scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1")
    own = {"config": {"x": 0}, "quiet": True}
    stays = hpc_hydra.launch(plain, *small, "x=1", "hydra.sweep.dir=stays", **own)
    changes = hpc_hydra.launch(plain, *small, "x=2", "hydra.sweep.dir=changes", "hydra.job.chdir=true", **own)
    hydras = hpc_hydra.launch(decorated, *small, "x=1", "hydra.sweep.dir=hydras", quiet=True)
    assert not stays.wait(100)
    stays.resume()
    for sweep in (stays, changes, hydras):
        (run,) = sweep.results()
        print(os.path.relpath(run.value), "no longer change working directory" in sweep.logs(0))
"""


@pytest.mark.hydra
def test_a_plain_function_starts_where_it_was_launched(app: App) -> None:
    """As with ``version_base=None``, also when resumed; a decorated function where Hydra starts it."""
    import hydra.version

    (app.folder / "app.py").write_text(PLACES)
    done = app.start()
    assert done.returncode == 0, done.stdout + done.stderr
    old = "hydras/0 True" if hasattr(hydra.version, "base_at_least") else ". False"
    assert done.stdout.splitlines()[-3:] == [". False", "changes/0 False", old], done.stdout + done.stderr


def test_a_configuration_cannot_be_given_twice() -> None:
    with pytest.raises(ConfigError, match="config_name"):
        hpc_hydra.launch(print, config={}, config_name="config")


@pytest.mark.hydra
def test_the_configuration_of_hydra_main_is_found(app: App) -> None:
    import hydra

    @hydra.main(version_base=None, config_path="conf", config_name="primary")
    def main(cfg: object) -> None: ...

    function, folder, name = of_hydra_main(main)
    assert (folder, name) == (str(Path(__file__).parent / "conf"), "primary")
    assert function is main.__wrapped__  # type: ignore[attr-defined]
    assert of_hydra_main(print) == (print, None, None)


def test_what_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError):
        hpc_hydra.Sweep(tmp_path)


SHOWN = ("x=1,2", "scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1")


@pytest.mark.hydra
def test_a_dry_run_is_shown_and_says_that_nothing_is_there(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(app.folder)
    before = app.listing()
    sweep = hpc_hydra.launch(lambda cfg: cfg.x, *SHOWN, "launch.dry_run=true", config={"x": 0})
    assert "dry run: nothing was written" in capsys.readouterr().out
    assert not sweep.submitted and "dry run" in repr(sweep) and app.listing() == before
    for verb in (sweep.status, sweep.wait, sweep.results, sweep.cancel, sweep.resume, lambda: sweep.logs(0)):
        with pytest.raises(SweepError, match="nothing was submitted"):
            verb()
    assert app.listing() == before


@pytest.mark.hydra
def test_a_run_in_this_process_is_no_sweep(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(app.folder)
    called: list[object] = []
    with pytest.raises(ConfigError) as told:
        hpc_hydra.launch(called.append, *SHOWN, "launch.debug=true", config={"x": 0})
    assert told.value.where == "launch.debug" and "call the function itself" in (told.value.fix or "")
    assert not called and not (app.folder / "multirun").exists()


def test_runs_on_this_machine_outlive_the_command_that_started_them(app: App) -> None:
    small = ("scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1")
    done = app.start("-m", *small, "launch.bg=true", "x=1", "hydra.sweep.dir=sweep")
    assert done.returncode == 0 and "in the background: process" in done.stdout, done.stderr
    for verb in ("wait", "results"):
        done = app.python("-m", "hpc_hydra.cli", verb, str(app.folder / "sweep"))
        assert done.returncode == 0 and "completed" in done.stdout, done.stdout + done.stderr


SLOW = """\
import time, hydra
from pathlib import Path

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    while not Path(cfg.until).exists():
        time.sleep(0.05)

if __name__ == "__main__":
    main()
"""
SMALL = ("-m", "scheduler=local", "resources.procs_per_node=1", "resources.cpus_per_proc=1", "launch.bg=true")


@pytest.fixture
def slow(app: App) -> Iterator[App]:
    """A sweep ``first`` that runs until there is a file ``go``."""
    (app.folder / "app.py").write_text(SLOW)
    done = app.start(*SMALL, f"+until={app.folder}/go", "hydra.sweep.dir=first")
    assert done.returncode == 0, done.stderr
    yield app
    (app.folder / "go").touch()


def test_a_launcher_in_the_background_may_wait_for_another_sweep(slow: App) -> None:
    done = slow.start(*SMALL, "+until=/", "hydra.sweep.dir=second", "launch.after=first")
    assert done.returncode == 0 and "submits when first has completed" in done.stdout, done.stdout + done.stderr
    second = hpc_hydra.Sweep(slow.folder / "second")
    assert [run.state for run in second.status()] == ["unsubmitted"]
    (slow.folder / "go").touch()
    assert until(lambda: [run.state for run in second.status()] == ["completed"])


def test_a_launcher_in_the_background_that_did_not_begin_is_ended(slow: App, monkeypatch: pytest.MonkeyPatch) -> None:
    (slow.folder / "sitecustomize.py").write_text(
        "import sys, time\nif 'resume' in sys.orig_argv:\n    print('slow', flush=True); time.sleep(600)\n"
    )
    before = resuming(slow)
    monkeypatch.setattr(background, "START_TIMEOUT", 3.0)
    monkeypatch.setenv("PYTHONPATH", str(slow.folder))
    with pytest.raises(SweepError, match=r"did not start: .*slow"):
        background.start(slow.folder / "first")
    assert resuming(slow) == before


def resuming(app: App) -> list[int]:
    return [pid for pid, words in processes.command_lines() if "resume" in words and f"{app.folder}/first" in words]


def until(found: Callable[[], bool]) -> bool:
    end = time.monotonic() + 200
    while not found() and time.monotonic() < end:
        time.sleep(0.2)
    return found()


@pytest.mark.parametrize(
    ("args", "options", "where"),
    [
        (("train", "lr=1"), {}, "task"),
        ((print, ["lr=0.1"]), {}, "overrides"),
        ((print, 3), {}, "overrides"),
        ((print,), {"config": "conf/x.yaml"}, "config"),
        ((print,), {"config": ["lr"]}, "config"),
        ((print,), {"config_path": 3}, "config_path"),
        ((print,), {"config_name": Path("x")}, "config_name"),
    ],
)
def test_a_wrong_argument_is_named_at_once(args: tuple[Any, ...], options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hpc_hydra.launch(*args, **options)
    assert caught.value.where == where and caught.value.fix
