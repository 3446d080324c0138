"""A person's defaults per machine: filled in where nothing else is said, and checked with file and key."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.system import defaults
from hpc_hydra.system.detect import notes as notes_of
from hpc_hydra.system.detect import resolve, stated
from hpc_hydra.system.probe import Probe
from tests.unit.system.conftest import SLURM_IS_UP, Composed, auto, machine

FILE = "/home/me/.config/hpc_hydra/defaults.yaml"
OWN = """
frontier:
  scheduler:
    account: abc123
    mail_user: me@example.org
    setup_lines: [module load rocm/7.1.1 rccl-net-plugin]
  resources: {time_limit: 1:30:00}
  launch: {env: {WANDB_MODE: offline, A: "1"}}
"*":
  scheduler: {account: other, mail_type: FAIL}
  launch: {env: {A: "2", B: "3"}, python: /opt/py/bin/python}
"""


def me(text: str | None = OWN, **env: str) -> Probe:
    return machine(env={"HOME": "/home/me", **env}, files={} if text is None else {FILE: text})


def test_machine_goes_before_every_machine(composed: Composed) -> None:
    done = resolve(composed("system=frontier"), probe=me())
    assert (done.scheduler.account, done.scheduler.mail_user) == ("abc123", "me@example.org")
    assert done.scheduler.mail_type == "FAIL"
    assert done.scheduler.setup_lines == ["module load rocm/7.1.1 rccl-net-plugin"]
    assert done.launch.env == {"WANDB_MODE": "offline", "A": "1", "B": "3"}
    assert done.launch.python == "/opt/py/bin/python"
    assert done.resources.time_limit == "1:30:00"  # not the number YAML makes of it


@pytest.mark.parametrize("text", [None, OWN, "frontier: {launch: {python: /opt/python}}"])
def test_a_single_run_detects_nothing_for_defaults_without_sizes(text: str | None) -> None:
    probe = me(text)
    probe.hostname = probe.run = probe.full_name = probe.hardware = None  # type: ignore[assignment]
    assert stated(auto(), probe=probe) == auto()


NIGHTLY = ("system=my_frontier", "system.queues.nightly.partition=batch", "system.queues.nightly.account=abc123_night")


@pytest.mark.parametrize("section", ["my_frontier", '"*"'])
@pytest.mark.parametrize(
    ("asked", "account"),
    [
        ((*NIGHTLY, "scheduler.queue=nightly", "scheduler.account=mine"), "mine"),
        ((*NIGHTLY, "scheduler.queue=nightly"), "abc123_night"),
        (NIGHTLY, "abc123"),  # of the person
        ((*NIGHTLY, "scheduler.queue=extended"), "abc123"),  # whose profile says nothing of it
    ],
)
def test_command_line_then_the_chosen_queue_then_the_persons_own_defaults(
    section: str, asked: tuple[str, ...], account: str, composed: Composed
) -> None:
    text = f"{section}: {{scheduler: {{account: abc123, mail_user: me@example.org}}}}"
    request = plan(resolve(composed(*asked, "resources.nodes=1"), probe=me(text))).request
    assert (request.account, request.mail_user) == (account, "me@example.org")


@pytest.mark.parametrize("key", ["time_limit", "mem_per_node", "cpus_per_proc"])
def test_each_value_of_a_chosen_queue_goes_before_the_persons_own(key: str, composed: Composed) -> None:
    values = {"time_limit": ("20m", 1200), "mem_per_node": ("20G", 20480), "cpus_per_proc": ("5", 5)}
    text, wanted = values[key]
    own = me("frontier: {resources: {time_limit: 1h, mem_per_node: 1G, cpus_per_proc: 1}}")
    overrides = ("system=frontier", f"system.queues.mine.{key}={text}", "scheduler.queue=mine", "resources.nodes=1")
    assert getattr(plan(resolve(composed(*overrides), probe=own)).request, key) == wanted


MEMORY = "frontier: {resources: {mem_per_node: 64G, time_limit: 1h, exclusive: true}, scheduler: {setup_lines: [a]}}"
OPTION = "frontier: {scheduler: {extra: {mem-per-cpu: 2G, time: 10}}}"


@pytest.mark.parametrize(
    ("text", "overrides", "want"),
    [
        (MEMORY, (), {"mem_per_node": 65536, "time_limit": 3600, "exclusive": True, "setup_lines": ("a",)}),
        (MEMORY, ("resources.mem_per_node=null",), {"mem_per_node": None, "time_limit": 3600}),
        (MEMORY, ("scheduler.remove=[mem]",), {"mem_per_node": None}),
        (MEMORY, ("+scheduler.extra.mem-per-cpu=2G",), {"mem_per_node": None, "submit_args": (("mem-per-cpu", "2G"),)}),
        (MEMORY, ("+scheduler.extra.mem=2G",), {"mem_per_node": 2048}),
        (MEMORY, ("+scheduler.extra.t=10",), {"time_limit": 600}),
        (MEMORY, ("resources.exclusive=false",), {"exclusive": False}),
        (MEMORY, ("+scheduler.extra.oversubscribe=null",), {"exclusive": False}),
        (MEMORY, ("scheduler.setup_lines=[]",), {"setup_lines": ()}),
        (OPTION, (), {"submit_args": (("mem-per-cpu", "2G"),), "time_limit": 600}),
        (OPTION, ("resources.mem_per_node=1G",), {"mem_per_node": 1024, "submit_args": ()}),
        (OPTION, ("+scheduler.extra.mem-per-gpu=1G",), {"submit_args": (("mem-per-gpu", "1G"),)}),
        (OPTION, ("resources.time_limit=1h",), {"time_limit": 3600}),
        (OPTION, ("resources.time_limit=null",), {"time_limit": None}),
        (OPTION, ("scheduler.extra={}",), {"submit_args": (), "time_limit": None}),
        (OPTION, ("+scheduler.submit_extra.t=30",), {"time_limit": 1800}),
    ],
)
def test_every_value_can_be_replaced_and_removed_from_the_command_line(
    text: str, overrides: tuple[str, ...], want: dict[str, Any], composed: Composed
) -> None:
    asked = composed("system=frontier", "resources.nodes=1", *overrides)
    said = [override.lstrip("+").partition("=")[0] for override in overrides]
    request = plan(resolve(asked, probe=me(text), said=said)).request
    got = {key: getattr(request, key) for key in want}
    if "submit_args" in want:
        got["submit_args"] = tuple(pair for pair in request.submit_args if pair[0] != "network")  # of the system
    assert got == want


def test_what_the_file_gave_is_said_and_named_in_errors(composed: Composed) -> None:
    asked, probe = composed("system=frontier"), me(OWN + "  resources: {mem_per_node: 9T}\n")
    settings = resolve(asked, probe=probe)
    first, every = notes_of(asked, settings, probe)
    assert first.startswith(f"from {FILE}: frontier: ") and "scheduler.account=abc123" in first
    assert "launch.env.WANDB_MODE" in first and "offline" not in first
    assert every.startswith(f"from {FILE}: *: ") and "resources.mem_per_node=9T" in every and "other" not in every
    with pytest.raises(PlanError) as error:
        plan(settings)
    assert defaults.named(error.value, asked, settings, probe).where == f"resources.mem_per_node (from {FILE}: *)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fronteir", ["fronteir.*did you mean frontier"]),
        ("Frontier", ["Frontier.*did you mean frontier"]),
        ("my_frontier", []),
        ("atlas", []),
        ("unknown", []),
    ],
)
def test_a_misspelt_machine_is_told(name: str, said: list[str], composed: Composed) -> None:
    asked, probe = composed("system=lumi"), me(f"{name}: {{scheduler: {{account: a}}}}")
    notes = notes_of(asked, resolve(asked, probe=probe), probe)
    assert len(notes) == len(said)
    assert all(re.search(one, note) for one, note in zip(said, notes, strict=True))


def test_other_machines_get_what_is_for_all(composed: Composed) -> None:
    done = resolve(composed("system=lumi"), probe=me())
    assert (done.scheduler.account, done.scheduler.setup_lines, done.launch.env["A"]) == ("other", [], "2")


def test_what_the_configuration_says_stays(composed: Composed) -> None:
    overrides = ("scheduler.account=mine", "scheduler.setup_lines=['true']", "launch.env.A=0", "launch.python=python3")
    done = resolve(composed("system=frontier", *overrides), probe=me())
    assert (done.scheduler.account, done.scheduler.setup_lines) == ("mine", ["true"])
    assert (done.launch.env["A"], done.launch.env["B"], done.launch.python) == ("0", "3", "python3")


def test_detected_machine_gets_them_too() -> None:
    probe = machine("login05", "login05.frontier.olcf.ornl.gov", env={"HOME": "/home/me"}, files={FILE: OWN})
    assert resolve(auto(), probe=probe).scheduler.account == "abc123"


def test_queue_from_the_file_chooses_the_nodes_that_are_asked_about() -> None:
    probe = machine(
        env={"HOME": "/home/me"},
        files={FILE: '"*": {scheduler: {queue: cpu}}'},
        commands=SLURM_IS_UP | {"sinfo": "gpu*|96|515000|gpu:4\ncpu|128|512000|(null)\n"},
    )
    done = resolve(auto(), probe=probe)
    assert (done.scheduler.queue, done.system.cores_per_node) == ("cpu", 128)


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "{}"])
def test_no_file_and_an_empty_one_change_nothing(text: str | None, composed: Composed) -> None:
    settings = composed("system=frontier")
    assert resolve(settings, probe=me(text)) == settings


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"HOME": "/home/me"}, FILE),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "/xdg"}, "/xdg/hpc_hydra/defaults.yaml"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": ""}, FILE),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "/xdg", "HPC_HYDRA_DEFAULTS": "/my/own.yaml"}, "/my/own.yaml"),
    ],
)
def test_where_the_file_is_looked_for(env: dict[str, str], path: str) -> None:
    assert str(defaults.path(env)) == path


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("frontier: {scheduler: {acount: a}}", f"{FILE}: frontier.scheduler.acount", "account"),
        ("frontier: {schedular: {account: a}}", f"{FILE}: frontier.schedular", "scheduler"),
        ("frontier: {resources: {nodes: two}}", f"{FILE}: frontier.resources.nodes", "whole number"),
        ("frontier: {resources: {nodes: -1}}", f"{FILE}: frontier.resources.nodes", "out of range"),
        ("frontier: {launch: {env: {A: 1.10}}}", f"{FILE}: frontier.launch.env.A", "quote it"),
        ("frontier: {scheduler: {account: true}}", f"{FILE}: frontier.scheduler.account", 'quote it: account: "true"'),
        ("frontier: {launch: {launch_dir: true}}", f"{FILE}: frontier.launch.launch_dir", "on the command line"),
        ("frontier: {scheduler: {name: slurm}}", f"{FILE}: frontier.scheduler.name", "scheduler=slurm"),
        ("frontier: {system: {interface: ib0}}", f"{FILE}: frontier.system", "my_frontier.yaml"),
        ("frontier: {scheduler: abc}", f"{FILE}: frontier.scheduler", "not a mapping"),
        ("frontier: abc", f"{FILE}: frontier", "not a mapping"),
        ("- frontier", FILE, "mapping of machines"),
        ("frontier: {scheduler: {account: a}", f"{FILE} line", "not YAML"),
    ],
)
def test_errors_name_file_and_key(text: str, where: str, words: str, composed: Composed) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(composed("system=lumi"), probe=me(text))
    assert caught.value.where is not None
    assert caught.value.where.startswith(where)
    assert words in str(caught.value)


def test_a_named_file_that_is_not_there_is_an_error(composed: Composed) -> None:
    with pytest.raises(ConfigError, match=r"HPC_HYDRA_DEFAULTS=/my/own\.yaml: cannot be read"):
        resolve(composed("system=lumi"), probe=me(HPC_HYDRA_DEFAULTS="/my/own.yaml"))
