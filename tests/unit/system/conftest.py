"""Machines as tables: a `Probe` made of plain values, and settings as the bundle's defaults give them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.schema import Settings
from hpc_hydra.system.hardware import Hardware
from hpc_hydra.system.probe import Probe, Unanswered

AUTO = {"name": "auto", "kind": "auto"}
SLURM_IS_UP = {"scontrol ping": "Slurmctld(primary) at adm1 is UP\n"}
LAPTOP = Hardware(cores=12, numa_domains=1, memory=32000)


def machine(
    host: str = "laptop",
    full: str | None = None,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    commands: Mapping[str, str | Unanswered] | None = None,
    hardware: Hardware = LAPTOP,
) -> Probe:
    """A machine where nothing is but what is told; ``commands`` is keyed by the beginning of the command line."""
    files, commands = files or {}, commands or {}

    def run(argv: Any) -> str | None:
        line = " ".join(argv)
        answer = next((text for start, text in commands.items() if line.startswith(start)), None)
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    return Probe(
        env=env if env is not None else {"HOME": "/nowhere"},
        hostname=lambda: host,
        full_name=lambda: full,
        read=files.get,
        run=run,
        hardware=lambda: hardware,
    )


def auto(**groups: Mapping[str, Any]) -> Settings:
    """Settings of `system=auto scheduler=auto`, with other values over them."""
    data: dict[str, Any] = {"system": dict(AUTO), "scheduler": dict(AUTO)}
    for group, values in groups.items():
        data[group] = {**data.get(group, {}), **values}
    return from_mapping(data)


Composed = Callable[..., Settings]


@pytest.fixture(scope="session")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Composed:
    """`composed("system=frontier")` → Settings, through Hydra itself."""
    from hydra import compose, initialize_config_dir

    from hpc_hydra.config import store
    from hpc_hydra.config.load import settings

    store.register()
    folder = tmp_path_factory.mktemp("primary")
    groups = ["scheduler: auto", "resources: hpc", "rendezvous: tcp", "logging: hpc", "launch: hpc"]
    entries = "".join(f"  - {group}\n" for group in ["/hydra/hpc_schema", *groups, "system: auto", "_self_"])
    (folder / "config.yaml").write_text(
        f"defaults:\n{entries}hydra: {{searchpath: ['file://{store.conf_dir()}', 'file://{folder}/own']}}\n"
    )
    own = folder / "own" / "system"
    own.mkdir(parents=True)
    (own / "my_frontier.yaml").write_text(
        "# @package _global_\n"
        "defaults: [frontier, _self_]\n"
        "system: {name: my_frontier, interface: hsn1, env: {NCCL_NET: null}, queues: {mine: {partition: batch}}}\n"
    )

    @functools.cache
    def compose_once(*overrides: str) -> Settings:
        with initialize_config_dir(str(folder), version_base=None):
            return settings(compose("config", list(overrides)))

    return lambda *overrides: copy.deepcopy(compose_once(*overrides))
