"""One sampler a node: what its GPUs, CPUs, memory, network and disks do, into a file beside the logs.

    python -m hpc_hydra.node monitor PREFIX SECONDS DMON GPUS LINK

writes PREFIX.gutil.csv, and PREFIX.gutil as `nvidia-smi dmon` would, if DMON is 1. GPUS: all, none, or identifiers with
commas. LINK: the prefix under which the table is found beside the logs. The supervisor of the node's first rank (or of
its agent) starts it and ends it; it cannot outlive that, whatever killed it. Each sample is one write of whole lines,
so that nothing is lost then.

Must not know: ranks, plans, what the program does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.node.rank.gpus import Reading, Sampler
from hpc_hydra.processes import STOP, WARN, start_program
from hpc_hydra.schedulers import registry

if TYPE_CHECKING:
    from hpc_hydra.node.rank.context import RankContext
    from hpc_hydra.planning.types import Monitor

CSV, DMON = ".gutil.csv", ".gutil"
NODE = (
    "cpu_percent", "ram_used_mib", "ram_total_mib", "net_rx_mib_s", "net_tx_mib_s", "disk_read_mib_s",
    "disk_write_mib_s",
)  # fmt: skip
COLUMNS = ("time", *(field.name for field in fields(Reading)), *NODE)
DMON_HEAD = (
    "#Date       Time        gpu    pwr  gtemp     sm    mem     fb   mclk   pclk\n"
    "#YYYYMMDD   HH:MM:SS    Idx      W      C      %      %    MiB    MHz    MHz\n"
)


@contextlib.contextmanager
def monitored(context: RankContext) -> Iterator[None]:
    """Have this node measured, where the plan says so and this process is its first; never fails, never waits."""
    pid = None
    wanted = context.plan.monitor
    if wanted is not None and context.info.local_rank == 0 and context.starter is None and not context.attempt.attached:
        with contextlib.suppress(OSError):
            pid = _start(context, wanted)
    try:
        yield
    finally:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _prefixes(context: RankContext, pattern: str | None) -> tuple[Path, Path]:
    """Of the files' names: where they are, and where the report looks for them."""
    job = (context.job_id or context.attempt.job).replace("/", "_")
    usual = context.paths.attempt(context.attempt.name) / f"{job}.{context.host.replace('/', '_')}"
    if pattern is None:
        return usual, usual
    from hpc_hydra.node.rank.logs import filled

    array = registry.array_id(context.attempt.scheduler, os.environ)
    name = filled(pattern, context.record.num, replace(context.info, job_id=job), context.host, array)
    prefix = context.paths.root.absolute() / name.removesuffix(CSV).removesuffix(DMON)
    for path in (prefix, usual):
        path.parent.mkdir(parents=True, exist_ok=True)
    return prefix, usual


def _start(context: RankContext, wanted: Monitor) -> int:
    prefix, link = _prefixes(context, wanted.file)
    gpus = which_gpus(context, os.environ)

    def prepare() -> None:
        for signum in (*STOP, *WARN):  # for the program; this process ends with its parent
            signal.signal(signum, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        log = nothing if context.err is None else os.open(context.err, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number, target in ((0, nothing), (1, nothing), (2, log)):
            os.dup2(target, number)
        os.closerange(3, 1024)

    words = [str(prefix), str(wanted.interval), str(int(wanted.dmon)), gpus, str(link)]
    argv = [sys.executable, "-m", "hpc_hydra.node", "monitor", *words]
    return start_program(argv, None, own_group=False, end_by=signal.SIGKILL, prepare=prepare)


def which_gpus(context: RankContext, env: Mapping[str, str]) -> str:
    """The GPUs of the run on this node: ``all``, ``none``, or their identifiers with commas."""
    request = context.plan.request
    if not request.gpus_per_proc:
        return "none"
    if request.gpu_request == "gpus-per-task":  # this rank sees its own only
        return registry.gpus_of_task(context.attempt.scheduler, env) or "all"
    from hpc_hydra.schedulers.visible_gpus import visible

    return ",".join(visible(env, context.plan.gpu_vendor).ids or ()) or "all"


def main(argv: Sequence[str]) -> int:
    """Sample until killed."""
    prefix, interval, dmon, which, link = argv
    from hpc_hydra.node.rank.gpus import open_gpus

    with contextlib.suppress(OSError):
        os.nice(5)
    wanted = None if which == "all" else which.split(",")
    gpus, note = (list, "no GPUs asked for") if which == "none" else open_gpus(wanted)
    tell(f"monitor: {note}, every {interval} s, {Path(prefix).name}{CSV}")
    for file, head in ((CSV, ",".join(COLUMNS) + "\n"), (DMON, DMON_HEAD if dmon == "1" else "")):
        if head and not Path(prefix + file).exists():
            append(prefix + file, head)
    if link != prefix:
        with contextlib.suppress(OSError):
            Path(link + CSV).symlink_to(prefix + CSV)
    node = node_reader()
    while True:
        now = time.time()
        rows, text = sample(now, gpus, node)
        append(prefix + CSV, rows)
        if dmon == "1" and text:
            append(prefix + DMON, text)
        time.sleep(max(float(interval) - (time.time() - now), 0.1))


def sample(now: float, gpus: Sampler, node: Callable[[], tuple[float | None, ...]]) -> tuple[str, str]:
    """One moment: lines of the CSV (one a GPU, one at least), and of the text as of dmon."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now))
    readings, around = gpus(), node()
    rows = "".join(
        ",".join((stamp, *map(_cell, astuple(reading)), *map(_cell, around))) + "\n"
        for reading in readings or [Reading(gpu="")]
    )
    clock = time.strftime(" %Y%m%d   %H:%M:%S", time.localtime(now))
    text = "".join(
        clock
        + f"{r.gpu:>7}"
        + "".join(
            f"{'-' if value is None else round(value):>7}"
            for value in (
                r.power_w, r.temp_c, r.util_percent, r.mem_util_percent, r.mem_used_mib, r.mem_mhz, r.sm_mhz,
            )
        )
        + "\n"
        for r in readings
    )  # fmt: skip
    return rows, text


def node_reader() -> Callable[[], tuple[float | None, ...]]:
    """Reads the node as a whole; rates are those since the reading before."""
    try:
        import psutil
    except ImportError:
        tell("monitor: psutil is not installed here: nothing of CPU, memory, network and disk")
        return lambda: (None,) * len(NODE)

    def counters() -> tuple[float, ...]:
        net, disk = psutil.net_io_counters(), psutil.disk_io_counters()
        return (
            *((net.bytes_recv, net.bytes_sent) if net else (0, 0)),
            *((disk.read_bytes, disk.write_bytes) if disk else (0, 0)),
        )

    psutil.cpu_percent(None)
    then, had = time.monotonic(), counters()

    def read() -> tuple[float | None, ...]:
        nonlocal then, had
        now, have = time.monotonic(), counters()
        passed = max(now - then, 1e-3)
        rates = [(new - old) / passed / 2**20 for new, old in zip(have, had, strict=True)]
        then, had = now, have
        memory = psutil.virtual_memory()
        return (psutil.cpu_percent(None), (memory.total - memory.available) / 2**20, memory.total / 2**20, *rates)

    return read


def append(path: str, text: str) -> None:
    """One write of whole lines; a full disk does not end the run's monitor, nor the run."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def tell(text: str) -> None:
    print(f"hpc_hydra: {text}", file=sys.stderr, flush=True)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
