"""Hosts without a scheduler, reached by ssh. The queue of runs over them is in `queue`.

The job script runs on the launcher's machine. Its launch command (`launch`) starts one ssh per host, and the `agent`
there starts the ranks of the host. Options of ssh: man.openbsd.org/ssh, OpenSSH 7.4 to 10.
Pure. Must not know: processes, sockets, the launcher.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpc_hydra import envvars
from hpc_hydra.errors import PlanError
from hpc_hydra.planning.tasks import allocated, preflight_request, task_request
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.schedulers.base import JobSpec, Submitter
from hpc_hydra.schedulers.capabilities import HostList, LostHosts, PerNodeCommands, SpareNodes
from hpc_hydra.schedulers.exclusion import usable
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes
from hpc_hydra.schedulers.job_script import SchedulerLines, job_script, named_run, pack_script, quote, step_script
from hpc_hydra.schedulers.local_base import WAIT, Unqueued, lacking
from hpc_hydra.schedulers.ssh import ranks
from hpc_hydra.schedulers.ssh.ranks import HOSTS

ENDS = "ssh_{host}.end.json"
"""File name of the record of how ssh to a host ended."""

FIRST = ("-T", "-x", "-o", "BatchMode=yes")
"""ssh uses the first value of an option, so users can override `LAST`, but not these."""
LAST = (
    *("-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
    *("-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes"),
)

STATIC_PORT = 29500  # torchrun's own
_VALUES, _FLAGS = "BEFIJPSceilmop", "46AaCKkqv"


class Ssh(Unqueued, HostList, LostHosts, SpareNodes, PerNodeCommands):
    """``bash SCRIPT RUN`` starts one run on the first hosts of the list, ``bash SCRIPT RUN HOST,HOST`` on these."""

    name = "ssh"
    executable = "ssh"
    kill_delay = 25.0
    setup_per_run = True
    packs_by_launch_args = True  # they determine how hosts are reached
    host_ends = ENDS.format(host="*")
    lost_exit_code = 255  # ssh's own
    place = "hosts without a scheduler"
    options = lacking(
        "dependency", "reservation", "constraint", "nodelist", "exclude", "mpi", "qos", "queue", "account"
    )
    without_meaning: ClassVar[Mapping[str, str]] = {
        "mail_type": "scheduler.mail_type",
        "mail_user": "scheduler.mail_user",
        "gpu_bind": "system.gpu_bind",
        "cpu_bind": "system.cpu_bind",
    }

    def check(self, request: Request) -> None:
        if not request.hosts:
            raise PlanError("is not set", where="scheduler.hosts", fix="scheduler.hosts='[node01,node02]'")
        needed, spare = allocated(request).nodes, request.spare_nodes
        if needed > len(request.hosts):
            raise PlanError(
                f"a run needs {needed} hosts, but there are {len(request.hosts)}: {' '.join(request.hosts)}",
                where="resources.nodes" if request.nodes > len(request.hosts) or not spare else "launch.spare_nodes",
                fix=f"resources.nodes={max(len(request.hosts) - spare, 1)} or less, or more scheduler.hosts",
            )
        self.check_fields(request)
        options(request)

    def launch_command(self, request: Request, python: str = sys.executable) -> list[str]:
        argv = [python, "-m", "hpc_hydra.node", "ssh", "--procs", str(request.procs_per_node)]
        if request.cpus_per_proc is not None:
            argv += ["--cpus-per-proc", str(request.cpus_per_proc)]
        argv += ["--independent"] if request.steps_survive_node_loss else []
        argv += [f"--option={word}" for word in options(request)]
        argv += [f"--setup={line}" for line in request.setup_lines]
        return [*argv, "--"]

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(host for host in env.get(HOSTS, "").split(",") if host)

    def script(self, spec: JobSpec) -> str:
        request = task_request(spec.plan)
        before = [*_hosts_of_the_run(allocated(request))]
        if spec.packs:
            bare = replace(spec.plan, request=replace(spec.plan.request, setup_lines=()))
            run = f"${{1:-{spec.runs[0]}}}"
            own = SchedulerLines(self.name, f"{spec.key}.{run}", before=before)
            return pack_script(replace(spec, plan=bare), own, index=f"run {run}", wait=True)
        return job_script(
            spec,
            SchedulerLines(self.name, "$$", before=before, launching=WAIT),
            launch=self.launch_command(request, spec.python),
            select=named_run(spec),
            setup=False,  # on the hosts, not here
            notes=(*([request.comment] if request.comment else []), *self.notes(request)),
            preflight=self.launch_command(preflight_request(spec.plan), spec.python) if spec.plan.preflight else (),
            chosen=self.launch_on_chosen(request, spec.python) if request.spare_nodes else None,
        )

    def launch_on_chosen(self, request: Request, python: str) -> ChosenNodes:
        return ChosenNodes(self.launch_command(request, python), lines=[f'export {HOSTS}="${CHOSEN}"'])

    def step_script(self, spec: JobSpec) -> str:
        """Starts the ranks on the hosts, cores and GPUs of the run. Its standard input closes when the packer ends."""
        request = task_request(spec.plan)
        before = [*list(_hosts_of_the_run(request))[:-1], f'[ -z "${{3-}}" ] || export {envvars.LIFELINE}=1']
        own = SchedulerLines(self.name, "$$", before=before)
        return step_script(spec, own, launch=self.launch_command(request, spec.python)[:-1], last='"--slices=${4-}" --')

    def commands_per_node(self, spec: JobSpec) -> list[tuple[str, list[str]]]:
        request, python = spec.plan.request, spec.python
        variables = {"PYTHONPATH": ":".join(spec.pythonpath)} if spec.pythonpath else {}
        return [
            (host, ssh_command(host, options(request), agent_command(python, variables)))
            for host in usable(request)[: request.nodes]
        ]

    def typed_per_node(self, spec: JobSpec, words: Sequence[str], *, is_python: bool) -> list[tuple[str, str]]:
        """For ``rendezvous=static``, torchrun on each node: pytorch.org/docs/stable/elastic/run.html."""
        plan = spec.plan
        if plan.rendezvous.name != "static":
            return []
        request, settings = plan.request, plan.rendezvous
        port = settings.port or (settings.port_range[0] if settings.port_range else STATIC_PORT)
        hosts = usable(request)[: request.nodes]
        python = spec.python
        torchrun = str(Path(python).with_name("torchrun")) if "/" in python else "torchrun"
        commands = []
        for node, host in enumerate(hosts):
            argv = [torchrun, f"--nproc_per_node={request.procs_per_node}", f"--nnodes={request.nodes}"]
            argv += [f"--node_rank={node}", f"--master_addr={settings.master_addr or plain(hosts[0])}"]
            argv += [f"--master_port={port}", *(() if is_python else ("--no-python",))]
            commands.append((host, " ".join(quote(word) for word in [*argv, *words])))
        return commands

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def submitter(self) -> Submitter:
        from hpc_hydra.schedulers.ssh.queue import SshSubmitter

        return SshSubmitter(self)


def options(request: Request) -> list[str]:
    """Return the user's options of ssh (``scheduler.launch_extra``). Raises `PlanError` naming the key."""
    words: list[str] = []
    for name, value in request.submit_args:
        if (name, value) not in request.launch_args:
            raise PlanError(
                "hosts without a scheduler have no submit command",
                where=f"scheduler.submit_extra.{name}",
                fix=f"scheduler.launch_extra.{name}=… for an option of ssh",
            )
    for name, value in request.launch_args:
        key = f"scheduler.launch_extra.{name}"
        if name not in (*_VALUES, *_FLAGS):
            raise PlanError(
                f"{name!r} is not a supported option of ssh",
                where=key,
                fix="one letter (F, i, J, l, o, p …), or better a `Host` section in ~/.ssh/config",
            )
        if (value is None) != (name in _FLAGS):
            raise PlanError(
                f"-{name} {'takes no value' if name in _FLAGS else 'needs a value'}", where=key, fix="man ssh"
            )
        words += [f"-{name}"] if value is None else [f"-{name}", value]
    return words


