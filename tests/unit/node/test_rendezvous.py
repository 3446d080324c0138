"""Rank 0's host really holds the port, and the others find it or say whom they miss (scenario B06)."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.rank.rendezvous import Endpoint, address_of, check, join, publish, reserve_port
from hpc_hydra.planning.types import RankInfo, Rendezvous

ONE = RankInfo(0, 0, 2, 2, 0, 1, "here", ("here",), source="X=1")
TWO = RankInfo(1, 0, 2, 1, 1, 2, "n01", ("n01", "n02"), source="SLURM_STEP_NODELIST=n[01-02]")
FIRST = RankInfo(0, 0, 2, 1, 0, 2, "n01", ("n01", "n02"), source="SLURM_STEP_NODELIST=n[01-02]")
MEETING = Endpoint("n01", "10.0.0.1", 4242, "a1", "77", 2)


def port_of(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A name service that knows these names alone."""
    known: dict[str, list[str]] = {}

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_reserved_port_cannot_be_bound_by_others(family: socket.AddressFamily) -> None:
    with reserve_port(Rendezvous()) as reserved, socket.socket(family) as other, pytest.raises(OSError):
        other.bind(("127.0.0.1" if family == socket.AF_INET else "::1", port_of(reserved)))


def test_two_runs_hold_two_ports() -> None:
    with reserve_port(Rendezvous()) as a, reserve_port(Rendezvous()) as b:
        assert port_of(a) != port_of(b)


def test_jobs_that_start_at_once_on_one_node_never_share_a_port() -> None:
    code = (
        "import sys; from hpc_hydra.node.rank.rendezvous import reserve_port\n"
        "from hpc_hydra.planning.types import Rendezvous\n"
        "with reserve_port(Rendezvous()) as reserved: print(reserved.getsockname()[1], flush=True); sys.stdin.read()"
    )
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    ports = [job.stdout.readline() for job in jobs if job.stdout is not None]
    for job in jobs:
        job.communicate(timeout=200)
    assert len(set(ports)) == 16 and all(port.strip().isdigit() for port in ports)


def test_a_server_that_reuses_addresses_listens_on_the_held_port() -> None:
    """What TCPStore does; connections to a port that is reserved and not listened on are refused."""
    with reserve_port(Rendezvous()) as reserved:
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port_of(reserved))) != 0
        code = (
            "import socket, sys; s=socket.socket(socket.AF_INET6);"
            "s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);"
            f"s.bind(('::',{port_of(reserved)})); s.listen(); print('up',flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None and server.stdout.readline() == "up\n"
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", port_of(reserved))) == 0
            server.communicate()


def test_a_configured_port_in_use_is_an_error_that_names_it() -> None:
    with (
        reserve_port(Rendezvous()) as reserved,
        pytest.raises(RendezvousError, match=rf"{port_of(reserved)}.*{socket.gethostname()}"),
    ):
        reserve_port(Rendezvous(port=port_of(reserved)))


def test_a_configured_port_works_again_while_old_connections_linger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first, and keeps the port in TIME_WAIT
            client.recv(1)
    with reserve_port(Rendezvous(port=port)) as reserved:
        assert port_of(reserved) == port


def test_a_range_gives_the_first_free_port() -> None:
    with reserve_port(Rendezvous()) as reserved:
        first = port_of(reserved)
        with reserve_port(Rendezvous(port_range=(first, first + 20))) as other:
            assert first < port_of(other) <= first + 20
        with pytest.raises(RendezvousError, match="port_range"):
            reserve_port(Rendezvous(port_range=(first, first)))


def test_a_publication_is_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "deleted" / "rendezvous.json"
    found: list[Endpoint] = []
    reader = threading.Thread(
        target=lambda: found.append(join(path, ONE, "a1", timeout=200, pause=time.sleep)), daemon=True
    )
    reader.start()
    publish(path, MEETING)
    reader.join(200)
    assert found == [MEETING]


def test_a_missing_rank_0_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"rank 0 on n01") as error:
        join(tmp_path / "r.json", TWO, "a1", timeout=0, pause=time.sleep)
    assert "r.json" in str(error.value) and "SLURM_STEP_NODELIST" in str(error.value)


def test_waiting_ends_when_rank_0_has_ended(tmp_path: Path) -> None:
    (tmp_path / "rank_0.end.json").write_text("{}")
    with pytest.raises(RendezvousError, match="ended before"):
        join(tmp_path / "r.json", TWO, "a1", timeout=200, pause=time.sleep, rank_0_end=tmp_path / "rank_0.end.json")


def test_another_attempt_or_world_is_refused(names: dict[str, list[str]]) -> None:
    names["10.0.0.1"] = ["10.0.0.1"]
    check(MEETING, TWO, "a1")
    with pytest.raises(RendezvousError, match=r"a2.*a1"):
        check(MEETING, TWO, "a2")
    with pytest.raises(RendezvousError, match=r"counts 2 ranks.*counts 3"):
        check(Endpoint("n01", "10.0.0.1", 1, "a1", "77", 3), TWO, "a1")


