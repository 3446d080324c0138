"""What is kept of the command line, and what ranks cannot repeat. What ranks see: tests/scenarios/test_programs.py."""

from __future__ import annotations

import json
import os

import pytest

from hpc_hydra.hydra_compat import command_line
from hpc_hydra.launcher import program
from hpc_hydra.launcher.typed_command import parse

from .conftest import APP, ROOT, App

COMMANDS = {
    "train.py -m x=1": ("script", "train.py", ["train.py", "-m", "x=1"]),
    "-O -X dev -Wignore ./train.py": ("script", "./train.py", ["./train.py"]),
    "-uX utf8 -W error /x/app -c": ("script", "/x/app", ["/x/app", "-c"]),
    "-m pk.train -m": ("module", "pk.train", ["-m", "-m"]),
    "-Ium pk -c x": ("module", "pk", ["-m", "-c", "x"]),
    "-mpk x": ("module", "pk", ["-m", "x"]),
    "-c pass -m": ("-c", "pass", ["-c", "-m"]),
    "-Ocpass x": ("-c", "pass", ["-c", "x"]),
    "--check-hash-based-pycs always a.py b": ("script", "a.py", ["a.py", "b"]),
    "-- -odd.py x": ("script", "-odd.py", ["-odd.py", "x"]),
    "- -m x=1": ("-", "", ["-", "-m", "x=1"]),
    "-i": ("-", "", [""]),
    "": ("-", "", [""]),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_line_is_taken_apart_as_the_interpreter_does(words: str) -> None:
    typed = parse(["python", *words.split()])
    assert (typed.kind, typed.target, list(typed.argv)) == COMMANDS[words]
    assert typed.unbuffered == (words in ("-uX utf8 -W error /x/app -c", "-Ium pk -c x"))


def test_a_debugger_is_refused_with_what_debugs_a_rank(app: App) -> None:
    under_pdb = ["-m", "pdb", "-c", "continue", "app.py", "-m", "scheduler=local"]
    refused = app.python(*under_pdb)
    assert "pdb" in refused.stderr and "launch.debug=true" in refused.stderr, refused
    assert not (app.folder / "multirun").exists()
    assert "x is 0" in app.python(*under_pdb, "launch.debug=true").stdout


def test_flags_umask_and_a_start_that_is_not_certain(app: App) -> None:
    """The script has no relative path, and the directory is neither the parent's nor that of the shell."""
    (app.folder / "app.py").write_text("import os\nos.chdir('..')\n" + APP)
    words = ["-m", "scheduler=local", "launch.setup_only=true", "hydra.sweep.dir=sweep"]
    old = os.umask(0o027)
    try:
        done = app.python("-X", "dev", "-W", "ignore", "-u", str(app.folder / "app.py"), *words, PWD="/")
    finally:
        os.umask(old)
    found = json.loads((app.folder.parent / "sweep" / ".hpc_hydra" / "program.json").read_text())
    assert [f for f in found["flags"] if f in ("-X", "dev")] == ["-X", "dev"] and {"-Wignore", "-u"} < {*found["flags"]}
    assert found["umask"] == 0o027
    assert f"ranks start in {app.folder.parent}" in done.stderr and found["arrived"] == str(app.folder.parent)


def test_a_command_line_of_our_own_declares_its_program() -> None:
    declared = program.Program("command", argv=("ls",))
    assert not command_line.at_command_line()
    with command_line.declare(declared):
        assert program.detect(print) is declared and command_line.at_command_line()
    assert program.detect(print).kind == "task"  # in a test run the program is a function


def test_a_checkout_is_put_on_the_path_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert program.package_path() == (str(ROOT),)
