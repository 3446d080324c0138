"""A dry run tells where each value comes from, and what a site requires; a submission without it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.system.probe import here

pytestmark = pytest.mark.hydra

RUN = ("run", "-m", "-cd", "conf", "system=frontier")


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with a configuration, a person's defaults, and a shell without a scheduler."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HPC_HYDRA_DEFAULTS", str(tmp_path / "mine.yaml"))
    Path("mine.yaml").write_text("frontier: {scheduler: {mail_user: me@example.org}, launch: {env: {A: b}}}\n")
    Path("conf").mkdir()
    Path("conf/config.yaml").write_text("defaults: [hpc, _self_]\nresources:\n  time_limit: 1h\nlr: 0\n")
    here.cache_clear()
    yield
    here.cache_clear()


def places(text: str) -> dict[str, tuple[str, str]]:
    """The rows of the tables: directive or variable → key, place."""
    rows = (re.split(r" {2,}", line) for line in text.splitlines())
    return {row[0]: (row[-2], row[-1]) for row in rows if len(row) in (3, 4)}


def test_each_value_has_the_key_and_the_place_that_sets_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "abc123")
    words = ("resources.nodes=2,4", "scheduler.extra={nice: 5}", "launch.env.B=c", "--", "true")
    assert main([*RUN, "launch.dry_run=true", *words]) == 0
    text = capsys.readouterr().out
    found = places(text)
    assert found["--nodes"] == ("resources.nodes", "command line")
    assert found["--time"] == ("resources.time_limit", "conf/config.yaml:3")
    assert found["--account"] == ("scheduler.account", "$SBATCH_ACCOUNT of your shell")
    assert found["--mail-user"] == ("scheduler.mail_user", "mine.yaml: frontier")
    assert found["--nice"] == ("scheduler.extra.nice", "command line")
    assert found["--no-requeue"] == ("launch.max_requeues", "default")
    assert found["--open-mode"][1] == "a requeued job continues its log"
    system = r"system/frontier\.yaml:\d+"
    assert found["--partition"][0] == "system.default_queue" and re.fullmatch(system, found["--partition"][1])
    assert found["--network"][0] == "system.submit_args.network" and re.fullmatch(system, found["--network"][1])
    key, place = found["--ntasks-per-node"]
    assert key == "resources.procs_per_node" and re.fullmatch(f"system.gpus_per_node: {system}", place)
    assert found["A"] == ("launch.env.*", "mine.yaml: frontier") and found["B"] == ("launch.env.*", "command line")
    assert found["NCCL_NET"][0] == "system.env.*" and re.fullmatch(system, found["NCCL_NET"][1])
    assert text.count("[1] https://docs.olcf.ornl.gov") == 1  # each source once, not with each variable
    assert text.count("#!/bin/bash") == 1 and {"-#SBATCH --nodes=2", "+#SBATCH --nodes=4"} < set(text.splitlines())


@pytest.mark.parametrize("mode", ["-m", "launch.bg=false", "launch.bg=true"])
def test_the_command_line_goes_before_the_persons_defaults(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if it types the value that a key has by default."""
    mine = "{resources: {mem_per_node: 1G, time_limit: 1h, exclusive: true}, launch: {env: {A: b}}}"
    Path("mine.yaml").write_text(f"frontier: {mine}\n")
    typed = ["resources.mem_per_node=null", "resources.time_limit=null", "resources.exclusive=false", "launch.env={}"]
    words = ["system=frontier", "scheduler.account=a", "resources.nodes=2", "launch.dry_run=script", "--", "true"]
    assert main(["run", mode, *words]) == 0
    filled = capsys.readouterr().out
    assert main(["run", mode, *typed, *words]) == 0
    bare = capsys.readouterr().out
    for line in ("#SBATCH --mem=1024M", "#SBATCH --time=01:00:00", "#SBATCH --exclusive", "export A=b"):
        assert line in filled and line not in bare


