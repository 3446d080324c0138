"""What some tests need besides this project: `@pytest.mark.needs("mpi")`. Where it is not there, they are left out, and
the end of the report says how many and why.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

from tests import browser


def _module(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else f"needs the wheel {name}"


def _mpi() -> str | None:
    there = importlib.util.find_spec("mpi4py") and (Path(sys.executable).parent / "mpiexec").exists()
    return None if there else "needs the wheels mpi4py and mpich"


def _bubblewrap() -> str | None:
    try:
        done = subprocess.run(
            ["bwrap", "--tmpfs", "/", "--ro-bind", "/usr", "/usr", "/usr/bin/true"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "needs bubblewrap"
    return None if done.returncode == 0 or "No such file" in done.stderr else f"bubblewrap: {done.stderr.strip()}"


def _networks() -> str | None:
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        return "needs root, unshare and ip"
    done = subprocess.run(["unshare", "-n", "-m", "-u", "true"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"needs networks of its own: {done.stderr.strip()}"


def _lanes() -> str | None:
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        return "needs root on Debian"
    done = subprocess.run(["unshare", "-n", "-m", "-u", "-i", "-p", "-f", "true"], capture_output=True, text=True)
    return None if done.returncode == 0 else f"needs name spaces: {done.stderr.strip()}"


def _mounts() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True, text=True
        )
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return None if done.returncode == 0 else f"needs to mount: {done.stderr.strip()}"


def _ipv6() -> str | None:
    return _networks() or (None if Path("/proc/net/if_inet6").exists() else "needs IPv6")


def _index() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--retries",
            "0",
            "--timeout",
            "15",
            "-d",
            folder,
            "cloudpickle",
        ]
        done = subprocess.run([sys.executable, *argv], capture_output=True, text=True)
    return None if done.returncode == 0 else "needs a package index that pip reaches"


def _two_cpus() -> str | None:
    return None if len(os.sched_getaffinity(0)) > 1 else "needs two CPUs"


WAYS: dict[str, tuple[str, Callable[[], str | None]]] = {  # name: (what its tests are of, why it cannot be)
    "browser": ("of a page in a browser", lambda: None if browser.find() else "needs Chromium or Chrome"),
    "bubblewrap": ("of ranks in another root", _bubblewrap),
    "strace": ("of the system calls of ranks", lambda: None if shutil.which("strace") else "needs strace"),
    "index": ("that install from a package index", _index),
    "lanes": ("with random faults on clusters of their own", _lanes),
    "ipv6": ("of ranks that meet over IPv6", _ipv6),
    "mkdocs": ("of the site of docs/", _module("material")),
    "mpi": ("of MPI", _mpi),
    "mounts": ("on disks of their own", _mounts),
    "networks": ("in networks of their own", _networks),
    "torch": ("of torch", _module("torch")),
    "torchft": ("of replica groups", _module("torchft")),
    "two_cpus": ("of binding to cores", _two_cpus),
}


SHARED = "HPC_HYDRA_TESTS_NEEDS"  # a folder in which the workers of pytest-xdist share their answers


def _once(name: str, why: Callable[[], str | None]) -> str | None:
    """The answer of the first worker that asks: all workers must choose the same tests."""
    if not (folder := os.environ.get(SHARED)):
        return why()
    with open(Path(folder) / name, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (text := file.read()):
            text = json.dumps(why())
            file.write(text)
    return cast("str | None", json.loads(text))


@cache
def missing(name: str) -> str | None:
    """Why tests that need this are left out here, with what they are of; None where they run."""
    about, why = WAYS[name]
    found = _once(name, why)
    return f"tests {about}: {found}" if found else None
