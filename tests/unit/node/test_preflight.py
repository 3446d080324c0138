"""What makes a node bad: its own reports, its connections, its clock, its part in the all-reduce, its GPUs."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.preflight import judge, links, machine
from hpc_hydra.node.preflight.gpu_health import health
from hpc_hydra.planning.types import to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.preflight import BadHost, Links, NodeReport, PreflightRecord, RankReport, with_preflight
from hpc_hydra.records.types import Outcome
from tests.fakes import amdsmi

NVML = Path(__file__).parents[2] / "fakes" / "nvml"


def nodes(count: int) -> list[NodeReport]:
    return [NodeReport(n, f"node{n}", address=f"10.0.0.{n}", interface="ib0", port=5000 + n) for n in range(count)]


def seen(count: int, works: Callable[[int, int], bool], ahead: Callable[[int], float] = lambda _: 0.0) -> list[Links]:
    """What all nodes tell about links, of which some do not work."""
    return [
        Links(me, tuple((other, "no answer") for other in links.peers(me, count) if not works(me, other)), ahead(me))
        for me in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 64])
def test_the_node_whose_link_is_cut_is_named_and_no_other(count: int) -> None:
    for cut in range(1, count):
        bad = judge.by_links(nodes(count), seen(count, lambda a, b, cut=cut: cut not in (a, b)), 20)  # type: ignore[misc]
        assert list(bad) == [cut]
        assert f"no connection between 10.0.0.{cut} on ib0 and node0" in bad[cut]
    if count > 2:  # of two nodes nobody can tell
        assert list(judge.by_links(nodes(count), seen(count, lambda a, b: 0 not in (a, b)), 20)) == [0]


def test_two_cut_nodes_are_both_named_and_a_silent_one_explains_its_links() -> None:
    bad = judge.by_links(nodes(6), seen(6, lambda a, b: not {a, b} & {2, 5}), 20)
    assert sorted(bad) == [2, 5]
    told = [found for found in seen(4, lambda a, b: 3 not in (a, b)) if found.node != 3]
    assert judge.by_links(nodes(4), told, 20) == {3: "no answer about its links within 20 s"}


def test_the_clock_that_differs_from_most_is_the_wrong_one() -> None:
    def clocks(offsets: list[float]) -> list[Links]:  # of each node; told relative to the first
        return [Links(number, ahead=offsets[0] - offset) for number, offset in enumerate(offsets)]

    assert judge.by_clocks(clocks([0.0, 0.01, -0.02])) == ({}, pytest.approx(0.03))
    bad, spread = judge.by_clocks(clocks([0.0, 0.01, 90.0]))
    assert bad == {2: "its clock is 90.0 s ahead of the others"} and spread == pytest.approx(90.0)
    assert judge.by_clocks(clocks([-60.0, 0.0, 0.0]))[0] == {0: "its clock is 60.0 s behind the others"}


def rank(number: int, stage: Any = "done", **fields: Any) -> RankReport:
    return RankReport(number, number, stage, **fields)


def test_the_rank_that_failed_by_itself_names_its_node_and_those_that_lost_it_do_not() -> None:
    lost = "DistBackendError: Connection reset by peer"
    found = [rank(0, "joined", error=lost), rank(1, "ready", error="RuntimeError: CUDA error"), rank(2, "joined")]
    assert judge.by_all_reduce(nodes(3), 1, found, complete=False, limit=9) == {1: "RuntimeError: CUDA error"}
    same = [rank(n, "ready", error="RendezvousError: torch finds no GPU") for n in range(3)]
    assert judge.by_all_reduce(nodes(3), 1, same, complete=True, limit=9) == {}


def test_a_node_whose_ranks_lag_behind_in_a_hung_all_reduce_is_named() -> None:
    found = [rank(0, "ready"), rank(2, "ready")]
    why = "its ranks did not join the all-reduce within 9 s"
    assert judge.by_all_reduce(nodes(3), 1, found, complete=False, limit=9) == {1: why}
    all_joined = [rank(n, "joined") for n in range(3)]
    assert judge.by_all_reduce(nodes(3), 1, all_joined, complete=False, limit=9) == {}


def test_bandwidth_is_judged_by_the_systems_figure_alone() -> None:
    done = [rank(n, gb_per_s=10.0, link_gb_per_s=speed) for n, speed in enumerate((12.0, 2.0, 11.0))]
    assert judge.by_bandwidth(done, None) == ({}, None)
    assert judge.by_bandwidth(done, 19.0) == ({}, None)
    bad, why = judge.by_bandwidth(done, 90.0)
    assert bad == {1: "its link has 2.00 GB/s, the others 11.00 GB/s"}
    assert why == "the all-reduce has a bus bandwidth of 10.00 GB/s, less than half of 90 GB/s"


def test_nodes_connect_and_a_port_of_another_program_is_no_node() -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    try:
        for number, listener in enumerate(listeners):
            links.serve(listener, number)
        ports = [int(one.getsockname()[1]) for one in listeners]
        here = [NodeReport(n, f"node{n}", address="127.0.0.1", port=port) for n, port in enumerate(ports)]
        found = links.test(1, here)
        assert found.broken == () and found.ahead is not None and abs(found.ahead) < judge.CLOCK
        strange = [NodeReport(0, "node0", address="127.0.0.1", port=here[1].port), here[1]]
        assert links.test(1, strange).broken == ((0, f"127.0.0.1:{here[1].port} is another program"),)
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
    gone = links.test(1, here)
    assert [other for other, _ in gone.broken] == [0] and gone.ahead is None


def test_a_temporary_directory_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    assert machine.problems({"TMPDIR": str(tmp_path)}) == ()
    missing = tmp_path / "missing"
    assert machine.problems({"TMPDIR": str(missing)}) == (f"TMPDIR={missing} is no directory",)


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Check these GPUs of NVIDIA."""
    monkeypatch.syspath_prepend(str(NVML))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", importlib.import_module("pynvml"))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus.json"))

    def check(gpus: list[dict[str, Any]] | None, wanted: list[str] | None = None, expected: int = 0) -> Any:
        (tmp_path / "gpus.json").write_text(json.dumps({} if gpus is None else {"*": gpus}))
        return health(wanted, expected, "nvidia")

    return check


