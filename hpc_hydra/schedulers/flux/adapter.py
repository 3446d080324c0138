"""Flux: `flux batch` submits a script, `flux run` starts its ranks. As of flux-core 0.48–0.88.

A job is a Flux instance of its own on its nodes, in which the script runs. Flux has no arrays: each run is a job, and
several are put into the queue by one `flux submit --cc`, which makes of each what `flux batch` does.
Sources: flux-batch(1), flux-submit(1), flux-run(1), flux-jobs(1), flux-environment(7), flux-shell(1) at
flux-framework.readthedocs.io. Pure. Must not know: Hydra, sweeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.tasks import task_request
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
    RequeuePacks,
    Resubmission,
    SubmitAdvice,
)
from hpc_hydra.schedulers.flux import options as options_of
from hpc_hydra.schedulers.flux import ranks
from hpc_hydra.schedulers.flux.options import BATCH_ONLY, RUN_ONLY, directive, overlaid, written
from hpc_hydra.schedulers.flux.output import STATES, FluxOutput, name_of, named
from hpc_hydra.schedulers.flux.ranks import HOSTS, NODE
from hpc_hydra.schedulers.job_script import SchedulerLines, job_script, pack_script, quote, step_script
from hpc_hydra.schedulers.options import Option, canonical, one_line, supported_gpu_request

__all__ = ["STATES", "Flux"]

_PARENT, _AGAIN, _NAME = f"{envvars.PREFIX}FLUX_PARENT", f"{envvars.PREFIX}FLUX_AGAIN", f"{envvars.PREFIX}FLUX_NAME"
_JOB, _STEP = "${FLUX_ENCLOSING_ID:-${FLUX_JOB_ID:-by-hand}}", "hpc_hydra-run-"
_WARNED = "trap : HUP TERM ALRM USR1 USR2  # Flux signals the ranks too: wait for them"
_NESTED = (("setopt", "per-resource.type=node"), ("setopt", "mpi=none"), ("setopt", "exit-timeout=none"))
_AFFINITY = re.compile(r"on|off|per-task|map:\S+")
_ALL_NAMES = ["flux", "jobs", "-a", "-c", "0", "-no", "{id.f58plain} {name}"]
_BULK = 1000  # runs submitted by one command
# As `manifest.took_over`: who links first decides.
_TAKES_OVER = """\
if [ -n "${{3-}}" ]; then  # goes on with the run of that job, unless it has been decided that nobody does
  next={prefix}$3.next mine="$next.$FLUX_ENCLOSING_ID"
  printf '{{"job": "%s", "id": "%s", "next": "%s"}}\\n' {job} "$3" "$FLUX_ENCLOSING_ID" >"$mine"
  ln "$mine" "$next" 2>/dev/null; rm -f "$mine"
  [ ! -e "$next" ] || grep -qF "\\"next\\": \\"$FLUX_ENCLOSING_ID\\"" "$next" || exit 0
