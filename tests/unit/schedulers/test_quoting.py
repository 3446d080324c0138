"""A value reaches the ranks byte for byte, and never executes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers.job_script import command, comment, export, quote

VALUES = [
    "a b  c", "it's", 'say "hi"', "$HOME", "$(touch PWNED)", "`id`", "a;b&c|d>e", "(0.9, 0.95)", "*", "~",
    "back\\slash", "ends in \\", "tab\tx", "x=y,z", "#notcomment", "%j", "-x --flag", "", "null", "line\nbreak",
    "\n#SBATCH --nodes=9", "\n#BSUB -x", "\r\n", "é 東京", "\u00a0nbsp", "a\x01b\x7f", "!!", "${A[0]}", "{a,b}", "'\n'",
    "bytes \udce9\udcff",
]  # fmt: skip


def printed_by(script: str, cwd: Path) -> bytes:
    done = subprocess.run(["bash", "-c", os.fsencode(script)], cwd=cwd, capture_output=True, check=True)
    return done.stdout


@pytest.mark.parametrize("value", VALUES)
def test_an_argument_arrives_unchanged(value: str, tmp_path: Path) -> None:
    text = command([sys.executable, "-c", "import os, sys; os.write(1, os.fsencode(sys.argv[1]))", value])
    assert "\n" not in text
    assert printed_by(text, tmp_path) == os.fsencode(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", VALUES)
def test_a_variable_arrives_unchanged(value: str, tmp_path: Path) -> None:
    lines = list(export(EnvVar("A", value, mode="force", why=value, origin=value)))
    assert not any("\n" in line for line in lines)
    probe = command([sys.executable, "-c", "import os; os.write(1, os.environb[b'A'])"])
    assert printed_by("\n".join([*lines, probe]), tmp_path) == os.fsencode(value)
    assert not list(tmp_path.iterdir())


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_any_text_is_one_word_of_one_line(value: str) -> None:
    text = quote(value)
    assert "\n" not in text
    assert subprocess.run(["bash", "-c", f"printf %s {text}"], capture_output=True).stdout == value.encode()


def test_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="NUL"):
        quote("a\0b")


@pytest.mark.parametrize(
    "text", ["flux: -N9", "  FLUX: -N9", "SBATCH --nodes=9", "BSUB -x", "a\n#SBATCH -N9", "a\r\n\u2028flux: -N9"]
)
def test_a_comment_is_one_line_and_no_directive(text: str) -> None:
    line = comment(text)
    assert len(line.splitlines()) == 1
    assert not line.lower().startswith(("# flux", "# sbatch", "# bsub", "#sbatch", "#bsub"))


def test_a_default_does_not_win_over_the_shell() -> None:
    script = "\n".join([*export(EnvVar("A", "preset")), *export(EnvVar("B", "preset")), 'echo "$A|$B"'])
    done = subprocess.run(["bash", "-c", script], env={"A": ""}, capture_output=True, text=True)
    assert done.stdout == "|preset\n"


@pytest.mark.parametrize(("before", "after"), [({}, "new dir"), ({"A": ""}, "new dir"), ({"A": "old"}, "new dir:old")])
def test_a_prepended_value_stands_before_the_old_one(before: dict[str, str], after: str) -> None:
    script = "\n".join([*export(EnvVar("A", "new dir", mode="prepend")), 'echo "$A"'])
    done = subprocess.run(["bash", "-c", script], env=before, capture_output=True, text=True)
    assert done.stdout == f"{after}\n"


@pytest.mark.parametrize(
    "var",
    [
        EnvVar("A", "x\n#SBATCH -N9", when=(("plugin", "librccl-net.so"),)),
        EnvVar("A", "/tmp/{user}\nfalse", expand=True),
    ],
)
def test_what_a_node_decides_is_only_shown(var: EnvVar) -> None:
    lines = list(export(var))
    assert all(line.startswith("# set on the node") and "\n" not in line for line in lines)


@pytest.mark.parametrize("name", ["A-B", "1A", "", "A B", "A=B", "É", "A\n"])
def test_a_name_that_bash_cannot_export_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a variable name"):
        list(export(EnvVar(name, "x")))