def ssh_command(host: str, options: Sequence[str], remote: str) -> list[str]:
    """Return the command that runs the shell text ``remote`` on ``host``, by the user's ssh configuration."""
    return ["ssh", *FIRST, *options, *LAST, "--", host, remote]


def agent_command(python: str, variables: Mapping[str, str]) -> str:
    """Return shell text that starts our agent, for any login shell; all else is sent to its standard input."""
    words = [f"{name}={value}" for name, value in variables.items()]
    return shlex.join([*(["env", *words] if words else []), python, "-m", "hpc_hydra.node", "host"])


def plain(host: str) -> str:
    """Return a host's name without the user: ``node01`` for ``me@node01``."""
    return host.rpartition("@")[2]


def explain(host: str, code: int, output: str, python: str) -> tuple[str, str]:
    """Return why the agent did not start on a host, and what to do, from the output of ssh and of the shell there."""
    last = (output.strip().splitlines() or [f"exit code {code}, without a message"])[-1].strip()
    try_it = f"ssh -o BatchMode=yes {host} true"
    for pattern, what, fix in (
        (r"Host key verification failed|host key is known|IDENTIFICATION HAS CHANGED",
         "its host key is unknown here, or has changed", f"`ssh {host}` once by hand, and check the key"),
        (r"Permission denied|Too many authentication failures|no mutual signature",
         "ssh cannot log in without a password", f"a key: `ssh-copy-id {host}`, `ssh-add`; until `{try_it}` works"),
        (r"Could not resolve hostname|Name or service not known",
         "its name cannot be resolved", "the right name in scheduler.hosts, or a `Host` section in ~/.ssh/config"),
        (r"timed out|refused|No route to host|unreachable|Connection (closed|reset)|kex_exchange|not responding",
         "it cannot be reached by ssh", f"`{try_it}`; take it out of scheduler.hosts while it is down"),
        (r"No module named|ModuleNotFoundError",
         f"{python} does not find hpc_hydra there", "install it there, or in a directory shared by all hosts"),
        (r"No such file or directory|[Nn]ot found|Permission denied|Exec format",
         f"{python} cannot be started there", "the same Python on all hosts, or launch.python=PATH"),
    ):  # fmt: skip
        is_shell = what.startswith(python)
        if re.search(pattern, output) and (is_shell or code == 255):
            return f"{what} ({last})", fix
    return f"nothing was started: {last}", f"`{try_it}`"


def _hosts_of_the_run(request: Request) -> Iterator[str]:
    yield f'{HOSTS}="${{2-}}"  # hosts of this run; default: the first of the list'
    yield f'[ -n "${HOSTS}" ] || {HOSTS}={quote(",".join(usable(request)[: request.nodes]))}'
    yield f"export {HOSTS}"
    yield f'[ "${{3-}}" != lifeline ] || export {envvars.LIFELINE}=1'
