"""A start without ``-m`` that asks for several processes: one run, launched, attached, in ``hydra.run.dir``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.hydra_compat import command_line
from hpc_hydra.records.layout import SweepPaths
from tests.awaiting import await_true

from .conftest import ROOT, App

TWO = ["scheduler=local", "resources.procs_per_node=2", "hydra.run.dir=out"]
PROGRAM = """\
import warnings
warnings.filterwarnings("ignore", "(.|\\n)*version_base")
import hydra, os, sys, time
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    rank = os.environ["RANK"]
    print(f"rank {rank} of {os.environ['WORLD_SIZE']}: {sys.argv[1:]} in {os.getcwd()}")
    print("warned", file=sys.stderr)
    if cfg.x == "read":
        print([line for line in sys.stdin] if rank == "0" else sys.stdin.read())
    if cfg.x == "wait":
        print("waiting", flush=True)
        time.sleep(600)
    if cfg.x == "exit" and rank == "0":
        sys.exit(7)
    if cfg.x == "raise" and rank == "0" and not os.path.exists("mended"):
        raise ValueError("boom")
    return {"dir": HydraConfig.get().runtime.output_dir, "task": HydraConfig.get().overrides.task[-2:]}

main()
"""
CALLBACKS = """\
from hydra.experimental.callback import Callback

class Note(Callback):
    def __init__(self, name):
        self.name = name
    def note(self, word):
        with open("noted", "a") as file:
            file.write(f"{self.name} {word}\\n")
    def on_run_start(self, config, **kwargs):
        self.note("run_start")
        config.x = "changed"
    def on_job_start(self, config, **kwargs):
        self.note(f"job_start {config.x}")
    def on_run_end(self, config, job_return, **kwargs):
        self.note(f"run_end {job_return.status.name} {sorted(job_return.return_value)}")
