"""Batch scripts of a user's own: what was typed is passed on, and nothing else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.cli import run
from hpc_hydra.cli.main import main
from hpc_hydra.errors import PlanError

SYSTEM = "system=frontier"  # a preset that says much: a queue, binding, memory, whole nodes


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")

    def of(*words: str) -> list[str]:
        assert run.main([*words, "launch.batch_script=job.sh", "launch.dry_run=true"]) == 0
        shown = shlex.split(capsys.readouterr().out.rpartition("run by:")[2])
        return [word for word in shown if "/" not in word and word not in ("-c", "bsub")]

    return of


@pytest.mark.parametrize(
    ("scheduler", "typed", "options"),
    [
        ("slurm", "", ""),
        ("slurm", "resources.nodes=1", "--nodes=1"),  # the default, but it was typed
        ("slurm", "resources.procs_per_node=2", "--ntasks-per-node=2"),
        ("slurm", "resources.procs_per_node=2 resources.gpus_per_proc=2", "--ntasks-per-node=2 --gpus-per-node=4"),
        ("slurm", "resources={nodes: 3, exclusive: true}", "--nodes=3 --exclusive"),
        ("slurm", "resources.gpus_at_least=16", "--nodes=2 --ntasks-per-node=8 --gpus-per-node=8"),
        ("slurm", "scheduler.job_name=x scheduler.account=a resources.time_limit=1h",
         "--job-name=x --time=01:00:00 --account=a"),
        ("slurm", "scheduler.extra.licenses=fs:1", "--licenses=fs:1"),
        ("slurm", "scheduler.extra={licenses: fs:1}", "--licenses=fs:1"),
        ("flux", "", ""),
        ("flux", "resources.nodes=3", "--nodes=3"),
        ("flux", "resources.nodes=2 resources.procs_per_node=4", "--nodes=2 --nslots=8"),
        ("flux", "scheduler.job_name=x", "--job-name=x"),
        ("lsf", "", ""),
        ("lsf", "scheduler.queue=batch scheduler.job_name=x", "-J x -q batch"),
        ("lsf", "resources.nodes=2 resources.procs_per_node=4 resources.cpus_per_proc=1", "-n 8 -R span[ptile=4]"),
        ("lsf", "scheduler.flavour=csm resources.nodes=2", "-nnodes 2"),
    ],
)  # fmt: skip
def test_a_batch_script_of_ones_own_gets_only_the_options_that_were_typed(
    command, scheduler: str, typed: str, options: str
) -> None:  # type: ignore[no-untyped-def]
    words = [typed] if typed.endswith("}") else typed.split()
    shown = command(SYSTEM, f"scheduler={scheduler}", *words, "launch.bg=true")
    ours = {"sbatch": ["sbatch", "--parsable"], "flux": ["flux", "batch"], "sh": shown[:2]}[shown[0]]
    assert shown == [*ours, *shlex.split(options)]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a stand-in of a scheduler's command, in a directory with a batch script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Path("job.sh").write_text("#!/bin/bash\n")

    def write(name: str, body: str) -> None:
        Path(name).write_text(f"#!/bin/sh\n{body}\n")
        Path(name).chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("scheduler", "submit", "answer", "ways"),
    [
        ("slurm", "sbatch", "7", ["scontrol show job 7", "scancel 7"]),
        ("flux", "flux", "f7", ["flux jobs f7", "flux cancel f7"]),
        ("lsf", "bsub", "Job <7> is submitted to queue <q>.", ["bjobs -l 7", "bkill 7"]),
        ("pbs", "qsub", "7.server", ["qstat -f 7.server", "qdel 7.server"]),
    ],
)
def test_the_commands_for_a_script_in_the_background_are_shown(
    scheduler: str, submit: str, answer: str, ways: list[str],
    stand_in: Callable[[str, str], None], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    stand_in(submit, f"echo '{answer}'")
    assert main(["run", f"scheduler={scheduler}", "launch.batch_script=job.sh", "launch.bg=true"]) == 0
    first, _, *shown = capsys.readouterr().out.splitlines()
    assert first == f"in the background: job {ways[1].split()[-1]}"
    assert [line.strip() for line in shown] == ways


@pytest.mark.parametrize("bg", ["true", "false"])
def test_a_refused_script_is_answered_with_the_key(
    bg: str, stand_in: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1")
    words = ["scheduler=slurm", "scheduler.qos=x", "launch.batch_script=job.sh", f"launch.bg={bg}"]
    assert main(["run", *words]) == 2
    assert "sbatch: Invalid qos specification\n  Try: another scheduler.qos (now x)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "unused"),
    [
        ("resources.nodes=2 launch.env.A=1 logging.verbose=true logging.nccl_debug=INFO monitor=none", ""),
        ("monitor=gpu rendezvous=mpi launch.seed=1", "monitor, rendezvous, launch.seed have no effect"),
        ("scheduler.launch_extra.exact=null scheduler.mpi=pmix", "scheduler.launch_extra.exact, scheduler.mpi have"),
        ("logging={rank_prefix: true, verbose: true}", "logging.rank_prefix has no effect"),
        ("scheduler.remove=[mem]", "scheduler.remove has no effect"),
        ("logging.out=x.log logging.color_stderr=true", ""),
        ("logging.out=x.log logging.err=y.log launch.bg=true", "logging.out, logging.err have no effect"),
    ],
)
def test_keys_without_effect_on_a_script_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, unused: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [typed] if "{" in typed else typed.split()
    assert run.main(["scheduler=slurm", *words, "launch.batch_script=job.sh", "launch.dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert unused in shown and ("no effect" in shown) == bool(unused), shown


def test_the_launch_directory_of_a_script_gets_a_copy_of_it(
    stand_in: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("sbatch", "echo 7")
    words = ["scheduler=slurm", "launch.batch_script=job.sh", "launch.bg=true", "launch.launch_dir=kept"]
    assert main(["run", *words]) == 0
    assert "launch.launch_dir=kept gets a copy of the script, nothing else" in capsys.readouterr().err
    assert [path.name for path in Path("kept").iterdir()] == ["job.sh"]


@pytest.mark.parametrize("bg", ["true", "false"])
def test_only_those_of_ones_own_defaults_reach_a_script_that_are_told(
    bg: str, stand_in: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("sbatch", 'echo "args $@" >> got; env >> got; echo 7')
    stand_in("scontrol", "exit 1")
    Path("own.yaml").write_text(
        "'*':\n  launch: {env: {MINE: x}, signal_before_end: 2m}\n  logging: {nccl_debug: INFO, rank_prefix: true}\n"
        "  resources: {procs_per_node: 99, gpus_per_proc: 0}\n  scheduler: {qos: q, extra: {nice: 3}, mpi: pmix}\n"
    )
    monkeypatch.setenv("HPC_HYDRA_DEFAULTS", "own.yaml")
    for name in ("SBATCH_PARTITION", "SBATCH_ACCOUNT", "SALLOC_QOS"):
        monkeypatch.setenv(name, name.lower())
    words = [SYSTEM, "scheduler=slurm", "launch.batch_script=job.sh", f"launch.bg={bg}"]
    assert main(["run", *words, "launch.dry_run=true"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert [note for note in notes if "own.yaml" in note] == [
        "note: from own.yaml: *: launch.env.MINE, logging.nccl_debug=INFO"
    ]
    main(["run", *words])
    args, *env = Path("got").read_text().splitlines()
    assert [word for word in args.split() if word.startswith("-")] == ["--parsable", *["--wait"] * (bg == "false")]
    assert {"MINE=x", "NCCL_DEBUG=INFO"} <= {*env}
    (shell,) = [note for note in notes if "from your shell" in note]  # sbatch reads them itself
    for name in ("SBATCH_PARTITION", "SBATCH_ACCOUNT", "SALLOC_QOS"):
        assert (name in shell) == (f"{name}={name.lower()}" in env) == name.startswith("SBATCH")


@pytest.mark.parametrize(
    ("scheduler", "typed", "key"),
    [
        ("slurm", "resources.gpus_per_proc=2", "resources.gpus_per_proc"),
        ("flux", "resources.procs_per_node=2", "resources.procs_per_node"),
        ("lsf", "resources.nodes=2", "resources.nodes"),
        ("lsf", "scheduler.exclude=node1", "scheduler.exclude"),
    ],
)
def test_what_is_counted_with_what_the_script_says_is_refused(command, scheduler: str, typed: str, key: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError) as caught:
        command(SYSTEM, f"scheduler={scheduler}", typed)
    assert caught.value.where == key
    assert "resources." in str(caught.value.fix)
