"""Ends the job of a replica group whose first node is lost: with it are the lighthouse and what starts the groups.

No group can go on then, and a scheduler that keeps a job without a node keeps it until its time limit. Must not know:
torch, any scheduler's commands.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time

from hpc_hydra.node.rank.context import RankContext
from hpc_hydra.records.files import read_json
from hpc_hydra.records.last_words import keep_room, leave
from hpc_hydra.schedulers.capabilities import SurvivesNodeLoss
from hpc_hydra.schedulers.capability_defaults import command_environment
from hpc_hydra.schedulers.registry import adapter_for

_GONE = 15.0  # seconds after which a lighthouse that does not answer is lost; its keeper starts it again at once
_ANSWER = 3.0  # seconds that it may take to answer
_CANCEL = 60.0  # seconds that the command may take


def end_orphaned_job(context: RankContext) -> None:
    """Cancel this job if its first node does not answer, after a group has ended. Leaves the reason for the outcome."""
    scheduler = adapter_for(context.attempt.scheduler)
    published = read_json(context.paths.rendezvous(context.attempt.name))
    if not isinstance(scheduler, SurvivesNodeLoss) or not published or published["host"] == context.host:
        return
    address, port = str(published["address"]), int(published["port"])
    end = time.monotonic() + _GONE
    while not _answers(address, port):
        if time.monotonic() > end:
            break
        time.sleep(1.0)
    else:
        return
    why = f"node {published['host']} is lost, and with it the lighthouse: no replica group can go on"
    print(f"hpc_hydra: {why}", flush=True)
    words = context.paths.last_words(context.attempt.name)
    with contextlib.suppress(OSError):
        if not words.exists():
            keep_room(words)
    leave(words, why)
    env = {**os.environ, **command_environment(scheduler, os.environ)}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(scheduler.cancel_command([context.attempt.job_id]), env=env, timeout=_CANCEL, check=False)


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_ANSWER):
            return True
    except OSError:
        return False
