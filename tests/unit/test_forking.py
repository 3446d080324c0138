"""A program that ``tests.forking`` forks is told what a new interpreter tells it, and ends as it would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking

TELL = """\
import atexit, json, os, signal, sys, threading
atexit.register(print, "at exit")
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
path = [part for part in sys.path if part]
told = {
    "argv": sys.argv, "orig": sys.orig_argv, "name": __name__, "file": globals().get("__file__"), "first": sys.path[0],
    "path": path, "main": sys.modules["__main__"].__dict__ is globals(), "cwd": os.getcwd(),
    "env": sorted(os.environ.items()), "input": sys.stdin.read(), "signals": [
        str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ], "spec": getattr(__spec__, "name", None), "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
}
print(json.dumps(told))
print("é error", file=sys.stderr)
"""
ENDS = {
    "well": "",
    "code": "sys.exit(3)",
    "words": "sys.exit('why')",
    "exception": "raise ValueError('boom')",
    "at once": "os._exit(4)",
    "signal": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGTERM)",
}


def both(words: list[str], folder: Path, **env: str) -> list[tuple[int, str, str]]:
    """Exit code, output and last line of the errors of a program that is started, and forked."""
    argv, env = [sys.executable, *words], {**os.environ, "PYTHONPATH": str(forking.ROOT), **env}
    started = subprocess.run(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    forked = forking.run(argv, env=env, cwd=folder)
    return [(done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]) for done in (started, forked)]


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_as_it_would(tmp_path: Path, end: str) -> None:
    (tmp_path / "tell.py").write_text(TELL + ENDS[end])
    started, forked = both(["tell.py", "a b", ""], tmp_path, MINE="é x")
    assert forked == started


STARTS = {"module": ["-m", "pkg.tell", "-x"], "code": ["-c", TELL, "x"], "folder": ["sub/tell.py"], "none": ["no.py"]}


@pytest.mark.parametrize("words", STARTS.values(), ids=STARTS)
def test_a_forked_program_behaves_as_one_started_by_each_form_of_command(tmp_path: Path, words: list[str]) -> None:
    for folder in ("pkg", "sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tell.py").write_text(TELL)
    started, forked = both(words, tmp_path)
    assert forked == started


def test_forked_programs_share_no_state(tmp_path: Path) -> None:
    code = "import hydra, sys; print(hasattr(hydra, 'mine'), 'torch' in sys.modules); hydra.mine = 1"
    for _ in range(2):
        assert both(["-c", code], tmp_path) == [(0, "False False\n", "")] * 2


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired):
        forking.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(forking.ROOT)}, cwd=tmp_path, timeout=5
        )
