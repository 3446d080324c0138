"""Flux: `flux batch` submits a script, `flux run` starts its ranks. As of flux-core 0.48–0.88.

A job is a Flux instance of its own on its nodes, in which the script runs. Flux has no job arrays: each run is a job.
One `flux submit --cc` submits several, with the same effect as `flux batch` for each of them.
Sources: flux-batch(1), flux-submit(1), flux-run(1), flux-jobs(1), flux-environment(7), flux-shell(1) at
flux-framework.readthedocs.io. Pure. Must not know: Hydra, sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.tasks import allocated, preflight_request, task_request
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.capabilities import (
    Attach,
    AutoDetection,
    BatchScripts,
    BulkSubmission,
    Dependencies,
    EndWarning,
    FindJobs,
    InteractiveShell,
    MpiTasks,
    NestedQueue,
    NodeStates,
    RequeuePacks,
    ResubmissionElsewhere,
    SpareNodes,
    SubmitAdvice,
)
from hpc_hydra.schedulers.flux import ranks
from hpc_hydra.schedulers.flux.options import (
    BATCH_ONLY,
    FluxOptions,
    constraint,
    directive,
    for_submit,
    override,
    words,
)
from hpc_hydra.schedulers.flux.output import STATES, FluxOutput, name_of
from hpc_hydra.schedulers.flux.ranks import HOSTS
from hpc_hydra.schedulers.hostlist import ranges
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes
from hpc_hydra.schedulers.job_script import SchedulerLines, job_script, pack_script, quote, step_script, takes_over
from hpc_hydra.schedulers.options import Option, one_line

__all__ = ["STATES", "Flux"]

_PARENT, _AGAIN, _NAME = f"{envvars.PREFIX}FLUX_PARENT", f"{envvars.PREFIX}FLUX_AGAIN", f"{envvars.PREFIX}FLUX_NAME"
_JOB, _STEP = "${FLUX_ENCLOSING_ID:-${FLUX_JOB_ID:-by-hand}}", "hpc_hydra-run-"
_WARNED = "trap : HUP TERM ALRM USR1 USR2  # Flux signals the ranks too: wait for them"
_NESTED = (("setopt", "per-resource.type=node"), ("setopt", "mpi=none"), ("setopt", "exit-timeout=none"))
_BULK = 1000  # runs submitted by one command
# Variables of the process that submitted the job, or of a surrounding job of another scheduler.
_LEFTOVER = "FLUX_JOB_CC ${!SLURM_@} ${!PALS_@} ${!PMI_@} PMIX_RANK PMIX_NAMESPACE ${!PMIX_SERVER_@}"


class Flux(
    FluxOptions,
    FluxOutput,
    BulkSubmission,
    FindJobs,
    Dependencies,
    SubmitAdvice,
    EndWarning,
    ResubmissionElsewhere,
    RequeuePacks,
    NodeStates,
    NestedQueue,
    SpareNodes,
    AutoDetection,
    MpiTasks,
    Attach,
    InteractiveShell,
    BatchScripts,
):
    """flux batch (flux submit for several runs) / flux run."""

    name = "flux"
    executable = "flux"
    warns_steps = True
    tells_cancellation = True
    size_variable = "FLUX_JOB_SIZE"
    restart_variable, name_variable = _AGAIN, _NAME
    detection_order = 20
    command_env: ClassVar[Mapping[str, str]] = {
        "FLUX_F58_FORCE_ASCII": "1"
    }  # ids begin with f, not ƒ, in any locale; they are also in file names

    def answer_command(self) -> Sequence[str]:
        return ("flux", "queue", "status")

    def answers(self, stdout: str) -> bool:
        return True

    def script(self, spec: JobSpec) -> str:
        request, plan = task_request(spec.plan), spec.plan
        whole = allocated(request)
        options = [*self.directives(whole), *self._for_this_job(spec), ("job-name", request.job_name)]
        before = [
            f"unset {_LEFTOVER}",
            f'export {HOSTS}="$(flux hostlist -e -d, local)"',
            f'export {_PARENT}="$(flux getattr parent-uri 2>/dev/null)"',
        ]
        if spec.attached:
            before.append(f"export {envvars.LINGER}=1  # exit-on-error drops the last output of the ranks")
        else:
            before.append("exec </dev/null  # else programs that read it wait forever")
        if request.max_requeues and not spec.attached:
            name, run = quote(f"{request.job_name}."), f"${{1:-{spec.runs[0]}}}" if spec.packs else f"${envvars.RUN}"
            before += [f'export {_AGAIN}="${{2:-0}}"', f"export {_NAME}={name}{run}.{spec.tag}"]
            before += takes_over(spec, "3", "FLUX_ENCLOSING_ID")
        own = SchedulerLines(
            self.name,
            _JOB,
            directives=[f"#flux: {directive(option)}" for option in options],
            head=() if spec.attached or spec.packs else (_WARNED,),
            before=before,
            other_nodes=["flux", "exec", "-x", "0", "-r", "all"] if whole.nodes > 1 else [],
        )
        if spec.packs:
            return pack_script(spec, own, index=f"run ${{1:-{spec.runs[0]}}}")
        return job_script(
            spec,
            own,
            launch=self.launch_command(request),
            select='"${1:-${runs[0]}}"',
            preflight=self.launch_command(preflight_request(plan)) if plan.preflight else (),
            chosen=self.launch_on_chosen(request, spec.python) if request.spare_nodes else None,
        )

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(host for host in env.get(HOSTS, "").split(",") if host)

    def launch_on_chosen(self, request: Request, python: str) -> ChosenNodes:
        """Ranks learn the hosts of their job from our variable."""
        lines = [f'export {HOSTS}="${CHOSEN}"']
        return ChosenNodes(self.launch_command(request), f'"--requires=hosts:${CHOSEN}"', lines)

    def step_script(self, spec: JobSpec) -> str:
        """`flux run` in the instance of the allocation, which confines the run to its cores and GPUs."""
        request = task_request(spec.plan)
        if request.shared_gpus:
            raise PlanError(
                "ranks of packed runs cannot share GPUs on Flux",
                where="resources.oversubscribe",
                fix="resources.gpus_per_proc=1 with fewer ranks, or launch.pack=null",
            )
        argv = self.launch_command(replace(request, exclusive=False))
        if request.gpu_request != "none" and not request.gpus_per_proc:
            argv.append("--setopt=gpu-affinity=on")
        own = SchedulerLines(self.name, _JOB)
        return step_script(spec, own, launch=argv, last=f'--job-name="{_STEP}${envvars.RUN}"')

    def end_step_command(self, run: int) -> list[str]:
        """A killed `flux run` leaves its job running."""
        return ["flux", "pkill", f"^{_STEP}{run}$"]

    @staticmethod
    def _for_this_job(spec: JobSpec) -> Iterator[Option]:
        log = one_line(f"{spec.log}/{spec.key}", "hydra.sweep.dir")
        if "{{" in log or "}}" in log:
            raise PlanError("Flux would replace {{…}} in a path", where="hydra.sweep.dir", fix="hydra.sweep.dir=PATH")
        ours = [("output", f"{log}.{{{{id}}}}.log"), ("setattr", f"user.hpc_hydra={spec.tag}")]
        yield from override(ours, (), spec.plan.request)

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        own = [*options, *([("job-name", one_line(name, "scheduler.job_name"))] if name else [])]
        return ["flux", "batch", *words(own), str(script), *args]

    def state_command(self, id_: str) -> list[str]:
        return ["flux", "jobs", id_]

    def wait_command(self, id_: str) -> list[str]:
        return ["flux", "job", "status", id_]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """`flux run` starts the instance of the job; within an allocation the script uses that of the allocation."""
        if env.get("FLUX_ENCLOSING_ID"):
            return ["bash", str(script)]
        name = ("job-name", one_line(spec.plan.request.job_name, "scheduler.job_name"))
        options = [*self.directives(allocated(task_request(spec.plan))), name]
        return ["flux", "run", *self._instance(options, ["bash", str(script)])]

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """`flux alloc` runs the script in a new instance, attached to this terminal; flux-alloc(1)."""
        if env.get("FLUX_ENCLOSING_ID"):
            return ["bash", str(script)]
        options = [option for option in self.directives(task_request(spec.plan)) if option[0] not in BATCH_ONLY]
        return ["flux", "alloc", *words(options), "bash", str(script)]

    @staticmethod
    def _instance(options: Sequence[Option], argv: Sequence[str]) -> list[str]:
        """Arguments of `flux run` and `flux submit` that start ``argv`` in a new instance, as `flux batch` does."""
        broker_options = [value for name, value in options if name == "broker-opts" and value]
        supported = [option for option in options if option[0] not in BATCH_ONLY]
        return [*words([*for_submit(supported), *_NESTED]), "flux", "broker", *broker_options, *argv]

    def bulk_submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]] | None:
        """One command per thousand runs; None if it would replace braces in some text, or for options it lacks."""
        options = [*self.directives(allocated(task_request(spec.plan))), *self._for_this_job(spec)]
        name = f"{spec.plan.request.job_name}.{{cc}}.{spec.tag}"
        texts = [str(script), spec.plan.request.job_name, *(v or "" for n, v in options)]
        has_braces = any(char in text.replace("{{id}}", "") for text in texts for char in "{}")
        if len(spec.runs) < 2 or spec.packs or has_braces or {n for n, _ in options} & (BATCH_ONLY - {"broker-opts"}):
            return None
        options.append(("job-name", one_line(name, "scheduler.job_name")))
        if list(spec.runs) != sorted(spec.runs):  # --cc submits in the order of the numbers
            return None
        argv = self._instance(options, ["bash", str(script), "{cc}"])
        parts = [tuple(spec.runs[i : i + _BULK]) for i in range(0, len(spec.runs), _BULK)]
        return [(replace(spec, runs=runs), ["flux", "submit", f"--cc={ranges(runs)}", *argv]) for runs in parts]

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        run = spec.runs[0]  # the only one, or the first of a pack
        return ["flux", "batch", f"--job-name={name_of(spec, run)}", str(script), str(run)]

    def outer_environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """The instance of a job ends with it, so its successor is submitted to the surrounding one."""
        return {"FLUX_URI": env[_PARENT]} if env.get(_PARENT) else {}

    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("FLUX_ENCLOSING_ID")
        return ["flux", "job", "eventlog", "--format=json", job] if job and env.get(_PARENT) else None

    def resubmit_command(self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str) -> list[str]:
        name, after = self.successor_name(env, count), f"--dependency=afterany:{id_}"  # never beside its predecessor
        return ["flux", "batch", f"--job-name={name}", after, str(script), str(run), str(count), id_]

    def node_states_command(self, env: Mapping[str, str], hosts: Sequence[str]) -> list[str]:
        return self.job_end_command(env) or ["true"]

    def can_exclude(self, request: Request) -> bool:
        return "requires" not in request.removed_args

    def resubmit_elsewhere(self, command: Sequence[str], request: Request) -> list[str]:
        """An option of the command replaces the script's directive of the same name; flux-batch(1)."""
        return [*command[:2], f"--requires={constraint(request)}", *command[2:]]

    def outer_queue_command(self) -> tuple[str, list[str]]:
        return "FLUX_URI", ["flux", "getattr", "parent-uri"]  # a batch job is an instance of its own

    def check_inside(self, inside: str, env: Mapping[str, str]) -> None:
        """Within an allocation, which is a Flux instance, all commands use that instance."""
        if inside == "submit" and env.get("FLUX_ENCLOSING_ID"):
            raise ConfigError(
                f"commands in the allocation {env['FLUX_ENCLOSING_ID']} use its own Flux instance",
                where="launch.inside",
                fix="FLUX_URI=$(flux getattr parent-uri) FLUX_ENCLOSING_ID= before the command: the outer instance",
            )

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)