@pytest.mark.parametrize("system", ["frontier", "tuolumne"])
@pytest.mark.parametrize("mode", ["-m", "launch.bg=false"])
def test_files_of_the_ranks_are_not_the_log_of_the_job(
    mode: str, system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [mode, f"system={system}", "scheduler.account=a", "resources.nodes=2", "resources.time_limit=1h"]
    files = ["logging.out='{job_id}.out'", "logging.err=/logs/err", "launch.launch_dir=kept"]
    assert main(["run", *words, *files, "launch.dry_run=true", "--", "true"]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"  logging\.out +", text)
    assert mode != "-m" or "the log of the job script" in text
    folder = tmp_path / "kept" / ("0" if mode == "-m" else "")
    assert f"  run 0: {folder}/{{job_id}}.out (logging.out), /logs/err (logging.err)\n" in text


@pytest.mark.parametrize(("system", "directive"), [("tuolumne", "--setattr"), ("lassen", "-G"), ("polaris", "-A")])
def test_an_account_is_found_on_every_scheduler(
    system: str, directive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"system={system}", "scheduler.account=abc123", "resources.nodes=10", "launch.dry_run=true", "--", "true")
    assert main([*RUN[:4], *words]) == 0
    rows = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if len(row) == 4 and row[1].endswith("abc123")] == [directive]
    found = {tuple(row[-2:]) for row in rows if len(row) == 4}
    assert {("scheduler.account", "command line"), ("resources.nodes", "command line")} < found
    assert ("resources.time_limit", "conf/config.yaml:3") in found


def test_packed_runs_show_the_variables_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("launch.pack=2", "resources.procs_per_node=2,4", "launch.env.C=1,2", "launch.dry_run=true", "--", "true")
    assert main([*RUN, *words]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^C +(\d) +launch\.env\.\* +command line$", text, re.MULTILINE) == ["1", "2"]
    assert text.count("#!/bin/bash") == 2  # of the allocation, and of a run


def test_the_size_of_an_allocation_for_packed_runs_comes_from_packing(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("resources.procs_per_node=1", "resources.cpus_per_proc=2", "resources.gpus_per_proc=1", "lr=0,1")
    assert main([*RUN, *size, "resources.nodes=1", "launch.pack=2", "launch.dry_run=true", "--", "true"]) == 0
    found = places(capsys.readouterr().out)
    packing = ("launch.pack", "command line")
    assert [found[f"--{name}"] for name in ("ntasks-per-node", "cpus-per-task", "gpus-per-node")] == [packing] * 3
    assert found["--nodes"] == ("resources.nodes", "command line")  # both fit on one node
    assert main([*RUN, *size, "resources.nodes=1", "launch.pack=null", "launch.dry_run=true", "--", "true"]) == 0
    assert places(capsys.readouterr().out)["--cpus-per-task"] == ("resources.cpus_per_proc", "command line")


def test_a_site_requires_an_account(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("conf/config.yaml").write_text("defaults: [hpc, _self_]\n")
    assert main([*RUN, "launch.dry_run=true", "scheduler.queue=bach", "--", "true"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: scheduler.account is not set, and frontier requires it (" in said
    assert "note: resources.time_limit is not set, and frontier requires it (" in said
    assert "scheduler.queue=bach is none of those known of frontier" in said
    assert main([*RUN, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "scheduler.account and resources.time_limit: frontier requires them" in said
    assert "Try: scheduler.account=PROJECT resources.time_limit=1h" in said
    assert not Path("multirun").exists()
    monkeypatch.setenv("SBATCH_ACCOUNT", "abc123")
    here.cache_clear()
    for words in (["resources.time_limit=1h"], ["system.requires.time_limit=null"], ["scheduler.extra.time=10"]):
        assert main([*RUN, *words, "--", "true"]) == 2
        assert "sbatch" in capsys.readouterr().err  # the next that is missing: the scheduler


def test_commands_are_filled_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--fill", "launch.dry_run=true", "lr=0.1,0.2", "launch.launch_dir=here")
    assert main([*RUN, *words, "--", "train", "{lr}", "{rank}", "{world_size}", "{output_dir}"]) == 0
    found = re.findall(r"^  run (\d): (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert found == [(str(num), f"train 0.{num + 1} '{{rank}}' 8 {Path('here').absolute()}/{num}") for num in (0, 1)]
