"""What was asked reaches every rank unchanged, and every rank knows who it is (B01, B04, B08, B09, B22, B31)."""

from __future__ import annotations

import os
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from tests import forking
from tests.awaiting import await_true
from tests.cluster.fixtures import Cluster

from .conftest import APP, LIGHT, ROOT, Probe

VALUES = [
    "a b  c", "it's", 'say "hi"', "$HOME", "$(touch PWNED)", "`touch PWNED`", "a;b&c|d>e", "(0.9, 0.95)", "*", "~",
    "back\\slash", "tab\tx", "x=y,z", "#notcomment", "%j %A_%a", "-x --flag", "", "null", "é 東京", "line\nbreak",
]  # fmt: skip
SWEPT = ["x=y,z", "(0.9, 0.95)", "$(touch PWNED)", "", "line\nbreak"]


def quoted(value: str) -> str:
    """A value in Hydra's double quotes."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if value != "back\\slash" else '"back\\slash"'


@pytest.mark.hydra
def test_values_that_are_swept_arrive_byte_for_byte(probe: Probe) -> None:
    """Those that a sweep may mistake for several."""
    result = probe.run("resources.cpus_per_proc=1", "note=" + ",".join(map(quoted, SWEPT)))
    assert result.code == 0, result.text
    assert [result.probes[num, 0]["note"] for num in range(len(SWEPT))] == SWEPT
    assert not list(probe.tmp.rglob("PWNED")) and not (APP / "PWNED").exists()


@pytest.mark.hydra
def test_keys_and_variables_reach_every_rank_byte_for_byte_and_its_run_has_one_directory(probe: Probe) -> None:
    """Which rank 0 writes."""
    keys = {f"v{num}": value for num, value in enumerate(VALUES)}
    values = {f"V{i}{'_TOKEN' * (i % 2)}": v for i, v in enumerate([*VALUES, *VALUES[1:], VALUES[0]])}
    result = probe.run(
        "resources.procs_per_node=2", "resources.cpus_per_proc=1", "note=a,b", "start_skew=0.5",
        *(f"+each.{k}={quoted(v)}" for k, v in keys.items()),
        *(f"launch.env.{k}={quoted(v)}" for k, v in values.items()),
    )  # fmt: skip
    assert result.code == 0, result.text
    assert sorted(result.probes) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (num, _), saw in result.probes.items():
        assert saw["cfg"]["each"] == keys
        assert {name: saw["env"].get(name) for name in values} == values
        assert saw["output_dir"] == str(result.sweep / str(num))
    assert not list(probe.tmp.rglob("PWNED"))
    for num in (0, 1):
        written = {path.name for path in (result.sweep / str(num) / ".hydra").iterdir()}
        assert written == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert len(list(probe.tmp.rglob(".hydra"))) == 2
    assert not (probe.tmp / "outputs").exists() and not (probe.tmp / "multirun").exists()


OUTER = {
    "SLURM_MEM_PER_CPU": "100", "SLURM_MEM_PER_NODE": "200", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "1", "SLURM_NTASKS": "7", "SLURM_NTASKS_PER_NODE": "7",
    "SLURM_GPUS_PER_NODE": "9", "SLURM_JOB_NUM_NODES": "3", "SLURM_DISTRIBUTION": "cyclic", "SBATCH_PARTITION": "spot",
    "SBATCH_TIMELIMIT": "1", "SBATCH_MEM_PER_NODE": "64", "SLURM_TRES_PER_TASK": "cpu:1", "SLURM_JOB_ID": "1",
    "RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "10.9.9.9", "MASTER_PORT": "1",
}  # fmt: skip


def test_an_outer_jobs_variables_do_not_leak_into_a_new_job(probe: Probe) -> None:
    outer = {k: v for k, v in OUTER.items() if k not in ("RANK", "WORLD_SIZE")}  # with these two it would be a rank
    cpus = "2" if probe.scheduler == "slurm" else "1"
    result = probe.run(
        "resources.procs_per_node=2", f"resources.cpus_per_proc={cpus}",
        *(["resources.time_limit=7"] if probe.scheduler == "slurm" else []), env=outer,
    )  # fmt: skip
    assert result.code == 0, result.text
    assert [result.probes[(0, r)]["env"]["RANK"] for r in (0, 1)] == ["0", "1"]
    meeting = [{result.probes[(0, r)]["env"][name] for r in (0, 1)} for name in ("MASTER_ADDR", "MASTER_PORT")]
    assert [len(said) for said in meeting] == [1, 1]
    for rank in (0, 1):
        env = result.probes[(0, rank)]["env"]
        assert (env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("2", str(rank))
        assert env["MASTER_ADDR"] != "10.9.9.9" and env["MASTER_PORT"] != "1"
        if probe.scheduler == "slurm":
            assert env["SLURM_JOB_PARTITION"] == "spot"  # SBATCH_PARTITION is one's own default: asked for
            assert env["SLURM_CPUS_PER_TASK"] == "2" and env["SLURM_NTASKS"] == "2"
            assert env.get("SLURM_CPU_BIND", "") != "quiet,mask_cpu:0x1"


def test_identity_of_every_rank_on_several_nodes(slurm_probe: Probe) -> None:
    result = slurm_probe.run("resources.nodes=2", "resources.procs_per_node=2")
    assert result.code == 0, result.text
    ranks = [result.probes[(0, r)] for r in range(4)]
    env = [p["env"] for p in ranks]
    assert [e["RANK"] for e in env] == list("0123")
    assert [e["LOCAL_RANK"] for e in env] == list("0101")
    assert [e["NODE_RANK"] for e in env] == list("0011") == [e["GROUP_RANK"] for e in env]
    assert {e["WORLD_SIZE"] for e in env} == {"4"} and {e["LOCAL_WORLD_SIZE"] for e in env} == {"2"}
    assert ranks[0]["host"] == ranks[1]["host"] != ranks[2]["host"] == ranks[3]["host"]
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in env}) == 1
    assert env[0]["MASTER_ADDR"].startswith(("10.77.", ranks[0]["host"]))


def test_cyclic_placement_keeps_ranks_on_their_nodes(slurm_probe: Probe) -> None:
    result = slurm_probe.run(
        "resources.nodes=2",
        "resources.procs_per_node=2",
        "mode=gloo",
        "+scheduler.launch_extra.distribution=cyclic",
        env=LIGHT,
    )
    assert result.code == 0, result.text
    ranks = [result.probes[(0, r)] for r in range(4)]
    assert ranks[0]["host"] == ranks[2]["host"] != ranks[1]["host"] == ranks[3]["host"]
    assert [p["env"]["NODE_RANK"] for p in ranks] == list("0101")
    assert [p["env"]["LOCAL_RANK"] for p in ranks] == list("0011")
    assert {p["sum"] for p in ranks} == {10.0}


def accounted_limit(cluster: Cluster, job: str) -> str:
    """The time limit of a job or of its array's first element; empty until accounting has all of the record, which
    comes in pieces, after the job's end on a cluster that has just started."""
    return next((row["Timelimit"] for row in cluster.sacct(job, ("JobID", "Timelimit")) if row["Timelimit"]), "")


