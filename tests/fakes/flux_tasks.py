"""The tasks of one job of the stand-in for Flux: local processes with the variables of `flux run`.

Must not know: queues, hpc_hydra.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

from flux_options import filled

KILL_TIMEOUT = 5.0  # seconds between SIGTERM and SIGKILL
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def run(job: Mapping[str, Any], env: Mapping[str, str]) -> int:
    """Start all tasks, wait for them, and give the exit code that `flux run` has.

    Args:
        job: ``id``, ``words``, ``nodes``, ``tasks``, ``gpus`` (of a node, of this job), ``shell`` (options), ``cwd``,
            ``label`` (whether lines have their task's rank before them), ``hosts``.
    """
    ranks = _placed(job["tasks"], job["nodes"])
    started = []
    for number in _FORWARDED:  # tasks are told by who tells this process; not ignored, or they would ignore it too
        signal.signal(number, lambda *_: None)
    feed = None if sys.stdin is None or sys.stdin.isatty() or len(ranks) < 2 else subprocess.PIPE
    for rank, (node, local) in enumerate(ranks):
        values = {"node.id": str(node), "task.id": str(rank), "task.rank": str(rank), "task.localid": str(local)}
        values |= {"id": job["id"], "size": str(job["tasks"]), "nnodes": str(job["nodes"]), "node.name": os.uname()[1]}
        mine = {name: filled(value, values) for name, value in env.items()}
        mine |= {
            "FLUX_JOB_ID": job["id"],
            "FLUX_JOB_SIZE": str(job["tasks"]),
            "FLUX_JOB_NNODES": str(job["nodes"]),
            "FLUX_TASK_RANK": str(rank),
            "FLUX_TASK_LOCAL_ID": str(local),
            "FLUX_KVS_NAMESPACE": f"job-{job['id']}",
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(job["tasks"]),
        }
        if job["shell"].get("pmi") in ("off", "none"):
            del mine["PMI_RANK"], mine["PMI_SIZE"]
        mine |= _gpus(job, local, sum(1 for where, _ in ranks if where == node))
        words = [filled(word, values) for word in job["words"]]
        out = subprocess.PIPE if job["label"] else None
        try:
            task = subprocess.Popen(words, env=mine, cwd=job["cwd"], stdin=feed, stdout=out, stderr=out)
        except OSError as error:
            print(f"flux-shell[0]: FATAL: task {rank} (host {os.uname()[1]}): start failed: {words[0]}: "
                  f"{error.strerror}", file=sys.stderr)  # fmt: skip
            _stop([t for t in started if t.poll() is None])
            return 126 if isinstance(error, PermissionError) else 127
        started.append(task)
    if feed:
        threading.Thread(target=_feed, args=(started,), daemon=True).start()
    readers = [_labelled(rank, task) for rank, task in enumerate(started)] if job["label"] else []
    code = _wait(started, job["shell"])
    for threads in readers:
        for thread in threads:
            thread.join()
    return code


def _placed(tasks: int, nodes: int) -> list[tuple[int, int]]:
    """(node, local rank) of each rank, in blocks."""
    sizes = [tasks // nodes + (node < tasks % nodes) for node in range(nodes)]
    return [(node, local) for node, size in enumerate(sizes) for local in range(size)]


def _gpus(job: Mapping[str, Any], local: int, tasks: int) -> dict[str, str]:
    count, affinity = job["gpus"], job["shell"].get("gpu-affinity", "on")
    if affinity == "off":
        return {}
    ids = [str(i) for i in range(count)]
    if affinity == "per-task" and count:
        share = max(1, count // tasks)
        ids = ids[local * share : (local + 1) * share]
    return {"CUDA_VISIBLE_DEVICES": ",".join(ids) or "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _feed(tasks: list[subprocess.Popen[bytes]]) -> None:
    """Standard input goes to every task."""
    for block in iter(lambda: os.read(0, 65536), b""):
        for task in tasks:
            with contextlib.suppress(OSError, ValueError):
                assert task.stdin is not None
                task.stdin.write(block)
                task.stdin.flush()
    for task in tasks:
        with contextlib.suppress(OSError, ValueError):
            assert task.stdin is not None
            task.stdin.close()


def _labelled(rank: int, task: subprocess.Popen[bytes]) -> list[threading.Thread]:
    def copy(source: IO[bytes], target: IO[bytes]) -> None:
        for line in source:
            target.write(f"{rank}: ".encode() + line)
            target.flush()

    pairs = ((task.stdout, sys.stdout.buffer), (task.stderr, sys.stderr.buffer))
    threads = [threading.Thread(target=copy, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads


def _wait(tasks: list[subprocess.Popen[bytes]], shell: Mapping[str, str]) -> int:
    """The largest code of all; with exit-on-error that of the first that fails, and the end of the others."""
    interrupts = 0
    while True:
        codes = [task.poll() for task in tasks]
        wrong = [_code(code) for code in codes if code]
        if wrong and "exit-on-error" in shell and None in codes:
            rank = codes.index(next(code for code in codes if code))
            why = f"task rank {rank} failed (Exit {wrong[0]}) and exit-on-error is set"
            print(f"flux-shell[0]: FATAL: task-exit: {why}", file=sys.stderr)
            _stop([task for task in tasks if task.poll() is None])
            return wrong[0]
        if None not in codes:
            return max((_code(code) for code in codes if code is not None), default=0)
        try:
            time.sleep(0.02)
        except KeyboardInterrupt:  # of a terminal, which the tasks of a job on other nodes do not have
            interrupts += 1
            if interrupts > 1:
                _stop([task for task in tasks if task.poll() is None])
            print("flux-job: one more ctrl-C within 2s to cancel or ctrl-Z to detach", file=sys.stderr)


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _stop(tasks: list[subprocess.Popen[bytes]]) -> None:
    for task in tasks:
        task.terminate()
    end = time.monotonic() + KILL_TIMEOUT
    for task in tasks:
        try:
            task.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            task.kill()
            task.wait()


if __name__ == "__main__":  # the program of a job that is no instance
    sys.exit(run(json.loads(sys.argv[1]), os.environ))
