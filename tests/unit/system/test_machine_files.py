"""Every machine's file composes, is typed, and says where each of its facts comes from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_hydra.config.store import conf_dir, shipped
from hpc_hydra.errors import ConfigError
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.system import index
from hpc_hydra.system.detect import resolve
from tests.unit.system.conftest import Composed, machine

MACHINES = index.names()
WITH_ADAPTER = [name for name in MACHINES if index.preset(name).scheduler in shipped("scheduler")]


def text(name: str) -> str:
    return Path(conf_dir(), "system", f"{name}.yaml").read_text()


def variables(name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for variable, preset in index.preset(name).env.items():
        for one in preset if isinstance(preset, list) else [preset]:
            yield variable, one


def test_machines_of_the_issue_ship() -> None:
    assert {"frontier", "perlmutter", "lumi", "leonardo"} <= set(MACHINES)
    assert len(MACHINES) >= 22
    of_llnl = "tioga tuolumne elcap rzadams tenaya rzvernal corona matrix rzvector ipa lassen rzansel sierra"
    assert set(of_llnl.split()) <= set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_file_says_its_name_and_sources_and_fills_only_the_system(name: str) -> None:
    lines = text(name).splitlines()
    data = yaml.load(text(name), index.Loader)
    assert lines[0] == "# @package _global_"
    assert re.search(r"^# Sources?: ", text(name), re.MULTILINE)
    assert set(data) <= {"defaults", "system"}
    assert data["system"]["name"] == name
    assert index.preset(name).source
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("name", MACHINES)
def test_composes_as_it_is_read_without_hydra(name: str, composed: Composed) -> None:
    settings = composed(f"system={name}")
    assert settings.system == index.preset(name)
    assert settings.scheduler.name in (settings.system.scheduler, "auto")
    assert settings.scheduler.queue is None


@pytest.mark.parametrize("name", MACHINES)
def test_every_variable_has_reason_source_and_date(name: str) -> None:
    for variable, preset in variables(name):
        assert preset["why"], variable
        assert preset["source"].startswith("https://"), variable
        assert date.fromisoformat(preset["checked"]), variable
        assert isinstance(preset["value"], str), variable


@pytest.mark.parametrize("name", MACHINES)
def test_all_that_a_site_requires_has_reason_source_and_date(name: str) -> None:
    for key, entry in index.preset(name).requires.items():
        assert entry["why"] and entry["source"].startswith("https://"), key
        assert date.fromisoformat(str(entry["checked"])), key


@pytest.mark.parametrize("name", MACHINES)
def test_network_plugin_is_forced_only_where_it_is_found(name: str) -> None:
    for variable, preset in variables(name):
        if variable in ("NCCL_NET", "NCCL_NET_PLUGIN"):
            assert "plugin" in preset["when"]


@pytest.mark.parametrize("name", MACHINES)
def test_queues_are_consistent(name: str) -> None:
    system = index.preset(name)
    assert system.default_queue is None or system.default_queue in system.queues
    assert system.gpu_request is None or system.gpu_request not in system.denied_flags


@pytest.mark.parametrize("name", WITH_ADAPTER)
def test_runs_on_its_own_scheduler(name: str, composed: Composed) -> None:
    assert resolve(composed(f"system={name}"), probe=machine()).scheduler.name == index.preset(name).scheduler


@pytest.mark.parametrize("name", WITH_ADAPTER)
def test_every_queue_makes_a_plan(name: str, composed: Composed) -> None:
    settings = composed(f"system={name}")
    for queue, profile in index.preset(name).queues.items():
        asked = dataclasses.replace(
            settings,
            scheduler=dataclasses.replace(settings.scheduler, queue=queue),
            resources=dataclasses.replace(settings.resources, nodes=profile.min_nodes or 1),
        )
        request = plan(resolve(asked, probe=machine())).request
        has = profile.gpus_per_node if profile.gpus_per_node is not None else settings.system.gpus_per_node
        assert request.procs_per_node * request.gpus_per_proc == has


@pytest.mark.parametrize(
    ("overrides", "procs", "cpus", "queue", "gpu_request"),
    [
        ("system=frontier", 8, 7, "batch", "gpus-per-node"),
        ("system=lumi", 8, 7, "standard-g", "gpus-per-node"),
        ("system=perlmutter", 4, 32, None, "gpus-per-node"),
        ("system=leonardo", 4, 8, "boost_usr_prod", "gres"),
        ("system=juwels_booster", 4, 12, "booster", "gres"),
        ("system=clariden", 4, 72, "normal", "gpus-per-node"),
        ("system=marenostrum5", 4, 20, None, "gres"),
        ("system=vista", 1, 72, "gh", "none"),
        ("system=vista scheduler.queue=gg", 1, 144, "gg", "none"),
        ("system=lonestar6", 3, 42, "gpu-a100", "none"),
        ("system=lonestar6 scheduler.queue=gpu-h100 resources.nodes=1", 2, 48, "gpu-h100", "none"),
        ("system=karolina", 8, 16, "qgpu", "gpus-per-node"),
        ("system=snellius", 4, 18, "gpu_a100", None),
        ("system=snellius scheduler.queue=gpu_h100", 4, 16, "gpu_h100", None),
        ("system=delta scheduler.queue=gpuMI100x8", 8, 16, "gpuMI100x8", "gpus-per-node"),
        ("system=ipa scheduler.queue=aa100", 2, 8, "aa100", "gpus-per-node"),
        ("system=matrix", 4, 28, "pbatch", "gpus-per-node"),
        ("system=tuolumne", 4, 24, "pbatch", None),
        ("system=elcap", 4, 24, "pbatch", None),
        ("system=tioga", 8, 8, "pdebug", None),
        ("system=tioga scheduler.queue=mi300a", 4, 24, "mi300a", None),
        ("system=corona", 8, 6, "pbatch", None),
        ("system=aurora", 12, 8, "capacity", None),
        ("system=polaris resources.nodes=10", 4, 8, "prod", None),
        ("system=sophia", 8, 16, "by-node", None),
        ("system=derecho", 4, 16, "main", None),
        ("system=gadi", 4, 12, "gpuvolta", None),
    ],
)
def test_default_job_of_two_nodes(
    overrides: str, procs: int, cpus: int, queue: str | None, gpu_request: str | None, composed: Composed
) -> None:
    words = overrides.split()
    nodes = [] if any(word.startswith("resources.nodes") for word in words) else ["resources.nodes=2"]
    request = plan(resolve(composed(*words, *nodes), probe=machine())).request
    found = (request.procs_per_node, request.cpus_per_proc, request.queue, request.gpu_request)
    assert found == (procs, cpus, queue, gpu_request)


def test_perlmutter_goes_by_constraint_and_qos(composed: Composed) -> None:
    request = plan(composed("system=perlmutter", "scheduler.queue=regular_80g")).request
    assert (request.queue, request.qos, request.constraint) == (None, "regular", "gpu&hbm80g")


@pytest.mark.parametrize(("nodes", "longest"), [(91, "2h"), (92, "6h"), (183, "6h"), (184, "12h"), (9472, "12h")])
def test_frontier_gives_more_time_to_more_nodes(nodes: int, longest: str, composed: Composed) -> None:
    asked = ("system=frontier", f"resources.nodes={nodes}")
    assert plan(composed(*asked, f"resources.time_limit={longest}"))
    with pytest.raises(Exception, match="longer than"):
        plan(composed(*asked, f"resources.time_limit={longest}1m"))


def test_frontier_sets_its_protocol_only_with_nccl_between_nodes(composed: Composed) -> None:
    def names(*overrides: str) -> set[str]:
        return {variable.name for variable in plan(composed("system=frontier", *overrides)).env}

    assert "FI_CXI_RDZV_PROTO" in names("resources.nodes=2")
    assert "FI_CXI_RDZV_PROTO" not in names("resources.nodes=1")
    assert "FI_CXI_RDZV_PROTO" not in names("resources.nodes=2", "rendezvous.backend=mpi")
    assert "NCCL_NET" not in names("resources.nodes=1")


@pytest.mark.parametrize("flag", ["gres", "gpus-per-task", "mem"])
def test_vista_refuses_what_the_site_rejects(flag: str, composed: Composed) -> None:
    with pytest.raises(Exception, match=f"vista rejects --{flag}"):
        plan(composed("system=vista", f"scheduler.extra={{{flag}: '1'}}"))


def test_machines_of_one_family_agree() -> None:
    tuolumne = index.preset("tuolumne")
    for name in ("tioga", "rzvernal"):
        other = index.preset(name)
        assert (other.env, other.launch_args, other.submit_args) == (
            tuolumne.env,
            tuolumne.launch_args,
            tuolumne.submit_args,
        )
    for name in ("elcap", "rzadams", "tenaya"):
        other = index.preset(name)
        own = {key: getattr(other, key) for key in ("name", "description", "hostnames")}
        assert dataclasses.replace(tuolumne, **own) == other
    assert index.preset("sierra").env == index.preset("rzansel").env == index.preset("lassen").env
    assert index.preset("daint").env == index.preset("clariden").env


def test_a_machine_of_ones_own_extends_one_of_ours(composed: Composed) -> None:
    settings = composed("system=my_frontier")
    system = settings.system
    assert settings.scheduler.name == "slurm"
    frontier = index.preset("frontier")
    assert (system.name, system.interface, system.cores_per_node) == ("my_frontier", "hsn1", 56)
    assert {*frontier.queues, "mine"} == set(system.queues)
    assert system.env["NCCL_NET"] is None
    assert "NCCL_NET" not in {
        variable.name for variable in plan(composed("system=my_frontier", "resources.nodes=2")).env
    }


def test_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no machine 'fronteir'"):
        index.facts("fronteir")


def test_times_and_dates_stay_texts() -> None:
    data = yaml.load("{a: 1:30:00, b: 2026-11-28, c: 12, d: 1.5, e: 010, f: 1e3, g: .5, h: true}", index.Loader)
    assert data == {"a": "1:30:00", "b": "2026-11-28", "c": 12, "d": 1.5, "e": "010", "f": 1000.0, "g": 0.5, "h": True}
