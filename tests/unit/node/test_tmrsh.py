"""The ranks on the other hosts of a PBS job: their signals, and their output."""

from __future__ import annotations

import builtins
import signal
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.host_starter import Host
from hpc_hydra.schedulers.pbs.tmrsh import Tmrsh, program
from tests.fakes.commands import Fakes


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    program.cache_clear()
    return Fakes(tmp_path / "bin", monkeypatch)


def test_a_host_that_answers_late_delays_no_signal_to_another(commands: Fakes, tmp_path: Path) -> None:
    wait = f'[ "$1" != late ] || until [ -e {tmp_path}/other ]; do sleep 0.05; done'
    commands.put("pbs_tmrsh", f"{wait}\necho $5 > {tmp_path}/$1")
    hosts = {1 << 22: Host("late", 1, False), (1 << 22) + 1: Host("other", 2, False)}
    Tmrsh().signal(signal.SIGTERM, hosts, "/script")
    assert [(tmp_path / name).read_text() for name in ("late", "other")] == ["TERM\n", "TERM\n"]


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, BlockingIOError])
def test_output_that_cannot_be_read_at_first_is_not_lost(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script, hosts = str(tmp_path / "script"), [Host("n2", 1, False), Host("n3", 2, False)]
    Tmrsh().prepare(script, hosts)
    failing, real = [f"{script}.1.out"] * 2, builtins.open

    def opened(path: Any, *args: Any, **options: Any) -> Any:
        if path in failing:
            failing.remove(path)
            raise error(path)
        return real(path, *args, **options)

    monkeypatch.setattr(builtins, "open", opened)
    with Tmrsh().relaying(script, hosts):
        for host in hosts:
            Path(f"{script}.{host.number}.out").write_text(f"from {host.name}\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["from n2", "from n3"]