def test_resources_can_be_swept_and_results_keep_their_order(slurm_probe: Probe, slurm_cluster: Cluster) -> None:
    result = slurm_probe.run("resources.nodes=1,2", "resources.time_limit=3,9")
    assert result.code == 0, result.text
    asked = []
    for num in range(4):
        env = result.probes[(num, 0)]["env"]
        job = env.get("SLURM_ARRAY_JOB_ID") or env["SLURM_JOB_ID"]
        limit = slurm_cluster.wait_for(partial(accounted_limit, slurm_cluster, job))
        asked.append((env["SLURM_JOB_NUM_NODES"], limit, env["WORLD_SIZE"]))
    assert asked == [("1", "00:03:00", "1"), ("1", "00:09:00", "1"), ("2", "00:03:00", "2"), ("2", "00:09:00", "2")]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package, a relative import, and a script that imports from its own folder."""
    root = tmp_path / "proj"
    (root / "lib").mkdir(parents=True)
    (root / "pk").mkdir()
    (root / "conf").mkdir()
    (root / "lib" / "util.py").write_text("WORD = 'util'\n")
    (root / "pk" / "__init__.py").write_text("")
    (root / "pk" / "sub.py").write_text("WORD = 'sub'\n")
    (root / "conf" / "config.yaml").write_text("defaults: [hpc, _self_]\nout: ???\n")
    body = """
        import json, os, sys
        from pathlib import Path
        import hydra
        {imports}
        @hydra.main(version_base=None, config_path={conf!r}, config_name="config")
        def main(cfg):
            Path(cfg.out).mkdir(exist_ok=True, parents=True)
            rank = os.environ["RANK"]
            (Path(cfg.out) / f"0.{{rank}}.json").write_text(json.dumps({{"word": WORD, "cwd": os.getcwd()}}))
        if __name__ == "__main__":
            main()
    """
    script = textwrap.dedent(body)
    (root / "train.py").write_text(script.format(imports="from lib.util import WORD", conf="conf"))
    (root / "pk" / "__main__.py").write_text(script.format(imports="from .sub import WORD", conf="../conf"))
    return root


@pytest.mark.parametrize(
    ("start", "word", "chdir"),
    [(["{proj}/train.py"], "util", True), (["-m", "pk"], "sub", False)],
)
def test_modules_import_on_the_node_however_the_program_was_started(
    probe: Probe, project: Path, start: list[str], word: str, chdir: bool
) -> None:
    where = probe.tmp if start[0].startswith("{proj}") else project
    argv = [sys.executable, *(s.format(proj=project) for s in start), "-m", f"out={probe.out}"]
    argv += [f"hydra.sweep.dir={probe.sweep}", f"scheduler={probe.scheduler}", "resources.procs_per_node=2"]
    argv += [f"hydra.job.chdir={chdir}"]
    done = forking.run(argv, cwd=where, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = probe.saw()
    assert {p["word"] for p in seen.values()} == {word} and len(seen) == 2
    expected = str(probe.sweep / "0") if chdir else str(where)
    assert {p["cwd"] for p in seen.values()} == {expected}


def test_editing_the_config_after_submission_changes_nothing(slurm_probe: Probe, project: Path) -> None:
    """The job waits in the queue while the YAML is broken; it runs with what was submitted."""
    conf = project / "conf" / "config.yaml"
    argv = [sys.executable, "train.py", "-m", f"out={slurm_probe.out}", f"hydra.sweep.dir={slurm_probe.sweep}"]
    argv += ["scheduler=slurm", "+scheduler.submit_extra.begin=now+3"]
    with slurm_probe.started(argv=argv, cwd=project) as launcher:
        manifest = slurm_probe.sweep / ".hpc_hydra" / "manifest.jsonl"
        assert await_true(lambda: manifest.exists() and "submitted" in manifest.read_text())
        conf.write_text("this: [is not\n")
        out, _ = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out
    assert slurm_probe.saw()[(0, 0)]["word"] == "util"


def test_umask_of_the_submission_holds_on_every_rank(probe: Probe) -> None:
    old = os.umask(0o002)
    try:
        result = probe.run("resources.procs_per_node=2")
    finally:
        os.umask(old)
    assert result.code == 0, result.text
    assert {result.probes[(0, r)]["umask"] for r in (0, 1)} == {0o002}
    assert oct((result.sweep / "0" / "outcome.json").stat().st_mode)[-3:] == "664"
