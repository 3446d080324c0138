"""PBS: qsub, qstat, qdel; ranks by pbs_tmrsh on each host, or by mpiexec. As of OpenPBS 23.06, PBS Professional 2024.1.

Sources: qsub(1B), qstat(1B), pbs_resources(7B); PBS Professional User's Guide; docs.alcf.anl.gov for PALS. Pure.
Must not know: submitit, the launcher, the node.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hpc_hydra import envvars
from hpc_hydra.errors import PlanError, SchedulerError
from hpc_hydra.planning.tasks import allocated, task_request
from hpc_hydra.planning.types import EnvVar, RankInfo, Request
from hpc_hydra.schedulers.base import Allocation, JobEndState, JobSpec, JobStatus, SubmitErrorKind
from hpc_hydra.schedulers.capabilities import (
    Attach,
    AutoDetection,
    BatchScripts,
    Dependencies,
    EndWarning,
    FindJobs,
    InteractiveShell,
    JobArrays,
    JobSteps,
    MpiTasks,
    NodeFacts,
    NodeStates,
    Packing,
    Resubmission,
    SpareNodes,
    SubmitAdvice,
    TaskVariables,
)
from hpc_hydra.schedulers.capability_checks import check_surrounding
from hpc_hydra.schedulers.job import ChosenNodes
from hpc_hydra.schedulers.job_script import (
    SchedulerLines,
    export,
    job_script,
    pack_script,
    quote,
    step_script,
    takes_over,
)
from hpc_hydra.schedulers.options import Option, one_line
from hpc_hydra.schedulers.pbs import launch, nodes, output, ranks
from hpc_hydra.schedulers.pbs import options as options_of
from hpc_hydra.schedulers.pbs.attached import EXIT
from hpc_hydra.schedulers.pbs.timed import WARN_AT

_TAG = f"{envvars.PREFIX}TAG"
_AGAIN, _NAME = f"{envvars.PREFIX}PBS_AGAIN", f"{envvars.PREFIX}PBS_NAME"
_OPTIONS = f"{envvars.PREFIX}PBS_OPTIONS"
# Lists queued jobs and the 20 that ended last, because qstat is slow for many ids. qstat exits with 35 or 153 if a job
# left meanwhile: that is no error. Without job history, -x lists nothing.
_LIST = (
    'me=$(id -un); show() {{ [ -z "$1" ] || qstat $2 -f -w $1; case $? in 0 | 35 | 153) ;; *) exit 1 ;; esac; }}; '
    'found=$(qselect -u "$me"{0}) || exit; last=$(qselect -x -u "$me"{0}) || exit; '
    'last=$(printf "%s\\n" $last | tail -n 20); show "$found" ""; show "$last" -x'
)
_LOGS = '; for log in "$2".*.log; do echo "Log: ${log#"$2".}"; done'  # of started jobs, also without job history
_FOLLOWED = "hpc_hydra_followed"  # set in attached jobs, whose output is read from a file
# PBS knows no dependency on an element of an array.
_AFTER = """while qstat -f "$hpc_hydra_of" 2>/dev/null | grep -q 'job_state = [RE]'; do sleep 1; done"""


class Pbs(
    JobArrays,
    FindJobs,
    Dependencies,
    SubmitAdvice,
    EndWarning,
    Resubmission,
    Packing,
    JobSteps,
    SpareNodes,
    AutoDetection,
    NodeFacts,
    NodeStates,
    TaskVariables,
    MpiTasks,
    Attach,
    InteractiveShell,
    BatchScripts,
):
    """PBS with sizes by ``select``, by whole nodes or by totals (``flavour``)."""

    name = "pbs"
    executable = "qsub"
    options = options_of.TABLE
    status_forms = output.FORMS
    size_variable = "PMI_SIZE"
    restart_variable, name_variable = _AGAIN, _NAME
    detection_order = 40
    kill_delay = 25.0
    command_env: ClassVar[Mapping[str, str]] = {
        "TMPDIR": "/tmp"
    }  # qsub fails if it names the directory of an ended job
    packs_by_launch_args = True  # an option given for both commands goes to qsub unless it is among launch_args

    def answer_command(self) -> Sequence[str]:
        return ("qstat", "-B")

    def answers(self, stdout: str) -> bool:
        return re.search(r"^Server +Max +Tot", stdout, re.MULTILINE) is not None

    def nodes_command(self) -> Sequence[str]:
        return nodes.COMMAND

    def node_facts(self, stdout: str, queue: str | None, *, with_gpus: bool) -> Mapping[str, Any]:
        return nodes.facts(stdout, with_gpus=with_gpus)

    def node_states_command(self, env: Mapping[str, str], hosts: Sequence[str]) -> list[str]:
        return [*nodes.COMMAND]

    def parse_down(self, stdout: str) -> tuple[str, ...]:
        return nodes.down(stdout)

    def largest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        return None  # pbsnodes does not say which queues a node serves

    # requests

    def check(self, request: Request) -> None:
        self.directives(request)
        self.launch_command(request)
        options_of.check_binding(request)
        if request.array_parallelism is not None and request.array_parallelism < 1:
            raise PlanError(f"{request.array_parallelism} jobs at a time", where="scheduler.array_parallelism", fix="1")
        if request.warning is not None and request.time_limit is None:
            raise PlanError(
                "the warning is timed by the job, and PBS does not tell it its time limit",
                where="resources.time_limit",
                fix="resources.time_limit=1h",
            )

    def notes(self, request: Request) -> tuple[str, ...]:
        found = []
        if (name := options_of.job_name(request)) != request.job_name:
            found.append(f"the job's name is {name!r}: PBS takes no other characters (scheduler.job_name)")
        if request.comment is not None:
            found.append("PBS jobs have no comment: it is written into the script only (scheduler.comment)")
        return tuple(found)

    def directives(self, request: Request) -> list[Option]:
        return options_of.submit(request)

    def launch_command(self, request: Request, python: str = sys.executable) -> list[str]:
        """One process per host starts its ranks; with mpiexec, a watcher ends it if a rank failed."""
        return launch.all_ranks(request, python)

    def launch_on_chosen(self, request: Request, python: str) -> ChosenNodes:
        return launch.on_chosen(request, python)

    # scripts

    def script(self, spec: JobSpec) -> str:
        request, plan = task_request(spec.plan), spec.plan
        python = (None if plan.container else plan.python) or sys.executable  # the launch command is outside of it
        whole = allocated(request)
        elsewhere = [] if whole.nodes == 1 else [*launch.starter(whole, python), "--further", "--"]
        before = ["unset OMP_NUM_THREADS NCPUS  # of the whole node, as PBS sets them"]
        if options_of.launcher(request) != "none":
            before = [f"export {ranks.PROCS}={request.procs_per_node}", *before]
        if request.warning is not None:
            before.append(f"export {WARN_AT}=$hpc_hydra_warn_at")
        if not plan.container:  # PBS passes no PATH on
            before += [*export(EnvVar("PATH", str(Path(python).parent), mode="prepend"))]
        if elsewhere and request.setup_lines and spec.pythonpath:
            before += export(EnvVar("PYTHONPATH", ":".join(spec.pythonpath), mode="prepend"))
        if request.max_requeues and not spec.attached:
            name = quote(options_of.successor_name(request))
            again = shlex.join(options_of.words(option for option in self._options(spec) if option[0] not in "JNv"))
            before += [f'export {_AGAIN}="${{hpc_hydra_count:-0}}" {_NAME}={name}${envvars.RUN}.{spec.tag}']
            before += [f"export {_OPTIONS}={quote(again)}"]
            before += takes_over(spec, "hpc_hydra_of", "PBS_JOBID", _AFTER)
            before.append("unset hpc_hydra_run hpc_hydra_count hpc_hydra_of  # not for scripts that the ranks start")
        own = SchedulerLines(
            self.name,
            "${PBS_JOBID:-by-hand}",
            directives=[f"#PBS {options_of.directive(option)}" for option in self._options(spec)],
            head=[*self._head(spec)],
            before=before,
            other_nodes=elsewhere,
        )
        if spec.packs:
            if request.warning is not None:
                raise PlanError(
                    "PBS does not warn an allocation of packed runs",
                    where="launch.signal_before_end",
                    fix="launch.pack=null, or launch.signal_before_end=null launch.signal=null",
                )
            return pack_script(spec, own, index="${PBS_ARRAY_INDEX:-0}")
        select = '"${1:-${hpc_hydra_run:-${runs[${PBS_ARRAY_INDEX:-0}]}}}"'
        notes = () if request.comment is None else (one_line(request.comment, "scheduler.comment"),)
        return job_script(
            spec,
            own,
            launch=self.launch_command(request, python),
            select=select,
            notes=notes,
            preflight=launch.preflight(plan, python) if plan.preflight else (),
            chosen=self.launch_on_chosen(request, python) if request.spare_nodes else None,
        )

    def step_script(self, spec: JobSpec) -> str:
        """Our starter on the hosts, cores and GPUs that the run is given, as pbs_tmrsh confines nothing."""
        request = task_request(spec.plan)
        argv = [*launch.starter(request, spec.python), *(["--whole"] if request.exclusive else [])]
        before = (
            "trap : INT QUIT TERM USR1 USR2  # PBS signals the ranks too: wait for them",
            "unset OMP_NUM_THREADS NCPUS",
        )
        own = SchedulerLines(self.name, "${PBS_JOBID:-by-hand}", before=before)
        last = '"--hosts=${2-}" "--slices=${4-}" --'
        return step_script(spec, own, launch=[*argv, *launch.per_node(request)], last=last)

    @staticmethod
    def _head(spec: JobSpec) -> Iterator[str]:
        request = spec.plan.request
        if not spec.attached:
            yield "trap : INT TERM USR1 USR2  # PBS signals the ranks too: wait, then report how they ended"
        log = f"{spec.log}/{spec.key}"
        one_line(log, "hydra.sweep.dir")
        if request.warning is not None:
            left = (request.time_limit or 0) - request.warn_before
            yield f"hpc_hydra_warn_at=$(($(date +%s) + {left}))  # PBS does not warn"
        if spec.attached:  # in a job of its own, else at a console
            path = quote(f"{log}.attached.log")
            noted = quote(f"echo $? >{path}{EXIT}")
            yield f'[ -z "${{{_FOLLOWED}-}}" ] || {{ exec >>{path} 2>&1; trap {noted} EXIT; }}'
            yield f"unset {_FOLLOWED}"
        else:
            name = f'{quote(f"{log}.")}"$PBS_JOBID".log'
            yield f'[ -z "${{PBS_JOBID-}}" ] || exec >>{name} 2>&1  # PBS itself would write it at the end'

    def _options(self, spec: JobSpec) -> Iterator[Option]:
        request = spec.plan.request
        yield from self.directives(allocated(task_request(spec.plan)))
        if spec.elements > 1:
            limit = f"%{request.array_parallelism}" if request.array_parallelism else ""
            yield "J", f"0-{spec.elements - 1}{limit}"
        given = {name for name, _ in request.submit_args} | set(request.removed_args)
        if "r" not in given:  # arrays are always rerunnable
            yield "r", "y" if spec.elements > 1 else "n"
        yield from (("j", "oe"), ("o", "/dev/null"), ("v", f"{_TAG}={spec.tag}"))

    # submission

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["qsub", str(script)]

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        return output.elements(output.submitted(stdout), spec.elements)

    def classify(self, message: str) -> SubmitErrorKind:
        return output.classify(message)

    def refusal(self, message: str) -> str:
        return output.refusal(message)

    def advice_command(self, message: str) -> list[str] | None:
        return ["qstat", "-Q"] if "Unknown queue" in message else None

    def parse_advice(self, stdout: str) -> str | None:
        queues = output.queues(stdout)
        return f"scheduler.queue={' | '.join(queues)}" if queues else None

    def array_limit_command(self) -> list[str]:
        return ["qstat", "-B", "-f"]

    def parse_array_limit(self, stdout: str) -> int | None:
        found = re.search(r"max_array_size = (\d+)", stdout)
        return int(found[1]) if found else None

    def find_command(self, spec: JobSpec) -> list[str]:
        name = options_of.job_name(spec.plan.request)
        return ["sh", "-c", _LIST.format(' -N "$1"') + _LOGS, "qselect", name, f"{spec.log}/{spec.key}"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        for id_, fields in output.records((), stdout).items():
            if fields["Variable_List"].get(_TAG) == spec.tag:
                return output.elements(output.array_of(id_), spec.elements)
        (first, *_) = [*output.logged(stdout), ""]  # its successors have later numbers
        return output.elements(output.array_of(first), spec.elements) if first else ()

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[Option]]:
        """A whole array by its own id: PBS takes none of its elements."""
        ids = [output.array_of(job[0]) if len(job) > 1 else job[0] for job in jobs]
        return "afterok:" + ":".join(ids), []

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return output.commands(ids)

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        return output.parse(command, stdout)

    def is_unknown_job(self, message: str) -> bool:
        return output.is_unknown_job(message)

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        """qdel sends SIGTERM, and SIGKILL after the queue's kill_delay, by default 10 s."""
        return ["qdel", *output.addresses(ids)]

    def only_ended(self, message: str) -> bool:
        return output.only_ended(message)

    # another attempt

    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        return ["qstat", "-f", "-w", env["PBS_JOBID"]] if env.get("PBS_JOBID") else None

    def parse_job_end(self, stdout: str) -> JobEndState | None:
        (fields, *_) = [*output.records((), stdout).values(), {}]
        return output.job_end(fields)

    def resubmit_command(self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str) -> list[str]:
        """The script's directives may make an array, so its options are given once more without them."""
        variables = f"hpc_hydra_run={run},hpc_hydra_count={count},hpc_hydra_of={id_}"
        name = self.successor_name(env, count) or "successor"
        own = ["-C", "", *shlex.split(env.get(_OPTIONS, "")), "-N", name, "-v", variables]
        return ["qsub", *own, str(script)]

    def parse_resubmitted(self, stdout: str) -> str:
        return output.submitted(stdout)

    def successor_command(self) -> list[str]:
        return ["sh", "-c", _LIST.format("")]

    def parse_successor(self, stdout: str, name: str) -> str | None:
        jobs = output.records((), stdout).items()
        return next((id_ for id_, fields in jobs if str(fields.get("Job_Name")) == name), None)

    # allocations

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(ranks.hosts(env))

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        return ["qstat", "-f", "-w", env["PBS_JOBID"]] if env.get("PBS_JOBID") else None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        fields = output.records((), stdout).get(env["PBS_JOBID"])
        if fields is None:
            said = " ".join(stdout.split()) or "(nothing)"
            raise SchedulerError(f"does not show job {env['PBS_JOBID']}: {said}", where="qstat")
        if output.status_of(fields).state.is_finished:
            return None
        held = ranks.allocation(env)
        counts = {host.partition(".")[0]: (cpus, gpus) for host, cpus, gpus in output.node_counts(fields)}
        if held is None or not counts.keys() >= {host.partition(".")[0] for host in held.hosts}:
            return held
        has = [counts[host.partition(".")[0]] for host in held.hosts]
        return replace(held, slots=tuple(cpus for cpus, _ in has), gpus=tuple(gpus for _, gpus in has))

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def array_id(self, env: Mapping[str, str]) -> str:
        return ranks.array_id(env)

    # at a console

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """A batch job whose output is shown as it comes; within an allocation the script runs here."""
        if self._is_inside(task_request(spec.plan), env):
            return ["bash", str(script)]
        follow = [sys.executable, "-m", "hpc_hydra.node", "qsub_attached"]
        return [
            *follow,
            "--log",
            f"{spec.log}/{spec.key}.attached.log",
            "--",
            "qsub",
            "-v",
            f"{_FOLLOWED}=1",
            str(script),
        ]

    @staticmethod
    def _is_inside(request: Request, env: Mapping[str, str]) -> bool:
        """Whether ``env`` is that of a job. Raises `PlanError` if its nodes are too few."""
        surrounding = ranks.allocation(env)
        if surrounding is not None:
            check_surrounding(request, surrounding.job_id, len(surrounding.hosts))
        return surrounding is not None

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """``qsub -I`` gives the first host's terminal to a command; qsub(1B)."""
        request = task_request(spec.plan)
        if self._is_inside(request, env):
            return ["bash", str(script)]
        words = options_of.words(self.directives(request))
        return ["qsub", "-I", *words, "--", "/bin/bash", str(script)]

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        if args:
            raise PlanError(
                f"qsub takes no arguments of a batch script ({shlex.join(args)})",
                where="launch.batch_script",
                fix="launch.env.NAME=VALUE for what the script shall know",
            )
        waits = ["-W", "block=true"] if attached else []
        own = [*([("N", one_line(name, "scheduler.job_name"))] if name else []), *options]
        return ["qsub", *waits, *options_of.words(own), str(script)]

    def state_command(self, id_: str) -> list[str]:
        return ["qstat", "-f", id_]

    def output_command(self, id_: str) -> list[str]:
        return ["sh", "-c", 'qstat -f -w "$1" 2>/dev/null || qstat -x -f -w "$1"', "qstat", id_]

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """By Output_Path and Error_Path, ``host:path``; a directory holds ``ID.OU`` and ``ID.ER``."""
        fields = output.records((), stdout).get(id_, {})
        found = []
        for name, suffix in (("Output_Path", "OU"), ("Error_Path", "ER")):
            path = str(fields.get(name, "")).partition(":")[2]
            found.append(Path(path, f"{id_}.{suffix}") if path.endswith("/") else Path(path) if path else None)
        return found[0], None if fields.get("Join_Path") == "oe" else found[1]
