"""What is typed on the command line arrives as typed, or is refused: texts, variables, options of groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, get_type_hints

import pytest

from hpc_hydra.config.schema import GROUPS
from hpc_hydra.config.values import CHOICES
from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher.override_plan import check as check_resumed
from hpc_hydra.launcher.override_values import check
from tests.unit.cli.running import hpc_hydra, python

TEXTS = [
    f"{group}.{name}"
    for group, kind in GROUPS.items()
    for name, hint in get_type_hints(kind).items()
    if hint in (str, Optional[str]) and f"{group}.{name}" not in CHOICES  # noqa: UP045
]
CHANGED = ["12e4", "1e3", "1_000", "1.10", "+5", "-0", "true", "False", "nan", ".5"]
KEPT = ["1000", "-5", "010", "1.2.3", "abc", "'12e4'", '"true"', "null", "1e3x", "${oc.env:X}", "a1_000"]


def refused(*overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        check(overrides)
    return error.value


@pytest.mark.parametrize("key", TEXTS)
def test_a_text_that_hydra_would_rewrite_is_refused(key: str) -> None:
    for value in CHANGED:
        if key == "launch.launch_dir" and value.lower() in ("true", "false"):  # a generated name
            check([f"{key}={value}"])
            continue
        for line in (f"{key}={value}", f"++{key}={value}", f"{key}=a,{value}", f"{key}=choice(a,{value})"):
            error = refused("x=1", line)
            assert error.where == key and error.fix == f"quote it: {key}='\"{value}\"'" and value in error.what


@pytest.mark.parametrize("key", TEXTS)
def test_a_text_that_arrives_as_typed_is_taken(key: str) -> None:
    check(f"{key}={value}" for value in KEPT)
    check([f"{key}={','.join(KEPT[:5])}"])


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("scheduler.hosts=[n1,1.10]", "scheduler.hosts"), ("scheduler.setup_lines=[true]", "scheduler.setup_lines"),
        ("system.site_env={A:1e3}", "system.site_env.A"), ("system.site_env.A=1e3", "system.site_env.A"),
        ("system.queues.big.account=12e4", "system.queues.big.account"),
        ("system.queues={big:{account:1_000}}", "system.queues.big.account"),
        ("scheduler.extra.licenses=1_000", "scheduler.extra.licenses"),
        ("scheduler.extra={nice:+5}", "scheduler.extra.nice"), ("launch.env={X:1_000}", "launch.env.X"),
        ("container.env.X=1_000", "container.env.X"), ("launch.env.X=1_000", "launch.env.X"),
        ("launch.env.X=+5", "launch.env.X"), ("+launch.env.X=1,1_0", "launch.env.X"),
        ("launch.env.X=-0", "launch.env.X"),
    ],
)  # fmt: skip
def test_texts_in_collections_are_texts(override: str, where: str) -> None:
    error = refused(override)
    assert error.where == where and "quote it" in str(error.fix)


@pytest.mark.parametrize(
    "override",
    [
        "launch.env.X=1000", "launch.env.X='1_000'", "launch.env.X=010", "launch.env.X=-5", "lr=1_000", "x.y=[true]",
        "scheduler.extra.overcommit=true", "resources.nodes=1_0", "resources.exclusive=true", "launch.debug=false",
        "rendezvous.fraction_max_gpu_mem=1e-1", "scheduler.queue=range(1,3)", "scheduler@mine=[a,b]", "~scheduler",
        "system.queues={big:{max_nodes:1_0,account:a}}", "scheduler.array_parallelism=1_0",
    ],
)  # fmt: skip
def test_other_values_are_left_alone(override: str) -> None:
    check([override])


def test_the_value_of_a_secret_is_not_shown() -> None:
    assert "1_234" not in str(refused("launch.env.API_KEY=1_234"))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", ["[a,b]", "[a]", "[]", "[a,b],[c]", "c,[a,b]"])
def test_a_list_of_options_of_a_group_is_refused(group: str, value: str) -> None:
    error = refused(f"{group}={value}")
    assert error.where == group
    if value == "[a,b]":
        assert str(error.fix).startswith(f"{group}=a,b ") and "-m" in str(error.fix)


@pytest.mark.parametrize("override", ["scheduler.account=12e4", "scheduler.extra.licenses=1_000"])
def test_a_resumed_run_is_checked_too(override: str) -> None:
    with pytest.raises(ConfigError, match="quote it"):
        check_resumed([override])


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "config.yaml").write_text("defaults: [hpc, _self_]\n")
    (folder / "train.py").write_text(
        "import hydra\n@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg): print('RAN')\nmain()\n"
    )
    return folder


@pytest.mark.parametrize(
    ("command", "override", "fix"),
    [
        ("plain", "scheduler.account=12e4", "'\"12e4\"'"),
        ("plain", "system=[perlmutter,frontier]", "system=perlmutter,frontier"),
        ("multirun", "scheduler.account=12e4", "'\"12e4\"'"),
        ("multirun", "scheduler=[slurm,flux]", "scheduler=slurm,flux"),
        ("run", "scheduler.account=12e4", "'\"12e4\"'"),
        ("run", "scheduler.queue=' '", "scheduler.queue=null"),
    ],
)
def test_every_command_refuses_before_anything_is_written(app: Path, command: str, override: str, fix: str) -> None:
    if command == "run":
        done: Any = hpc_hydra("run", "launch.dry_run=true", override, "--", "true", cwd=app)
    else:
        done = python("train.py", *(["-m", "launch.dry_run=true"] if command == "multirun" else []), override, cwd=app)
    assert done.returncode == 2 and fix in done.stderr and "Try:" in done.stderr
    assert "RAN" not in done.stdout and not any(app.rglob("*.sh")) and not any(app.rglob("*.json"))


@pytest.mark.parametrize(
    ("command", "group", "options"),
    [((), "scheduler", "slurm,flux"), (("-m", "launch.dry_run=true"), "system", "perlmutter,frontier")],
)
def test_a_list_of_options_in_a_defaults_list_is_refused(
    app: Path, tmp_path: Path, command: tuple[str, ...], group: str, options: str
) -> None:
    (tmp_path / "config.yaml").write_text(f"defaults: [hpc, {{override /{group}: [{options}]}}, _self_]\n")
    (tmp_path / "train.py").write_text((app / "train.py").read_text())
    done = python("train.py", *command, cwd=tmp_path)
    assert done.returncode == 2 and f"{group}={options}" in done.stderr and "RAN" not in done.stdout


@pytest.mark.parametrize(
    ("params", "fix"),
    [("{scheduler.account: '12e4,1e3'}", "12e4"), ("{system: '[perlmutter,frontier]'}", "system=perlmutter,frontier")],
)
def test_values_swept_by_the_primary_config_are_checked(app: Path, tmp_path: Path, params: str, fix: str) -> None:
    (tmp_path / "config.yaml").write_text(f"defaults: [hpc, _self_]\nhydra: {{sweeper: {{params: {params}}}}}\n")
    (tmp_path / "train.py").write_text((app / "train.py").read_text())
    done = python("train.py", "-m", "launch.dry_run=true", cwd=tmp_path)
    assert done.returncode == 2 and fix in done.stderr and "RAN" not in done.stdout


def test_a_group_of_the_users_own_is_taken_also_with_a_name_like_ours() -> None:
    check(["++lr_scheduler.name=cosine", "+lr_scheduler.kind=a", "++monitoring.interval=5", "+schedule.name=cosine"])
    assert refused("+resource.nodes=2").fix == "resources.nodes=2"
    assert refused("++launchs.env.TOKEN=1").fix == "launch"
