"""Completion of hpc-hydra in a real shell, and of a program with @hydra.main."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.cli import completion
from hpc_hydra.cli.main import COMMANDS, main
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.sweep import known

from .running import environment

TYPED = [
    ("hpc-hydra statu", "hpc-hydra status "),
    ("hpc-hydra run system=perlm", "hpc-hydra run system=perlmutter "),
    ("hpc-hydra run resources.nod", "hpc-hydra run resources.nodes="),
    ("hpc-hydra doctor --max", "hpc-hydra doctor --max-size "),
    ("hpc-hydra systems tuolum", "hpc-hydra systems tuolumne "),
    ("hpc-hydra run -- trai", "hpc-hydra run -- train.py "),
    ("hpc-hydra status multi", "hpc-hydra status multirun/7 "),
    ("hpc-hydra status my", "hpc-hydra status my\\ runs/7 "),
    ("hpc-hydra status my\\ r", "hpc-hydra status my\\ runs/7 "),
    ("hpc-hydra torchrun --verb", "hpc-hydra torchrun --verbose "),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script and a sweep, and the command on PATH."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hpc-hydra"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpc_hydra.cli "$@"\n')
    command.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(here)
    for folder in ("my runs", "multirun"):
        paths = SweepPaths(here / folder / "7")
        paths.meta.mkdir(parents=True)
        paths.program.write_text("{}")
        known.remember(paths.root)
    return here


class Terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        self.master, slave = pty.openpty()
        env = environment(TERM="dumb", PS1="$ ", INPUTRC="/dev/null", HISTFILE="/dev/null")
        self.process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def read_until(self, wanted: str) -> str:
        """Read until some text appears. Raises `AssertionError` with what was read."""
        text, end = "", time.monotonic() + 200
        while wanted not in text:
            assert select.select([self.master], [], [], max(0.0, end - time.monotonic()))[0], (wanted, text)
            text += os.read(self.master, 65536).decode(errors="replace")
        return text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def bash(place: Path) -> Iterator[Terminal]:
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], place)
    yield terminal
    terminal.close()


def test_a_real_bash_completes_what_is_typed(bash: Terminal) -> None:
    bash.send("shopt -s failglob\n")  # descriptions are no patterns
    bash.send('bind "set enable-bracketed-paste off"; eval "$(hpc-hydra completion bash)"; complete -p hpc-hydra\n')
    assert bash.read_until("-F _hpc_hydra hpc-hydra")
    for typed, line in TYPED:
        bash.send(f"{typed}\t#\x01echo '<\x05>'\n")  # to the beginning of the line, and back to its end
        assert bash.read_until(f"<{line}#>\r\n"), typed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_valid(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = place / f"complete.{shell}"
    script.write_text(capsys.readouterr().out)
    if program := shutil.which(shell):
        done = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hpc-hydra ", [*COMMANDS]),
        ("hpc-hydra completion ", ["bash", "zsh", "fish"]),
        ("hpc-hydra run launch.bg=", ["launch.bg=true", "launch.bg=false"]),
        ("hpc-hydra run launch.on_failure=", ["launch.on_failure=continue", "launch.on_failure=stop"]),
        ("hpc-hydra keys resources.nod", ["resources.nodes"]),
        ("hpc-hydra run +rendezvous=t", ["+rendezvous=tcp", "+rendezvous=torchft", "+rendezvous=torchrun"]),
        ("hpc-hydra run -cd conf system=mi", ["system=mine"]),
        ("hpc-hydra run -- --", []),
        ("hpc-hydra run -cd ", []),
        ("hpc-hydra nonsense ", []),
        ("hpc-hydra status 'multirun/", ["multirun/7"]),
        ("hpc-hydra status my\\ ", ["my\\ runs/7"]),
        ("hpc-hydra status 'my", ["my runs/7"]),
        ("hpc-hydra run ~launch.bg", ["~launch.bg="]),
        *[(f"hpc-hydra {words} ", []) for words in ("logs --rank", "logs -r", "report --port", "report -o", "run -cn")],
        ("hpc-hydra logs --follow m", ["multirun/7", "my\\ runs/7"]),
        ("hpc-hydra 'unfinished", []),
        ("", []),
    ],
)
def test_words_that_can_follow(line: str, words: list[str], place: Path) -> None:
    (place / "conf" / "system").mkdir(parents=True)
    (place / "conf" / "system" / "mine.yaml").touch()
    assert [word for word, _ in completion.complete(line)] == words


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_shell_reads_a_completed_word_as_it_is(quote: str, place: Path) -> None:
    name = 'odd $(touch PWNED) `touch PWNED` $HOME \\ "it\'s"'
    paths = SweepPaths(place / name)
    paths.meta.mkdir(parents=True)
    paths.program.write_text("{}")
    known.remember(paths.root)
    ((word, _),) = completion.complete(f"hpc-hydra status {quote}odd")
    done = subprocess.run(["bash", "-c", f"printf %s {quote}{word}{quote}"], capture_output=True, text=True, check=True)
    assert done.stdout == name and not (place / "PWNED").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_completes_its_options(command: str) -> None:
    assert "--help" in [word for word, _ in completion.complete(f"hpc-hydra {command} -")]


def test_a_wrong_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2 and "bash or zsh or fish" in capsys.readouterr().err


@pytest.mark.hydra
def test_hydras_own_completion_knows_our_groups_and_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text("defaults: [hpc, _self_]\n")
    (tmp_path / "app.py").write_text(
        "import atexit, sys, hydra\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "@hydra.main(version_base=None, config_path='.', config_name='conf')\n"
        "def main(cfg): ...\n"
        "main()\n"
    )
    line = "python app.py system=perlm"
    env = environment(COMP_LINE=line, COMP_POINT=str(len(line)))
    done = subprocess.run(
        [sys.executable, "app.py", "-sc", "query=bash"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["system=perlmutter"] and done.stderr.split()[-1] == "False", done
