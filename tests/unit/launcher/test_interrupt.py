"""The first signal is noted, the second one ends the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hpc_hydra.launcher.interrupt import Interrupts

from .conftest import ROOT

PROGRAM = """\
from hpc_hydra.launcher.interrupt import Interrupts
with Interrupts(lambda: "leaving\\n") as interrupts:
    print("ready", flush=True)
    interrupts.wait(200)
    print(interrupts.received.name, flush=True)
    interrupts.pause(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_wait_ends_early_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts.wait(0.01)
        os.kill(os.getpid(), number)
        start = time.monotonic()
        assert interrupts.wait(200) and interrupts.received is number
        assert time.monotonic() - start < 40
        interrupts.again()
        assert interrupts.received is None and not interrupts.wait(0.01)
    assert signal.getsignal(number) is before


def test_the_second_signal_leaves_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "leaving\n"
        assert process.wait(timeout=120) == 130


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.wait(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)
