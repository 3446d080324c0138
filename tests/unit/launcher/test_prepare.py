"""Overrides become runs: their plans, their directories, and how often the work is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import ConfigCompositionException

from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.prepare import Preparer

from .conftest import App

LOCAL = "scheduler=slurm"


def prepared(composed: Callable[..., Any], *overrides: str, runs: list[list[str]], first: int = 0) -> Any:
    return Preparer(*composed(*overrides)).prepare(runs, first)


def test_swept_resources_give_each_run_its_own_request(composed: Callable[..., Any]) -> None:
    runs = [[LOCAL, f"resources.nodes={n}", f"resources.time_limit={t}"] for n in (1, 2) for t in (3, 9)]
    found = prepared(composed, runs=runs).runs
    assert [(r.plan.request.nodes, r.plan.request.time_limit) for r in found] == [
        (1, 180),
        (1, 540),
        (2, 180),
        (2, 540),
    ]


def test_swept_systems_give_each_run_its_own_scheduler(composed: Callable[..., Any]) -> None:
    runs = prepared(composed, runs=[["system=frontier"], ["scheduler=local", "system=local"]]).runs
    assert [(r.plan.system, r.plan.request.scheduler) for r in runs] == [("frontier", "slurm"), ("local", "local")]


def test_an_experiment_may_choose_the_resources(app: App, composed: Callable[..., Any]) -> None:
    app.write(exp__big="# @package _global_\nresources: {nodes: 4}\n", exp__small="# @package _global_\nx: 1\n")
    runs = prepared(composed, runs=[[LOCAL, "+exp=big"], [LOCAL, "+exp=small"]]).runs
    assert [r.plan.request.nodes for r in runs] == [4, 1]


def test_equal_requests_share_a_plan(composed: Callable[..., Any]) -> None:
    runs = [[LOCAL, f"resources.nodes={n}", f"x={x}"] for n in (1, 2) for x in range(50)]
    found = prepared(composed, runs=runs)
    assert len({id(r.plan) for r in found.runs}) == 2 and len(found.bases) == 1


def test_a_request_that_depends_on_another_key_follows_it(app: App, composed: Callable[..., Any]) -> None:
    app.write(config="defaults: [hpc, _self_]\nx: 1\nresources: {nodes: '${x}'}\n")
    runs = prepared(composed, runs=[[LOCAL, f"x={x}"] for x in (1, 2, 3)]).runs
    assert [r.plan.request.nodes for r in runs] == [1, 2, 3]


def test_an_override_that_depends_on_another_key_follows_it(composed: Callable[..., Any]) -> None:
    runs = prepared(composed, runs=[[LOCAL, f"x={x}", "resources.nodes=${x}"] for x in (1, 2)]).runs
    assert [r.plan.request.nodes for r in runs] == [1, 2]


def test_directories_are_those_of_hydra_and_absolute(composed: Callable[..., Any]) -> None:
    runs = prepared(composed, "hydra.sweep.dir=out/${x}", runs=[[LOCAL, f"x={x}"] for x in (5, 6)], first=3).runs
    assert [r.dir for r in runs] == [Path.cwd() / "out/5/3", Path.cwd() / "out/6/4"]
    runs = prepared(
        composed, "hydra.sweep.dir=out", "hydra.sweep.subdir=${hydra.job.override_dirname}", runs=[["x=5"], ["x=6"]]
    ).runs
    assert [r.dir.name for r in runs] == ["x=5", "x=6"]


NAMED = ("hydra.sweep.dir=out", "hydra.sweep.subdir=${hydra.job.override_dirname}")


def test_names_of_directories_leave_out_what_is_ours_and_not_swept(composed: Callable[..., Any]) -> None:
    same = ["resources.time_limit=5m", "scheduler.setup_lines=[/a/b]", "+launch.env.A=1", LOCAL]
    runs = [[*same, f"resources.nodes={n}", f"x={x}", "+y=3"] for n, x in ((1, 5), (2, 6))]
    exclude = "+hydra.job.config.override_dirname.exclude_keys=[y]"
    command = (*same, "resources.nodes=1,2", "x=5,6", "+y=3")
    found = prepared(composed, *NAMED, exclude.lstrip("+"), *command, runs=runs)
    assert [run.dir.name for run in found.runs] == ["resources.nodes=1,x=5", "resources.nodes=2,x=6"]
    alone = prepared(composed, *NAMED, *same, "x=7", runs=[[*same, "x=7"]])
    assert [run.dir.name for run in alone.runs] == ["x=7"]


def test_a_name_that_no_file_system_takes_is_shortened_by_a_hash_and_said(composed: Callable[..., Any]) -> None:
    runs = [[f"x='{'é' * 200}{end}'"] for end in "ab"]
    found, again = (prepared(composed, *NAMED, runs=runs) for _ in range(2))
    first, second = (run.dir.name for run in found.runs)
    assert first != second and all(len(name.encode()) <= 255 and "éé" in name for name in (first, second))
    assert [run.dir for run in again.runs] == [run.dir for run in found.runs]
    assert any(first in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("hydra: {sweeper: {params: {x: '1,2'}}}", "hydra.sweeper.params"),
        ("defaults: [{override /hydra/launcher: basic}]", "hydra/launcher"),
        ("defaults: [{override /hydra/sweeper: basic}]", "hydra/sweeper"),
        ("hydra: {sweeper: {max_batch_size: 3}}", "hydra.sweeper.max_batch_size"),
        ("hydra: {job: {env_set: {LR: '${x}'}}}", "hydra.job.env_set.LR"),
    ],
)
def test_what_hydra_reads_once_cannot_be_in_a_swept_file(
    app: App, composed: Callable[..., Any], text: str, where: str
) -> None:
    app.write(exp__a=f"# @package _global_\n{text}\n", exp__b="# @package _global_\nx: 1\n")
    preparer = Preparer(*composed("+exp=a,b"))
    with pytest.raises((ConfigError, ConfigCompositionException)) as error:  # Hydra 1.4 refuses most itself
        preparer.check_files(preparer.prepare([["+exp=b"], ["+exp=a"]], 0))
    assert where.removesuffix(".params").removesuffix(".max_batch_size") in str(error.value)


def test_two_runs_in_one_directory_are_refused(composed: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="runs 0 and 1 would have the same output directory") as error:
        prepared(composed, "hydra.sweep.subdir=same", runs=[[LOCAL, "x=1"], [LOCAL, "x=2"]])
    assert error.value.where == "hydra.sweep.subdir"


@pytest.mark.parametrize(
    ("launch_dir", "expected"), [("exp", "exp"), (".", "."), ("''", "launch-app_"), ("/abs/x", "/abs/x")]
)
def test_launch_dir_takes_the_place_of_the_sweep_directory(
    composed: Callable[..., Any], launch_dir: str, expected: str
) -> None:
    preparer = Preparer(*composed(f"launch.launch_dir={launch_dir}"))
    (run,) = preparer.prepare([[LOCAL, f"launch.launch_dir={launch_dir}"]], 0).runs
    assert os.path.normpath(Path.cwd() / expected) in str(preparer.root)
    assert run.dir == preparer.root / "0"


def test_planning_writes_no_files(app: App, composed: Callable[..., Any]) -> None:
    before = app.listing()
    prepared(composed, runs=[[LOCAL, "x=1"]])
    assert app.listing() == before


def test_an_unknown_key_is_refused_before_submission(composed: Callable[..., Any]) -> None:
    with pytest.raises((ConfigError, ConfigCompositionException), match=r"resources\.nodez"):  # Hydra 1.4 refuses it
        prepared(composed, runs=[[LOCAL, "resources.nodes=1"], [LOCAL, "resources.nodez=2"]])
    with pytest.raises(ConfigError, match="nodez"):
        prepared(composed, runs=[[LOCAL, "+resources.nodez=2"]])


def test_what_becomes_of_the_whole_command_cannot_be_swept(composed: Callable[..., Any]) -> None:
    loader = composed()
    for key in ("dry_run", "bg", "setup_only"):
        with pytest.raises(ConfigError, match="differs between runs") as error:
            Preparer(*loader).prepare([[LOCAL, f"launch.{key}={v}"] for v in ("true", "false")], 0)
        assert error.value.where == f"launch.{key}"


def test_a_seed_is_the_users_or_drawn_for_each_run(composed: Callable[..., Any]) -> None:
    assert [r.seed for r in prepared(composed, runs=[[LOCAL, "launch.seed=7", f"x={x}"] for x in (1, 2)]).runs] == [
        7,
        7,
    ]
    drawn = [r.seed for r in prepared(composed, runs=[[LOCAL, f"x={x}"] for x in range(5)]).runs]
    assert len(set(drawn)) == 5 and all(0 <= s < 2**32 for s in drawn)


def test_an_application_without_the_bundle_gets_it_from_the_launcher(app: App, composed: Callable[..., Any]) -> None:
    app.write(config="x: 0\n")
    preparer = Preparer(*composed(), bundle=["scheduler=slurm", "resources.nodes=3"])
    runs = preparer.prepare([["x=1"], ["x=2"]], 0).runs
    assert [(r.plan.request.scheduler, r.plan.request.nodes) for r in runs] == [("slurm", 3)] * 2


def test_batches_share_bases_and_directories(composed: Callable[..., Any]) -> None:
    preparer = Preparer(*composed())
    first = preparer.prepare([[LOCAL, "x=1"]], 0)
    second = preparer.prepare([[LOCAL, "x=2"]], 1)
    assert first.runs[0].base == second.runs[0].base == 0 and len(second.bases) == 1


def test_packing_one_run_is_told_to_have_no_effect(composed: Callable[..., Any]) -> None:
    asked = [LOCAL, "system=perlmutter", "launch.pack=2", "resources.procs_per_node=1"]
    assert prepared(composed, runs=[asked]).notes[-1].startswith("launch.pack=2: there is one run")
    for runs in ([asked, asked], [[*asked, "launch.pack=1"]], [asked[:2]]):
        assert not [note for note in prepared(composed, runs=runs).notes if "launch.pack" in note]


ASKED = {
    "${hydra:runtime.output_dir}": ["{sweep}/0", "{sweep}/1"],
    "run ${hydra:job.num}": ["run 0", "run 1"],
    "${hydra:job.name}": ["app", "app"],
    "${hydra:sweep.dir}": ["{sweep}", "{sweep}"],
    "${hydra:job.override_dirname}": ["x=1", "x=2"],
    "${hydra:runtime.choices.scheduler}": ["slurm", "slurm"],
    "${x}": ["1", "2"],
}


@pytest.mark.parametrize("in_file", [False, True])
def test_what_a_variable_asks_of_hydra_is_the_runs_own(app: App, composed: Callable[..., Any], in_file: bool) -> None:
    names = dict(zip("ABCDEFG", ASKED, strict=True))
    if in_file:
        app.write(config=f"defaults: [hpc, _self_]\nx: 0\nlaunch: {{env: {names}}}\n")
    words = () if in_file else tuple(f"launch.env.{name}='{value}'" for name, value in names.items())
    found = prepared(
        composed, LOCAL, "hydra.sweep.dir=sweep", *words, runs=[[LOCAL, *words, f"x={n}"] for n in (1, 2)]
    ).runs
    for name, value in names.items():
        told = [next(var.value for var in run.plan.env if var.name == name) for run in found]
        assert told == [text.format(sweep=app.folder / "sweep") for text in ASKED[value]], value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("launch.env.A='${hydra:job.id}'", "Try: HydraConfig.get().job.id in the program"),
        (
            "launch.env.A='${hydra:job.nam}'",
            "Hydra's configuration has no such key\n  Try: hydra.job.name",
        ),
        ("launch.env.A='${hydra.job.num}'", "Try: launch.env.A='${hydra:job.num}'"),
        ("resources.nodes='${hydra:job.num}'", "resources.nodes: 0 is out of range"),
        ("+hydra.job.env_set.A='${x}'", "hydra.job.env_set.A: ${x} cannot be resolved there"),
    ],
)
def test_what_hydra_cannot_tell_is_refused_before_submission(
    composed: Callable[..., Any], given: str, said: str
) -> None:
    runs = [[*(() if "hydra.job.env_set" in given else (given,)), f"x={n}"] for n in (1, 2)]
    preparer = Preparer(*composed(LOCAL, given))
    with pytest.raises(ConfigError) as error:
        preparer.check_files(preparer.prepare(runs, 0))
    assert said in str(error.value)


def test_what_is_asked_of_hydra_reaches_the_ranks(app: App) -> None:
    (app.folder / "app.py").write_text(
        "import hydra, os\nfrom hydra.core.hydra_config import HydraConfig\n"
        "@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg):\n"
        "    here = HydraConfig.get()\n"
        "    assert os.environ['A'] == cfg.launch.env.A == os.environ['C'] == here.runtime.output_dir\n"
        "    assert os.environ['B'] == str(cfg.launch.env.B) == str(here.job.num) and os.environ['D'] == here.job.id\n"
        "    assert os.environ['E'] == str(cfg.x)\n"
        "main()\n"
    )
    done = app.start(
        "-m", "scheduler=local", "x=1,2", "launch.env.A='${hydra:runtime.output_dir}'", "launch.env.E='${x}'",
        "launch.env.B='${hydra:job.num}'", "+hydra.job.env_set.C='${hydra:runtime.output_dir}'",
        "+hydra.job.env_set.D='${hydra:job.id}'",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
