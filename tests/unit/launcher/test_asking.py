"""In a terminal Ctrl-C asks what is to become of the runs."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_hydra.sweep.status import look
from hpc_hydra.sweep.store import open_sweep

from .conftest import ROOT, App

SLEEPER = """\
import hydra, pathlib, time
@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
if __name__ == "__main__":
    main()
"""


class Terminal:
    def __init__(self, app: App, *args: str) -> None:
        (app.folder / "app.py").write_text(SLEEPER)
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "app.py", "-m", "scheduler=local", *args],
            cwd=app.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = b""

    def await_text(self, wanted: bytes, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        seen = len(self.text)
        while wanted not in self.text[seen:]:
            assert time.monotonic() < end, self.text
            if select.select([self.master], [], [], 0.5)[0]:
                self.text += os.read(self.master, 65536)

    def end(self) -> int:
        while True:
            try:
                chunk = os.read(self.master, 65536)
            except OSError:
                break
            if not chunk:
                break
            self.text += chunk
        os.close(self.master)
        return self.process.wait(timeout=200)


@pytest.mark.parametrize(("answer", "code"), [(b"c\n", 130), (b"w\n", 0)])
def test_the_answer_to_the_question_after_ctrl_c_decides(app: App, answer: bytes, code: int) -> None:
    terminal = Terminal(app)
    terminal.await_text(b"running")
    terminal.process.send_signal(signal.SIGINT)
    terminal.await_text(b"[w]ait on?")
    for no_answer in (b"what", b"d"):  # nothing on this machine can be left running
        os.write(terminal.master, no_answer + b"\n")
        terminal.await_text(b"[w]ait on?")
        assert b"'%b' is none of cancel, wait" % no_answer in terminal.text
    os.write(terminal.master, answer)
    if code == 0:
        terminal.await_text(b"running")
        (app.folder / "go").touch()
    assert terminal.end() == code, terminal.text
    assert b"job0.0" in terminal.text and b"1 run: " in terminal.text
    [root] = (app.folder / "multirun").glob("*/*")
    [view] = look(open_sweep(root))
    assert view.word == ("cancelled" if code else "completed"), view
    assert b"etach" not in terminal.text and b"left running" not in terminal.text


def test_the_question_goes_when_there_is_nothing_left_to_ask_about(app: App) -> None:
    terminal = Terminal(app)
    terminal.await_text(b"running")
    terminal.process.send_signal(signal.SIGINT)
    terminal.await_text(b"[w]ait on?")
    (app.folder / "go").touch()
    assert terminal.end() == 0, terminal.text
    assert b"all runs have ended meanwhile" in terminal.text


def test_the_second_ctrl_c_leaves_at_once(app: App) -> None:
    terminal = Terminal(app)
    terminal.await_text(b"running")
    terminal.process.send_signal(signal.SIGINT)
    terminal.await_text(b"[w]ait on?")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert b"left at once" in terminal.text and b"job0.0" in terminal.text
    [root] = (app.folder / "multirun").glob("*/*")
    [view] = look(open_sweep(root))
    assert view.word == "cancelled", view
    end = time.monotonic() + 200
    while running(str(app.folder)):
        assert time.monotonic() < end, running(str(app.folder))
        time.sleep(0.05)


def running(where: str) -> list[str]:
    """Processes whose command line or environment names this directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if where.encode() in text and int(process.name) != os.getpid():
                found.append(text.decode(errors="replace")[:100])
    return found
