"""settings → Plan: what was asked is what is requested, once, and what cannot be is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError
from hpc_hydra.planning.tasks import step_request, task_request
from hpc_hydra.planning.types import EnvVar, Logging, Plan, Rendezvous, from_json, to_json
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.schedulers.registry import adapter_for

BOX = {
    "name": "box",
    "scheduler": "slurm",
    "cores_per_node": 64,
    "gpus_per_node": 4,
    "gpu_vendor": "nvidia",
    "mem_per_gpu": 80,
    "mem_per_node": "512G",
}
VISTA = {
    "name": "vista",
    "scheduler": "slurm",
    "cores_per_node": 72,
    "gpus_per_node": 1,
    "denied_flags": ["gres", "gpus-per-task"],
}
QUEUES = {
    "default_queue": "batch",
    "queues": {
        "batch": {"time_by_nodes": {"1-91": "2h", "92-": "12h"}, "max_nodes": 100, "time_limit": "1h"},
        "extended": {"partition": "batch", "qos": "ext", "max_time": "24h", "max_nodes": 64},
        "big": {"min_nodes": 50, "account": "proj", "mem_per_node": "480G", "cpus_per_proc": 8, "constraint": "hbm"},
        "cpu": {"gpus_per_node": 0, "cores_per_node": 128},
        "any": {"partition": ""},
    },
}


def make(system: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None, **groups: Any) -> Plan:
    data = {"system": system or BOX, "scheduler": {"name": "slurm", **(scheduler or {})}, **groups}
    return plan(from_mapping(data))


def refused(*args: Any, **groups: Any) -> HpcHydraError:
    with pytest.raises((ConfigError, PlanError)) as error:
        make(*args, **groups)
    assert error.value.where and error.value.fix
    return error.value


def test_every_key_of_the_groups_reaches_the_request() -> None:
    keys = {
        key: f"the {key}"
        for key in (
            "queue", "account", "qos", "reservation", "dependency", "job_name", "constraint", "nodelist", "exclude",
            "mail_type", "mail_user", "comment", "mpi",
        )
    }  # fmt: skip
    resources = {"nodes": 2, "procs_per_node": 2, "gpus_per_proc": 2, "cpus_per_proc": 3, "mem_per_node": "1.5GB"}
    got = make(
        {**BOX, "gpu_request": "gres", "gpu_bind": "closest", "cpu_bind": "cores"},
        {**keys, "array_parallelism": 3, "setup_lines": ["module load x", "set -x"]},
        resources={**resources, "time_limit": "1h30m", "exclusive": True},
        rendezvous={"gpu_visibility": "own"},
    ).request
    assert {key: getattr(got, key) for key in keys} == keys
    assert (got.nodes, got.procs_per_node, got.gpus_per_proc, got.cpus_per_proc) == (2, 2, 2, 3)
    assert (got.mem_per_node, got.time_limit, got.exclusive, got.array_parallelism) == (1536, 5400, True, 3)
    assert (got.gpu_request, got.gpu_bind, got.cpu_bind) == ("gres", "closest", "cores")
    assert got.setup_lines == ("module load x", "set -x") and got.world_size == 4


def test_nothing_asked_is_nothing_said() -> None:
    got = make({"name": "dark"}).request
    assert (got.nodes, got.procs_per_node, got.gpus_per_proc) == (1, 1, 0)
    for key in ("cpus_per_proc", "mem_per_node", "time_limit", "queue", "account", "gpu_request", "array_parallelism"):
        assert getattr(got, key) is None
    assert not got.submit_args and not got.launch_args and not got.removed_args and got.job_name == "hpc_hydra"


@pytest.mark.parametrize("group", ["system", "scheduler"])
def test_auto_must_be_resolved_first(group: str) -> None:
    data: dict[str, Any] = {"system": dict(BOX), "scheduler": {"name": "slurm"}}
    data[group] = {**data[group], "name": "auto", "kind": "auto"}
    with pytest.raises(PlanError, match="resolve") as error:
        plan(from_mapping(data))
    assert error.value.where == group


def test_another_scheduler_does_not_get_the_sites_arguments() -> None:
    system = {**BOX, **QUEUES, "submit_args": {"network": "x"}, "gpu_request": "gres", "denied_flags": ["mem"]}
    got = make(system, {"name": "local"}, resources={"mem_per_node": "1G"}).request
    assert (got.queue, got.submit_args, got.gpu_request, got.mem_per_node) == (None, (), None, 1024)


# Queues


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        (None, ("batch", None, None)),
        ("batch", ("batch", None, None)),
        ("extended", ("batch", None, "ext")),
        ("any", (None, None, None)),
        ("unheard-of", ("unheard-of", None, None)),
    ],
)
def test_a_queue_is_a_profile_or_passed_on(asked: str | None, want: tuple[Any, ...]) -> None:
    got = make({**BOX, **QUEUES}, {"queue": asked}).request
    assert (got.queue, got.account, got.qos) == want


def test_the_users_own_keys_win_over_the_profile() -> None:
    system = {**BOX, **QUEUES}
    big = {"nodes": 60, "time_limit": 5}
    got = make(system, {"queue": "big"}, resources=big).request
    assert (got.account, got.mem_per_node, got.cpus_per_proc, got.constraint) == ("proj", 480 * 1024, 8, "hbm")
    mine = {**big, "mem_per_node": 0, "cpus_per_proc": 2}
    got = make(system, {"queue": "big", "account": "me", "constraint": "x"}, resources=mine).request
    assert (got.account, got.mem_per_node, got.cpus_per_proc, got.constraint) == ("me", 0, 2, "x")
    assert make(system).request.time_limit == 3600
    assert make(system, resources={"time_limit": "2h"}).request.time_limit == 7200


@pytest.mark.parametrize("asked", ["batch", "extended", None])
def test_nothing_is_said_of_a_queue_that_is_known(asked: str | None) -> None:
    assert make({**BOX, **QUEUES, "all_queues": True}, {"queue": asked}).notes == ()


def test_a_queue_that_is_not_known_is_told_and_passed_on() -> None:
    got = make({**BOX, **QUEUES}, {"queue": "bacth"})
    assert got.request.queue == "bacth"
    assert "bacth is none of those known of box (batch, extended, big, cpu, any)" in got.notes[0]
    assert "did you mean batch?" in got.notes[0]
    assert make({**BOX, **QUEUES}, {"name": "local", "queue": None}).notes == make(BOX).notes == ()


def test_a_queue_is_refused_where_the_list_is_whole() -> None:
    whole = {**BOX, **QUEUES, "all_queues": True}
    error = refused(whole, {"queue": "bacth"})
    assert error.where == "scheduler.queue" and "batch, extended, big, cpu, any" in error.what
    assert error.fix == "scheduler.queue=batch; where it is new: system.queues.bacth.partition=bacth"
    assert refused(whole, {"extra": {"partition": "elsewhere"}}).where == "scheduler.queue"


@pytest.mark.parametrize("partition", ["fast", "slow"])
def test_the_partition_behind_a_profile_does_not_go_round_its_limits(partition: str) -> None:
    queues = {"short": {"partition": "fast", "max_time": "30m"}, "long": {"partition": "slow", "qos": "l"}}
    box = {**BOX, "queues": {**queues, "other": {"partition": "slow"}}, "default_queue": "long"}
    error = refused({**box, "all_queues": True}, {"queue": partition})
    assert error.where == "scheduler.queue" and "partition behind" in error.what
    assert (
        error.fix
        == {"fast": "scheduler.queue=short", "slow": "scheduler.queue=long or scheduler.queue=other"}[partition]
    )
    assert make(box, {"queue": partition}).request.queue == partition


def test_a_default_queue_that_is_none_of_the_list_is_told() -> None:
    box = {**BOX, **QUEUES, "default_queue": "bacth"}
    error = refused({**box, "all_queues": True}, {})
    assert (error.where, error.fix) == ("system.default_queue", "default_queue: batch")
    assert make(box, {}).notes[0].startswith("system.default_queue=bacth is none of those known of box")
    assert make({**box, "all_queues": True}, {"queue": "batch"}).notes == ()


def test_a_queue_may_have_nodes_of_its_own() -> None:
    got = make({**BOX, **QUEUES}, {"queue": "cpu"}, resources={"procs_per_node": 128})
    assert (got.request.gpus_per_proc, got.request.cpus_per_proc, got.gpus_on_node) == (0, 1, 0)
    assert (
        refused({**BOX, **QUEUES}, {"queue": "cpu"}, resources={"gpus_at_least": 4}).where == "resources.gpus_at_least"
    )


@pytest.mark.parametrize(
    ("queue", "resources", "where", "fix"),
    [
        ("batch", {"nodes": 1, "time_limit": "2h1m"}, "resources.time_limit", "resources.time_limit=2h or less"),
        ("batch", {"nodes": 91, "time_limit": "3h"}, "resources.time_limit", "scheduler.queue=big"),
        ("batch", {"nodes": 2, "time_limit": "3h"}, "resources.time_limit", "scheduler.queue=extended"),
        ("batch", {"nodes": 92, "time_limit": "13h"}, "resources.time_limit", "12h"),
        ("batch", {"nodes": 101}, "resources.nodes", "resources.nodes=100 or less"),
        ("big", {"nodes": 49}, "resources.nodes", "resources.nodes=50 or more"),
        ("extended", {"nodes": 1, "time_limit": "2d"}, "resources.time_limit", "resources.time_limit=1d"),
        ("batch", {"gpus_at_least": 404}, "resources.nodes", "resources.nodes=100 or less"),
    ],
)
def test_a_limit_of_the_queue_is_told_before_submission(
    queue: str, resources: dict[str, Any], where: str, fix: str
) -> None:
    error = refused({**BOX, **QUEUES}, {"queue": queue}, resources=resources)
    assert error.where == where and fix in str(error.fix) and repr(queue) in error.what


def test_limits_that_hold_are_silent() -> None:
    made = make({**BOX, **QUEUES}, resources={"nodes": 92, "time_limit": "12h"}).request
    assert (made.nodes, made.time_limit) == (92, 12 * 3600)
    made = make({**BOX, **QUEUES}, {"queue": "extended"}, resources={"nodes": 64, "time_limit": "24h"}).request
    assert (made.nodes, made.time_limit) == (64, 24 * 3600)


@pytest.mark.parametrize(
    ("profile", "where"),
    [
        ({"time_by_nodes": {"few": "2h"}}, "system.queues.q.time_by_nodes.few"),
        ({"time_by_nodes": {"1-9": "soon"}}, "system.queues.q.time_by_nodes.1-9"),
        ({"max_time": 1.5}, "system.queues.q.max_time"),
        ({"mem_per_node": 5}, "system.queues.q.mem_per_node"),
    ],
)
def test_a_profile_that_cannot_be_read_is_named(profile: dict[str, Any], where: str) -> None:
    assert refused({**BOX, "queues": {"q": profile}}, {"queue": "q"}).where == where


@pytest.mark.parametrize("asked", ["1T", "513G"])
def test_more_memory_than_the_node_has_is_refused(asked: str) -> None:
    assert "512G" in str(refused(resources={"mem_per_node": asked}).fix)
    assert make({"name": "dark"}, resources={"mem_per_node": asked}).request.mem_per_node


# Free options


@pytest.mark.parametrize(
    ("option", "value", "key", "want"),
    [
        ("nodes", "3", "nodes", 3),
        ("--nodes", 3, "nodes", 3),
        ("N", 3, "nodes", 3),
        ("-N", 3, "nodes", 3),
        ("ntasks-per-node", 2, "procs_per_node", 2),
        ("ntasks_per_node", 2, "procs_per_node", 2),
        ("gpus-per-task", "2", "gpus_per_proc", 2),
        ("c", 5, "cpus_per_proc", 5),
        ("mem", "2G", "mem_per_node", 2048),
        ("time", "1:30:00", "time_limit", 5400),
        ("t", 90, "time_limit", 5400),
        ("exclusive", None, "exclusive", True),
        ("p", "debug", "queue", "debug"),
        ("partition", "debug", "queue", "debug"),
        ("A", "proj", "account", "proj"),
        ("q", "high", "qos", "high"),
        ("mail-type", "END", "mail_type", "END"),
        ("mpi", "none", "mpi", "none"),
        ("gpu-bind", "none", "gpu_bind", "none"),
    ],
)
def test_an_option_that_a_key_stands_for_becomes_that_key(option: str, value: Any, key: str, want: Any) -> None:
    for where in ("extra", "submit_extra"):
        got = make(None, {where: {option: value}}).request
        assert getattr(got, key) == want
        assert not got.submit_args and not got.launch_args


def test_extra_overrides_the_key_and_says_so() -> None:
    got = make(None, {"extra": {"time": "10", "account": "b"}, "account": "a"}, resources={"time_limit": "2h"})
    assert (got.request.time_limit, got.request.account) == (600, "b")
    assert got.notes == (
        "scheduler.extra.time=10 overrides resources.time_limit=2h",
        "scheduler.extra.account=b overrides scheduler.account=a",
    )


def test_options_go_to_the_commands_named_and_the_last_wins() -> None:
    system = {**BOX, "submit_args": {"network": "a", "x1": "s"}, "launch_args": {"mpibind": "off", "label": None}}
    extras = {"extra": {"network": "b", "hint": None}, "submit_extra": {"begin": "now"}, "launch_extra": {"label": "x"}}
    got = make(system, extras).request
    assert got.submit_args == (("network", "b"), ("x1", "s"), ("hint", None), ("begin", "now"))
    assert got.launch_args == (("mpibind", "off"), ("label", "x"), ("network", "b"), ("hint", None))


def test_flux_options_have_their_own_names() -> None:
    system = {
        **BOX,
        "scheduler": "flux",
        "launch_args": {"o": ["mpibind=off", "x=1"]},
        "submit_args": {"exclusive": None},
    }
    got = make(system, {"name": "flux", "extra": {"t": "10m", "B": "bank", "-N": 2, "urgency": 20}}).request
    assert (got.time_limit, got.account, got.nodes, got.exclusive) == (600, "bank", 2, True)
    assert got.submit_args == (("urgency", "20"),)
    assert got.launch_args == (("setopt", "mpibind=off"), ("setopt", "x=1"), ("urgency", "20"))
    assert refused(system, {"name": "flux", "extra": {"n": 4}}).where == "scheduler.extra.n"


def test_a_tilde_removes_an_option_from_both_commands() -> None:
    system = {**BOX, "submit_args": {"network": "a"}, "launch_args": {"mpibind": "off"}}
    got = make(system, {"extra": {"~network": None, "~N": None, "~--mpibind": None}}).request
    assert got.removed_args == ("mpibind", "network", "nodes") and not got.submit_args and not got.launch_args
    only = make(system, {"submit_extra": {"~network": None}, "launch_extra": {"~network": None}}).request
    assert not only.submit_args and only.launch_args == (("mpibind", "off"),) and not only.removed_args
    assert "scheduler.extra" in str(refused(system, {"submit_extra": {"~nodes": None}}).fix)


def test_the_interval_between_queries_is_seconds_and_is_for_queues_alone() -> None:
    assert make(None, {"poll_interval": 60}).poll_interval == 60
    assert make(None, {"poll_interval": "2m"}).poll_interval == 120
    for scheduler in ({"poll_interval": 0}, {"poll_interval": "soon"}, {"name": "local", "poll_interval": 60}):
        assert refused(None, scheduler).where == "scheduler.poll_interval"


def test_a_name_in_capitals_is_a_variable_and_is_said() -> None:
    got = make(None, {"extra": {"MY_FLAG": "a b", "N": 2}}, launch={"env": {"OTHER": "1"}})
    assert EnvVar("MY_FLAG", "a b", "force", "scheduler.extra.MY_FLAG") in got.env
    assert "MY_FLAG" in got.notes[0] and not got.request.submit_args
    both = make(None, {"extra": {"MY_FLAG": "a"}}, launch={"env": {"MY_FLAG": "b"}})
    assert [var.value for var in both.env if var.name == "MY_FLAG"] == ["b"]


@pytest.mark.parametrize(
    ("extra", "where", "fix"),
    [
        ({"extra": {"ntasks": 4}}, "scheduler.extra.ntasks", "resources.procs_per_node"),
        ({"extra": {"n": 4}}, "scheduler.extra.n", "resources.procs_per_node"),
        ({"extra": {"array": "0-3"}}, "scheduler.extra.array", "array_parallelism"),
        ({"extra": {"output": "x"}}, "scheduler.extra.output", "logging.out"),
        ({"extra": {"nodes": "two"}}, "scheduler.extra.nodes", "whole number"),
        ({"extra": {"mem": 4000}}, "scheduler.extra.mem", "unit"),
        ({"extra": {"time": "soon"}}, "scheduler.extra.time", "HH:MM:SS"),
        ({"extra": {"account": None}}, "scheduler.extra.account", "scheduler.account"),
        ({"extra": {"hint": 1.5}}, "scheduler.extra.hint", "quote it"),
        ({"extra": {"hint": False}}, "scheduler.extra.hint", "~"),
        ({"extra": {"a b": 1}}, "scheduler.extra.a b", "name"),
        ({"extra": {"": 1}}, "scheduler.extra.", "name"),
        ({"launch_extra": {"nodes": 1}}, "scheduler.launch_extra.nodes", "resources.nodes=1"),
    ],
)
def test_options_that_are_ours_or_mean_nothing_are_refused(extra: dict[str, Any], where: str, fix: str) -> None:
    error = refused(None, extra)
    assert error.where == where and fix in str(error)


@pytest.mark.parametrize(
    "extra", [{"gres": "gpu:h100:4"}, {"gpus": "8"}, {"G": 8}, {"gpus-per-node": "h100:4"}, {"gpus-per-task": "h100:1"}]
)
def test_gpus_asked_in_another_way_leave_one_spelling(extra: dict[str, Any]) -> None:
    got = make({**BOX, "gpu_request": "gres"}, {"extra": extra}).request
    assert got.gpu_request == "none" and len(got.submit_args) == 1 and got.gpus_per_proc == 1
    assert make({**BOX, "gpu_request": "gres"}, {"extra": {"gres": "lscratch:10"}}).request.gpu_request == "gres"


def test_memory_asked_in_another_way_leaves_one_spelling() -> None:
    system = {**BOX, "default_queue": "q", "queues": {"q": {"mem_per_node": "100G"}}}
    got = make(system, {"extra": {"mem-per-cpu": "2G"}}).request
    assert got.mem_per_node is None and got.submit_args == (("mem-per-cpu", "2G"),)
    assert (
        "scheduler.extra.mem-per-cpu replaces system.queues.q.mem_per_node"
        in make(system, {"extra": {"mem-per-cpu": "2G"}}).notes[0]
    )
    assert make(system, {"extra": {"~mem": None}}).request.mem_per_node is None


EXCLUSIVE = {
    "slurm": [
        ("mem", "mem-per-cpu"), ("mem", "mem-per-gpu"), ("mem-per-cpu", "mem-per-gpu"),
        ("gres", "gpus"), ("gres", "gpus-per-node"), ("gres", "gpus-per-task"), ("gpus", "gpus-per-node"),
        ("gpus-per-node", "gpus-per-task"), ("gpus-per-socket", "gpus"), ("tres-per-task", "gres"),
        ("exclusive", "oversubscribe"), ("exclusive", "share"), ("requeue", "no-requeue"),
        ("cpus-per-task", "cpus-per-gpu"), ("nodelist", "nodefile"), ("core-spec", "thread-spec"),
        ("exact", "whole"), ("hint", "ntasks-per-core"), ("hint", "threads-per-core"), ("hint", "extra-node-info"),
    ],
    "lsf": [("r", "rn"), ("m", "hostfile")],
}  # fmt: skip
VALUES = {
    "mem": "1G", "mem-per-cpu": "1G", "mem-per-gpu": "1G", "gres": "gpu:h100:4", "tres-per-task": "gres/gpu:1",
    "gpus-per-task": "h100:1", "cpus-per-task": 2, "nodelist": "n1",
}  # fmt: skip
PAIRS = [(name, *pair) for name, pairs in EXCLUSIVE.items() for pair in pairs]


@pytest.mark.parametrize(("scheduler", "one", "other"), PAIRS)
def test_of_options_that_exclude_each_other_two_of_the_users_own_are_refused(
    scheduler: str, one: str, other: str
) -> None:
    asked = {name: VALUES.get(name) for name in (one, other)}
    for extras in ({"extra": asked}, {"extra": {one: asked[one]}, "submit_extra": {other: asked[other]}}):
        error = refused({**BOX, "scheduler": scheduler}, {"name": scheduler, **extras})
        for name in (one, other):
            assert re.search(rf"scheduler\.(submit_)?extra\.{name}\b", str(error))


@pytest.mark.parametrize(("scheduler", "one", "other"), PAIRS)
def test_of_options_that_exclude_each_other_the_users_own_replaces_the_systems(
    scheduler: str, one: str, other: str
) -> None:
    for mine, sites in ((one, other), (other, one)):
        system = {**BOX, "scheduler": scheduler, "submit_args": {sites: VALUES.get(sites)}}
        got = make(system, {"name": scheduler, "extra": {mine: VALUES.get(mine)}})
        alone = make({**BOX, "scheduler": scheduler}, {"name": scheduler, "extra": {mine: VALUES.get(mine)}})
        assert got.request == alone.request
        assert any(f"scheduler.extra.{mine}" in note and f"system.submit_args.{sites}" in note for note in got.notes)


@pytest.mark.parametrize(
    ("scheduler", "extra", "key", "value"),
    [
        ("slurm", {"mem-per-cpu": "2G"}, "resources.mem_per_node", "1G"),
        ("slurm", {"oversubscribe": None}, "resources.exclusive", True),
        ("slurm", {"exclusive": "user"}, "resources.exclusive", True),
        ("slurm", {"cpus-per-gpu": 2}, "resources.cpus_per_proc", 2),
        ("slurm", {"no-requeue": None}, "launch.max_requeues", 1),
        ("slurm", {"nodefile": "f"}, "scheduler.nodelist", "n1"),
        ("lsf", {"W": "2:00"}, "resources.time_limit", "1h"),
        ("lsf", {"M": "2G"}, "resources.mem_per_node", "1G"),
        ("lsf", {"m": "h1"}, "scheduler.nodelist", "h2"),
        ("lsf", {"rn": None}, "launch.max_requeues", 1),
    ],
)
def test_a_key_and_an_option_that_exclude_each_other_are_refused_by_name(
    scheduler: str, extra: dict[str, Any], key: str, value: Any
) -> None:
    group, _, name = key.partition(".")
    groups: dict[str, Any] = {
        "scheduler": {"name": scheduler, "extra": extra},
        "system": {**BOX, "scheduler": scheduler},
    }
    groups.setdefault(group, {})[name] = value
    with pytest.raises(PlanError) as error:
        plan(from_mapping(groups))
    assert key in str(error.value) and f"scheduler.extra.{next(iter(extra))}" in str(error.value)


@pytest.mark.parametrize("source", ["extra", "submit_extra"])
@pytest.mark.parametrize(
    ("option", "values", "joined"),
    [
        ("gres", ["gpu:2", "lustre:1"], "gpu:2,lustre:1"), ("gres", ["lustre:1", "gpu:2"], "lustre:1,gpu:2"),
        ("licenses", ["a", "b"], "a,b"), ("L", ["a:2", "b"], "a:2,b"),
        ("tres_per_task", ["gres/gpu:1", "x:1"], "gres/gpu:1,x:1"),
        ("gpus", ["a100:1", "h100:1"], "a100:1,h100:1"), ("hint", ["x"], "x"), ("licenses", ["a"], "a"),
    ],
)  # fmt: skip
def test_a_list_for_an_option_that_is_given_once_is_one_value(
    source: str, option: str, values: list[str], joined: str
) -> None:
    got = make(BOX, {source: {option: values}}, resources={"gpus_per_proc": 1}).request
    assert [value for _, value in got.submit_args] == [joined]
    assert (got.gpu_request == "none") == ("gpu" in joined or option == "gpus")
    written = dict(adapter_for("slurm").directives(got))
    assert any("gpu" in f"{name}={value}" for name, value in written.items()) and joined in written.values()


@pytest.mark.parametrize(
    ("option", "field"), [("exclude", "exclude"), ("w", "nodelist"), ("p", "queue"), ("dependency", "dependency")]
)
def test_a_list_for_an_option_that_has_a_key_is_joined(option: str, field: str) -> None:
    got = make(BOX, {"extra": {option: ["a1", "a2"]}}).request
    assert getattr(got, field) == "a1,a2"


@pytest.mark.parametrize(
    ("scheduler", "option", "values", "fix"),
    [
        ("slurm", "hint", ["a", "b"], "scheduler.extra.hint=b"), ("slurm", "C", ["a", "b"], "scheduler.extra.C=b"),
        ("slurm", "comment", ["a", "b"], "scheduler.extra.comment=b"),
        ("slurm", "time", ["1h", "2h"], "scheduler.extra.time=2h"),
        ("slurm", "licenses", [], "~"), ("slurm", "exclude", [], "~"), ("slurm", "hint", [], "~"),
        ("slurm", "licenses", ["a", None], "VALUE"), ("flux", "urgency", ["1", "2"], "scheduler.extra.urgency=2"),
        ("flux", "requires", [], "~"), ("lsf", "app", ["a", "b"], "scheduler.extra.app=b"), ("lsf", "R", [], "~"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_one_value_is_refused(scheduler: str, option: str, values: list[Any], fix: str) -> None:
    error = refused({**BOX, "scheduler": scheduler}, {"name": scheduler, "extra": {option: values}})
    assert error.where == f"scheduler.extra.{option}" and fix in str(error.fix)


@pytest.mark.parametrize(
    ("scheduler", "option", "values"),
    [("flux", "requires", ["a", "b"]), ("flux", "add_file", ["a", "b"]), ("lsf", "R", ["select[a]", "select[b]"])],
)
def test_an_option_that_may_be_repeated_keeps_all_values(scheduler: str, option: str, values: list[str]) -> None:
    got = make({**BOX, "scheduler": scheduler}, {"name": scheduler, "submit_extra": {option: values}}).request
    written = [value for _, value in adapter_for(scheduler).directives(got)]
    assert [value for value in written if value in values] == values


@pytest.mark.parametrize("extra", [{"time": "10", "t": "20"}, {"hint": "a", "--hint": "b"}])
def test_two_spellings_of_one_option_with_two_values_are_refused(extra: dict[str, Any]) -> None:
    assert all(name in str(refused(None, {"extra": extra})) for name in extra)


@pytest.mark.parametrize(
    ("python", "taken"),
    [
        ("env X=1 python", False), ("X=1 python", False), ("/usr/bin/env X=1 python", False), ("python -u", False),
        ("/opt/my python/bin/python", True), ("python3.12", True), (None, True),
    ],
)  # fmt: skip
def test_the_interpreter_is_one_program(python: str | None, taken: bool) -> None:
    if taken:
        assert make(launch={"python": python}).python == python
    else:
        assert refused(launch={"python": python}).where == "launch.python"


def test_a_step_may_ask_for_memory_in_another_way_than_its_job() -> None:
    got = make(None, {"launch_extra": {"mem-per-cpu": "1G"}}, resources={"mem_per_node": "8G"}).request
    assert got.mem_per_node == 8192 and got.launch_args == (("mem-per-cpu", "1G"),)


@pytest.mark.parametrize(
    ("request_", "denied", "want"),
    [
        (None, ["gres", "gpus-per-task"], "none"),
        ("gpus-per-task", ["gpus-per-task"], "none"),
        ("gpus-per-node", ["gpus-per-task"], "gpus-per-node"),
        (None, ["export"], None),
        ("gres", [], "gres"),
    ],
)
def test_a_spelling_that_the_site_denies_is_not_used(request_: str | None, denied: list[str], want: str | None) -> None:
    got = make({**VISTA, "gpu_request": request_, "denied_flags": denied}).request
    assert got.gpu_request == want and got.removed_args == tuple(sorted(denied)) and got.gpus_per_proc == 1


@pytest.mark.parametrize(
    ("scheduler", "resources", "where"),
    [
        ({"extra": {"gres": "gpu:1"}}, {}, "scheduler.extra.gres"),
        ({"extra": {"--gpus-per-task": 1}}, {}, "scheduler.extra.--gpus-per-task"),
        ({"nodelist": "c1"}, {}, "scheduler.nodelist"),
        ({"extra": {"w": "c1"}}, {}, "scheduler.extra.w"),
        ({}, {"mem_per_node": "1G"}, "resources.mem_per_node"),
    ],
)
def test_what_the_site_denies_is_refused_by_name(
    scheduler: dict[str, Any], resources: dict[str, Any], where: str
) -> None:
    system = {**VISTA, "denied_flags": ["gres", "gpus-per-task", "mem", "nodelist"]}
    error = refused(system, scheduler, resources=resources)
    assert error.where == where and "vista" in error.what


def test_shared_gpus_are_asked_for_by_node() -> None:
    asked = {"procs_per_node": 8, "oversubscribe": True}
    got = make({**BOX, "gpu_request": "gpus-per-task", "gpu_bind": "closest"}, resources=asked).request
    assert (got.shared_gpus, got.gpu_request, got.gpu_bind) == (4, "gpus-per-node", None)
    assert make({**BOX, "gpu_request": "gres"}, resources=asked).request.gpu_request == "gres"


def test_a_sites_argument_that_is_a_key_is_a_default() -> None:
    system = {**BOX, "submit_args": {"exclusive": None, "time": "30"}}
    assert make(system).request.exclusive and make(system).request.time_limit == 1800
    mine = make(system, resources={"time_limit": "2h"})
    assert mine.request.time_limit == 7200 and not mine.notes and not mine.request.submit_args


# Rendezvous and logging


def test_rendezvous_from_the_user_else_the_system() -> None:
    system = {**BOX, "interface": "hsn0", "host_suffix": "i"}
    assert make(system).rendezvous == Rendezvous(interface="hsn0", host_suffix="i")
    mine = {"interface": "ib0", "host_suffix": "", "port_range": "29500-29600", "timeout": "90s", "backend": "gloo"}
    got = make(system, rendezvous={**mine, "init": "script", "fraction_max_gpu_mem": 1, "master_addr": "h"}).rendezvous
    assert got == Rendezvous(
        port_range=(29500, 29600), interface="ib0", host_suffix="", master_addr="h", timeout=90, backend="gloo",
        init="script", fraction_max_gpu_mem=1.0,
    )  # fmt: skip
    assert make(rendezvous={"port": 1024}).rendezvous.port == 1024


@pytest.mark.parametrize(("key", "value"), [("interface", "hsn0"), ("host_suffix", "i")])
def test_on_this_machine_no_network_is_chosen_but_a_system_may_have_one(key: str, value: str) -> None:
    here = {"name": "box", "kind": "local", "cores_per_node": 4, key: value}
    make(here, {"name": "local"})
    with pytest.raises(ConfigError) as error:
        make(here, {"name": "local"}, rendezvous={key: value})
    assert error.value.where == f"rendezvous.{key}"


def test_only_mpi_itself_can_start_its_ranks_on_this_machine() -> None:
    here = {"name": "box", "kind": "local", "cores_per_node": 4}
    got = make(here, {"name": "local"}, rendezvous={"name": "mpi"})
    assert got.rendezvous.launcher == "mpiexec"
    assert make(rendezvous={"name": "mpi"}).rendezvous.launcher == "scheduler"
    error = refused(here, {"name": "local"}, rendezvous={"name": "mpi", "launcher": "scheduler"})
    assert error.where == "rendezvous.launcher"


@pytest.mark.parametrize("name", ["torchrun", "static"])
def test_one_agent_a_node_has_the_share_of_all_ranks_there(name: str) -> None:
    asked = {"nodes": 2, "procs_per_node": 4, "gpus_per_proc": 1, "cpus_per_proc": 8}
    got = make({**BOX, "gpu_bind": "closest"}, resources=asked, rendezvous={"name": name})
    assert got.world_size == 8 and got.request.procs_per_node == 4
    tasks = task_request(got)
    assert (tasks.nodes, tasks.procs_per_node, tasks.gpus_per_proc, tasks.cpus_per_proc) == (2, 1, 4, 32)
    assert tasks.gpu_bind is None and any("gpu_bind" in note for note in got.notes)
    assert task_request(make(resources=asked)) == make(resources=asked).request


def test_agents_of_ranks_that_share_gpus_get_these() -> None:
    asked = {"procs_per_node": 8, "gpus_per_proc": 1, "oversubscribe": True}
    got = make(resources=asked, rendezvous={"name": "torchrun", "max_restarts": 2})
    assert (task_request(got).gpus_per_proc, task_request(got).shared_gpus) == (4, None)
    assert got.rendezvous.max_restarts == 2


def test_where_cpu_and_gpu_share_memory_a_rank_keeps_to_the_cap() -> None:
    capped = {**BOX, "gpu_mem_cap": 0.5}
    assert make(capped).rendezvous.fraction_max_gpu_mem == 0.5
    assert make(capped, rendezvous={"fraction_max_gpu_mem": 0.4}).rendezvous.fraction_max_gpu_mem == 0.4
    assert refused(capped, rendezvous={"fraction_max_gpu_mem": 0.9}).where == "rendezvous.fraction_max_gpu_mem"
    assert refused({**BOX, "gpu_mem_cap": 2.0}).where == "system.gpu_mem_cap"


@pytest.mark.parametrize(
    ("nodes", "keys", "replicas", "ranks", "step"),
    [
        (4, {}, 4, 4, 1),
        (4, {"replicas_per_node": 4}, 16, 1, 1),
        (4, {"replicas_per_node": 2, "min_replicas": 8}, 8, 2, 1),
        (4, {"nodes_per_replica": 2}, 2, 4, 2),
    ],
)
def test_replica_groups_fill_the_job(nodes: int, keys: dict[str, Any], replicas: int, ranks: int, step: int) -> None:
    got = make(resources={"nodes": nodes}, rendezvous={"name": "torchft", **keys})
    assert (got.replicas, got.procs_per_agent, step_request(got).nodes) == (replicas, ranks, step)
    assert (
        task_request(got).survives_node_loss
        and task_request(got).nodes == nodes
        and task_request(got).procs_per_node == 1
    )
    assert got.rendezvous.max_restarts == 3
    assert not task_request(make(resources={"nodes": nodes})).survives_node_loss


@pytest.mark.parametrize(
    ("system", "cpus", "want"),
    [
        ({}, None, (5, 12)), ({}, 12, (5, 12)),
        ({}, 16, None),  # the ranks need all cores
        ({"cores_per_node": None}, 2, None), ({"cores_per_node": None}, None, (5, None)),
        ({"gpu_request": "gpus-per-task"}, None, (5, 12)),  # asked for by the node: a task gets none
    ],
)  # fmt: skip
def test_lighthouse_is_a_task_beside_the_ranks_where_there_is_room(system: dict, cpus: int | None, want: Any) -> None:
    keys = {"rendezvous": {"name": "torchft", "replicas_per_node": 4}, "resources": {"cpus_per_proc": cpus}}
    got = make({**BOX, **system}, **keys)
    assert task_request(got).allocation == want
    assert task_request(make({**BOX, **system}, {"name": "flux"}, **keys)).allocation is None
    assert task_request(make({**BOX, **system}, rendezvous={"name": "torchrun"})).allocation is None


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"replicas_per_node": 3}, "rendezvous.replicas_per_node"),
        ({"nodes_per_replica": 3}, "rendezvous.nodes_per_replica"),
        ({"replicas_per_node": 2, "nodes_per_replica": 2}, "rendezvous.replicas_per_node"),
        ({"min_replicas": 5}, "rendezvous.min_replicas"),
        ({"min_replicas": 0}, "rendezvous.min_replicas"),
        ({"heartbeat_timeout": 5}, "rendezvous.heartbeat_timeout"),
    ],
)
def test_replica_groups_that_do_not_fill_the_job_are_refused(keys: dict[str, Any], where: str) -> None:
    assert refused(resources={"nodes": 4}, rendezvous={"name": "torchft", **keys}).where == where


@pytest.mark.parametrize(
    ("nodes", "keys", "elastic"),
    [
        (4, {}, False),
        (4, {"min_nodes": 4}, False),
        (4, {"min_nodes": 2, "max_nodes": 4}, True),
        (4, {"max_nodes": 8}, False),
    ],
)
def test_a_run_may_go_on_with_fewer_nodes(nodes: int, keys: dict[str, Any], elastic: bool) -> None:
    got = make(resources={"nodes": nodes}, rendezvous={"name": "torchrun", **keys})
    tasks = task_request(got)
    assert (got.is_elastic, tasks.survives_node_loss, tasks.steps_survive_node_loss) == (elastic,) * 3
    assert got.rendezvous.max_restarts == (3 if "min_nodes" in keys else 0)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"min_nodes": 5}, "rendezvous.min_nodes"),
        ({"min_nodes": 0}, "rendezvous.min_nodes"),
        ({"max_nodes": 3}, "rendezvous.max_nodes"),
        ({"min_nodes": 2, "max_restarts": 0}, "rendezvous.max_restarts"),
        ({"name": "static", "min_nodes": 2}, "rendezvous.min_nodes"),
    ],
)
def test_bounds_that_the_job_is_not_within_are_refused(keys: dict[str, Any], where: str) -> None:
    assert refused(resources={"nodes": 4}, rendezvous={"name": "torchrun", **keys}).where == where


@pytest.mark.parametrize(("key", "value"), [("launch_extra", {"cpu-bind": "none"}), ("mpi", "pmi2")])
def test_what_mpiexec_would_not_see_is_refused(key: str, value: Any) -> None:
    mpi = {"name": "mpi", "launcher": "mpiexec"}
    assert refused(scheduler={key: value}, rendezvous=mpi).where == f"scheduler.{key}"
    assert make(scheduler={key: value}, rendezvous={"name": "mpi"}).rendezvous.name == "mpi"


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"port": 29500, "port_range": "29500-29600"}, "rendezvous.port"),
        ({"port": 1023}, "rendezvous.port"),
        ({"port_range": "29600-29500"}, "rendezvous.port_range"),
        ({"port_range": "80-90"}, "rendezvous.port_range"),
        ({"port_range": "1024-70000"}, "rendezvous.port_range"),
        ({"port_range": "29500"}, "rendezvous.port_range"),
        ({"timeout": 600}, "rendezvous.timeout"),
        ({"timeout": "0s"}, "rendezvous.timeout"),
        ({"backend": "rccl"}, "rendezvous.backend"),
        ({"backend": "ncl"}, "rendezvous.backend"),
        ({"backend": "cpu:glo,cuda:nccl"}, "rendezvous.backend"),
        ({"backend": ""}, "rendezvous.backend"),
        ({"fraction_max_gpu_mem": 1.5}, "rendezvous.fraction_max_gpu_mem"),
        ({"name": "smoke"}, "rendezvous.name"),
        ({"launcher": "mpiexec"}, "rendezvous.launcher"),
        ({"name": "mpi", "launcher": "mpirun"}, "rendezvous.launcher"),
        ({"max_restarts": 1}, "rendezvous.max_restarts"),
        ({"name": "static", "max_restarts": 1}, "rendezvous.max_restarts"),
        ({"name": "torchrun", "max_restarts": -1}, "rendezvous.max_restarts"),
        ({"name": "torchrun", "replicas_per_node": 2}, "rendezvous.replicas_per_node"),
    ],
)
def test_rendezvous_values_that_cannot_be(keys: dict[str, Any], where: str) -> None:
    assert refused(rendezvous=keys).where == where


def test_the_schedulers_patterns_become_ours() -> None:
    logging = {"out": "a/%j_%A_%a.%t@%N-%u-%x-100%%-{rank}", "err": "plain", "verbose": True}
    got = make(None, {"job_name": "train"}, logging=logging).logging
    assert got == Logging(
        "a/{job_id}_{array_id}_{num}.{rank}@{host}-{user}-train-100%-{rank}", "plain", verbose=True, save_hostlist=True
    )
    for pattern, said in (("x%q", "%q"), ("%5t", "%5t"), ("x%", "%"), ("{ranks}", "{rank}"), ("", "null")):
        assert said in str(refused(logging={"out": pattern}))


def test_files_of_a_monitor_tell_nodes_apart() -> None:
    got = make(monitor={"name": "gpu", "file": "s-%j.%N.gutil"}).monitor
    assert got is not None and got.file == "s-{job_id}.{host}.gutil"
    for pattern in ("s-%j", "{rank}.{host}", "{hst}", ""):
        assert refused(monitor={"name": "gpu", "file": pattern}).where == "monitor.file"


# The whole


def test_a_plan_survives_json() -> None:
    got = make(
        {**BOX, "env": {"A": {"value": "{user}", "when": {"plugin": "l.so"}}}},
        {"extra": {"hint": None, "~mem": None}, "setup_lines": ["x"]},
        rendezvous={"port_range": "2000-3000"},
    )
    assert from_json(Plan, json.loads(json.dumps(to_json(got)))) == got


small = st.none() | st.integers(1, 8)
groups = st.fixed_dictionaries(
    {
        "system": st.just({**BOX, **QUEUES}),
        "scheduler": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["slurm", "local"]),
                "queue": st.none() | st.sampled_from([*QUEUES["queues"], "other"]),
                "account": st.none() | st.text("ab é", min_size=1),
                "extra": st.dictionaries(
                    st.sampled_from(["nodes", "hint", "KEY", "~mem", "gres", "time"]), st.integers(1, 9)
                ),
            }
        ),
        "resources": st.fixed_dictionaries(
            {
                "nodes": small,
                "procs_per_node": small,
                "gpus_per_proc": st.none() | st.integers(0, 5),
                "gpus_at_least": st.none() | st.integers(1, 500),
                "time_limit": st.none() | st.sampled_from([1, "2h", "1-0", "90s"]),
                "mem_per_node": st.none() | st.sampled_from(["1G", 0, "all", "2T"]),
            }
        ),
        "launch": st.fixed_dictionaries({"env": st.dictionaries(st.sampled_from("ABC"), st.text("x y$\n"))}),
    }
)


@given(groups)
def test_equal_settings_give_equal_plans_that_survive_json(data: dict[str, Any]) -> None:
    try:
        first = plan(from_mapping(data))
    except (ConfigError, PlanError) as error:
        assert error.where and error.fix
        return
    second = plan(from_mapping(json.loads(json.dumps(data))))
    assert first == second and hash(first) == hash(second)
    assert from_json(Plan, json.loads(json.dumps(to_json(first)))) == first


def test_planning_leaves_the_settings_alone() -> None:
    given_ = from_mapping({"system": dict(BOX), "scheduler": {"name": "slurm", "extra": {"time": 5, "mpi": "none"}}})
    before = repr(given_)
    assert plan(given_) == plan(given_) and repr(given_) == before
