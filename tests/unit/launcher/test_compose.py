"""Composing from a base gives what Hydra's own composition gives, or its error; on generated sets of overrides."""

from __future__ import annotations

import copy
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hpc_hydra.launcher.compose import Composer, raw_list
from hpc_hydra.records.frozen_config import Freezer, Program, parse_override, read_run, thaw

FILES = {
    "config.yaml": """
defaults:
  - bundle
  - model: mlp
  - data: small
  - optim@training.optim: sgd
  - pair: ${data}_${model}
  - _self_
lr: 0.1
name: run
seq: [1, 2, 3]
nested: {a: 1, b: {c: two, d: [x, y]}}
ref: ${lr}
deep: ${nested.b.c}-${model.width}
rank: ${oc.env:SOME_RANK,none}
when: ${now:%Y-%m-%d %H:%M:%S.%f}
missing: ???
nothing: null
""",
    "bundle.yaml": "# @package _global_\nbundle: {size: 1}\n",
    "model/mlp.yaml": "width: 10\ndepth: 2\n",
    "model/cnn.yaml": "width: 20\nkernel: [3, 3]\n",
    "data/small.yaml": "size: 10\npath: ${oc.env:HOME}/small\n",
    "data/large.yaml": "defaults: [small]\nsize: 1000\n",
    "optim/sgd.yaml": "kind: sgd\nmomentum: 0.9\n",
    "optim/adam.yaml": "kind: adam\nbetas: [0.9, 0.99]\n",
    "exp/one.yaml": "# @package _global_\ndefaults: [override /model: cnn]\nlr: 5\nextra: {of: one}\n",
    "exp/two.yaml": "# @package _global_\ndefaults: [override /data: large]\nname: two\nmodel: {width: 99}\n",
}

SINGLE = [
    "lr=0.2", "lr=1e-3",
    "lr=null", "lr=abc", "lr=${nested.a}", "lr='a b'", 'lr="it\'s"', "lr=''", "lr=true",
    "lr=[1,2]", "lr={x:1}", "lr=01:30", "lr=1_000", "lr=é東京", "lr='line\\nbreak'", "lr='$(touch x)'", "lr='a;b'",
    "lr=%j", "lr=",
    "name=x", "name=${model.width}", "name=a=b", "name='${now:%f}'", "name=${oc.env:SOME_RANK,zero}", "name=a.b/c:d",
    "seq=[9]", "seq.0=7", "seq[1]=8", "seq.9=1", "nested.a=5", "nested.b.c=z", "nested.b={c:1}", "nested.b.d=[q]",
    "nested.zz=1", "+nested.zz=1", "++nested.zz=2", "++nested.a=2", "+nested.a=3",
    "~nested.a", "~nested.b",
    "~nested.x",
    "~lr=0.1", "~lr=0.5", "~lr", "+new=1", "+new.deep.er=2", "+new={a:{b:c}}", "++lr=4", "+lr=4", "zzz=1", "missing=1",
    "nothing=5", "ref=5", "deep=x", "when=never", "bundle.size=4", "bundle.sise=4", "+bundle.more=[1,2]",
    "model=cnn", "model=mlp", "model=nope", "model={width:3}", "model=[mlp,cnn]", "model=null", "model.width=33",
    "+model.extra=1", "~model", "~model=mlp", "~model=cnn", "data=large", "data.size=7", "+exp=one", "+exp=two",
    "exp=one", "++exp=one", "+exp@other=one", "optim@training.optim=adam", "training.optim.momentum=0.1",
    "+optim@second=adam", "optim=adam", "~optim@training.optim", "model@foo=cnn", "+data@more.data=large",
    "hydra.job.name=other", "hydra.verbose=true", "hydra.sweep.subdir=${lr}", "hydra.nope=1", "+hydra.job.env_set.A=b",
    "hydra.job.config.override_dirname.kv_sep=_", "hydra/job_logging=disabled", "hydra.output_subdir=null",
    "lr=choice(1,2)", "lr=1,2", "a b=1", "=1", "lr", "lr==1", "lr=\\,", "lr=[1,", "name=\\${lr}", "name='\\${lr}'",
    "name=x\\ y", "nested.b.d.0=first", "nested.b.d.-1=last", "+a@b=1", "pair=1", "+pair.x=1", "lr=${nope}", "lr=???",
]  # fmt: skip


