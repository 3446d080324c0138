"""What Hydra lets through in silence is one clear error here, with -m and without, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.launcher import checks
from hpc_hydra.launcher.sweepers import needs_results

from .conftest import App

SLURM = "# @package _global_\ndefaults: [{override /scheduler: slurm}]\n"  # a file of the user's, not the command line
MISTAKES = {
    "bundle after _self_": (
        {"config": "defaults: [_self_, hpc]\nx: 0\nresources: {nodes: 3}\n"},
        [],
        ["_self_", "defaults: [hpc, _self_]"],
    ),
    "bundle in a choice": (
        {"config": "defaults: [_self_, mode: big]\nx: 0\n", "mode__big": "# @package _global_\ndefaults: [/hpc]\n"},
        [],
        ["mode", "primary"],
    ),
    "unquoted time in an experiment": (
        {"exp__long": "# @package _global_\nresources:\n  time_limit: 4:00\n"},
        ["+exp=long"],
        ["long.yaml, line 3", '"4:00"'],
    ),
    "a value in the place of a group": (
        {"config": "defaults: [hpc, _self_]\nx: 0\nscheduler: slurm\n"},
        [],
        [
            "scheduler (in ",
            "config.yaml, line 3)",
            "- override /scheduler: slurm",
            "scheduler=slurm on the command line",
        ],
    ),
    "a number in the place of a group": (
        {"config": "defaults: [hpc, _self_]\nx: 0\nresources: 2\n"},
        [],
        ["resources (in ", "config.yaml, line 3)", "resources: {key: value}"],
    ),
    "the beginning of a key": ({}, ["+resources.gpu=2"], ["resources.gpu", "resources.gpus_per_proc"]),
    "values with commas for one": (
        {},
        ["scheduler.mail_type=BEGIN,END"],
        ["2 values", "scheduler.mail_type='BEGIN,END'"],
    ),
    "submitit's launcher": (
        {"config": "defaults: [hpc, _self_]\nhydra: {launcher: {_target_: hydra_plugins.submitit.SlurmLauncher}}\n"},
        [],
        ["hydra/launcher=submitit_slurm", "scheduler=slurm"],
    ),
    "key of submitit's launcher": (
        {},
        ["+hydra.launcher.timeout_min=60"],
        ["hydra.launcher.timeout_min", "resources.time_limit"],
    ),
    "unknown key": ({}, ["resources.nodez=2"], ["resources.nodez", "Try: resources.nodes"]),
    "unknown key in the primary": (
        {"config": "defaults: [hpc, _self_]\nx: 0\nresources:\n  nodez: 2\n"},
        [],
        ["resources.nodez (in ", "config.yaml, line 4)", "Try: resources.nodes"],
    ),
    "unknown key of a queue in a system of one's own": (
        {"system__mine": "# @package _global_\nsystem:\n  name: mine\n  queues:\n    q: {max_node: 4}\n"},
        ["system=mine"],
        ["system.queues.q.max_node (in ", "system/mine.yaml, line 5)", "Try: system.queues.q.max_nodes"],
    ),
    "unknown key in a choice": (
        {"resources__small": "nodez: 1\n"},
        ["resources=small"],
        ["resources.nodez (in ", "resources/small.yaml, line 1)"],
    ),
    "a value of the wrong type in a file": (
        {"config": "defaults: [hpc, _self_]\nresources: {nodes: abc}\n"},
        [],
        ["resources.nodes (in ", "config.yaml, line 2)", "'abc' is not a whole number"],
    ),
    "the command line over a file": (
        {"config": "defaults: [hpc, _self_]\nresources: {nodes: 1}\n"},
        ["resources.nodes=-1"],
        ["hpc_hydra: resources.nodes: -1 is out of range"],
    ),
    "junk": ({}, ["resources.time_limit=soon"], ["resources.time_limit", "Try:"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error_under_m(app: App, name: str) -> None:
    files, overrides, words = MISTAKES[name]
    app.write(**files)
    before = [*app.listing(), "app.py"]
    done = app.start("-m", "launch.dry_run=true", *overrides, "scheduler=slurm")
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(word in done.stderr for word in words) and "Traceback" not in done.stderr, done.stderr
    assert "HYDRA_FULL_ERROR" not in done.stderr
    assert app.listing() == sorted(before)


@pytest.mark.parametrize(
    "name",
    [
        "bundle after _self_",
        "unquoted time in an experiment",
        "unknown key in a choice",
        "a value in the place of a group",
        "a value of the wrong type in a file",
    ],
)
def test_a_mistake_in_a_file_is_told_without_m_too(app: App, name: str) -> None:
    files, overrides, words = MISTAKES[name]
    app.write(**files)
    done = app.start(*overrides)
    assert done.returncode == 2 and all(word in done.stderr for word in words), done.stderr
    assert "x is" not in done.stdout and not (app.folder / "outputs").exists()


@pytest.mark.hydra
def test_the_launchers_own_configuration_cannot_follow_a_swept_key(app: App) -> None:
    done = app.start(
        "-m", "hydra.launcher.bundle=['resources.nodes=${resources.nodes}']", "resources.nodes=1,2", "scheduler=slurm"
    )
    assert done.returncode == 2, done.stderr
    assert "resources.nodes" in done.stderr and "swept" in done.stderr and "outside of hydra" in done.stderr
    assert not (app.folder / "multirun").exists()


def test_an_error_of_the_users_function_is_told_as_theirs(app: App) -> None:
    (app.folder / "app.py").write_text(
        "import hydra\n@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg):\n    hydra.compose('config', ['system=fronteer'])\nmain()\n"
    )
    done = app.start()
    assert done.returncode == 1 and "fronteer" in done.stderr and "hpc_hydra: system" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    "overrides",
    [["resources.procs_per_node=1"], ["resources.procs_per_node=2", "launch.debug=true"]],
)
def test_one_process_runs_in_place(app: App, overrides: list[str]) -> None:
    done = app.start(*overrides)
    assert done.returncode == 0 and "x is 0" in done.stdout and list(app.folder.glob("outputs/*/*/.hydra")), done.stderr
    assert ("launch.debug runs one rank" in done.stderr) == ("launch.debug=true" in overrides)


@pytest.mark.parametrize("flags", [[], ["-m"]])
@pytest.mark.hydra
def test_a_new_group_that_is_nearly_ours_is_refused(app: App, flags: list[str]) -> None:
    done = app.start(*flags, "+resource.nodes=2")
    assert done.returncode == 2 and "Try: resources.nodes=2" in done.stderr, done.stderr
    assert app.start("+resource.colour=2").returncode == 0  # not a key of ours


@pytest.mark.parametrize("flags", [[], ["-m"]])
def test_a_scheduler_without_the_bundle_is_refused(app: App, flags: list[str]) -> None:
    app.write(config="x: 0\n")
    (app.folder / "app.py").write_text(
        "import hydra, hpc_hydra\n"
        "@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg):\n"
        "    with hpc_hydra.distributed(cfg):\n"
        "        print('trains')\n"
        "main()\n"
    )
    done = app.start(*flags, "+system=frontier")
    assert done.returncode != 0 and "trains" not in done.stdout
    assert "add `- hpc` to the defaults list" in done.stderr
    app.write(other="defaults: [hpc, _self_]\n")  # by which Hydra finds the group, and composes it
    done = app.start(*flags, "+scheduler=slurm")
    assert "add `- hpc` to the defaults list" in done.stderr and "trains" not in done.stdout
    (app.folder / "other.yaml").unlink()
    app.write(config="scheduler: slurm\n")  # a key of the user's own
    done = app.start(*flags, "scheduler=local")
    assert done.returncode == 0 and "trains" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("swept", "told"),
    [
        ("system=fronteer,lumi", "system: there is no 'fronteer'\n  Try: system=front"),
        ("resources=5,6", "resources: 5 is not one of its options\n  Try: resources.nodes=5"),
        ("resources.exclusive=hello,true", "resources.exclusive: 'hello' is neither true nor false\n  Try: "),
        ("optim.lrr=3,4", "optim.lrr: not a key of the configuration\n  Try: optim.lr or +optim.lrr=3 to add it"),
        ("new=3,4", "new: not a key of the configuration\n  Try: +new=3 to add it"),
        ("model=lagre,small", "model, in the defaults list of config.yaml: there is no 'lagre'\n  Try: model=large"),
        ("model=5,6", "overrides: a number is not an option of a config group\n  Try: GROUP=NAME"),
    ],
)
@pytest.mark.hydra
def test_wrong_values_of_a_sweep_are_told_with_what_to_type(app: App, swept: str, told: str) -> None:
    app.write(
        config="defaults: [hpc, model: small, _self_]\nx: 0\noptim: {lr: 1}\n", model__small="n: 1", model__large="n: 2"
    )
    done = app.start("-m", "scheduler=local", swept)
    assert done.returncode == 2 and f"hpc_hydra: {told}" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (app.folder / "multirun").exists()


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["launch.env.TOKEN=secret", "monitor=gpu", "launch.pack=null"], "launch.env.TOKEN, monitor have no effect"),
        (["+machine=slurm", "scheduler.queue=x"], "in a job; scheduler=slurm makes it a job, -m a sweep\n"),
        (["resources.time_limit=5m", "launch.seed=3"], "resources.time_limit has no effect"),
        (["launch.seed=3", "launch.bg=false", "container=none", "resources.procs_per_node=1"], None),
        (["+monitor_metric=loss", "+containers.size=3"], None),  # the user's own
    ],
)  # fmt: skip
def test_keys_without_effect_on_one_process_are_noted(app: App, words: list[str], unused: str | None) -> None:
    app.write(machine__slurm=SLURM)
    done = app.start(*words)
    assert done.returncode == 0 and "x is 0" in done.stdout and "secret" not in done.stderr
    assert done.stderr.count("note:") == (unused is not None) and (unused or "") in done.stderr


@pytest.mark.parametrize(
    ("found", "told"), [(True, "scheduler=slurm makes it a job, -m a sweep"), (False, "-m makes it a sweep")]
)
def test_a_key_of_the_scheduler_without_effect_names_the_detected_scheduler(app: App, found: bool, told: str) -> None:
    (app.folder / "scontrol").write_text(f"#!/bin/sh\n{'echo Slurmctld at n is UP' if found else 'exit 1'}\n")
    (app.folder / "scontrol").chmod(0o755)
    done = app.start("scheduler.queue=x", PATH=f"{app.folder}:/usr/bin:/bin", SLURM_CONF="x")
    assert f"scheduler.queue has no effect: one process runs here, not in a job; {told}\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (["+machine=slurm"], "it a job, with as many ranks as a node has GPUs\n"),
        (
            ["+machine=slurm", "resources.procs_per_node=1"],
            "scheduler=slurm on the command line, or -m, makes it a job\n",
        ),
        (["scheduler=local"], None),
    ],
)
def test_one_process_that_is_no_job_of_the_scheduler_is_noted(app: App, words: list[str], noted: str | None) -> None:
    app.write(machine__slurm=SLURM)
    done = app.start(*words)
    assert done.returncode == 0 and "x is 0" in done.stdout
    assert ("note: one process runs here, on " in done.stderr) == (noted is not None) and (noted or "") in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"HPC_HYDRA_RUN": "0"},
        {"HPC_HYDRA_SPAWN_RANK": "0", "HPC_HYDRA_SPAWN_SIZE": "2", "HPC_HYDRA_SPAWN_HOST": "a"},
    ],
)
def test_a_rank_never_launches_but_runs_in_place(app: App, env: dict[str, str]) -> None:
    refused = app.start("-m", "scheduler=local", **env)
    assert refused.returncode == 2 and "rank" in refused.stderr and not (app.folder / "multirun").exists()
    assert "x is 0" in app.start("resources.procs_per_node=2", **env).stdout


def test_half_of_an_outer_jobs_variables_make_no_rank(app: App) -> None:
    done = app.start(
        "-m", "scheduler=slurm", "launch.dry_run=true", RANK="5", MASTER_ADDR="10.0.0.1", SLURM_NTASKS="7",
        SLURM_JOB_ID="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_background_is_refused_to_sweepers_that_need_results(app: App) -> None:
    app.write(config="defaults: [hpc, _self_]\nx: 0\nhydra: {sweeper: {_target_: some.OptunaSweeper}}\n")
    script = app.folder / "app.py"
    script.write_text(
        "import hydra\nfrom omegaconf import OmegaConf\nfrom hpc_hydra.launcher import run\n"
        "@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg): ...\n"
        "from hydra._internal.hydra import Hydra\n"
        "from hydra.core.plugins import Plugins\n"
        "def sweep(self, config_name, task_function, overrides, **kw):\n"
        "    from hydra.types import HydraContext, RunMode\n"
        "    cfg = self.compose_config(config_name, overrides, RunMode.MULTIRUN)\n"
        "    context = HydraContext(config_loader=self.config_loader, callbacks=None)\n"
        "    run.Launch(context, task_function, cfg).launch([['scheduler=slurm', 'launch.bg=true']], 0)\n"
        "Hydra.multirun = sweep\n"
        "main()\n"
    )
    done = app.start("-m", "scheduler=slurm", "launch.bg=true")
    assert done.returncode == 2 and "OptunaSweeper needs the results" in done.stderr, done.stderr


NEEDS = {
    "an optimiser": ("class S(Sweeper):\n    def f(self, r):\n        self.loss = r.return_value\n", True),
    "a list": (
        "class S(BasicSweeper):\n    def f(self, r):\n        _ = r.return_value\n        r.return_value\n",
        False,
    ),
    "of another's": ("from optimising import S as Base\nclass S(Base):\n    pass\n", True),
    "not there": ("", True),
}


@pytest.mark.hydra
def test_which_sweepers_need_results_is_told_from_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    head = "from hydra.plugins.sweeper import Sweeper\n"
    head += "from hydra._internal.core_plugins.basic_sweeper import BasicSweeper\n"
    (tmp_path / "optimising.py").write_text(head + NEEDS["an optimiser"][0])
    for number, (text, needs) in enumerate(NEEDS.values()):
        (tmp_path / f"sweeper_{number}.py").write_text(head + text)
        assert needs_results(f"sweeper_{number}.S") is needs


def test_values_with_commas_that_make_equal_runs_are_noted() -> None:
    keys = ("launch.env.NCCL_SOCKET_IFNAME", "scheduler.nodelist", "scheduler.extra.gres")
    for key in keys:
        (note,) = checks.swept_by_commas([f"{key}=a,b,c"])
        assert "3 runs" in note and f"{key}='a,b,c'" in note
        assert not checks.swept_by_commas([f"{key}='a,b'", f"{key}=choice(a,b)", "lr=1,2", "resources.nodes=1,2"])


def test_one_file_for_several_scripts_is_refused(app: App) -> None:
    done = app.start("-m", "scheduler=slurm", "resources.nodes=1,2", "launch.setup_only=true",
                     "launch.output_script=x.sh")  # fmt: skip
    assert done.returncode == 2 and "x-{num}.sh" in done.stderr
    assert not (app.folder / "multirun").exists()


def test_a_sweep_directory_that_cannot_be_written_is_refused_before_submission(app: App) -> None:
    done = app.start("-m", "scheduler=local", "hydra.sweep.dir=/proc/none/here")
    assert done.returncode == 2 and "/proc/none" in done.stderr and "hydra.sweep.dir" in done.stderr, done.stderr


OTHERS = ["launcher=basic", "launcher=basic sweeper=basic"]


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        (OTHERS[0], ["resources.procs_per_node=2"]),
        (OTHERS[0], ["resources.nodes=1,2"]),
        (OTHERS[1], ["launch.dry_run=true"]),
        (OTHERS[1], ["launch.bg=true"]),
    ],
)
def test_a_launcher_that_starts_one_process_is_refused_where_more_is_asked(
    app: App, choice: str, asked: list[str]
) -> None:
    words = [f"hydra/{word}" for word in choice.split()]
    done = app.start("-m", *words, *asked)
    assert done.returncode == 2 and "hydra/launcher=basic" in done.stderr, done.stdout + done.stderr
    assert "Try:" in done.stderr and "x is" not in done.stdout and not (app.folder / "multirun").exists()


def test_such_a_launcher_may_run_what_it_can(app: App) -> None:
    done = app.start("-m", "hydra/launcher=basic", "x=1,2")
    assert done.returncode == 0 and "x is 2" in done.stdout, done.stderr


@pytest.mark.parametrize("on", ["-m", ""])
@pytest.mark.hydra
def test_a_number_that_hydra_rewrites_is_refused_as_a_variable(app: App, on: str) -> None:
    done = app.start(*([on] if on else []), "launch.env.X=1_000", "scheduler=local")
    assert done.returncode == 2 and "launch.env.X" in done.stderr and "1000" in done.stderr, done.stderr
