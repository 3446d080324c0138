"""A DNS that drops queries does not hold up ranks: in a network of its own, with a name server that says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra import envvars
from hpc_hydra.node import reverse_dns
from hpc_hydra.planning.types import Rendezvous

from .conftest import ROOT, Frozen

HERE = "10.9.9.1"  # of this test's network only
SERVER = """
import json, select, socket, subprocess, sys
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("10.9.9.1", 53))
child = subprocess.Popen(sys.argv[2:])
asked = []
while child.poll() is None or select.select([silent], [], [], 0)[0]:
    if select.select([silent], [], [], 0.1)[0]:
        asked.append(silent.recv(512).hex())
open(sys.argv[1], "w").write(json.dumps(asked))
sys.exit(child.returncode)
"""
needs_networks = pytest.mark.needs("networks")


def silenced(tmp_path: Path, argv: list[str]) -> list[str]:
    """The command, in a network whose name server answers nothing; what it was asked is in ``asked.json``.

    /etc/hosts has the name of this network's host, as on many clusters: torch's queries do not find it there.
    """
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{HERE} node01\n")
    (tmp_path / "resolv.conf").write_text(f"nameserver {HERE}\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    line = f"ip link set lo up; ip addr add {HERE}/32 dev lo; mount --bind {tmp_path}/resolv.conf /etc/resolv.conf; "
    line += f"mount --bind {tmp_path}/hosts /etc/hosts; "
    line += f'mount --bind {tmp_path}/nsswitch.conf /etc/nsswitch.conf; exec "$@"'
    server = [sys.executable, "-c", SERVER, str(tmp_path / "asked.json")]
    return ["unshare", "-n", "-m", "bash", "-c", line, "bash", *server, *argv]


def asked(tmp_path: Path, address: str = HERE) -> int:
    """How often the name of an address was asked for."""
    questions = json.loads((tmp_path / "asked.json").read_text())
    return sum(
        "".join(f"{len(part):02x}{part.encode().hex()}" for part in reversed(address.split("."))) in each
        for each in questions
    )


@needs_networks
@pytest.mark.torch
def test_ranks_ask_once_whether_names_are_told_and_torch_never(freeze, tmp_path: Path) -> None:
    body = """
    import torch, torch.distributed as group, hpc_hydra
    with hpc_hydra.distributed(cfg) as dist:
        total = torch.ones(1)
        group.all_reduce(total)
    return [total.item(), os.environ["MASTER_ADDR"], os.environ["RES_OPTIONS"]]
    """
    frozen: Frozen = freeze(body, procs=2, rendezvous=Rendezvous(timeout=200, master_addr=HERE))
    argv = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", "2", "--", sys.executable]
    done = subprocess.run(
        silenced(tmp_path, [*argv, "-m", "hpc_hydra.node", "rank"]),
        env=frozen.environ(GLOO_SOCKET_IFNAME="lo"), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr + frozen.log()
    assert frozen.finish(0).returncode == 0
    assert frozen.outcome()["result"] == [2.0, HERE, reverse_dns.QUICK]
    assert asked(tmp_path) == 2, "by each rank's supervisor; torch would ask twice in each rank, for 5 s each time"


@needs_networks
def test_the_resolver_is_afterwards_as_it_was(tmp_path: Path) -> None:
    code = f"""
from hpc_hydra.node import reverse_dns as names
import ctypes
assert names.nobody_answers("{HERE}")
state = ctypes.CDLL(None).__res_state
state.restype = ctypes.POINTER(names.Resolver)
print(state().contents.retrans, state().contents.retry, state().contents.nscount)
"""
    done = subprocess.run(
        silenced(tmp_path, [sys.executable, "-c", code]),
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.stdout.split() == ["5", "2", "1"], done.stdout + done.stderr
    assert asked(tmp_path) == 1


@needs_networks
@pytest.mark.torch
def test_the_store_of_a_large_world_asks_for_nobody_and_warns_of_nothing(tmp_path: Path) -> None:
    code = f"""
from hpc_hydra.node import reverse_dns
from torch.distributed import TCPStore
reverse_dns.spare_torch("{HERE}", world_size=4096)
server = TCPStore("{HERE}", 0, is_master=True, wait_for_workers=False)
client = TCPStore("{HERE}", server.port, is_master=False)
client.set("here", "1")
print(server.get("here"))
"""
    done = subprocess.run(
        silenced(tmp_path, [sys.executable, "-c", code]),
        env={**os.environ, "PYTHONPATH": str(ROOT), envvars.NAMES_SILENT: "0"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("b'1'", "")
    assert asked(tmp_path) == 0


@needs_networks
@pytest.mark.torch
def test_a_store_on_loopback_asks_for_nobody_where_no_name_server_answers(tmp_path: Path) -> None:
    """As in a job of one node: its ranks meet at 127.0.0.1, whose name torch would ask for, too."""
    code = """
from hpc_hydra.node import reverse_dns
from torch.distributed import TCPStore
reverse_dns.spare_torch("127.0.0.1", world_size=2)
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = TCPStore("127.0.0.1", server.port, is_master=False)
client.set("here", "1")
print(server.get("here"))
"""
    done = subprocess.run(
        silenced(tmp_path, [sys.executable, "-c", code]),
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("b'1'", "")
    assert asked(tmp_path, "127.0.0.1") == 1, "whether anybody answers"


def test_what_has_no_address_is_not_asked_for() -> None:
    assert not reverse_dns.nobody_answers("no.such.host.invalid")


def test_what_is_known_or_set_is_kept() -> None:
    env = {envvars.NAMES_SILENT: "1", "RES_OPTIONS": "rotate"}
    reverse_dns.note(env, "127.0.0.1")
    assert env == {envvars.NAMES_SILENT: "1", "RES_OPTIONS": "rotate"}
    env = {}
    reverse_dns.note(env, "no.such.host.invalid")
    assert env == {envvars.NAMES_SILENT: "0"}
