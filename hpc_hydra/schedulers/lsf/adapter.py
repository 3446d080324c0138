"""LSF: ``bsub < script``; ranks by blaunch on each host, or by jsrun on CSM machines. As of Spectrum LSF 10.1.

Source: the command reference at ibm.com/docs/en/spectrum-lsf/10.1.0; OLCF's Summit user guide for CSM and jsrun. Must
not know: submitit, the launcher, the node.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_hydra.errors import PlanError, SchedulerError
from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import EnvVar, RankInfo, Request
from hpc_hydra.schedulers.base import Allocation, JobSpec, JobStatus, SubmitErrorKind
from hpc_hydra.schedulers.capabilities import (
    ArrayCheck,
    Attach,
    AutoDetection,
    BatchScripts,
    Dependencies,
    EndWarning,
    FindJobs,
    GracefulCancel,
    InteractiveShell,
    JobSteps,
    MpiTasks,
    NodeList,
    Packing,
    RequeueExitCode,
    ShellDefaults,
    TaskVariables,
)
from hpc_hydra.schedulers.job_script import SchedulerLines, export, job_script, pack_script, quote, step_script
from hpc_hydra.schedulers.lsf import options as options_of
from hpc_hydra.schedulers.lsf import output, ranks
from hpc_hydra.schedulers.options import Option, one_line

_DEFAULTS = {  # variable with the user's default → field of the request
    "LSB_DEFAULTQUEUE": "queue",
    "LSB_DEFAULTPROJECT": "project",
    "LSB_DEFAULT_USERGROUP": "user_group",
}
_JOB_ID = '"$LSB_JOBID${hpc_hydra_index:+[$hpc_hydra_index]}"'
_WORDS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class Lsf(
    ArrayCheck,
    FindJobs,
    Dependencies,
    ShellDefaults,
    GracefulCancel,
    EndWarning,
    RequeueExitCode,
    Packing,
    JobSteps,
    NodeList,
    AutoDetection,
    TaskVariables,
    MpiTasks,
    Attach,
    InteractiveShell,
    BatchScripts,
):
    """LSF in two flavours: slots and blaunch (``standard``), whole nodes and jsrun (``csm``)."""

    name = "lsf"
    executable = "bsub"
    reads_stdin = True
    options = options_of.TABLE
    status_forms = output.FORMS
    requeue_exit_code = options_of.AGAIN  # `bsub -Q`: the same id, another attempt
    kill_delay = 25.0
    packs_by_launch_args = True  # they show which options of both commands are not for bsub
    limit_signal = signal.SIGUSR2
    warning_unit = 60
    size_variable = "JSM_NAMESPACE_SIZE"
    detection_order = 30

    def answer_command(self) -> Sequence[str]:
        return ("lsid",)

    def answers(self, stdout: str) -> bool:
        return "My cluster name" in stdout

    def check(self, request: Request) -> None:
        if (
            request.warn_before
            and request.time_limit
            and request.time_limit <= -(-request.warn_before // self.warning_unit) * 60
        ):
            raise PlanError(
                f"{request.warn_before} s are a whole number of minutes for LSF, and the run may take no longer",
                where="launch.signal_before_end",
                fix="a longer resources.time_limit",
            )
        self.directives(request)
        self.launch_command(request)
        options_of.array(request, 1)
        if request.survives_node_loss:
            raise PlanError(
                "LSF has no replicas of a job's ranks",
                where="rendezvous.name",
                fix="rendezvous=tcp, or scheduler=slurm",
            )

    def directives(self, request: Request) -> list[Option]:
        return options_of.submit(request, flavour(request))

    def launch_command(self, request: Request, python: str = sys.executable) -> list[str]:
        """One process per host starts its ranks; with jsrun, a watcher ends it if a rank failed."""
        node = [python, "-m", "hpc_hydra.node"]
        if flavour(request) == "csm":
            return [*node, "guard", "--", "jsrun", *self._jsrun(options_of.launch(request, "csm"))]
        given = [f"--blaunch=-{name}" for name, _ in options_of.launch(request, "standard")]
        if request.nodes == 1:  # the script is there already
            return [*node, "spawn", *self._per_node(request), "--"]
        return [*node, "blaunch", "--nodes", str(request.nodes), *given, *self._per_node(request), "--"]

    @staticmethod
    def _per_node(request: Request) -> Iterator[str]:
        yield from ("--procs", str(request.procs_per_node), "--gpus-per-proc", str(request.gpus_per_proc))
        if request.cpus_per_proc is not None:
            yield from ("--cpus-per-proc", str(request.cpus_per_proc))

    @staticmethod
    def _jsrun(given: Sequence[Option]) -> list[str]:
        return [f"--{name}" if value is None else f"--{name}={value}" for name, value in given]

    def script(self, spec: JobSpec) -> str:
        request, plan = task_request(spec.plan), spec.plan
        python = (None if plan.container else plan.python) or sys.executable  # the launch command is outside of it
        elsewhere = self._other_nodes(request, python)
        before = [f"export {ranks.FLAVOUR}={flavour(request)}"]
        if elsewhere and flavour(request) != "csm" and request.setup_lines and spec.pythonpath:
            before += export(EnvVar("PYTHONPATH", ":".join(spec.pythonpath), mode="prepend"))
        stated = (*self._for_this_job(spec), *self.directives(request))
        own = SchedulerLines(
            self.name,
            "${LSB_JOBID:-by-hand}${hpc_hydra_index:+"
            + ("[$hpc_hydra_index]}" if spec.packs else "_$hpc_hydra_index}"),
            directives=[f"#BSUB {options_of.directive(option)}" for option in stated],
            head=[*self._head(spec)],
            before=before,
            other_nodes=elsewhere,
        )
        if spec.packs:
            return pack_script(spec, own, index="$((${hpc_hydra_index:-1} - 1))")
        select = '"${1:-${runs[${hpc_hydra_index:-1}-1]}}"'
        return job_script(spec, own, launch=self.launch_command(request, python), select=select)

    def step_script(self, spec: JobSpec) -> str:
        """jsrun, which places the run on what is free of the job; or our starter on the hosts, cores and GPUs it is
        told, as blaunch confines nothing."""
        request, csm = task_request(spec.plan), flavour(task_request(spec.plan)) == "csm"
        argv = self.launch_command(replace(request, cpus_per_proc=request.cpus_per_proc or 1), spec.python)
        if not csm:
            given = [f"--blaunch=-{name}" for name, _ in options_of.launch(request, "standard")]
            argv = [spec.python, "-m", "hpc_hydra.node", "blaunch", "--nodes", str(request.nodes), *given]
            argv += [*(["--whole"] if request.exclusive else []), *self._per_node(request)]
        before = (
            "trap : INT QUIT TERM USR1 USR2 URG  # LSF signals the ranks too: wait for them",
            f"export {ranks.FLAVOUR}={flavour(request)}{f' {ranks.STEP}=1' if csm else ''}",
        )
        own = SchedulerLines(self.name, "${LSB_JOBID:-by-hand}", before=before)
        return step_script(spec, own, launch=argv, last="" if csm else '"--hosts=${2-}" "--slices=${4-}" --')

    @staticmethod
    def _head(spec: JobSpec) -> Iterator[str]:
        yield '[ "${LSB_JOBINDEX:-0}" -gt 0 ] && hpc_hydra_index=$LSB_JOBINDEX || hpc_hydra_index='
        if not spec.attached:
            yield "trap : INT TERM USR1 USR2 URG  # LSF signals the ranks too: wait, then report how they ended"
            log = quote(f"{spec.log}/{spec.key}.")
            yield f'[ -z "${{LSB_JOBID-}}" ] || exec >>{log}{_JOB_ID}.log 2>&1  # LSF itself would write it at the end'
        if flavour(task_request(spec.plan)) == "csm":
            yield "unset TMPDIR  # jsrun would not reach its server (OLCF's Summit user guide)"

    @staticmethod
    def _other_nodes(request: Request, python: str) -> list[str]:
        """Command that starts one process on each host that the script does not run on."""
        if flavour(request) == "csm":
            sets = {"nrs": str(request.nodes), "rs_per_host": "1", "tasks_per_rs": "1", "cpu_per_rs": "1"}
            return ["jsrun", *(f"--{name}={value}" for name, value in sets.items())]
        if request.nodes == 1:
            return []
        return [python, "-m", "hpc_hydra.node", "blaunch", "--nodes", str(request.nodes), "--further", "--"]

    def _for_this_job(self, spec: JobSpec) -> Iterator[Option]:
        request = spec.plan.request
        report = f"{spec.log}/{spec.key}"
        one_line(report, "hydra.sweep.dir")
        if "%J" in report or "%I" in report or ('"' in report and "'" in report):
            raise PlanError("LSF cannot write to a path with %J, %I or both kinds of quotes", where=report,
                            fix="hydra.sweep.dir=PATH")  # fmt: skip
        yield "J", options_of.array(request, spec.elements)
        described = f"{one_line(request.comment, 'scheduler.comment')} {spec.tag}" if request.comment else spec.tag
        if len(described) > options_of.LONGEST:
            raise PlanError(f"has {len(described)} characters", where="scheduler.comment", fix="fewer than 4000")
        yield "Jd", described
        yield "o", f"{report}.%J{'.%I' if spec.elements > 1 else ''}.lsf"
        given = {name.lstrip("-") for name, _ in request.submit_args}
        if not given & {"r", "rn"} and "rn" not in request.removed_args:
            yield "rn", None  # no host that fails starts the script once more behind our back

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["bsub"]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """bsub -I runs the script on the job's first host, attached to this console; in a job it runs here."""
        request = task_request(spec.plan)
        held = ranks.allocation(env)
        if held is not None:
            if len(held.hosts) < request.nodes:
                raise PlanError(
                    f"{request.nodes} nodes, but the job {held.job_id} that this is in has {len(held.hosts)}",
                    where="resources.nodes",
                    fix=f"resources.nodes={len(held.hosts)} or less, or launch.bg=true for a job of its own",
                )
            return ["bash", str(script)]
        named = os.path.relpath(script, spec.workdir)  # bsub makes a shell's line of its words, and the job starts here
        if not _WORDS.fullmatch(named):
            raise PlanError(f"bsub -I cannot name {named!r}", where="launch.launch_dir", fix="-l DIR without spaces")
        own = [("J", options_of.array(request, 1)), *self.directives(request)]
        return ["bsub", "-I", *options_of.words(own), "bash", named]

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """As attached runs, with a terminal (-Is); bsub(1)."""
        return ["-Is" if word == "-I" else word for word in self.attach_command(script, spec, env)]

    def batch_command(
        self, script: Path, args: Sequence[str], given: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        """LSF reads directives from standard input only, so the script cannot have arguments."""
        if args:
            raise PlanError(
                f"LSF reads a batch script from standard input, without arguments ({shlex.join(args)})",
                where="launch.batch_script",
                fix="launch.env.NAME=VALUE for what the script shall know",
            )
        way = ["-I"] if attached else []
        words = options_of.words([*([("J", name)] if name else []), *given])
        return ["sh", "-c", 'script=$1; shift; exec bsub "$@" <"$script"', "bsub", str(script), *way, *words]

    def parse_job_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        return output.elements(output.submitted(stdout), spec.elements)

    def array_limit_command(self) -> list[str]:
        return ["bparams", "-a"]

    def parse_array_limit(self, stdout: str) -> int | None:
        """MAX_JOB_ARRAY_SIZE of lsb.params, whose default is 1000."""
        found = re.search(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", stdout)
        return int(found[1]) if found else 1000

    def classify(self, message: str) -> SubmitErrorKind:
        return output.classify(message)

    def inherited_variables(self, request: Request) -> frozenset[str]:
        return frozenset(name for name, field in _DEFAULTS.items() if getattr(request, field) is None)

    def default_variables(self, *, attached: bool) -> Mapping[str, str]:
        return {key: name for name, key in _DEFAULTS.items()}

    def find_command(self, spec: JobSpec) -> list[str]:
        return ["bjobs", "-a", "-noheader", "-o", "jobid jobindex job_description delimiter='^'"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        found = output.found_by_tag(stdout, spec.tag)
        return output.elements(found[0][0], spec.elements) if found else ()

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return output.commands(ids)

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        return output.parse(command, stdout)

    def is_unknown_job(self, message: str) -> bool:
        return output.is_unknown_job(message)

    def terminate_command(self, ids: Sequence[str]) -> list[str]:
        """By default LSF kills parallel jobs at once (LSB_USE_SEQUENTIAL_SIGNAL), so TERM is sent first."""
        return ["bkill", "-s", "TERM", *output.addresses(ids)]

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["bkill", *output.addresses(ids)]

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        held = ranks.allocation(env)
        return held.hosts if held and env.get(ranks.FLAVOUR) != "csm" else ()

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("LSB_JOBID", "")
        return ["bjobs", "-noheader", "-o", "stat", ranks.job_id(env)] if job.isdigit() else None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        states = [output.STATES[word] for word in stdout.split() if word in output.STATES]
        if len(states) != 1:
            said = " ".join(stdout.split()) or "(nothing)"
            raise SchedulerError(f"bjobs does not say how job {env.get('LSB_JOBID')} is: {said}", where="bjobs")
        return None if states[0].is_finished else ranks.allocation(env)

    def lost_elements(self, ids: Sequence[str], said: Mapping[str, JobStatus]) -> list[str]:
        """An old bsub reads ``-Jd TEXT`` as ``-J d``, and makes one job; bjobs -a tells ended elements too."""
        jobs = {id_.partition("[")[0] for id_ in ids}
        there = said.keys() & {*jobs, *ids}
        return [id_ for id_ in ids if there and id_ not in there]

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def signals_tasks_only(self, env: Mapping[str, str]) -> bool:
        return ranks.signals_tasks_only(env)


def flavour(request: Request) -> str:
    """Return the flavour of LSF; default ``standard``. Raises `PlanError`."""
    name = request.flavour or "standard"
    if name not in options_of.FLAVOURS:
        raise PlanError(
            f"{name!r} is no flavour of LSF", where="scheduler.flavour", fix=" | ".join(options_of.FLAVOURS)
        )
    return name
