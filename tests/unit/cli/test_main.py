"""The dispatcher: help, version, unknown commands, errors as messages."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_hydra.cli.main import COMMANDS, main
from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.temporary import shared_directory
from hpc_hydra.processes import user_name
from hpc_hydra.ui import streams


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_what_was_lost_before_a_command_is_not_its_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with streams.spoken():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert main(["--version"]) == 0


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchrum"]) == 2
    assert capsys.readouterr().err == "hpc-hydra: unknown command 'torchrum'\n  Try: hpc-hydra torchrun\n"
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err.startswith(
        "hpc-hydra: unknown command 'xyzzy'\n  Try: hpc-hydra COMMAND; commands are"
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hpc-hydra ")


def test_an_error_is_one_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchrun", "-N", "x", "t.py"]) == 2
    assert capsys.readouterr().err == "hpc-hydra torchrun: -N: expects a whole number, 1 or more, got 'x'\n"


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"run", "torchrun", "completion"}))
def test_an_empty_word_is_not_taken_for_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`hpc-hydra cancel "$SWEEP"` must not cancel the newest sweep because SWEEP is not set."""
    assert main([name, ""]) == 2
    assert "an argument is empty\n  Try: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["status", "list"])
def test_the_home_directory_of_no_user(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "~nobody-of-this-name"]) == 2
    assert "~nobody-of-this-name" in capsys.readouterr().err


def test_without_a_home_directory_nothing_is_remembered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["a user without an entry, as in a container"])
    assert main(["list"]) == 0 and "no sweeps" in capsys.readouterr().out
    assert main(["nodes"]) == 0 and main(["systems"]) == 0
    assert main(["run", "scheduler=slurm", "launch.dry_run=true", "--", "true"]) == 0


def test_a_user_without_a_name_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["a user without an entry, as in a container"])
    monkeypatch.chdir(tmp_path)
    words = ["scheduler=slurm", "launch.dry_run=true", "launch.launch_dir=d", "logging.out='{user}.log'"]
    assert main(["run", *words, "--", "true"]) == 0
    assert user_name() == str(os.getuid())
    monkeypatch.setattr("hpc_hydra.launcher.temporary.make", _refuse)
    with pytest.raises(ConfigError, match="neither the current directory nor your home directory"):
        shared_directory("slurm")


def _refuse(*_: object) -> None:
    raise PermissionError


@pytest.mark.parametrize(
    ("words", "advice"),
    [(["list", "--wrong"], "--help"), (["checkpoint", "--wait", "0"], '"MM:SS"')],
)
def test_advice_can_be_followed(words: list[str], advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"Try: {advice}" in capsys.readouterr().err


def test_what_the_system_refuses_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "a" * 300]) == 2
    assert capsys.readouterr().err == f"hpc-hydra status: {'a' * 300}: File name too long\n"
