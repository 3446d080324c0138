"""LSF: ``bsub < script``; blaunch starts the ranks on each host, or jsrun on CSM machines. As of Spectrum LSF 10.1.

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

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.tasks import allocated, preflight_request, task_request
from hpc_hydra.planning.types import EnvVar, RankInfo, Request
from hpc_hydra.schedulers.base import JobSpec
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
    NodeExclusion,
    Packing,
    RequeueExitCode,
    ShellDefaults,
    SpareNodes,
    TaskVariables,
)
from hpc_hydra.schedulers.capability_checks import check_surrounding
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes
from hpc_hydra.schedulers.job_script import SchedulerLines, export, job_script, pack_script, quote, step_script
from hpc_hydra.schedulers.lsf import ranks
from hpc_hydra.schedulers.lsf.option_names import AGAIN, LONGEST, flavour
from hpc_hydra.schedulers.lsf.options import LsfOptions, array, blaunch_words, directive, words
from hpc_hydra.schedulers.lsf.output import LsfOutput
from hpc_hydra.schedulers.options import Option, one_line

_DEFAULTS = {  # variable with the user's default → field of the request
    "LSB_DEFAULTQUEUE": "queue",
    "LSB_DEFAULTPROJECT": "project",
    "LSB_DEFAULT_USERGROUP": "user_group",
}
_JOB_ID = '"$LSB_JOBID${hpc_hydra_index:+[$hpc_hydra_index]}"'
_WORDS = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class Lsf(
    LsfOptions,
    LsfOutput,
    ArrayCheck,
    FindJobs,
    Dependencies,
    ShellDefaults,
    GracefulCancel,
    EndWarning,
    RequeueExitCode,
    NodeExclusion,
    Packing,
    JobSteps,
    SpareNodes,
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
    requeue_exit_code = AGAIN  # of `bsub -Q`
    kill_delay = 25.0
    packs_by_launch_args = True  # they determine which options of both commands are not for bsub
    limit_signal = signal.SIGUSR2
    warning_unit = 60
    size_variable = "JSM_NAMESPACE_SIZE"
    detection_order = 30

    def answer_command(self) -> Sequence[str]:
        return ("lsid",)

    def answers(self, stdout: str) -> bool:
        return "My cluster name" in stdout

    def script(self, spec: JobSpec) -> str:
        request, plan = task_request(spec.plan), spec.plan
        python = (None if plan.container else plan.python) or sys.executable  # the launch command runs outside of it
        whole = allocated(request)
        other_nodes = self._other_nodes(whole, python)
        before = [f"export {ranks.FLAVOUR}={flavour(request)}"]
        if other_nodes and flavour(request) != "csm" and request.setup_lines and spec.pythonpath:
            before += export(EnvVar("PYTHONPATH", ":".join(spec.pythonpath), mode="prepend"))
        options = (*self._for_this_job(spec), *self.directives(whole))
        own = SchedulerLines(
            self.name,
            "${LSB_JOBID:-by-hand}${hpc_hydra_index:+"
            + ("[$hpc_hydra_index]}" if spec.packs else "_$hpc_hydra_index}"),
            directives=[f"#BSUB {directive(option)}" for option in options],
            head=[*self._head(spec)],
            before=before,
            other_nodes=other_nodes,
        )
        if spec.packs:
            return pack_script(spec, own, index="$((${hpc_hydra_index:-1} - 1))")
        select = '"${1:-${runs[${hpc_hydra_index:-1}-1]}}"'
        return job_script(
            spec,
            own,
            launch=self.launch_command(request, python),
            select=select,
            preflight=self.launch_command(preflight_request(plan), python) if plan.preflight else (),
            chosen=self.launch_on_chosen(request, python) if request.spare_nodes else None,
        )

    def launch_on_chosen(self, request: Request, python: str) -> ChosenNodes:
        if flavour(request) == "csm":
            raise PlanError("jsrun chooses the nodes itself", where="launch.spare_nodes", fix="launch.spare_nodes=0")
        return ChosenNodes(blaunch_words(request, python), f'"--hosts=${CHOSEN}" --')

    def step_script(self, spec: JobSpec) -> str:
        """jsrun places the run on free resources of the job; with blaunch, the packer selects hosts, cores and GPUs."""
        request = task_request(spec.plan)
        csm = flavour(request) == "csm"
        if csm:
            argv = self.launch_command(replace(request, cpus_per_proc=request.cpus_per_proc or 1), spec.python)
        else:
            argv = [*blaunch_words(request, spec.python), *(["--whole"] if request.exclusive else [])]
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
            yield f'[ -z "${{LSB_JOBID-}}" ] || exec >>{log}{_JOB_ID}.log 2>&1  # LSF would write it only at the end'
        if flavour(task_request(spec.plan)) == "csm":
            yield "unset TMPDIR  # jsrun would not reach its server (OLCF's Summit user guide)"

    @staticmethod
    def _other_nodes(request: Request, python: str) -> list[str]:
        """Command that starts one process on each host other than that of the script."""
        if flavour(request) == "csm":
            sets = {"nrs": str(request.nodes), "rs_per_host": "1", "tasks_per_rs": "1", "cpu_per_rs": "1"}
            return ["jsrun", *(f"--{name}={value}" for name, value in sets.items())]
        if request.nodes == 1:
            return []
        return [python, "-m", "hpc_hydra.node", "blaunch", "--nodes", str(request.nodes), "--further", "--"]

    def _for_this_job(self, spec: JobSpec) -> Iterator[Option]:
        request = spec.plan.request
        report = one_line(f"{spec.log}/{spec.key}", "hydra.sweep.dir")
        if "%J" in report or "%I" in report or ('"' in report and "'" in report):
            raise PlanError("LSF does not support paths with %J, %I or both kinds of quotes", where=report,
                            fix="hydra.sweep.dir=PATH")  # fmt: skip
        yield "J", spec.name or array(request, spec.elements)
        described = f"{one_line(request.comment, 'scheduler.comment')} {spec.tag}" if request.comment else spec.tag
        if len(described) > LONGEST:
            raise PlanError(f"has {len(described)} characters", where="scheduler.comment", fix="fewer than 4000")
        yield "Jd", described
        yield "o", f"{report}.%J{'.%I' if spec.elements > 1 else ''}.lsf"
        theirs = {name.lstrip("-") for name, _ in request.submit_args}
        if not theirs & {"r", "rn"} and "rn" not in request.removed_args:
            yield "rn", None  # LSF must not rerun the script after the failure of a host

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["bsub"]

    def can_exclude(self, request: Request) -> bool:
        return flavour(request) != "csm" and "R" not in request.removed_args

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """bsub -I runs the script on the first host of a new job, attached; within a job it runs here."""
        request = task_request(spec.plan)
        surrounding = ranks.allocation(env)
        if surrounding is not None:
            check_surrounding(request, surrounding.job_id, len(surrounding.hosts))
            return ["bash", str(script)]
        request = allocated(request)
        path = os.path.relpath(script, spec.workdir)  # bsub passes its arguments to a shell; the job starts in workdir
        if not _WORDS.fullmatch(path):
            raise PlanError(
                f"bsub -I does not support {path!r}", where="launch.launch_dir", fix="-l DIR without spaces"
            )
        own = [("J", array(request, 1)), *self.directives(request)]
        return ["bsub", "-I", *words(own), "bash", path]

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """`attach_command` with a terminal (-Is); bsub(1)."""
        return ["-Is" if word == "-I" else word for word in self.attach_command(script, spec, env)]

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        """LSF reads directives from standard input only, so the script cannot have arguments."""
        if args:
            raise PlanError(
                f"LSF reads a batch script from standard input, without arguments ({shlex.join(args)})",
                where="launch.batch_script",
                fix="launch.env.NAME=VALUE to pass values to the script",
            )
        own: list[Option] = [*([("I", None)] if attached else []), *([("J", name)] if name else []), *options]
        return ["sh", "-c", 'script=$1; shift; exec bsub "$@" <"$script"', "bsub", str(script), *words(own)]

    def state_command(self, id_: str) -> list[str]:
        return ["bjobs", "-l", id_]

    def inherited_variables(self, request: Request) -> frozenset[str]:
        return frozenset(name for name, field in _DEFAULTS.items() if getattr(request, field) is None)

    def default_variables(self, *, attached: bool) -> Mapping[str, str]:
        return {key: name for name, key in _DEFAULTS.items()}

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        allocation = ranks.allocation(env)
        return allocation.hosts if allocation and env.get(ranks.FLAVOUR) != "csm" else ()

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def signals_tasks_only(self, env: Mapping[str, str]) -> bool:
        return ranks.signals_tasks_only(env)