GOOD = {"ecc": 0, "retirement": 0, "rows": [3, 0, 0, 0], "slow": 0x1 | 0x4, "pids": []}


@pytest.mark.parametrize(
    ("gpu", "problem"),
    [
        (GOOD, None),
        ({}, None),  # reports nothing, as GeForce
        ({"ecc": 2}, "GPU 1: 2 uncorrected ECC errors since the driver was loaded"),
        ({"retirement": 1}, "GPU 1: memory pages wait to be retired; it needs a reset"),
        ({"rows": [0, 1, 1, 0]}, "GPU 1: memory rows wait to be remapped; it needs a reset"),
        ({"rows": [0, 9, 0, 1]}, "GPU 1: memory rows could not be remapped"),
        ({"slow": 0x40 | 0x4}, "GPU 1: clocks are throttled by the hardware, too hot"),
        ({"lost": True}, "GPU 1: GPU is lost"),
        ({"pids": [os.getpid()]}, None),
    ],
)  # fmt: skip
def test_what_nvml_says_of_a_gpu(nvidia: Callable[..., Any], gpu: dict[str, Any], problem: str | None) -> None:
    expected = 1 if gpu.get("lost") else 2
    assert nvidia([GOOD, gpu], None, expected).problems == ((problem,) if problem else ())
    assert nvidia([gpu, GOOD], ["1"], 1).problems == ()  # the GPU of another job


def test_another_users_process_on_the_gpu(nvidia: Callable[..., Any]) -> None:
    user = 65534 if os.getuid() == 0 else None
    with subprocess.Popen(["sleep", "60"], user=user) as other:
        pid = 1 if user is None else other.pid
        problems = nvidia([{"pids": [pid]}]).problems
        other.kill()
    assert f"GPU 0: used by another user: {'sleep ' if user else ''}" in problems[0] and f"(pid {pid}, " in problems[0]


def test_missing_gpus_a_missing_driver_and_a_missing_library(
    nvidia: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nvidia([GOOD], None, 4).problems == ("1 of 4 GPUs",)
    assert nvidia(None).problems == ("GPUs: Driver Not Loaded",)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = nvidia([GOOD])
    assert found.problems == () and "health of GPUs not checked: " in found.notes[0]


def test_what_amdsmi_says_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = {7: amdsmi.AmdSmiMemoryPageStatus.PENDING, 8: amdsmi.AmdSmiMemoryPageStatus.RESERVED}
    gpus: list[dict[str, Any]] = [
        {"ecc": {"correctable_count": 5}, "pages": {}, "limits": {"active_hbm_thrm": False}, "processes": {}},
        {"ecc": {"uncorrectable_count": 1}, "pages": pending, "limits": {"active_hbm_thrm": True}},
        {},
    ]
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    monkeypatch.setattr(amdsmi, "GPUS", gpus)
    monkeypatch.setattr(amdsmi, "_initialised", False)
    assert health(None, 4, "amd").problems == (
        "3 of 4 GPUs",
        "GPU 1: 1 uncorrected ECC error",
        "GPU 1: 1 bad memory page not retired; it needs a reset",
        "GPU 1: clocks are throttled: memory too hot",
    )


def test_the_outcome_names_bad_nodes_and_those_that_were_left_out(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)

    def outcome(record: PreflightRecord, ended: Outcome) -> Outcome:
        paths.attempt("a").mkdir(parents=True, exist_ok=True)
        write_json(paths.preflight("a"), to_json(record))
        return with_preflight(ended, paths, "a")

    bad = (BadHost("node2", "/tmp is full"),)
    failed = outcome(PreflightRecord(False, "node2: /tmp is full", bad=bad), Outcome(0, "failed", 69, reason="code 69"))
    assert (failed.reason, failed.bad_nodes) == ("node2: /tmp is full", ("node2",))
    done = outcome(PreflightRecord(True, hosts=("node1",), bad=bad), Outcome(0, "completed", 0))
    assert (done.reason, done.bad_nodes) == ("left out by the preflight: node2: /tmp is full", ())
    cancelled = outcome(PreflightRecord(False, "x", bad=bad), Outcome(0, "cancelled", 143, reason="cancelled"))
    assert (cancelled.reason, cancelled.bad_nodes) == ("cancelled", ())
