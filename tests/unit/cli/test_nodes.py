"""Bad nodes are listed, forgotten, and left out of new jobs where that is possible."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.cli.completion import complete
from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.bad_nodes import BadNode, record_bad_node, remembered
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.system.probe import here

FACTS = ("system.cores_per_node=4", "system.gpus_per_node=0", "resources.cpus_per_proc=1")


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory, a state directory and a shell without a scheduler."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "400")
    Path("train.py").touch()
    here.cache_clear()
    yield
    here.cache_clear()


def bad(
    *hosts: str,
    scheduler: str = "slurm",
    system: str = "unknown",
    cluster: str = "",
    age: float = 3700,
    reason: str = "",
) -> Path:
    """Record nodes as bad, in a sweep of their own."""
    paths = SweepPaths(Path.cwd() / f"sweep-{system}")
    paths.meta.mkdir(parents=True, exist_ok=True)
    paths.plans.write_text(json.dumps({"plan0": to_json(Plan(system, Request(scheduler, 2, 1)))}))
    for number, host in enumerate(hosts):
        node = BadNode(host, reason or f"fault {number}", time.time() - age + number, "preflight")
        record_bad_node(paths.root, scheduler, node, cluster=cluster)
    return paths.root


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the output of a dry run, without repeated blanks."""
    capsys.readouterr()
    assert main(["run", "-m", *FACTS, "launch.dry_run=true", "resources.nodes=2", *words, "--", "train.py"]) == 0
    captured = capsys.readouterr()
    return "\n".join(" ".join(line.split()) for line in (captured.err + captured.out).splitlines())


def test_nodes_are_listed_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes"]) == 0 and capsys.readouterr().out == "no bad nodes are remembered\n"
    sweep = bad("node03", "node07", system="frontier")
    bad("node03", system="polaris", cluster="test", age=60)
    assert main(["nodes"]) == 0
    titles, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert titles == ["host", "system", "found", "until", "reason"]
    assert [row[:2] for row in rows[::2]] == [["node03", "frontier"], ["node07", "frontier"], ["node03", "polaris"]]
    assert rows[0][-2:] == ["fault", "0"] and rows[1] == [str(sweep)]
    bad("node05", cluster="test", age=10)  # of a cluster that no file describes
    assert main(["nodes"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[:3] == ["node05", "slurm", "(test)"]
    assert main(["nodes", "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["host"], first["found_by"], first["sweep"]) == ("node03", "preflight", str(sweep))
    assert main(["nodes", "--forget", "node7"]) == 2
    assert "node7: this node is not remembered as bad; did you mean node07" in capsys.readouterr().err
    assert main(["nodes", "--forget", "node07"]) == 0 and capsys.readouterr().out == "forgotten: node07\n"
    assert [one.node.host for one in remembered()] == ["node03", "node03", "node05"]
    assert main(["nodes", "--forget", "all"]) == 0 and remembered() == ()


@pytest.mark.parametrize("words", [["node03"], ["--forget"]])
def test_what_makes_no_sense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", *words]) == 2
    assert "Try: hpc-hydra nodes --forget " in capsys.readouterr().err


def test_completion_offers_the_nodes_that_can_be_forgotten() -> None:
    bad("node03")
    assert [word for word, _ in complete("hpc-hydra nodes --forget ")] == ["node03", "all"]


@pytest.mark.parametrize(
    ("scheduler", "written", "row"),
    [
        ("slurm", "#SBATCH --exclude=n1,n3", "--exclude n1,n3 scheduler.exclude command line; bad nodes"),
        ("flux", "#flux: --requires=-hosts:n1,n3", "--requires -hosts:n1,n3 scheduler.constraint bad nodes"),
        ("lsf", '#BSUB -R "select[hname!=n1 && hname!=n3] span[ptile=1]"', "command line; bad nodes"),
    ],
)
def test_new_jobs_leave_out_bad_nodes_beside_those_of_the_user(
    scheduler: str, written: str, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad("n3", scheduler=scheduler)
    text = dry(capsys, f"scheduler={scheduler}", "scheduler.exclude=n1", "resources.procs_per_node=1")
    assert written in text and f"{row} (hpc-hydra nodes)" in text
    assert "note: n3 left out: fault 0 (1 h ago); `hpc-hydra nodes --forget n3` uses it" in text
    main(["nodes", "--forget", "n3"])
    assert "n3" not in dry(capsys, f"scheduler={scheduler}", "scheduler.exclude=n1")


def test_hundreds_of_bad_nodes_are_one_short_note_and_are_used_again_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [f"n{number:03}" for number in range(1, 101)]
    bad(*hosts, scheduler="slurm", reason="no GPU")
    note = next(line for line in dry(capsys, "scheduler=slurm").splitlines() if "left out" in line)
    assert note == "note: n[001-100] left out: no GPU (1 h ago); `hpc-hydra nodes --forget n[001-100]` uses them"
    assert main(["nodes", "--forget", "n[001-100]"]) == 0
    assert "left out" not in dry(capsys, "scheduler=slurm")
    assert main(["nodes", "--forget", "n[1-"]) == 2


def test_on_listed_hosts_others_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    bad("n1", "n4", scheduler="ssh")
    listed = ("scheduler=ssh", 'scheduler.hosts=["me@n1",n2,n3]')
    text = dry(capsys, *listed)
    assert "HPC_HYDRA_SSH_HOSTS=n2,n3" in text and "n1 left out: fault 0" in text and "n4" not in text
    text = dry(capsys, *listed, "resources.nodes=3")
    assert "HPC_HYDRA_SSH_HOSTS=me@n1,n2,n3" in text
    assert "note: n1 (fault 0) is used: without it, fewer than 3 nodes are left" in text


def test_a_node_that_is_asked_for_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    bad("n1", "n3")
    text = dry(capsys, "scheduler=slurm", "scheduler.nodelist='n[3-4]'")
    assert "#SBATCH --exclude=n1" in text and "note: n3 (fault 1) is used: scheduler.nodelist names it" in text


def test_a_job_that_needs_all_nodes_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'gpu*|4|1000|(null)|4'\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    bad("n1", "n3")
    text = dry(capsys, "scheduler=slurm", "resources.nodes=2,3")
    assert "#SBATCH --exclude=n1,n3" in text and "#SBATCH --exclude=n3" in text
    assert "note: n1 (fault 0) is used: without it, fewer than 3 nodes are left" in text


@pytest.mark.parametrize(
    ("where", "left_out"),
    [({"cluster": "hydra"}, True), ({"cluster": "other"}, False), ({}, True), ({"system": "frontier"}, False)],
)
def test_a_host_name_counts_on_its_own_cluster(
    where: dict[str, str],
    left_out: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = hydra'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    bad("n3", **where)
    assert ("--exclude=n3" in dry(capsys, "scheduler=slurm")) is left_out


def test_a_scheduler_that_cannot_leave_out_nodes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bad("n3", scheduler="pbs")
    text = dry(capsys, "scheduler=pbs")
    assert "note: n3 (fault 0) may be used: scheduler=pbs cannot leave out nodes of this job" in text


def test_equal_runs_stay_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    bad("n3", "n4")
    assert "#SBATCH --array=0-2" in dry(capsys, "scheduler=slurm", "launch.seed=1,2,3")