fi"""
# Of what submitted this, or is around it.
_LEFTOVER = "FLUX_JOB_CC ${!SLURM_@} ${!PALS_@} ${!PMI_@} PMIX_RANK PMIX_NAMESPACE ${!PMIX_SERVER_@}"


class Flux(
    FluxOutput,
    BulkSubmission,
    FindJobs,
    Dependencies,
    SubmitAdvice,
    EndWarning,
    Resubmission,
    RequeuePacks,
    NestedQueue,
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
    detection_order = 20
    options = options_of.TABLE
    command_env: ClassVar[Mapping[str, str]] = {
        "FLUX_F58_FORCE_ASCII": "1"
    }  # ids are f…, not ƒ…, whatever the locale; also in names of files

    def answer_command(self) -> Sequence[str]:
        return ("flux", "queue", "status")

    def answers(self, stdout: str) -> bool:
        return True

    def check(self, request: Request) -> None:
        if request.survives_node_loss:
            raise PlanError(
                "Flux ends a job whose node is lost", where="rendezvous.name", fix="rendezvous=tcp, or scheduler=slurm"
            )
        if request.mem_per_node and not request.exclusive:
            raise PlanError(
                "an amount of memory cannot be asked of Flux",
                where="resources.mem_per_node",
                fix="resources.exclusive=true takes whole nodes with their memory",
            )
        supported_gpu_request(self.options, request)
        for key, value in (("system.gpu_bind", request.gpu_bind), ("system.cpu_bind", request.cpu_bind)):
            if value is not None and not _AFFINITY.fullmatch(value):
                raise PlanError(
                    f"{value!r} is nothing that Flux binds by", where=key, fix="on | off | per-task | map:LIST"
                )
        for name, value in (*request.submit_args, *request.launch_args):
            options_of.check_option(name, value, f"scheduler.extra.{name}")
        for args, wrong, command, key in (
            (request.launch_args, BATCH_ONLY, "flux run", "scheduler.launch_extra"),
            (request.submit_args, RUN_ONLY, "flux batch", "scheduler.submit_extra"),
        ):
            other = request.submit_args if args is request.launch_args else request.launch_args
            for name, value in args:
                if _long(name) in wrong and (name, value) not in other:
                    raise PlanError(f"{command} has no --{_long(name)}", where=f"{key}.{name}", fix="scheduler.extra")
        self.directives(request)

    def directives(self, request: Request) -> list[Option]:
        """Return options of ``flux batch``."""
        given = [pair for pair in request.submit_args if _long(pair[0]) not in RUN_ONLY]
        return overlaid(self._stated(request), given, request.removed_args)

    def _stated(self, request: Request) -> Iterator[Option]:
        yield from self._slots(request)
        if request.exclusive:
            yield "exclusive", None
        if request.time_limit is not None:
            yield "time-limit", options_of.duration(request.time_limit)
        if request.warning is not None:
            yield "signal", f"SIG{request.warning}s"
        if request.queue:
            yield "queue", one_line(request.queue, "scheduler.queue")
        if request.account:
            yield "setattr", f"system.bank={one_line(request.account, 'scheduler.account')}"  # --bank came with 0.65
        yield from (("dependency", one) for one in options_of.dependencies(request.dependency))
        required = options_of.constraint(request)
        if required:
            yield "requires", required
        if request.comment:
            yield "setattr", f"user.comment={json.dumps(one_line(request.comment, 'scheduler.comment'))}"

    @staticmethod
    def _slots(request: Request) -> Iterator[Option]:
        """What the job holds: a slot for each rank, or one for each node where its ranks share the GPUs."""
        shared, cores = request.shared_gpus, request.cpus_per_proc
        yield "nodes", str(request.nodes)
        yield "nslots", str(request.nodes if shared else request.world_size)
        if shared:
            cores = (cores or 1) * request.procs_per_node
        if cores:
            yield "cores-per-slot", str(cores)
        gpus = shared or request.gpus_per_proc
        if gpus and request.gpu_request != "none":
            yield "gpus-per-slot", str(gpus)

    def launch_command(self, request: Request) -> list[str]:
        given = [pair for pair in request.launch_args if _long(pair[0]) not in BATCH_ONLY]
        return ["flux", "run", *(written(n, v) for n, v in overlaid(self._tasks(request), given, request.removed_args))]

    @staticmethod
    def _tasks(request: Request) -> Iterator[Option]:
        shared, asks = request.shared_gpus, request.gpu_request != "none"
        yield "nodes", str(request.nodes)
        yield "ntasks", str(request.world_size)
        if request.cpus_per_proc:
            yield "cores-per-task", str(request.cpus_per_proc)
        if request.gpus_per_proc and asks and not shared:
            yield "gpus-per-task", str(request.gpus_per_proc)
        if request.exclusive or (shared and asks):  # all that the job has, GPUs too
            yield "exclusive", None
        yield "setopt", "exit-on-error"  # a failed rank ends the others
        yield "setopt", "exit-timeout=none"  # a successful rank may wait for slow ones
        gpu_bind = request.gpu_bind or ("per-task" if request.gpu_request == "gpus-per-task" and not shared else None)
        if gpu_bind:
            yield "setopt", f"gpu-affinity={gpu_bind}"
        if request.cpu_bind:
            yield "setopt", f"cpu-affinity={request.cpu_bind}"
        if request.mpi:
            yield "setopt", f"pmi={'off' if request.mpi == 'none' else one_line(request.mpi, 'scheduler.mpi')}"
        yield "env", f"{NODE}={{{{node.id}}}}"

    def script(self, spec: JobSpec) -> str:
        request = task_request(spec.plan)
        options = [*self.directives(request), *self._for_this_job(spec), ("job-name", request.job_name)]
        before = [
            f"unset {_LEFTOVER}",
            f'export {HOSTS}="$(flux hostlist -e -d, local)"',
            f'export {_PARENT}="$(flux getattr parent-uri 2>/dev/null)"',
        ]
        if spec.attached:
            before.append(f"export {envvars.LINGER}=1  # exit-on-error drops what the ranks have said last")
        else:
            before.append("exec </dev/null  # else who reads it waits for ever")
        if request.max_requeues and not spec.attached:
            name, run = quote(f"{request.job_name}."), f"${{1:-{spec.runs[0]}}}" if spec.packs else f"${envvars.RUN}"
            before += [f'export {_AGAIN}="${{2:-0}}"', f"export {_NAME}={name}{run}.{spec.tag}"]
            before += _TAKES_OVER.format(prefix=quote(f"{spec.log}/{spec.key}."), job=quote(spec.key)).splitlines()
        own = SchedulerLines(
            self.name,
            _JOB,
            directives=[f"#flux: {directive(name, value)}" for name, value in options],
            head=() if spec.attached or spec.packs else (_WARNED,),
            before=before,
            other_nodes=["flux", "exec", "-x", "0", "-r", "all"] if request.nodes > 1 else [],
        )
        if spec.packs:
            return pack_script(spec, own, index=f"run ${{1:-{spec.runs[0]}}}")
        return job_script(spec, own, launch=self.launch_command(request), select='"${1:-${runs[0]}}"')

    def step_script(self, spec: JobSpec) -> str:
        """`flux run` in the allocation's instance, which places the run and confines it to its cores and GPUs."""
        request = task_request(spec.plan)
        if request.shared_gpus:
            raise PlanError(
                "Flux gives GPUs of a part of an allocation to one rank each",
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
            raise PlanError("Flux would fill {{…}} in a path", where="hydra.sweep.dir", fix="hydra.sweep.dir=PATH")
        mine = [("output", f"{log}.{{{{id}}}}.log"), ("setattr", f"user.hpc_hydra={spec.tag}")]
        yield from overlaid(mine, (), spec.plan.request.removed_args)

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        own = [*options, *([("job-name", one_line(name, "scheduler.job_name"))] if name else [])]
        return ["flux", "batch", *(written(option, value) for option, value in own), str(script), *args]

    def output_command(self, id_: str) -> list[str]:
        return ["flux", "job", "info", id_, "jobspec"]

    def wait_command(self, id_: str) -> list[str]:
        return ["flux", "job", "status", id_]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """`flux run` starts the job's own instance, attached; within an allocation its `flux run` is a part of that."""
        if env.get("FLUX_ENCLOSING_ID"):
            return ["bash", str(script)]
        name = ("job-name", one_line(spec.plan.request.job_name, "scheduler.job_name"))
        return self._run_script(task_request(spec.plan), [name], [str(script)])

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """`flux alloc` runs the script in a new instance, with this terminal; flux-alloc(1)."""
        if env.get("FLUX_ENCLOSING_ID"):
            return ["bash", str(script)]
        mine = options_of.for_submit(
            [pair for pair in self.directives(task_request(spec.plan)) if pair[0] not in BATCH_ONLY]
        )
        size = {"ntasks": "nslots", "cores-per-task": "cores-per-slot", "gpus-per-task": "gpus-per-slot"}
        return ["flux", "alloc", *(written(size.get(name, name), value) for name, value in mine), "bash", str(script)]

    def _run_script(self, request: Request, more: Sequence[Option], words: Sequence[str]) -> list[str]:
        return ["flux", "run", *self._as_instance([*self.directives(request), *more], ["bash", *words])]

    @staticmethod
    def _as_instance(options: Sequence[Option], argv: Sequence[str]) -> list[str]:
        """Arguments with which `flux run` and `flux submit` start an instance for ``argv``, as `flux batch` does."""
        mine = [pair for pair in options if pair[0] not in BATCH_ONLY]
        opts = [value for name, value in options if name == "broker-opts" and value]
        words = [written(name, value) for name, value in (*options_of.for_submit(mine), *_NESTED)]
        return [*words, "flux", "broker", *opts, *argv]

    def bulk_submissions(self, script: Path, spec: JobSpec) -> list[tuple[JobSpec, list[str]]] | None:
        """Several runs by one command each thousand, where no text in it would be filled by that."""
        options = [*self.directives(task_request(spec.plan)), *self._for_this_job(spec)]
        name = f"{spec.plan.request.job_name}.{{cc}}.{spec.tag}"
        texts = [str(script), spec.plan.request.job_name, *(v or "" for n, v in options)]
        filled = any(char in text.replace("{{id}}", "") for text in texts for char in "{}")
        if len(spec.runs) < 2 or spec.packs or filled or {n for n, _ in options} & (BATCH_ONLY - {"broker-opts"}):
            return None
        options.append(("job-name", one_line(name, "scheduler.job_name")))
        words = self._as_instance(options, ["bash", str(script), "{cc}"])
        order = sorted(spec.runs)
        parts = [tuple(order[i : i + _BULK]) for i in range(0, len(order), _BULK)] if order == list(spec.runs) else []
        if not parts:  # --cc takes them in the order of their numbers only
            return None
        return [(replace(spec, runs=runs), ["flux", "submit", f"--cc={_idset(runs)}", *words]) for runs in parts]

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        run = spec.runs[0]  # the only one, or the first of a pack
        return ["flux", "batch", f"--job-name={name_of(spec, run)}", str(script), str(run)]

    def find_command(self, spec: JobSpec) -> list[str]:
        return _ALL_NAMES

    def outer_environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Our job is an instance, which ends with it: what is submitted from there goes to the one around it."""
        return {"FLUX_URI": env[_PARENT]} if env.get(_PARENT) else {}

    def order_command(self, ids: Sequence[str], spec: JobSpec) -> list[str] | None:
        """`flux submit --cc` prints ids in any order."""
        return ["flux", "jobs", "-no", "{id.f58plain} {name}", *ids] if len(ids) > 1 else None

    def trial_commands(self, request: Request) -> list[tuple[str, list[str]]]:
        """`--dry-run` contacts no instance, and checks names and values as a submission does."""
        batch = ["flux", "batch", *(written(name, value) for name, value in self.directives(request))]
        run = self.launch_command(request)
        found = []
        for given, argv, key in (
            (request.submit_args, [*batch, "--dry-run", "--wrap", "true"], "scheduler.submit_extra"),
            (request.launch_args, [*run, "--dry-run", "true"], "scheduler.launch_extra"),
        ):
            if given:
                both = set(request.submit_args) == set(request.launch_args)
                found.append(("scheduler.extra" if both else key, argv))
        return found

    def restarts(self, env: Mapping[str, str]) -> int:
        count = env.get(_AGAIN, "")
        return int(count) if count.isdigit() else 0

    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("FLUX_ENCLOSING_ID")
        return ["flux", "job", "eventlog", "--format=json", job] if job and env.get(_PARENT) else None

    def successor_name(self, env: Mapping[str, str], count: int) -> str | None:
        return f"{env[_NAME]}.{count}" if env.get(_NAME) else None

    def successor_command(self) -> list[str]:
        return _ALL_NAMES

    def parse_successor(self, stdout: str, name: str) -> str | None:
        return named(stdout).get(name)

    def resubmit_command(self, env: Mapping[str, str], script: Path, run: int, count: int, id_: str) -> list[str]:
        name, after = self.successor_name(env, count), f"--dependency=afterany:{id_}"  # never beside its predecessor
        return ["flux", "batch", f"--job-name={name}", after, str(script), str(run), str(count), id_]

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        return [["flux", "jobs", "--json", *ids]] if ids else []

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["flux", "cancel", *ids]

    def outer_queue_command(self) -> tuple[str, list[str]]:
        return "FLUX_URI", ["flux", "getattr", "parent-uri"]  # a batch job is an instance of its own

    def check_inside(self, inside: str, env: Mapping[str, str]) -> None:
        """Within an allocation, which is a Flux instance, all commands use that instance."""
        if inside == "submit" and env.get("FLUX_ENCLOSING_ID"):
            raise ConfigError(
                f"commands in the allocation {env['FLUX_ENCLOSING_ID']} speak to its own instance of Flux",
                where="launch.inside",
                fix="FLUX_URI=$(flux getattr parent-uri) FLUX_ENCLOSING_ID= before the command: the instance around it",
            )

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)


def _long(name: str) -> str:
    return canonical(name, options_of.TABLE.short)


def _idset(numbers: Sequence[int]) -> str:
    """``0-2,5``, from rising numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in parts)
