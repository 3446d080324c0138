"""A reader that leaves (`hpc-hydra status | true`), and a console without room: no traceback, an honest exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.running import argv, environment, hpc_hydra

# 141 is as good as 0 (a shell says it for SIGPIPE) where output was all that was wanted; else it is told how that went.
COMMANDS = {
    "--help": 141,
    "nonsense": 2,
    "status sweep": 141,
    "logs 0 sweep": 141,
    "wait sweep": 0,
    "resume sweep": 0,
    "results --csv sweep": 141,
    "report sweep": 141,
    "doctor scheduler=local launch.dry_run=true": 0,
    "run scheduler=local launch.dry_run=true -- true": 0,
    "run -m scheduler=local hydra.sweep.dir=another -- true": 0,
    "run scheduler=local -- true": 0,
    "torchrun --dry-run --local -n 1 x.py": 0,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed")
    done = hpc_hydra("run", "-m", "scheduler=local", "hydra.sweep.dir=sweep", "--", "echo", "hello", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_a_reader_that_has_left(place: Path, line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    started = [
        subprocess.Popen(
            argv(*line.split()),
            cwd=place,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer if both else subprocess.PIPE,
            text=True,
        )
        for both in ((False, True) if COMMANDS[line] == 2 else (False,))
    ]
    os.close(writer)
    for process in started:
        said = process.communicate(timeout=120)[1] or ""
        assert process.returncode in (COMMANDS[line], 0 if COMMANDS[line] == 141 else COMMANDS[line]), said
        assert "Traceback" not in said and "BrokenPipe" not in said and "Exception ignored" not in said, said


CARELESS = """\
import sys
from hpc_hydra.cli.console import Streams, run_attached
from hpc_hydra.ui.streams import ended
sys.exit(ended(run_attached(["sh", "-c", sys.argv[1]], env={}, streams=Streams(careless=True)).exit_code))
"""


@pytest.mark.parametrize(
    ("redirect", "code", "name"),
    [
        (">/dev/full", 1, "standard output"),
        (">/dev/full 2>err", 1, "standard output"),
        ("2>/dev/full", 1, ""),
        (">/dev/full 2>&1", 1, ""),
        (">out", 0, ""),
        (">/dev/null", 0, ""),
        ("| cat", 0, ""),
    ],
)
def test_a_full_console_is_told_though_the_command_does_not(
    tmp_path: Path, redirect: str, code: int, name: str
) -> None:
    pipe = "set -o pipefail; " if "|" in redirect else ""
    script = "echo hello; echo world >&2; exit 0"
    words = ["bash", "-c", f'{pipe}"$@" {redirect}', "bash", sys.executable, "-c", CARELESS, script]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    err = done.stderr + (tmp_path / "err").read_text() if "2>err" in redirect else done.stderr
    assert name in err and err.count("No space left") == bool(name), err
    if redirect == ">out":
        assert (tmp_path / "out").read_text() == "hello\n"


def test_output_and_errors_in_one_file_keep_their_order(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done"
    with (tmp_path / "both").open("wb") as both:
        code = subprocess.run(
            [sys.executable, "-c", CARELESS, script], env=environment(), stdout=both, stderr=both, timeout=120
        ).returncode
    assert code == 0
    assert (tmp_path / "both").read_text() == "".join(f"out {i}\nerr {i}\n" for i in range(1, 10))
