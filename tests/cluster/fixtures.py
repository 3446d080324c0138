"""The fixture `slurm_cluster`: a real SLURM of four nodes, used by every test marked ``cluster``.

A cluster that answers with node01..node04 is used and left as it was; otherwise, as root on Debian, one is brought
up and stopped at the end. Where neither is possible the tests are left out, and the end of the report says so.

Several pytest sessions may share the cluster: tests run side by side, except those marked ``cluster(alone=True)``,
which disturb nodes and wait until nobody else's test is on the cluster.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

SCRIPTS = Path(__file__).parent / "slurm"
NODES = ("node01", "node02", "node03", "node04")
LOCKS = Path("/run/lock") if Path("/run/lock").is_dir() else Path("/tmp")
CONF = Path("/etc/slurm/slurm.conf")  # is there while the cluster is up
LIVE = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING"}
UP = {"idle", "mixed", "allocated", "completing", "planned"}
T = TypeVar("T")


def run(*argv: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal; its output is kept, its exit code is not checked."""
    return subprocess.run(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
    )


def wait_for(predicate: Callable[[], T], timeout: float = 60, what: str = "") -> T:
    """The first true value of ``predicate``, asked every 0.1 s for ``timeout`` seconds. Raises `AssertionError`."""
    end = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > end:
            raise AssertionError(
                f"after {timeout:g} s still not true: {what or getattr(predicate, '__name__', predicate)}"
            )
        time.sleep(0.1)
    return value


def states() -> dict[str, str]:
    """State of each node by name; empty where no SLURM answers."""
    if not shutil.which("sinfo"):
        return {}
    try:
        done = run("sinfo", "-h", "-N", "-o", "%N %T", timeout=5)
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}


def answers() -> bool:
    """Whether the test cluster is up, whoever started it."""
    found = states()
    return set(found) == set(NODES) and all(found[n].rstrip("*~#!%$@^-") in UP for n in NODES)


def unavailable() -> str | None:
    """Why the cluster cannot be used or brought up on this machine; None where it can."""
    found = states()
    if set(found) == set(NODES):
        return None
    if found:
        return f"a SLURM with other nodes answers here ({', '.join(sorted(found)[:3])} …): it is left alone"
    if os.geteuid() != 0:
        return "no SLURM answers, and only root can bring one up"
    if not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        return "no SLURM answers, and one can be brought up only on Debian (apt)"
    if not shutil.which("unshare") or run("unshare", "-n", "-m", "-u", "-i", "true").returncode:
        return "no SLURM answers, and this machine does not allow name spaces (an unprivileged container?)"
    return None


def lock_file(name: str) -> int:
    """An open descriptor of a lock file that any user of this machine may lock."""
    path = LOCKS / f"hpc-hydra-slurm.{name}"
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