def cases(count: int) -> list[list[str]]:
    """Every override alone, then random sets of two to five."""
    seeded = random.Random(1)
    sets = [[o] for o in SINGLE]
    while len(sets) < count:
        sets.append(seeded.sample(SINGLE, seeded.randint(2, 5)))
    return sets


CASES = cases(len(SINGLE) + hypothesis.settings().max_examples // 2)  # few, or many under make test-long


@pytest.fixture(scope="module")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, DictConfig]]:
    folder = tmp_path_factory.mktemp("conf")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "pair").mkdir()
    for data, model in itertools.product(("small", "large"), ("mlp", "cnn")):
        (folder / "pair" / f"{data}_{model}.yaml").write_text(f"of: {data} {model}\n")
    state = Singleton.get_state()
    GlobalHydra.instance().clear()
    app = Hydra.create_main_hydra2(task_name="app", config_search_path=create_config_search_path(str(folder)))
    master = app.compose_config("config", ["hydra.mode=MULTIRUN"], run_mode=RunMode.MULTIRUN)
    yield app.config_loader, master
    GlobalHydra.instance().clear()
    Singleton.set_state(state)


@pytest.fixture(scope="module")
def composer(hydra: tuple[Any, DictConfig]) -> Composer:
    """One for all runs, as in a sweep."""
    return Composer(*hydra)


def outcome(function: Any) -> tuple[str, Any]:
    try:
        return "composed", function()
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}\n{error.__cause__}".replace("\n", " ")


def resolved(cfg: DictConfig, key: str) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.create({key: cfg[key]}), resolve=False)
    except Exception as error:
        return type(error).__name__


def assert_alike(ours: DictConfig, theirs: DictConfig) -> None:
    plain = [OmegaConf.to_container(cfg, resolve=False) for cfg in (ours, theirs)]
    assert plain[0] == plain[1]
    assert str(plain[0]) == str(plain[1])  # the order of keys too


def assert_same(ours: DictConfig, theirs: DictConfig) -> None:
    assert_alike(ours, theirs)
    before = HydraConfig.instance().cfg
    try:
        for key in theirs:
            if key == "hydra":
                continue
            HydraConfig.instance().cfg = ours
            mine = resolved(ours, key)
            HydraConfig.instance().cfg = theirs
            assert mine == resolved(theirs, key)
    finally:
        HydraConfig.instance().cfg = before


@pytest.mark.parametrize(
    "overrides",
    [pytest.param(case, marks=[pytest.mark.hydra] if len(case) == 1 else [], id=" ".join(case)) for case in CASES],
)
def test_a_run_is_composed_as_hydra_composes_it(
    hydra: tuple[Any, DictConfig], composer: Composer, overrides: list[str]
) -> None:
    loader, master = hydra
    how, ours = outcome(lambda: composer.compose(overrides).cfg)
    expected, theirs = outcome(lambda: loader.load_sweep_config(master, overrides))
    assert (how, how == "refused" and ours.partition(":")[0]) == (
        expected,
        expected == "refused" and theirs.partition(":")[0],
    )
    if how == "refused":
        if "Error when parsing index" not in theirs:
            assert ours == theirs
        return
    assert_same(ours, theirs)


@pytest.mark.parametrize("overrides", CASES[::8], ids=lambda o: " ".join(o))
def test_a_thawed_run_is_what_was_composed(composer: Composer, overrides: list[str], tmp_path: Path) -> None:
    how, composed = outcome(lambda: composer.compose(overrides))
    if how == "refused":
        return
    freezer = Freezer(tmp_path, Program("script", "train.py"))
    base = freezer.add_base(composed.base.cfg, composed.base.applied)
    freezer.add_run(3, overrides, plan="plan0", base=base, seed=1, dir=tmp_path / "three")
    freezer.flush()
    cfg = thaw(tmp_path, read_run(tmp_path, 3), job_id="17_3")
    assert (cfg.hydra.job.num, cfg.hydra.job.id) == (3, "17_3")
    assert (cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir) == (str(tmp_path), "three")
    for key in ("num", "id"):
        OmegaConf.update(composed.cfg, f"hydra.job.{key}", cfg.hydra.job[key], force_add=True)
    for key in ("dir", "subdir"):
        OmegaConf.update(composed.cfg, f"hydra.sweep.{key}", cfg.hydra.sweep[key], force_add=True)
    assert_alike(cfg, composed.cfg)


