"""Hosts without a scheduler: what is written, refused and explained. Pure; the real thing is in tests/cluster."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError, RendezvousError
from hpc_hydra.planning.hosts import ListedHost, read
from hpc_hydra.planning.types import Plan, Rendezvous, Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.schedulers.ssh.adapter import Ssh, explain
from hpc_hydra.system import hostfile
from hpc_hydra.system.probe import Probe
from tests.unit.schedulers.specs import request, spec

SSH = Ssh()
HOSTS = ("node01", "me@node02", "node03")


def asked(**fields: object) -> Request:
    return request(**{"scheduler": "ssh", "hosts": HOSTS, **fields})


def planned(resources: dict[str, object] | None = None, **scheduler: object) -> Plan:
    given = {"name": "ssh", "hosts": ["a", "b"], **scheduler}
    data = {"system": {"name": "x"}, "scheduler": given, "resources": resources or {}}
    return plan(from_mapping(data))


def test_a_list_of_hosts_has_comments_and_slots() -> None:
    lines = ["# rack 1", "node01 slots=4", "", "  me@10.0.0.7   # the big one", "fe80::1%eth0"]
    assert read(lines, "FILE") == (ListedHost("node01", 4), ListedHost("me@10.0.0.7"), ListedHost("fe80::1%eth0"))


@pytest.mark.parametrize(
    "line", ["-oProxyCommand=x", "a b", "a slots=0", "a slots=x", "a,b", "a;b", "$(x)", "a slots=1 x"]
)
def test_what_is_no_host_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        read([line], "FILE")


def test_a_host_stands_there_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        read(["a", "b", "a slots=2"], "FILE")


def test_a_hostfile_is_read_once_and_named_in_errors() -> None:
    probe = Probe(env={}, read={"/h": "a slots=2 # x\n\nb slots=4\n", "/bad": "a b\n"}.get)
    config = from_mapping({"system": {"name": "x"}, "scheduler": {"name": "ssh", "hostfile": "/h"}}).scheduler
    assert hostfile.read(config, probe).hosts == ["a slots=2", "b slots=4"]
    for path, what in (("/bad", "is no host"), ("/none", "no file /none")):
        config.hostfile = path
        with pytest.raises(ConfigError, match=what):
            hostfile.read(config, probe)
    config.hosts = ["a"]
    with pytest.raises(ConfigError, match="two ways"):
        hostfile.read(config, probe)


def test_slots_are_ranks_of_a_host() -> None:
    slots = ["a slots=4", "b slots=2"]
    assert planned(hosts=slots).request.procs_per_node == 2
    assert planned({"procs_per_node": 1}, hosts=slots).request.procs_per_node == 1
    assert planned({"procs_per_node": 8, "oversubscribe": True}, hosts=slots).request.procs_per_node == 8
    with pytest.raises(PlanError, match="2 slots"):
        planned({"procs_per_node": 8}, hosts=slots)


@pytest.mark.parametrize(
    ("slots", "resources", "said"),
    [
        (["a slots=3", "b slots=4", "c"], {}, "(a 3, b 4): every host of a run takes 3 ranks; 1 slots are not used"),
        (["a slots=3", "b slots=3"], {}, None),
        (["a slots=3", "b"], {}, None),
        (["a slots=3", "b slots=4"], {"procs_per_node": 3}, None),
    ],
)
def test_slots_that_differ_are_told(slots: list[str], resources: dict[str, object], said: str | None) -> None:
    notes = [note for note in planned(resources, hosts=slots).notes if "slots" in note]
    assert len(notes) == (said is not None) and all(str(said) in note for note in notes)


@pytest.mark.parametrize("name", ["slurm", "local", "flux"])
def test_other_schedulers_choose_hosts_themselves(name: str) -> None:
    with pytest.raises(ConfigError, match="chooses hosts itself") as error:
        planned(name=name)
    assert error.value.where == "scheduler.hosts"


def test_what_hosts_cannot_do_is_refused_by_name() -> None:
    for name in ("queue", "account", "qos", "reservation", "dependency", "constraint", "nodelist", "exclude", "mpi"):
        with pytest.raises(PlanError) as error:
            capability_checks.check(SSH, asked(**{name: "x"}))
        assert error.value.where == f"scheduler.{name}"
    with pytest.raises(PlanError, match="needs 4 hosts, but there are 3"):
        SSH.check(asked(nodes=4))
    with pytest.raises(PlanError, match="is not set"):
        SSH.check(asked(hosts=()))
    assert "mail_user" in SSH.notes(asked(mail_user="x"))[0]
    with pytest.raises(ConfigError, match="no scheduler"):
        plan(
            from_mapping(
                {
                    "system": {"name": "x"},
                    "scheduler": {"name": "ssh", "hosts": ["a"]},
                    "rendezvous": {"name": "mpi"},
                }
            )
        )


def test_options_of_ssh_come_before_ours_but_never_ask_for_a_password() -> None:
    options = (("F", "/my config"), ("o", "ConnectTimeout=5"), ("o", "BatchMode=no"), ("4", None))
    ((_, argv), *_) = SSH.commands_per_node(spec(asked(launch_args=options)))
    assert argv[:5] == ["ssh", "-T", "-x", "-o", "BatchMode=yes"]
    assert argv.index("ConnectTimeout=5") < argv.index("ConnectTimeout=30")
    assert argv[argv.index("-F") + 1] == "/my config"
    for wrong in (("N", None), ("ProxyJump", "x"), ("F", None), ("4", "x")):
        with pytest.raises(PlanError) as error:
            SSH.check(asked(launch_args=(wrong,)))
        assert error.value.where == f"scheduler.launch_extra.{wrong[0]}"
    with pytest.raises(PlanError, match="no submit command"):
        SSH.check(asked(submit_args=(("x", "1"),)))


def test_the_command_of_each_node_in_the_order_of_the_list() -> None:
    commands = SSH.commands_per_node(spec(asked(nodes=2), pythonpath=("/my code",)))
    assert [host for host, _ in commands] == ["node01", "me@node02"]
    assert [argv[-2] for _, argv in commands] == ["node01", "me@node02"]
    assert shlex.split(commands[0][1][-1])[:3] == ["env", "PYTHONPATH=/my code", "/venv/bin/python"]


def test_the_two_torchrun_commands_of_a_static_rendezvous() -> None:
    two = request(scheduler="ssh", nodes=2, procs_per_node=8, hosts=("10.10.10.16", "10.10.10.17"))
    made = spec(plan=Plan("x", two, Rendezvous("static", port=50000), python="/venv/bin/python"))
    typed = SSH.typed_per_node(made, ["train.py", "a b"], is_python=True)
    assert typed == [
        (
            f"10.10.10.{16 + node}",
            (
                f"/venv/bin/torchrun --nproc_per_node=8 --nnodes=2 --node_rank={node} --master_addr=10.10.10.16 "
                "--master_port=50000 train.py 'a b'"
            ),
        )
        for node in (0, 1)
    ]
    assert "--no-python ./solver" in SSH.typed_per_node(made, ["./solver"], is_python=False)[0][1]
    elsewhere = spec(plan=Plan("x", two, Rendezvous("static", port_range=(600, 700), master_addr="10.0.0.1")))
    assert "--master_addr=10.0.0.1 --master_port=600" in SSH.typed_per_node(elsewhere, ["x"], is_python=True)[1][1]
    assert SSH.typed_per_node(spec(two), ["x"], is_python=True) == []


def test_ranks_count_over_the_hosts_of_the_list() -> None:
    env = {
        "HPC_HYDRA_SSH_NODE": "1",
        "HPC_HYDRA_SSH_HOSTS": "b,a",
        "HPC_HYDRA_SPAWN_RANK": "2",
        "HPC_HYDRA_SPAWN_SIZE": "4",
    }
    info = SSH.rank_info(env)
    assert info is not None
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (6, 2, 8, 4)
    assert (info.node_rank, info.num_nodes, info.master_host, info.hosts) == (1, 2, "b", ("b", "a"))
    assert SSH.rank_info({"HPC_HYDRA_SPAWN_RANK": "0"}) is None
    with pytest.raises(RendezvousError, match="not below the number of hosts"):
        SSH.rank_info({**env, "HPC_HYDRA_SSH_NODE": "2"})


@pytest.mark.parametrize(
    ("code", "said", "what", "fix"),
    [
        (255, "Host key verification failed.", "host key", "once by hand"),
        (255, "No ED25519 host key is known for n and you requested strict checking.\nHost key verification failed.",
         "host key", "once by hand"),
        (255, "me@n: Permission denied (publickey).", "without a password", "ssh-copy-id n"),
        (255, "ssh: Could not resolve hostname n: Name or service not known", "cannot be resolved", "scheduler.hosts"),
        (255, "ssh: connect to host n port 22: Connection refused", "cannot be reached", "ssh -o BatchMode=yes n true"),
        (255, "ssh: connect to host n port 22: No route to host", "cannot be reached", "scheduler.hosts"),
        (127, "env: ‘/py’: No such file or directory", "/py cannot be started there", "launch.python"),
        (127, "bash: line 1: /py: No such file or directory", "/py cannot be started there", "launch.python"),
        (1, ("/py: Error while finding module specification for 'hpc_hydra.node' (ModuleNotFoundError: No module named "
            "'hpc_hydra')"), "/py does not find hpc_hydra there", "install"),
        (3, "something else", "something else", "ssh"),
        (255, "", "exit code 255", "ssh"),
    ],
)  # fmt: skip
def test_why_a_host_did_not_begin(code: int, said: str, what: str, fix: str) -> None:
    found = explain("n", code, said, "/py")
    assert what in found[0]
    assert fix in found[1]


def test_the_script_names_the_hosts_and_takes_others(tmp_path: Path) -> None:
    text = SSH.script(spec(asked(nodes=2, setup_lines=("module load x",))))
    assert "HPC_HYDRA_SSH_HOSTS=node01,me@node02" in text
    assert "'--setup=module load x'" in text
    assert "hpc_hydra_setup" not in text  # they are for the hosts


def test_errors_are_of_the_family() -> None:
    with pytest.raises(HpcHydraError, match="names no host"):
        planned(hosts=["# none"])