@contextmanager
def lock(name: str, *, shared: bool) -> Iterator[None]:
    """Hold a lock among all pytest sessions of this machine; it goes with the process, however that ends."""
    fd = lock_file(name)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Node:
    """One compute node: its own network, host name, processes and mounts; the file system is shared."""

    name: str
    cluster: Cluster

    def _do(self, what: str) -> None:
        assert self.cluster.alone, f"{what} of a node disturbs others: mark the test cluster(alone=True)"
        done = run(SCRIPTS / "node", what, self.name)
        assert done.returncode == 0, done.stderr

    def kill(self) -> None:
        """Power failure: everything on the node dies at once."""
        self._do("kill")

    def stop(self) -> None:
        """A clean shutdown."""
        self._do("stop")

    def start(self) -> None:
        """Boot the node; nothing happens where it runs."""
        self._do("start")

    def cut(self) -> None:
        """Its network link goes down."""
        self._do("cut")

    def join(self) -> None:
        """Its network link comes up again."""
        self._do("join")

    def exec(self, argv: Sequence[str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, as if by ssh."""
        return run(SCRIPTS / "node", "exec", self.name, *argv, timeout=timeout)


class Cluster:
    """What a test may ask of the cluster. Partitions: gpu (default), debug, and spot, whose jobs those of
    debug preempt; each node has 8 CPUs, 32000 MB and 4 GPUs that exist by name only. ``mine`` is the directory below
    which this session's jobs work."""

    def __init__(self, mine: Path) -> None:
        self.mine = mine
        self.alone = False

    nodes = NODES
    wait_for = staticmethod(wait_for)

    def node(self, name: str) -> Node:
        """The node of that name (node01 … node04)."""
        assert name in NODES, f"{name} is none of {NODES}"
        return Node(name, self)

    def sacct(
        self, job: str | int, fields: Sequence[str] = ("JobID", "State", "ExitCode", "NNodes"), *, steps: bool = False
    ) -> list[dict[str, str]]:
        """What accounting says about a job or array: a dictionary a job (and step, with ``steps``), maybe none yet."""
        argv = ["sacct", "-n", "-P", "-j", str(job), "-o", ",".join(fields), *([] if steps else ["-X"])]
        done = run(*argv)
        assert done.returncode == 0, done.stderr
        return [dict(zip(fields, line.split("|"), strict=True)) for line in done.stdout.splitlines()]

    def squeue(self, *, everybody: bool = False) -> list[dict[str, str]]:
        """This session's queue (or everybody's), array elements expanded: JobId, ArrayJobId, JobState, Command and what
        else ``scontrol show job`` tells."""
        done = run("scontrol", "show", "job", "-o")
        jobs = [dict(p.split("=", 1) for p in line.split() if "=" in p) for line in done.stdout.splitlines()]
        live = [
            j for j in jobs if j.get("JobState") in {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
        ]
        return live if everybody else [j for j in live if self._is_mine(j, self.mine)]

    def cancel_all_mine(self, below: Path | None = None) -> None:
        """Cancel the jobs whose script, output or working directory lies below this session's temporary directory."""
        mine = [j["JobId"] for j in self.squeue(everybody=True) if self._is_mine(j, below or self.mine)]
        if mine:
            run("scancel", *mine)

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """No slurmctld answers meanwhile: nothing can be submitted or asked; what runs goes on."""
        assert self.alone, "that disturbs others: mark the test cluster(alone=True)"
        with lock("start", shared=False):  # another session would take the cluster for one that is down
            done = run(SCRIPTS / "controller", "stop")
            try:
                assert done.returncode == 0, done.stderr
                yield
            finally:
                done = run(SCRIPTS / "controller", "start")
                wait_for(answers, 200, "slurmctld and all nodes answer again")
            assert done.returncode == 0, done.stderr

    def restore(self) -> None:
        """Bring every node back, and wait until SLURM takes jobs on all of them."""
        for name in NODES:
            node = self.node(name)
            node.start()
            node.join()
        down = [name for name, state in states().items() if state.startswith("down")]
        if down:  # slurmctld asks a silent node again only after a while
            run("scontrol", "update", f"nodename={','.join(down)}", "state=resume")
        wait_for(
            lambda: answers() and not any("*" in state or state.startswith("comp") for state in states().values()),
            200,
            "all nodes answer again, and have ended their jobs",
        )

    @staticmethod
    def _is_mine(job: dict[str, str], mine: Path) -> bool:
        return any(Path(job.get(key, "/")).is_relative_to(mine) for key in ("Command", "WorkDir", "StdOut"))


def _answers_soon() -> bool:
    """Whether a cluster that is configured here answers within 30 s: on a busy machine it is slow, and not down."""
    with suppress(AssertionError):
        return wait_for(answers, 30)
    return False


def bring_up() -> bool:
    """Start the test cluster unless it answers already; True where this session started it."""
    if answers() or (CONF.exists() and _answers_soon()):
        return False
    done = run("bash", SCRIPTS / "up", "--fresh", timeout=900)
    if done.returncode or not answers():
        run("bash", SCRIPTS / "down", timeout=120)
        raise RuntimeError(f"the test cluster did not come up\n{done.stdout}{done.stderr}")
    return True


def take_down() -> None:
    """Stop the cluster, unless another session uses it (the last to leave stops it)."""
    fd = lock_file("users")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run("bash", SCRIPTS / "down", timeout=120)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, up. See the module's first lines."""
    started_by_tests = LOCKS / "hpc-hydra-slurm.started-by-tests"  # … so that the last session to leave stops it
    with lock("users", shared=True):
        with lock("start", shared=False):
            if bring_up():
                started_by_tests.touch()
        cluster = Cluster(tmp_path_factory.getbasetemp().resolve())
        yield cluster
        cluster.cancel_all_mine()
    if started_by_tests.exists():
        with lock("start", shared=False):
            take_down()
            if not answers():
                started_by_tests.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _share_the_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around each cluster test: its turn among the sessions, no job of it left, every node back."""
    marker = request.node.get_closest_marker("cluster")
    if marker is None:
        yield
        return
    cluster: Cluster = request.getfixturevalue("slurm_cluster")
    alone = bool(marker.kwargs.get("alone", False))
    with ExitStack() as stack:
        with lock("queue", shared=False):  # first come, first served: nobody passes a test that waits to be alone
            stack.enter_context(lock("tests", shared=not alone))
        cluster.alone = alone
        try:
            yield
        finally:
            if "tmp_path" in (request.node.funcargs or ()):  # none where the session was interrupted
                cluster.cancel_all_mine(request.node.funcargs["tmp_path"].resolve())
            if alone:
                cluster.restore()
            cluster.alone = False
