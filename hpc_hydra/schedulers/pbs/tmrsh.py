"""Starts the ranks on every host of a PBS job, from its first one, by pbs_tmrsh on the others (`host_starter`).

What pbs_tmrsh starts belongs to the job: it is accounted and ends with it, unlike what ssh starts. But pbs_tmrsh passes
on neither variables nor signals: each signal is sent by a further pbs_tmrsh. Tried on OpenPBS 23.06.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hpc_hydra.errors import RendezvousError
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.host_starter import Host, HostStarter
from hpc_hydra.schedulers.pbs import follow, ranks

_PATIENCE = 20.0  # seconds for sending a signal to all hosts
_POLL = 0.2  # seconds between two looks at the output of other hosts
_AT_END = (0.0, 0.2, 1.0, 3.0)  # seconds before each try to read the last output


class Tmrsh(HostStarter):
    command = "tmrsh"
    title = "PBS"
    hosts_variable = "PBS_NODEFILE"
    variables = ranks.VARIABLES
    own_variables = "PBS_(?!JOBID|ARRAY_)"
    preamble = (
        'case ${2-} in "" | out) ;; *) exec kill -s "$2" "$(cat "$0.$1")" ;; esac',
        'echo $$ >"$0.$1"',
        '[ -z "${2-}" ] || exec >"$0.$1.out" 2>&1',
        "unset OMP_NUM_THREADS NCPUS",
    )

    def allocation(self, env: Mapping[str, str]) -> Allocation | None:
        return ranks.allocation(env)

    def remote(self, host: str, script: str, number: int, options: Sequence[str]) -> list[str]:
        return [program("pbs_tmrsh"), host, "/bin/bash", script, str(number), "out"]

    def signal(self, signum: int, hosts: Mapping[int, Host], script: str) -> None:
        name, quiet = signal.Signals(signum).name.removeprefix("SIG"), subprocess.DEVNULL
        commands = [[*self.remote(host.name, script, host.number, ())[:-1], name] for host in hosts.values()]
        senders = [subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet) for words in commands]
        end = time.monotonic() + _PATIENCE
        for sender in senders:
            try:
                sender.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:  # the host does not answer
                sender.kill()
                sender.wait()
        if signum == signal.SIGKILL:
            super().signal(signum, hosts, script)

    def prepare(self, script: str, hosts: Sequence[Host]) -> None:
        for host in hosts:
            os.close(os.open(_output(script, host), os.O_WRONLY | os.O_CREAT, 0o600))

    @contextlib.contextmanager
    def relaying(self, script: str, hosts: Sequence[Host]) -> Iterator[None]:
        """PBS puts the output of tasks on other hosts into the job's own output file, which we do not use."""
        ended = threading.Event()
        files = {_output(script, host): 0 for host in hosts}

        def copy() -> None:
            while not ended.wait(_POLL):
                look()
            for pause in _AT_END:
                time.sleep(pause)
                look()
                if all(follow.is_complete(path, place) for path, place in files.items()):
                    return

        def look() -> None:
            for path, place in files.items():
                files[path] = follow.copy(path, place)

        thread = threading.Thread(target=copy, name="hpc_hydra relays output")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _output(script: str, host: Host) -> str:
    return f"{script}.{host.number}.out"


@lru_cache
def program(name: str) -> str:
    """Return the path of a program of PBS, whose directory may not be in a job's PATH. Raises `RendezvousError`."""
    folders = [os.environ.get("PATH", ""), *(f"{folder}/bin" for folder in _installed() if folder)]
    found = next((path for folder in folders if (path := shutil.which(name, path=folder))), None)
    if found is None:
        raise RendezvousError(
            f"there is no {name} in PATH, nor where PBS is installed",
            where="PBS_EXEC",
            fix='scheduler.setup_lines=["export PBS_EXEC=DIRECTORY"], or scheduler.mpi=mpich | openmpi | pals',
        )
    return found


def _installed() -> list[str]:
    """Directories in which PBS may be installed."""
    configured = ""
    try:
        lines = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text().splitlines()
        configured = next((line.partition("=")[2].strip() for line in lines if line.startswith("PBS_EXEC=")), "")
    except OSError:
        pass
    return [os.environ.get("PBS_EXEC", ""), configured, "/opt/pbs"]


tmrsh = Tmrsh().main
