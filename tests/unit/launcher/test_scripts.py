"""A dry run shows everything and touches nothing; set-up only leaves what a person can start."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest

from .conftest import App

SWEEP = ("-m", "scheduler=slurm", "x=1,2", "resources.nodes=1,2", "resources.time_limit=90", "scheduler.queue=gpu")


def test_a_dry_run_shows_runs_scripts_commands_and_reasons_and_touches_nothing(app: App) -> None:
    app.start()  # so that the script is there
    for path in (app.folder / "outputs").rglob("*.log"):
        path.unlink()
    before = app.listing()
    which = ("--config-name", "config")
    done = app.start(*which, *SWEEP, "launch.env.A='b c'", "launch.dry_run=true", PATH="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert app.listing() == before
    rows = [line.split() for line in done.stdout.splitlines()[:5]]
    assert rows[0][:5] == ["run", "system", "nodes", "×", "ranks"]
    assert [row[-2:] for row in rows[1:]] == [
        ["x=1", "resources.nodes=1"], ["x=1", "resources.nodes=2"],
        ["x=2", "resources.nodes=1"], ["x=2", "resources.nodes=2"],
    ]  # fmt: skip
    assert all("1h30m" in row and "gpu" in row for row in rows[1:])
    assert done.stdout.count("#!/bin/bash") == 1
    assert {"-#SBATCH --nodes=1", "+#SBATCH --nodes=2"} < set(done.stdout.splitlines())
    assert done.stdout.count("sbatch --parsable") == 2 and "  run 3: python app.py --config-name config " in done.stdout
    assert re.search(r"^A +b c +launch\.env\.\* +command line$", done.stdout, re.MULTILINE)
    assert done.stdout.count("\n".join(done.stdout.splitlines()[:5])) == 2  # the table comes first and last


def test_a_dry_run_of_scripts_prints_them_as_they_are_written(app: App) -> None:
    words = (*SWEEP, "launch.env.A='b c'", "hydra.sweep.dir=sweep")
    assert app.start(*words, "launch.setup_only=true").returncode == 0
    written = "".join(path.read_text() for path in sorted((app.folder / "sweep/.hpc_hydra/jobs").glob("job*.sh")))
    done = app.start(*words, "launch.dry_run=script", PATH="/nonexistent")
    unique = r"hpc_hydra-[0-9a-f]{12}|(?<=LAUNCH=)\w+"
    assert re.sub(unique, "", done.stdout) == re.sub(unique, "", written) and written.count("\n#!/bin/bash\n") == 1
    done = app.start(*words, "launch.dry_run=scripts")
    assert done.returncode == 2 and "launch.dry_run: 'scripts' is not true, false or script" in done.stderr


@pytest.mark.parametrize(
    ("config", "words", "place"),
    [
        ("defaults: [hpc, _self_]\nx: 0\nhydra: {sweeper: {params: {resources.nodes: '2'}}}\n", (), "the sweeper"),
        (
            "defaults: [{override hydra/launcher: hpc}, {override hydra/sweeper: hpc}]\nx: 0\n",
            ("hydra.launcher.bundle=['resources.nodes=2','scheduler=slurm','launch.dry_run=true']",),
            "hydra.launcher.bundle",
        ),
    ],
)
def test_a_value_may_come_from_the_sweeper_or_the_launchers_own_keys(
    app: App, config: str, words: tuple[str, ...], place: str
) -> None:
    app.write(config=config)
    done = app.start("-m", "x=1,2", *(words or ("scheduler=slurm", "launch.dry_run=true")))
    assert re.search(rf"^--nodes +2 +resources\.nodes +{place}$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_setup_only_leaves_scripts_and_says_how_to_start_them(app: App) -> None:
    done = app.start(*SWEEP, "launch.setup_only=true", PATH=f"/nonexistent:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  sbatch")]
    assert len(commands) == 2
    for command in commands:
        assert os.access(command[-1], os.X_OK)
        subprocess.run(["bash", "-n", command[-1]], check=True)
    (manifest,) = [p for p in app.listing() if p.endswith(".hpc_hydra")]
    assert not (app.folder / manifest / "manifest.jsonl").exists()


def test_a_script_is_written_where_it_is_wanted(app: App) -> None:
    done = app.start(*SWEEP, "launch.setup_only=true", "launch.output_script='my/{num}.sh'")
    assert done.returncode == 0, done.stderr
    for num in (0, 1):
        assert f"#SBATCH --nodes={num + 1}" in (app.folder / "my" / f"{num}.sh").read_text()
        assert f"sbatch --parsable {app.folder / 'my'}/{num}.sh\n" in done.stdout
    assert re.search(rf"keep {app.folder}/multirun/.*: the job scripts read it", done.stdout)
    done = app.start("-m", "scheduler=slurm", "launch.setup_only=true", "launch.output_script=-")
    assert done.stdout.startswith("#!/bin/bash") and done.stdout.rstrip().endswith("exit $?")
    assert re.search(r"  sbatch .*/job0.sh\nkeep .*: the job scripts read it", done.stderr)


@pytest.mark.parametrize("launch_dir", ["here", "."])
def test_the_launch_directory_is_the_sweep_directory(app: App, launch_dir: str) -> None:
    done = app.start("-m", "scheduler=slurm", "launch.setup_only=true", f"launch.launch_dir={launch_dir}")
    assert done.returncode == 0, done.stderr
    assert (app.folder / launch_dir / ".hpc_hydra" / "jobs" / "job0.sh").is_file()
    assert (app.folder / launch_dir / "multirun.yaml").is_file()
    assert not (app.folder / "multirun").exists()


@pytest.mark.hydra
def test_a_bare_launch_directory_has_the_time_in_its_name(app: App) -> None:
    done = app.start("-m", "scheduler=slurm", "launch.setup_only=true", "launch.launch_dir=''")
    assert done.returncode == 0, done.stderr
    (folder,) = app.folder.glob("launch-app_20??-*")
    assert (folder / ".hpc_hydra" / "runs.jsonl").is_file()


def test_before_a_run_starts_there_are_few_files(app: App) -> None:
    done = app.start("-m", "scheduler=slurm", "launch.setup_only=true", "x=range(100)", "resources.nodes=1,2")
    assert done.returncode == 0, done.stderr
    files = [p for p in (app.folder / "multirun").rglob("*") if p.is_file()]
    assert len(files) <= 20
    assert sum(p.stat().st_blocks * 512 for p in files) < 1_700_000


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["x=1,2"], ["app"]),
        (["resources.nodes=1,2"], ["app.0", "app.1"]),
        (["resources.nodes=1,2", "scheduler.job_name=bert"], ["bert"]),
    ],
)
def test_a_job_is_named_after_the_program_and_a_lone_run(app: App, overrides: list[str], names: list[str]) -> None:
    done = app.start("-m", "scheduler=slurm", "launch.dry_run=script", *overrides)
    assert done.returncode == 0, done.stderr
    assert sorted(set(re.findall(r"--job-name=(\S+)", done.stdout))) == names