@pytest.mark.parametrize(
    ("address", "resolved"),
    [
        ("n01", []),
        ("n01", ["127.0.1.1"]),
        ("localhost", ["::1"]),
        ("n01", ["fe80::1%e0"]),
        ("fe80::1", ["fe80::1"]),
        ("n01", ["::1", "fe80::1%e0"]),
    ],
)
def test_a_master_that_other_nodes_cannot_reach_is_refused(
    names: dict[str, list[str]], address: str, resolved: list[str]
) -> None:
    names[address] = resolved
    with pytest.raises(RendezvousError, match=rf"MASTER_ADDR.*'{address}'") as error:
        check(Endpoint("n01", address, 1, "a1", "77", 2), TWO, "a1")
    assert socket.gethostname() in str(error.value) and "rendezvous.interface" in str(error.value)


def test_one_node_needs_no_name_that_resolves(names: dict[str, list[str]]) -> None:
    assert address_of(Rendezvous(), ONE) == "127.0.0.1"
    assert address_of(Rendezvous(host_suffix=".hsn"), ONE) == "127.0.0.1"


def test_several_nodes_use_the_schedulers_name(names: dict[str, list[str]]) -> None:
    names["n01"] = ["10.0.0.1"]
    assert address_of(Rendezvous(), FIRST) == "n01"


def test_the_suffix_goes_behind_the_short_name(names: dict[str, list[str]]) -> None:
    names["n01i"] = ["10.1.0.1"]
    info = RankInfo(0, 0, 2, 1, 0, 2, "n01.site.org", ("n01", "n02"))
    assert address_of(Rendezvous(host_suffix="i"), info) == "n01i"
    with pytest.raises(RendezvousError, match=r"host_suffix.*n01x"):
        address_of(Rendezvous(host_suffix="x"), info)


def test_the_configured_master_wins_and_is_checked(names: dict[str, list[str]]) -> None:
    names["head"] = ["10.0.0.9"]
    assert address_of(Rendezvous(master_addr="head", interface="lo"), FIRST) == "head"
    with pytest.raises(RendezvousError, match=r"master_addr.*'gone'"):
        address_of(Rendezvous(master_addr="gone"), FIRST)


@pytest.mark.needs("ipv6")
def test_an_interface_with_a_link_local_address_only_is_refused_by_that_reason() -> None:
    made = (
        "from tests.unit.node.test_rendezvous import FIRST, Rendezvous, address_of\n"
        "try: address_of(Rendezvous(interface='e0'), FIRST)\n"
        "except Exception as error: print(error)"
    )
    script = 'set -e; ip link add e0 type veth peer name e1; ip -6 addr add fe80::7/64 dev e0 nodad; exec "$@"'
    done = subprocess.run(
        ["unshare", "-n", "bash", "-c", script, "bash", sys.executable, "-c", made], capture_output=True, text=True
    )
    assert "'e0'" in done.stdout and "link-local" in done.stdout, done.stderr


def test_an_interface_gives_its_address() -> None:
    assert address_of(Rendezvous(interface="lo"), FIRST) == "127.0.0.1"
    with pytest.raises(RendezvousError, match=r"no network interface 'hsn9'.*\n.*lo"):
        address_of(Rendezvous(interface="hsn9"), FIRST)
    assert address_of(Rendezvous(interface="hsn9"), ONE) == "127.0.0.1"


@pytest.mark.needs("networks")
def test_a_host_that_knows_itself_as_loopback_gives_its_address_towards_the_others(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.1.1 n01\n10.77.0.2 n02\n")
    program = (
        "from hpc_hydra.node.rank.rendezvous import address_of, interface_for_gloo\n"
        "from tests.unit.node.test_rendezvous import FIRST, Rendezvous\n"
        "print(address_of(Rendezvous(), FIRST), interface_for_gloo(FIRST))"
    )
    script = (
        "set -e; hostname n01; mount --bind $1 /etc/hosts; ip link add e0 type veth peer name e1; shift\n"
        'ip addr add 10.77.0.1/24 dev e0; ip link set e0 up; ip link set e1 up; exec "$@"'
    )
    words = [
        "unshare",
        "-n",
        "-m",
        "-u",
        "bash",
        "-c",
        script,
        "bash",
        tmp_path / "hosts",
        sys.executable,
        "-c",
        program,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.stdout == "10.77.0.1 e0\n", done.stderr


def test_a_host_that_knows_itself_as_loopback_alone_is_refused(names: dict[str, list[str]]) -> None:
    names["n01"] = ["127.0.1.1", "fe80::1%e0"]
    with pytest.raises(RendezvousError, match=r"SLURM_STEP_NODELIST.*127\.0\.1\.1"):
        address_of(Rendezvous(), FIRST)