@pytest.mark.hydra
def test_the_now_resolver_gives_all_runs_one_time(hydra: tuple[Any, DictConfig]) -> None:
    composer = Composer(*hydra)
    first = composer.compose(["name=first"]).cfg  # its base does not know the pattern
    runs = [composer.compose([f"lr={i}", "name=${now:%j%f}"]).cfg for i in range(3)]
    ranks = [copy.deepcopy(cfg) for cfg in runs for _ in range(2)]
    assert len({cfg.when for cfg in (first, *ranks)}) == len({cfg.name for cfg in ranks}) == 1


@pytest.mark.hydra
def test_environment_is_left_for_the_rank_to_resolve(hydra: tuple[Any, DictConfig], monkeypatch: Any) -> None:
    monkeypatch.setenv("SOME_RANK", "submitting")
    cfg = Composer(*hydra).compose(["lr=1"]).cfg
    monkeypatch.setenv("SOME_RANK", "7")
    assert cfg.rank == 7 or cfg.rank == "7"


@pytest.mark.hydra
def test_runs_with_equal_choices_share_a_base(hydra: tuple[Any, DictConfig]) -> None:
    composer = Composer(*hydra)
    bases = [composer.compose([f"model={m}", f"lr={i}"]).base for m in ("mlp", "cnn") for i in range(50)]
    assert len(set(map(id, bases))) == 2


@pytest.mark.hydra
def test_runs_do_not_share_their_values(hydra: tuple[Any, DictConfig]) -> None:
    composer = Composer(*hydra)
    first, second = composer.compose(["+nested.x=1"]).cfg, composer.compose(["lr=2"]).cfg
    assert "x" not in second.nested and first.lr == 0.1
    assert os.environ.get("PATH")


def again(loader: Any) -> Hydra:
    return Hydra(task_name="app", config_loader=loader)


def multirun(app: Any, overrides: list[str]) -> DictConfig:
    master: DictConfig = app.compose_config("config", [*overrides, "hydra.mode=MULTIRUN"], run_mode=RunMode.MULTIRUN)
    return master


def spelt(master: DictConfig) -> list[str]:
    """The overrides of the only run, as the sweeper hands them to the launcher."""
    parsed = [parse_override(text) for text in raw_list(master.hydra.overrides.task)]
    [[run]] = BasicSweeper.split_arguments(parsed, None)
    return list(run)


@pytest.mark.parametrize("overrides", [[], *CASES[::14]], ids=lambda o: " ".join(o))
@pytest.mark.hydra
def test_the_only_run_of_a_command_is_what_hydra_composed_already(
    hydra: tuple[Any, DictConfig], overrides: list[str]
) -> None:
    how, master = outcome(lambda: multirun(again(hydra[0]), overrides))
    if how == "refused" or any(parse_override(o).is_sweep_override() for o in overrides):
        return
    loader, run = hydra[0], spelt(master)
    composer = Composer(loader, master)
    HydraConfig.instance().set_config(master)  # as Hydra 1.4 does before it sweeps
    composed = composer.compose(run)
    expected = loader.load_sweep_config(master, run)
    assert_same(composed.cfg, expected)
    assert flags(composed.cfg) == flags(expected)


def flags(cfg: DictConfig) -> list[Any]:
    return [cfg._metadata.flags, cfg.hydra._metadata.flags, cfg._get_flag("struct"), cfg.hydra._get_flag("readonly")]


@pytest.mark.parametrize(
    ("primary", "own"),
    [("defaults:\n- data: ???\n", []), ("", ["+hydra.callbacks.mine._target_=hydra.experimental.callback.Callback"])],
    ids=["a choice that is still to be made", "callbacks that may have changed it"],
)
@pytest.mark.hydra
def test_what_is_not_what_hydra_would_compose_for_the_run_is_composed_anew(
    hydra: tuple[Any, DictConfig], primary: str, own: list[str]
) -> None:
    loader = hydra[0]
    folder = next(Path(s.path) for s in loader.get_sources() if s.provider == "main")
    if primary:
        (folder / "other.yaml").write_text(primary)
    app = again(loader)
    name = "other" if primary else "config"
    master = app.compose_config(name, [*own, "hydra.mode=MULTIRUN"], run_mode=RunMode.MULTIRUN)
    how, found = outcome(lambda: Composer(loader, master).compose(spelt(master)).cfg)
    expected, theirs = outcome(lambda: loader.load_sweep_config(master, spelt(master)))
    assert how == expected == ("refused" if primary else "composed")
    assert found == theirs