"""


@pytest.fixture
def program(app: App) -> App:
    (app.folder / "app.py").write_text(PROGRAM)
    return app


def lines(app: App, rank: int, *words: str) -> list[str]:
    return [f"rank {rank} of 2: {[*TWO, *words]} in {app.folder}", "warned"]


def test_one_run_is_attached_and_leaves_the_records_of_a_sweep(
    program: App, capsys: pytest.CaptureFixture[str]
) -> None:
    done = program.start(*TWO)
    assert (done.returncode, done.stdout.splitlines()) == (0, lines(program, 0)), done.stderr
    out = program.folder / "out"
    assert "completed" in done.stderr and str(out) in done.stderr  # the returned value
    assert {"app.log", "logs", ".hydra", "multirun.yaml"} <= {path.name for path in out.iterdir()}
    assert not (program.folder / "multirun").exists() and not (out / "0").exists()
    for words, told in ((["status"], "completed"), (["logs"], "rank 0 of 2"), (["results", "--json"], '"dir"')):
        assert main([*words, str(out)]) == 0
        assert told in capsys.readouterr().out


def test_code_after_the_task_function_is_not_executed_and_that_is_noted(program: App) -> None:
    text = PROGRAM.replace("\nmain()\n", '\nif __name__ == "__main__":\n    main()\n    print("THE END")\n')
    (program.folder / "app.py").write_text(text)
    line = text.splitlines().index('    print("THE END")') + 1
    done = program.start(*TWO)
    assert done.returncode == 0 and "THE END" not in done.stdout
    assert f"note: the code after main(), from line {line}, is not executed without -m" in done.stderr
    done = program.start("-m", *TWO, "launch.dry_run=true")
    assert done.stdout.rstrip().endswith("THE END") and "not executed" not in done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('main()\n\n"""doc"""\ndef end():\n    1\nclass A: ...\npass\n# end\n', None),
        ("import sys\nif True:\n    sys.exit(\n        main()\n    )\n", None),
        ("try:\n    main()\nfinally:\n    print()\n", None),  # is executed
        ("with open(__file__):\n    x = (\n        main(),\n    )\n    print()\nprint()\n", 5),
        ("if True:\n    pass\nelse:\n    print()\nmain()\ndef end(): ...\nend()\n", 7),
        ("def run():\n    main()\n\nrun()\nprint()\n", 5),
    ],
)
def test_code_after_the_task_function_is_that_with_an_effect(tmp_path: Path, text: str, line: int | None) -> None:
    (tmp_path / "train.py").write_text(text)
    found: list[int | None] = []
    names: dict[str, Any] = {
        "__name__": "hydra._internal.utils", "note": lambda: found.append(command_line.code_after_hydra_main()),
    }  # fmt: skip
    exec("def _run_hydra(): note()", names)
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(tmp_path / "train.py"), {"main": names["_run_hydra"]}, run_name="__main__")
    assert found == [line]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["x=exit"], 7, "rank 0 on"),
        (["resources.nodez=2"], 2, "Try: resources.nodes"),
        (["logging.console=2"], 2, "there is no rank 2"),
        (["logging.console=each"], 2, "neither a rank nor `all`"),
        (["hydra/launcher=basic"], 2, "leave out hydra/launcher=basic"),
    ],
)
def test_the_launcher_exits_with_the_programs_exit_code(program: App, words: list[str], code: int, told: str) -> None:
    done = program.start(*TWO, *words)
    assert done.returncode == code and told in done.stderr, done.stderr
    if code == 2:
        assert done.stdout == "" and not (program.folder / "out").exists()
    else:
        assert done.stdout.splitlines()[:2] == lines(program, 0, *words)


def test_a_run_that_failed_is_told_and_resumed_also_with_other_resources(
    program: App, capsys: pytest.CaptureFixture[str]
) -> None:
    done = program.start(*TWO, "x=raise", "resources.time_limit=6m")
    assert done.returncode == 1 and "ValueError: boom" in done.stderr
    assert done.stdout.splitlines()[:2] == lines(program, 0, "x=raise", "resources.time_limit=6m")
    (program.folder / "mended").touch()
    out = str(program.folder / "out")
    assert main(["resume", out, "--", "resources.time_limit=7m"]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["results", "--json", out]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["result"]["task"] == ["x=raise", "resources.time_limit=7m"]


def test_output_of_all_ranks_is_prefixed_and_the_script_is_where_it_is_wanted(program: App) -> None:
    words = ("logging.console=all", "launch.output_script=job.sh")
    done = program.start(*TWO, *words)
    assert done.returncode == 0 and (program.folder / "job.sh").exists(), done.stderr
    for rank in (0, 1):
        shown = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert shown == [f"[{rank}] {line}" for line in lines(program, rank, *words)]
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "shown", "left"),
    [
        (["launch.dry_run=true"], "dry run: nothing was written", []),
        (["launch.dry_run=true", "resources.procs_per_node=1"], "dry run: nothing was written", []),
        (["launch.setup_only=true"], "scripts are written", ["out/.hpc_hydra/jobs/job0.sh"]),
        (["launch.bg=true"], "in the background", ["out/multirun.yaml"]),
    ],
)
def test_what_a_launch_can_do_instead(program: App, words: list[str], shown: str, left: list[str]) -> None:
    before = program.listing()
    done = program.start(*TWO, *words)
    assert done.returncode == 0 and shown in done.stdout, done.stderr
    assert all((program.folder / name).exists() for name in left)
    if "launch.dry_run=true" in words:
        assert program.listing() == before
    if "launch.bg=true" in words:
        assert main(["wait", str(program.folder / "out")]) == 0
    assert "rank 0 of" not in done.stdout


TWO_RANKS = "{resources: {procs_per_node: 2, gpus_per_proc: 0}}"
MACHINE = f"""# @package _global_
system: {{name: mine, scheduler: local, site_env: {{MINE: '1'}}}}
{TWO_RANKS[1:-1]}
"""
GPUS = ["scheduler=local", "system.gpus_per_node=4", "system.mem_per_gpu=80"]


def defaults_of_a_person(app: App, mine: str) -> dict[str, str]:
    """Variables that select a defaults file, or a machine of their own, with this text."""
    if mine is MACHINE:
        app.write(hpc_hydra__system__mine=mine)
        return {"XDG_CONFIG_HOME": str(app.folder), "MINE": "1"}
    app.write(mine=mine)
    return {"HPC_HYDRA_DEFAULTS": "mine.yaml"}


@pytest.mark.parametrize(
    ("mine", "words", "env"),
    [
        (f"'*': {TWO_RANKS}", [], {}),
        (f"'*': {TWO_RANKS}", ["scheduler=local"], {}),
        (f"local: {TWO_RANKS}", [], {}),
        (f"perlmutter: {TWO_RANKS}", ["scheduler.account=a"], {"NERSC_HOST": "perlmutter"}),
        ("'*': {resources: {gpus_at_least: 3}}", GPUS, {}),
        ("'*': {resources: {gpus_per_proc: 2}}", [*GPUS, "resources.gpus_at_least=4"], {}),
        ("'*': {resources: {gpumem_at_least: 100}}", GPUS, {}),
        ("'*': {resources: {nodes: 2}}", ["scheduler=ssh", "scheduler.hosts=[a,b]", "system.cores_per_node=1"], {}),
        (MACHINE, [], {}),
        (f"'*': {{launch: {{dry_run: true}}, {TWO_RANKS[1:]}", [], {}),
    ],
)
def test_the_persons_defaults_size_a_run_as_they_do_with_m(
    app: App, mine: str, words: list[str], env: dict[str, str]
) -> None:
    env = {**env, **defaults_of_a_person(app, mine)}
    dry = [] if "dry_run" in mine else ["launch.dry_run=true"]
    single, swept = (app.start(*mode, *words, *dry, **env) for mode in ([], ["-m"]))
    assert single.returncode == swept.returncode == 0, single.stderr + swept.stderr
    assert "one process is requested" not in single.stderr and "x is" not in single.stdout
    row = single.stdout.splitlines()[1]
    assert row == swept.stdout.splitlines()[1] and " 1 × 1 " not in row


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (f"'*': {TWO_RANKS}", ["resources.procs_per_node=null"]),  # typed
        (MACHINE, ["resources.procs_per_node=null"]),
        (f"'*': {{launch: {{debug: true}}, {TWO_RANKS[1:]}", []),
        (f"lumi: {TWO_RANKS}\n'*': {{resources: {{cpus_per_proc: 1, time_limit: 1h}}}}", []),
    ],
)
def test_the_persons_defaults_leave_a_run_of_one_process_in_place(app: App, mine: str, words: list[str]) -> None:
    done = app.start(*words, **defaults_of_a_person(app, mine))
    assert done.returncode == 0 and done.stdout == "x is 0\n", done.stderr
    assert ("launch.debug runs one rank" in done.stderr) == ("debug" in mine)


def test_the_persons_defaults_are_checked_before_a_run_in_place(app: App) -> None:
    app.write(mine="'*': {resources: {procs: 2}}")
    done = app.start(HPC_HYDRA_DEFAULTS="mine.yaml")
    assert done.returncode == 2 and done.stdout == "" and "mine.yaml: *.resources.procs: unknown key" in done.stderr
    done = app.start(HPC_HYDRA_DEFAULTS="mine.yaml", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 0 and done.stdout == "x is 0\n"  # a rank has its size
    app.write(mine=f"'*': {TWO_RANKS}")
    done = app.start("hydra/launcher=basic", "-m", HPC_HYDRA_DEFAULTS="mine.yaml")
    assert done.returncode == 2 and "requests 2 processes per run (with mine.yaml)" in done.stderr


def test_standard_input_reaches_rank_0_to_its_end(program: App) -> None:
    done = subprocess.run(
        [sys.executable, "app.py", *TWO, "x=read"], cwd=program.folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="one\ntwo\nlast", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(["one\n", "two\n", "last"])
    assert not list((program.folder / "out" / ".hpc_hydra").glob("console_input*"))


def test_a_signal_cancels_the_run(program: App) -> None:
    log = program.folder / "shown"
    with log.open("wb") as shown:
        process = subprocess.Popen(
            [sys.executable, "app.py", *TWO, "x=wait"], cwd=program.folder, stdin=subprocess.DEVNULL, stdout=shown,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
        )  # fmt: skip
        await_true(lambda: b"waiting" in log.read_bytes())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert process.returncode == 130
    assert json.loads((program.folder / "out" / "outcome.json").read_text())["status"] == "cancelled"


def test_a_launcher_that_leaves_at_once_withdraws_its_input(program: App) -> None:
    log, offered = program.folder / "shown", SweepPaths(program.folder / "out").console_input
    with log.open("wb") as shown:
        process = subprocess.Popen(
            [sys.executable, "app.py", *TWO, "x=wait"], cwd=program.folder, stdin=subprocess.PIPE, stdout=shown,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
        )  # fmt: skip
        await_true(lambda: b"waiting" in log.read_bytes())
        assert offered.exists()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=200)
    assert process.returncode == 130 and b"left at once" in told
    assert not offered.exists()


def test_a_directory_in_use_is_refused_by_its_key(program: App) -> None:
    out = program.folder / "out"
    out.mkdir()
    lock = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = program.start(*TWO)
    finally:
        os.close(lock)
    assert done.returncode == 2 and "another launcher is using this directory" in done.stderr
    assert "hydra.run.dir" in done.stderr and "hydra.sweep.dir" not in done.stderr


@pytest.mark.hydra
def test_callbacks_of_the_user_are_called_as_for_a_run_in_place(program: App) -> None:
    """Those of the primary configuration, and of a file before the bundle."""
    (program.folder / "notes.py").write_text(CALLBACKS)
    hydra = "hydra: {{callbacks: {{note_{0}: {{_target_: notes.Note, name: {0}}}}}}}\n"
    program.write(
        config=f"defaults: [notes, hpc, _self_]\nx: 0\n{hydra.format('a')}",
        notes=f"# @package _global_\n{hydra.format('b')}",
    )
    done = program.start(*TWO)
    assert done.returncode == 0, done.stderr
    noted = (program.folder / "noted").read_text().splitlines()
    words = ("run_start", "job_start changed", "run_end COMPLETED ['dir', 'task']")
    assert sorted(noted) == sorted(f"{name} {word}" for name in "ab" for word in words)
    assert [line[2:] for line in noted if line[0] == "a"] == list(words)


@pytest.mark.hydra
def test_a_failure_inside_the_launcher_does_not_train_in_this_process(program: App) -> None:
    broken = "import hpc_hydra.launcher.single as s\ndef fail(*_):\n    raise RuntimeError('broken')\ns.launch = fail\n"
    (program.folder / "app.py").write_text(broken + PROGRAM)
    done = program.start(*TWO)
    assert done.returncode == 1 and "RuntimeError: broken" in done.stderr and done.stdout == ""
