"""The pages on machines say what the files say, and their examples work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hpc_hydra.config.load import from_mapping
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.system import index
from hpc_hydra.system.detect import resolve
from tests.unit.system.conftest import machine

DOCS = Path(__file__).parents[3] / "docs"


def example(start: str) -> str:
    """The one example that begins so."""
    pages = "".join((DOCS / name).read_text() for name in ("systems.md", "machines.md", "defaults.md"))
    [found] = [text for text in re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL) if text.startswith(start)]
    return found


def test_the_documented_list_of_systems_is_that_of_the_shipped_files() -> None:
    page = (DOCS / "systems.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    told = {row[0]: row[1:] for row in rows if row[0] != "system"}
    assert list(told) == list(index.names())
    for name, row in told.items():
        system = index.preset(name)
        memory = None if system.mem_per_gpu is None else f"{system.mem_per_gpu:g}"
        facts = [system.scheduler, system.cores_per_node, system.gpus_per_node, system.gpu_arch, memory]
        facts += [system.default_queue, system.description]
        assert row == ["—" if fact is None else str(fact) for fact in facts], name


def test_the_example_of_a_new_machine_plans() -> None:
    data = yaml.load(example("# @package _global_\n# conf/system/atlas.yaml"), index.Loader)
    settings = from_mapping(
        {
            "system": data["system"],
            "scheduler": {"name": "slurm", "queue": "big"},
            "resources": {"nodes": 2},
        }
    )
    done = plan(settings)
    assert (done.request.procs_per_node, done.request.cpus_per_proc, done.request.queue) == (8, 8, "fat")
    assert "NCCL_SOCKET_IFNAME" in {variable.name for variable in done.env}


def test_the_example_of_an_extended_machine_names_one_of_ours() -> None:
    data = yaml.load(example("# @package _global_\n# conf/system/my_frontier.yaml"), index.Loader)
    assert data["defaults"][0] in index.names()
    base = index.facts(data["defaults"][0])
    assert from_mapping({"system": {**base, **data["system"]}, "scheduler": {"name": "slurm"}})


@pytest.mark.parametrize("name", ["frontier", "lumi"])
def test_the_example_of_a_persons_defaults_is_accepted(name: str) -> None:
    probe = machine(env={"HPC_HYDRA_DEFAULTS": "/mine"}, files={"/mine": example("frontier:\n")})
    settings = from_mapping({"system": index.facts(name), "scheduler": {"name": "slurm"}})
    done = resolve(settings, probe=probe)
    assert done.launch.env == {"WANDB_MODE": "offline"}
    assert done.scheduler.account == ("abc123" if name == "frontier" else None)
