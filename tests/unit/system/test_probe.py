"""The real probe: commands that are missing, fail or are slow, and a name service that does not answer."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from hpc_hydra.system import probe
from hpc_hydra.system.probe import Probe, Unanswered, full_name, read_file, run_command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command `ask` on the PATH; its text is the test's."""
    path = tmp_path / "ask"
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def test_command_that_is_missing_or_fails_has_no_answer(command: Path) -> None:
    assert run_command(["no-such-command"]) is None
    command.write_text("#!/bin/sh\necho half an answer\nexit 1\n")
    assert Probe().told(["ask"]) is None
    with pytest.raises(Unanswered, match="half an answer") as caught:
        run_command(["ask"])
    assert not caught.value.late
    command.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(Unanswered, match="exit code 3"):
        run_command(["ask"])


def test_command_that_does_not_answer_is_given_up(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "COMMAND_S", 0.1)
    command.write_text("#!/bin/sh\nexec sleep 600\n")
    assert Probe().told(["ask"]) is None
    with pytest.raises(Unanswered) as caught:
        run_command(["ask"])
    assert caught.value.late


def test_commands_are_not_narrowed_by_the_users_own_variables(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINFO_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    command.write_text('#!/bin/sh\necho "$SINFO_PARTITION|$SLURM_CONF|$LC_ALL|$*"\n')
    assert run_command(["ask", "a b"]) == "|/etc/here.conf|C|a b\n"


def test_name_service_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(probe, "NAME_SERVICE_S", 0.05)
    monkeypatch.setattr(socket, "gethostname", lambda: "login05")
    monkeypatch.setattr(socket, "getfqdn", lambda _: str(released.wait(60)) + ".too.late")
    assert full_name() is None
    released.set()


@pytest.mark.parametrize(
    ("host", "answer", "name"),
    [
        ("login05", "login05.frontier.olcf.ornl.gov", "login05.frontier.olcf.ornl.gov"),
        ("login05.frontier.olcf.ornl.gov", "never asked", "login05.frontier.olcf.ornl.gov"),
        ("vm", "localhost", None),
        ("vm", "localhost.localdomain", None),
        ("vm", "vm", None),
    ],
)
def test_full_name(host: str, answer: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getfqdn", lambda _: answer)
    assert full_name() == name


def test_files_that_cannot_be_read_are_not_there(tmp_path: Path) -> None:
    assert read_file(str(tmp_path / "none")) is None
    assert read_file(str(tmp_path)) is None
    (tmp_path / "name").write_bytes(b"juwels\xffbooster\n")
    assert read_file(str(tmp_path / "name")) == "juwels\N{REPLACEMENT CHARACTER}booster\n"


def test_an_answer_of_none_is_not_asked_again() -> None:
    asked: list[int] = []
    here = Probe()
    for _ in range(2):
        assert here.once("question", lambda: asked.append(1)) is None
    assert asked == [1]
