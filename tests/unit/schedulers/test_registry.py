"""Schedulers are found by name."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from hpc_hydra import envvars
from hpc_hydra.config import load, store
from hpc_hydra.errors import ConfigError, SchedulerError
from hpc_hydra.launcher import checks
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.local.adapter import Local


class OtherAdapter(Local):
    name = "other"


def install(monkeypatch: pytest.MonkeyPatch, loaded: object) -> None:
    point = SimpleNamespace(name="other", value="other_package:OtherAdapter", load=lambda: loaded)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "hpc_hydra.schedulers" else [])


@pytest.mark.parametrize("name", registry.built_in())
def test_built_in_schedulers_know_their_name(name: str) -> None:
    assert registry.adapter_for(name).name == name


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'slrum'.*\n.*local.*slurm"):
        registry.adapter_for("slrum")


def test_another_package_can_bring_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, OtherAdapter)
    assert isinstance(registry.adapter_for("other"), OtherAdapter)
    assert "other" in registry.names()


@pytest.mark.parametrize("loaded", [int, lambda: 1 / 0])
def test_a_broken_scheduler_of_another_package_is_named(monkeypatch: pytest.MonkeyPatch, loaded: object) -> None:
    install(monkeypatch, loaded)
    with pytest.raises(SchedulerError, match="other_package:OtherAdapter"):
        registry.adapter_for("other")


HEAVY = {"submitit", "hydra", "omegaconf", "torch", "psutil", "rich", "subprocess", "asyncio"}


def loaded_by(code: str) -> set[str]:
    """Modules that an interpreter has loaded after ``code``."""
    code = f"import sys; from hpc_hydra.schedulers import registry; {code}; print(*sys.modules)"
    return {*subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()}


@pytest.mark.parametrize("name", ["slurm", "local"])
def test_an_adapter_loads_nothing_heavy(name: str) -> None:
    assert loaded_by(f"registry.adapter_for({name!r}).rank_info({{}})") & HEAVY == set()


def test_a_rank_is_identified_without_loading_an_adapter() -> None:
    loaded = loaded_by("[registry.rank_info(name, {}) for name in registry.with_ranks()]")
    assert "hpc_hydra.schedulers.slurm.ranks" in loaded
    assert [name for name in loaded if name.endswith(".adapter")] == []
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("name", "env", "expected"),
    [
        ("slurm", {}, ("", "", False)),
        ("slurm", {"SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}, ("7", "0,1", False)),
        ("slurm/step", {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, ("", "1", False)),
        ("lsf", {"JSM_NAMESPACE_RANK": "0"}, ("", "", True)),
        ("lsf", {"JSM_NAMESPACE_RANK": "0", envvars.SPAWN_RANK: "0"}, ("", "", False)),
        ("flux", {"SLURM_ARRAY_JOB_ID": "7"}, ("", "", False)),
        ("local", {}, ("", "", False)),
    ],
)
def test_variables_of_a_task(name: str, env: dict[str, str], expected: tuple[str, str, bool]) -> None:
    found = (registry.array_id(name, env), registry.gpus_of_task(name, env), registry.signals_tasks_only(name, env))
    assert found == expected


def test_entry_points_are_read_only_for_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(group: str) -> None:
        raise AssertionError("looked for other packages")

    monkeypatch.setattr(metadata, "entry_points", looked)
    checks.rank_of({"PATH": "/bin"})
    for name in registry.built_in():
        registry.adapter_for(name)
        load.from_mapping({"system": {"name": "x"}, "scheduler": {"name": name}})
    with pytest.raises(AssertionError, match="looked"):
        registry.adapter_for("yard")


def test_a_name_that_no_package_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert store.plugged() == {}
    with pytest.raises(ConfigError, match="not an option of hpc_hydra's"):
        load.from_mapping({"system": {"name": "x"}, "scheduler": {"name": "yard"}})
