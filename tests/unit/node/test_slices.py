"""What of a host a packed run gets: dealt out by the packer, found on the host by who starts the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_hydra.envvars import SLICE
from hpc_hydra.errors import PlanError, RendezvousError
from hpc_hydra.planning.packing import Share
from hpc_hydra.schedulers.resource_slice import FreeNode, Slice, confine

ROOT = Path(__file__).parents[3]


def test_a_host_is_dealt_out_without_overlap_and_taken_back() -> None:
    host = FreeNode("n1", 8, 4, 0)
    first, second = host.take(Share(1, 3, 2)), host.take(Share(1, 4, 1))
    assert (str(first), str(second)) == ("0-1/4:0-2/8", "2/4:3-6/8")
    assert host.holds(Share(1, 1, 1), False) and not host.holds(Share(1, 2, 1), False)
    host.give_back(first, Share(1, 3, 2))
    assert str(host.take(Share(1, 4, 3))) == "0-1,3/4:0-2,7/8"
    host = FreeNode("n2", 8, 4, 0, lost="gone")
    assert not host.holds(Share(1, 1), False)


@pytest.mark.parametrize("part", [Slice((0, 2), 4, (1,), 8), Slice((), 0, (0, 1, 2), 3), Slice((), 4, (), 4, True)])
def test_a_slice_is_read_back_as_it_was_written(part: Slice) -> None:
    assert Slice.read(f"{part}:whole" if part.whole else str(part)) == part


@pytest.mark.parametrize("word", ["", "0/1", "a/1:0/1", "0/1:0/1:some", "-1/2:0/1", "0-/2:0/1", "0/2:,1/8"])
def test_an_invalid_slice_is_refused(word: str) -> None:
    with pytest.raises(RendezvousError, match=SLICE):
        Slice.read(word)


def run(word: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A process that is confined, and says what it has."""
    program = """
import json, os, sys
from hpc_hydra.errors import HpcHydraError
from hpc_hydra.schedulers.resource_slice import confine
try:
    confine(os.environ)
except HpcHydraError as error:
    sys.exit(str(error))
cores = sorted(os.sched_getaffinity(0))
print(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES"), cores, "HPC_HYDRA_SLICE" in os.environ]))
"""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), SLICE: word, **env}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=200)


def test_gpus_are_those_that_the_host_s_own_list_names_at_these_places() -> None:
    cores = sorted(os.sched_getaffinity(0))
    done = run(f"0,2/3:0/{len(cores)}", CUDA_VISIBLE_DEVICES="7,GPU-ab,3")
    assert json.loads(done.stdout) == ["7,3", cores[:1], False]
    done = run(f"/3:0/{len(cores)}", CUDA_VISIBLE_DEVICES="7,GPU-ab,3")
    assert json.loads(done.stdout)[0] == ""  # a run without GPUs beside others with


def test_cores_are_bound_only_where_it_is_known_which_are_the_job_s() -> None:
    cores = sorted(os.sched_getaffinity(0))
    shared = run(f"/0:0/{len(cores) + 1}")
    assert json.loads(shared.stdout)[1] == cores and "not bound to cores" in shared.stderr
    fewer = run(f"/0:0/{len(cores) + 1}:whole")
    assert fewer.returncode == 1 and "launch.pack" in fewer.stderr and f"it has {len(cores)}" in fewer.stderr
    one = run("/0:0/1:whole")
    assert json.loads(one.stdout)[1] == cores[:1]


@pytest.mark.parametrize(
    ("word", "gpus", "said"),
    [
        ("0/4:0/1", "0,1", "need 4 GPUs, but CUDA_VISIBLE_DEVICES=0,1"),
        ("0/2:0/1", "0,1,2", "which 2 of the 3 GPUs"),
    ],
)
def test_gpus_that_may_be_another_job_s_are_not_taken(
    word: str, gpus: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {SLICE: word, "CUDA_VISIBLE_DEVICES": gpus}
    with pytest.raises(PlanError, match=said):
        confine(env)
    assert SLICE not in env
