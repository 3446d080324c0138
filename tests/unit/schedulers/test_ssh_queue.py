"""The queue over hosts: a host that is lost gets no further runs, and what needs it says so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.base import JobStatus, State
from hpc_hydra.schedulers.ssh import queue
from hpc_hydra.schedulers.ssh.adapter import Ssh
from tests.unit.schedulers.specs import request, spec

HOSTS = ("a", "b", "c")
SCRIPT = 'echo "$1 $2" >>at; case ",$2," in *,b,*) exit 255 ;; esac; [ "$1" != 9 ] || exit 255'


class Bench:
    """Hosts of which b dies with the first run that it gets; scripts run here, and say where."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / ".hpc_hydra" / "jobs"
        self.log.mkdir(parents=True)
        self.script = folder / "job.sh"
        self.script.write_text(SCRIPT)
        gone = "echo 'ssh: connect to host b port 22: Connection refused' >&2; exit 255"
        (folder / "ssh").write_text(
            f'#!/bin/sh\ncase "$*" in *" -- b "*) [ ! -e {folder}/at ] || {{ {gone}; }} ;; esac\n'
        )
        (folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        self.queue = queue.SshSubmitter(Ssh())

    def submit(self, *runs: int, **fields: Any) -> tuple[str, ...]:
        asked = request(scheduler="ssh", hosts=HOSTS, **fields)
        key = f"job{runs[0]}"
        made = spec(asked, runs=runs, root=self.folder, workdir=self.folder, key=key, log=self.log)
        return self.queue.submit(made, self.script)

    def ended(self, ids: tuple[str, ...]) -> list[JobStatus]:
        end = time.monotonic() + 200
        while True:
            said = list(self.queue.poll(ids).values())
            if all(one.state.is_finished for one in said):
                return said
            assert time.monotonic() < end, said
            time.sleep(0.02)

    @property
    def at(self) -> list[str]:
        return [line.split()[1] for line in (self.folder / "at").read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_no_further_run_goes_to_a_host_that_is_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    said = bench.ended(bench.submit(*range(8)))
    assert [one.state for one in said].count(State.FAILED) == 1
    assert bench.at.count("b") == 1 and set(bench.at) <= set(HOSTS)
    assert (
        "b: it cannot be reached by ssh (ssh: connect to host b port 22: Connection refused); it gets no" in caplog.text
    )


def test_a_run_that_needs_it_fails_by_name_and_others_continue(bench: Bench) -> None:
    first, second = bench.ended(bench.submit(0, 1, nodes=3))
    assert (first.state, first.exit_code, second.state) == (State.FAILED, 255, State.FAILED)
    assert second.reason.startswith("it needs 3 hosts, but 2 are left (b: it cannot be reached by ssh (")
    assert bench.at == ["a,b,c"]
    (later,) = bench.ended(bench.submit(2, nodes=3))  # a further batch
    assert "2 are left" in later.reason
    assert bench.ended(bench.submit(3, nodes=2))[0].state is State.COMPLETED
    assert bench.at == ["a,b,c", "a,c"]


def test_an_exit_code_of_255_of_its_own_costs_no_host(bench: Bench) -> None:
    bench.answer = lambda host, words: None  # type: ignore[method-assign]
    bench.ended(bench.submit(9))
    assert bench.ended(bench.submit(10, nodes=3))[0].exit_code == 255  # it had all three


def test_a_time_limit_ends_a_run(bench: Bench) -> None:
    bench.script.write_text("exec sleep 600\n")
    (status,) = bench.ended(bench.submit(0, nodes=1, time_limit=1))
    assert status.state is State.TIMEOUT
