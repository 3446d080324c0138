"""`make test` runs the suite as two processes: the failure of either fails it, and nothing of it outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import again
from tests.unit.node.conftest import await_true

SCRIPT = Path(__file__).parents[2] / "scripts" / "test.sh"
PYTEST = """#!/bin/sh
# -m pytest --half NAME …: does what DO_NAME says
[ "$2" = pytest ] || { ${AGAIN:-exit 1}; exit; }  # -m tests.again
[ "$3" != -q ] || exit 0  # these, once more
echo "$4 here"
case $4 in slurm) eval "$DO_SLURM" ;; *) eval "$DO_OTHER" ;; esac
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A pytest that does what the test asks of each half."""
    path = tmp_path / "python"
    path.write_text(PYTEST)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("slurm", "other", "good"), [(0, 0, True), (5, 0, True), (0, 5, True), (1, 0, False), (0, 1, False), (2, 5, False)]
)
def test_either_half_can_fail_it(python: str, tmp_path: Path, slurm: int, other: int, good: bool) -> None:
    env = {**os.environ, "DO_SLURM": f"exit {slurm}", "DO_OTHER": f"exit {other}"}
    done = subprocess.run(["sh", SCRIPT, python], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == good
    assert sorted(line for line in done.stdout.splitlines() if "here" in line) == ["other here", "slurm here"]


@pytest.mark.parametrize(("slurm", "other", "good"), [(1, 0, True), (0, 1, True), (2, 1, False), (1, 3, False)])
def test_only_where_all_tests_ran_are_failed_ones_tried_once_more(
    python: str, tmp_path: Path, slurm: int, other: int, good: bool
) -> None:
    codes = {"DO_SLURM": f"exit {slurm}", "DO_OTHER": f"exit {other}"}
    env = {**os.environ, **codes, "AGAIN": "echo tests/scenarios/test_a.py::test_b"}
    done = subprocess.run(["sh", SCRIPT, python], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == good
    assert ("tried once more" in done.stdout and "test_a.py::test_b" in done.stdout) == good


@pytest.mark.parametrize("path", [path for paths in again.REASONS.values() for path in paths])
def test_what_may_be_tried_once_more_exists(path: str) -> None:
    assert (SCRIPT.parents[1] / path).exists()


@pytest.mark.parametrize(
    ("failed", "tried"),
    [
        (["tests/unit/node/test_rank.py::test_a[x/y]", "tests/scenarios/test_modes.py::test_b"], True),
        (["tests/unit/node/test_rank.py::test_a", "tests/unit/node/test_verdict.py::test_b"], False),
        (["tests/unit/planning/test_plan.py::test_a"], False),
        ([f"tests/scenarios/test_modes.py::test_{n}" for n in range(again.MOST + 1)], False),
        ([], False),
    ],
)
def test_a_few_failed_tests_of_real_processes_are_tried_once_more(
    failed: list[str], tried: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v/cache").mkdir(parents=True)
    (tmp_path / "v/cache/lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    assert again.main([str(tmp_path), str(tmp_path / "missing")]) == (0 if tried else 1)
    assert capsys.readouterr().out.split("\n")[:-1] == (sorted(failed) if tried else [])


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_the_half_in_the_background_too(python: str, tmp_path: Path, name: str) -> None:
    # A shell's children in the background ignore interrupts; pytest does not: tests/conftest.py takes that back.
    ended, begun = tmp_path / "ended", tmp_path / "begun"
    waiting = f'exec python3 -c \'import signal; signal.signal(2, signal.default_int_handler)\ntry: open("{begun}", "w"); signal.pause()\nexcept KeyboardInterrupt: open("{ended}", "w")\''  # noqa: E501
    env = {**os.environ, "DO_SLURM": waiting, "DO_OTHER": f"while [ ! -e {begun} ]; do :; done; exec sleep 30"}
    script = subprocess.Popen(
        ["sh", SCRIPT, python], env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        await_true(begun.exists)
        os.killpg(script.pid, getattr(signal, name))
        assert script.wait(timeout=200) == 128 + getattr(signal, name)
        if name == "SIGINT":
            await_true(ended.exists)
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait()
