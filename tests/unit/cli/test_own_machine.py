"""The file of a machine of one's own: the same by its name and recognised; a word that nobody reads is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.system.index import signs
from hpc_hydra.system.probe import here

SLURM = "override /scheduler: slurm"
FACTS = "{name: atlas, cores_per_node: 8, gpus_per_node: 0, scheduler: slurm, hostnames: ['.*']}"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the file goes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in ("SLURM_JOB_ID", "SBATCH_ACCOUNT", "SALLOC_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "xdg" / "hpc_hydra" / "system"
    folder.mkdir(parents=True)
    here.cache_clear()
    signs.cache_clear()
    yield folder
    here.cache_clear()
    signs.cache_clear()


def dry_run(own: Path, defaults: str, text: str, *further: str, base: str = "") -> int:
    body = f"# @package _global_\ndefaults: [{{{defaults}}}, _self_]\n{text}\nsystem: {FACTS}\n"
    (own / "atlas.yaml").write_text(body)
    if base:
        (own / "base.yaml").write_text(f"# @package _global_\n{base}\n")
        (own / "atlas.yaml").write_text(body.replace("[{", "[base, {"))
    return main(["run", "resources.nodes=1", "launch.dry_run=true", *further, "--", "true"])


BOTH = pytest.mark.parametrize("chosen", ["system=atlas", "system=auto"])


@BOTH
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schedulr: {account: a}", ("atlas.yaml", "schedulr", "scheduler")),
        ("resource: {time_limit: 1h}", ("atlas.yaml", "resource", "resources")),
        ("scheduler: {acount: a}", ("scheduler.acount", "scheduler.account")),
        ("launch: {envs: {A: b}}", ("launch.envs", "launch.env")),
    ],
)
def test_a_misspelt_word_is_an_error_with_the_nearest(
    own: Path, text: str, words: tuple[str, ...], chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(own, SLURM, text, chosen) == 2
    said = capsys.readouterr()
    assert all(word in said.err for word in words), said.err
    assert said.out == ""


def test_a_misspelt_word_in_the_file_that_a_machine_extends_is_an_error(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(own, SLURM, "", "system=atlas", base="schedulr: {account: a}") == 2
    assert "base.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("chosen", ["system=frontier", "scheduler=local system=local"])
def test_a_file_that_is_not_in_use_stops_nothing(own: Path, chosen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(own, SLURM, "schedulr: {account: a}", *chosen.split()) == 0


@BOTH
def test_the_groups_beside_the_facts_hold(own: Path, chosen: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "scheduler: {account: mine}\nresources: {time_limit: 90m}\nlaunch: {env: {A: b}}\nmine: {lr: 1}"
    assert dry_run(own, SLURM, text, chosen, "resources.cpus_per_proc=2") == 0
    said = capsys.readouterr().out
    assert "--account=mine" in said and "--time=01:30:00" in said and re.search(r"^A +b +launch.env", said, re.M), said
    assert dry_run(own, SLURM, text, chosen, "scheduler.account=other") == 0
    assert "--account=other" in capsys.readouterr().out


def test_a_choice_of_a_group_that_recognition_cannot_make_is_an_error(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults = f"{SLURM}}}, {{override /rendezvous: torchrun"
    assert dry_run(own, defaults, "", "system=auto") == 2
    assert "rendezvous=torchrun" in (said := capsys.readouterr().err) and "system=atlas" in said
    assert dry_run(own, defaults, "", "system=atlas") == 0


def test_a_time_without_quotes_is_caught(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(own, SLURM, "resources: {time_limit: 1:30:00}", "system=atlas") == 2
    assert "atlas.yaml, line 3" in capsys.readouterr().err
    assert dry_run(own, SLURM, "resources: {time_limit: 1:30:00}", "system=auto") == 0  # it is read as a text
    assert "1h30m" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "shell"])
def test_a_time_without_quotes_in_ones_own_configuration_is_caught(
    own: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\nresources:\n  time_limit: 1:30:00\n")
    words = ["run", "--config-dir", str(tmp_path), "--config-name", "config", "launch.dry_run=true", "--", "true"]
    if command == "shell":
        words = ["shell", "launch.dry_run=true", "scheduler=slurm", "resources.time_limit=1:30"]
    assert main(words) == (2 if command == "run" else 0)
    if command == "run":
        assert "config.yaml, line 3" in capsys.readouterr().err
