"""A composition that was kept is the one that Hydra makes, and whatever could make it another is noticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig
from omegaconf.nodes import ValueNode

from hpc_hydra.cli.run import Call, compose
from hpc_hydra.cli.torchrun import parse, translate
from hpc_hydra.config import kept, store

pytestmark = pytest.mark.hydra

CHOICES = {group: store.shipped(group) for group in ("scheduler", "rendezvous", "container", "monitor")}
VALUES = [
    "resources.nodes=2", "resources.procs_per_node=4", "resources.time_limit=1:30:00", "scheduler.queue=debug",
    "scheduler.extra.x=1", "scheduler.extra={a: b, c: null}", "scheduler.remove=[a,b]", "launch.env.A='x, y'",
    "launch.env={B: '${oc.env:HOME}'}", "system.queues.new.partition=x", "+launch.env.C=1", "launch.dry_run=true",
    "logging.out='%j.out'", "hydra.job.name=other", "hydra.sweep.dir='x/${now:%Y}'",
    "scheduler.job_name='${system.name}'",
    "~launch.env", "+monitor.more=1", "rendezvous.port=null", "resources={nodes: 3, exclusive: true}",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, in use whatever the interpreter was told of bytecode."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    kept._state.cache_clear()
    yield tmp_path / "cache" / "hpc_hydra"
    kept._state.cache_clear()


def composed(*overrides: str, **more: Any) -> DictConfig:
    return compose(Call(tuple(overrides), ("train.py",), **more), name="train")[1]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*")) if folder.exists() else []


def everything(node: Any) -> Any:
    """All that a configuration holds: values as they are written, order, types and flags of every node."""
    about = {name: value for name, value in vars(node._metadata).items() if name != "resolver_cache"}
    if isinstance(node, ValueNode) or node._is_none() or node._is_missing() or node._is_interpolation():
        return type(node), about, node._value()
    if isinstance(node, ListConfig):
        return type(node), about, [everything(child) for child in node._content]
    assert isinstance(node, DictConfig)
    return type(node), about, [(key, everything(child)) for key, child in node._content.items()]


def option_sets() -> Iterator[tuple[str, ...]]:
    """Every system, each with some other choices and values."""
    chance = random.Random(20261128)
    for system in store.shipped("system"):
        groups = chance.sample(sorted(CHOICES), chance.choice([0, 0, 1, 2]))
        choices = [f"{group}={chance.choice(CHOICES[group])}" for group in groups]
        overrides = [f"system={system}", *choices, *chance.sample(VALUES, chance.randrange(5))]
        chance.shuffle(overrides)
        yield tuple(overrides)


@pytest.mark.parametrize("overrides", list(option_sets()), ids=lambda overrides: ",".join(overrides)[:60])
def test_a_kept_composition_is_hydras(overrides: Sequence[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is Hydra's own, which is put away; the second is the one that was kept."""
    made: list[Any] = []
    for _ in range(2):
        try:
            made.append(everything(composed(*overrides)))
        except Exception as error:  # ~launch.env beside launch.env.A
            made.append((type(error), str(error)))
        monkeypatch.setattr("hydra._internal.config_loader_impl.ConfigLoaderImpl._load_single_config", None)
    assert made[0] == made[1]
    assert len(files(cache)) == 1


def test_values_of_the_command_line_are_not_kept(cache: Path) -> None:
    first, second = (composed("system=frontier", f"resources.nodes={nodes}", "launch.env.A=b") for nodes in (2, 3))
    assert (first.resources.nodes, second.resources.nodes) == (2, 3)
    assert len(files(cache)) == 1
    assert composed("system=frontier").launch.env == {}


def test_torchruns_options_come_from_one_composition(cache: Path) -> None:
    for words in (["-N", "2"], ["-N", "4", "-n", "8"], ["-g", "16", "-q", "batch", "-x", "~mpi"]):
        args = parse(["--dry-run", "--system", "frontier", *words, "train.py"])
        assert composed(*translate(args)).system.name == "frontier"
    assert len(files(cache)) == 1


def test_a_kept_composition_tells_its_files(cache: Path) -> None:
    """Checks look at the files that were composed."""
    from hpc_hydra.config import remembered

    lists = []
    for _ in range(2):
        hydra, _cfg = compose(Call(("system=frontier",), ("train.py",)), name="train")
        lists.append(
            remembered.defaults(hydra.config_loader, "hpc_hydra_command", ("system=frontier", "hydra.sweep.subdir=."))
        )
    assert lists[0] is not None and lists[0] == lists[1]


@pytest.mark.parametrize("wrong", ["resources.nodez=2", "system=frontierr", "resources.nodes=two", "nodes=2", "+a@b=1"])
def test_errors_are_hydras(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed("system=frontier")
    told = []
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            composed("system=frontier", wrong) if "system" not in wrong else composed(wrong)
        told.append((type(caught.value), str(caught.value)))
        monkeypatch.setattr(kept, "_key", lambda _: (None, None))
    assert told[0] == told[1]


def test_a_file_that_was_edited_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = shutil.copytree(store.conf_dir(), tmp_path / "conf")
    monkeypatch.setattr(store, "conf_dir", lambda: conf)
    monkeypatch.setattr(kept, "conf_dir", lambda: conf)
    assert composed("system=frontier").system.cores_per_node == 56
    frontier = conf / "system" / "frontier.yaml"
    frontier.write_text(frontier.read_text().replace("cores_per_node: 56", "cores_per_node: 48"))
    kept._state.cache_clear()
    assert composed("system=frontier").system.cores_per_node == 48
    (conf / "system" / "mine.yaml").write_text("# @package _global_\nsystem: {name: mine, cores_per_node: 3}\n")
    kept._state.cache_clear()
    assert composed("system=mine").system.cores_per_node == 3


def test_a_configuration_of_the_users_own_is_not_kept(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\n")
    assert composed(config_dir=str(tmp_path)).resources.nodes is None
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "frontier.yaml").write_text("# @package _global_\nsystem: {name: frontier}\n")
    more = f"hydra.searchpath=[file://{tmp_path}]"
    assert composed("system=frontier", more).system.cores_per_node is None or not files(cache)
    assert not files(cache)


@pytest.mark.parametrize("content", [b"", b"junk\n", None])
def test_what_cannot_be_read_is_composed(content: bytes | None, cache: Path) -> None:
    composed("system=frontier")
    [file] = files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert composed("system=frontier").system.cores_per_node == 56
    assert len(file.read_bytes()) > len(whole) // 2


def test_a_file_that_others_may_write_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composed("system=frontier")
    [file] = files(cache)
    file.chmod(0o666)
    loads: list[Any] = []
    monkeypatch.setattr(kept.pickle, "load", lambda _: loads.append(1))
    assert composed("system=frontier").system.cores_per_node == 56
    assert not loads


def test_no_place_for_it_is_no_error(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("in the way")
    assert composed("system=frontier").system.cores_per_node == 56


def test_nothing_is_written_where_python_is_told_to_write_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    composed("system=frontier")
    assert not files(cache)


def test_the_oldest_are_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_FILES", 2)
    for name in ("flux", "slurm", "lsf"):
        composed(f"scheduler={name}")
    assert len(files(cache)) == 2
