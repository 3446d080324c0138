"""SLURM: sbatch and srun. Options as of 22.05 to 25.05; slurm.schedmd.com/sbatch.html, srun.html, squeue.html.

Pure: no command is run here. Must not know: submitit, the launcher, the node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.tasks import allocated, preflight_request, step_request, task_request
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.schedulers import container
from hpc_hydra.schedulers.base import Allocation, JobSpec
from hpc_hydra.schedulers.capabilities import (
    Attach,
    AutoDetection,
    BatchScripts,
    ClusterName,
    ContainerLaunch,
    Dependencies,
    EndWarning,
    FindJobs,
    InteractiveShell,
    JobArrays,
    JobEndQuery,
    JobSteps,
    MpiTasks,
    NodeFacts,
    NodeStates,
    ReplicaLaunch,
    RequeueElsewhere,
    RequeuePacks,
    ShellDefaults,
    SpareNodes,
    StepSignals,
    SubmitAdvice,
    SurvivesNodeLoss,
    TaskVariables,
)
from hpc_hydra.schedulers.capability_checks import check_surrounding
from hpc_hydra.schedulers.environment import cleaned
from hpc_hydra.schedulers.hostlist import expand
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes
from hpc_hydra.schedulers.job_script import SchedulerLines, job_script, pack_script, step_script
from hpc_hydra.schedulers.options import Option, one_line
from hpc_hydra.schedulers.slurm import ranks, sinfo
from hpc_hydra.schedulers.slurm.options import SlurmOptions, directive, override, words
from hpc_hydra.schedulers.slurm.output import STATES, SlurmOutput

__all__ = ["STATES", "Slurm"]

_OF_THE_JOB = (  # unset in a step, because srun would read them as its own options
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NNODES",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_EXCLUSIVE",
    "SLURM_THREADS_PER_CORE",
)
_JOB_ID = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
_NOT_FOR_SALLOC = frozenset({"open-mode", "no-requeue", "requeue", "output", "error", "input", "export", "export-file"})
_OWN_DEFAULTS = {"queue": "PARTITION", "account": "ACCOUNT", "qos": "QOS", "reservation": "RESERVATION"}
_OPTIONS = r"""(?x)
    (SBATCH|SALLOC)_(?!DEBUG)
    | SLURM_(CPU|MEM|GPU|TRES)_BIND$ | SLURM_(DISTRIBUTION|HINT|MPI_TYPE|NETWORK|EXPORT_ENV|EXCLUSIVE|EXACT|OVERLAP)$
    | SLURM_(NNODES|NPROCS|NTASKS|THREADS_PER_CORE|CPU_FREQ_REQ|KILL_BAD_EXIT|LABELIO|UNBUFFEREDIO|WAIT)$
    | SLURM_(NTASKS|CPUS|GPUS|MEM|TRES)_PER_\w+$ | SLURM_GPUS$ | SRUN_(CPUS_PER_TASK|EXPORT_ENV|CONTAINER)"""
_EARLY = 60  # seconds by which a warning may be early
_SPECIAL_STEPS = 4294967280  # batch, extern and interactive steps have numbers from here on (slurm_common.h)


class Slurm(
    SlurmOptions,
    SlurmOutput,
    JobArrays,
    FindJobs,
    Dependencies,
    ShellDefaults,
    SubmitAdvice,
    EndWarning,
    RequeueElsewhere,
    RequeuePacks,
    JobEndQuery,
    SurvivesNodeLoss,
    JobSteps,
    StepSignals,
    SpareNodes,
    ReplicaLaunch,
    ContainerLaunch,
    AutoDetection,
    NodeFacts,
    NodeStates,
    ClusterName,
    TaskVariables,
    MpiTasks,
    Attach,
    InteractiveShell,
    BatchScripts,
):
    """sbatch runs the script on the first node; srun starts one task per rank, whatever their number."""

    name = "slurm"
    executable = "sbatch"
    steps_share_nodes = True
    launch_executable = "srun"
    detection_order = 10
    helper_tasks = 1
    container_runtimes = ("pyxis", "edf")
    size_variable = "SLURM_STEP_NUM_TASKS"
    restart_variable = "SLURM_RESTART_COUNT"
    mpi_advice = (
        "srun --mpi=list shows the supported types (scheduler.mpi=pmi2, pmix …; of torchrun: -x mpi=pmi2, or -r tcp)"
    )

    def notes(self, request: Request) -> tuple[str, ...]:
        """sbatch(1): a signal may be sent up to 60 s early."""
        start = (request.time_limit or 0) - request.warn_before
        if not request.warn_before or request.time_limit is None or start >= _EARLY:
            return ()
        note = f"SLURM may send the warning up to {_EARLY} s early: this run may be warned at its very start"
        return (f"{note}; raise resources.time_limit or lower launch.signal_before_end",)

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(expand(env.get("SLURM_JOB_NODELIST", "")))

    def script(self, spec: JobSpec) -> str:
        request = task_request(spec.plan)
        request = replace(request, job_name=spec.name or request.job_name)
        whole = allocated(request)
        nodes = len(spec.allocation.hosts) if spec.allocation else whole.nodes
        other_nodes = range(0 if spec.attached else 1, nodes)  # those that the script does not run on
        options = self._of_salloc(whole) if spec.attached else self._of_sbatch(whole, spec)
        own = SchedulerLines(
            self.name,
            _JOB_ID,
            directives=[f"#SBATCH {directive(option)}" for option in options],
            before=[*_outlive_ranks(spec)],
            restarted='"${SLURM_RESTART_COUNT:-0}"' if spec.plan.request.max_requeues and not spec.attached else "",
            other_nodes=_on_nodes(other_nodes) if other_nodes else (),
            on_submit_host=spec.attached,
        )
        if spec.packs:
            return pack_script(spec, own, index="${SLURM_ARRAY_TASK_ID:-0}")
        return job_script(
            spec,
            own,
            launch=self.launch_command(request, attached=spec.attached),
            select='"${1:-${runs[${SLURM_ARRAY_TASK_ID:-0}]}}"',
            replica=self.replica_command(step_request(spec.plan), spec.python),
            preflight=self._preflight(preflight_request(spec.plan)) if spec.plan.preflight else (),
            chosen=self.launch_on_chosen(request, spec.python, attached=spec.attached) if request.spare_nodes else None,
        )

    def _of_sbatch(self, request: Request, spec: JobSpec) -> list[Option]:
        return override(self._for_this_job(spec), self.directives(request), request, one_of=())

    def _of_salloc(self, request: Request) -> list[Option]:
        return [option for option in self.directives(request) if option[0] not in _NOT_FOR_SALLOC]

    def launch_on_chosen(self, request: Request, python: str, *, attached: bool = False) -> ChosenNodes:
        return ChosenNodes(self.launch_command(request, attached=attached), f'"--nodelist=${CHOSEN}"')

    def job_end_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = _own_id(env)
        return ["scontrol", "show", "job", "-o", job] if job else None

    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        return ["scontrol", "requeue", _own_id(env)]

    def can_exclude(self, request: Request) -> bool:
        return "exclude" not in request.removed_args

    def exclude_command(self, env: Mapping[str, str], request: Request) -> list[str]:
        """SLURM refuses this before the job is requeued (ESLURM_JOB_NOT_PENDING)."""
        return ["scontrol", "update", f"jobid={_own_id(env)}", f"excnodelist={request.left_out or ''}"]

    def node_states_command(self, env: Mapping[str, str], hosts: Sequence[str]) -> list[str]:
        return ["sinfo", "--noheader", "--Node", f"--nodes={','.join(hosts)}", f"--format={sinfo.STATES}"]

    def parse_down(self, stdout: str) -> tuple[str, ...]:
        return sinfo.down(stdout)

    def own_cluster(self, env: Mapping[str, str]) -> str:
        return env.get("SLURM_CLUSTER_NAME", "")

    def cluster_command(self) -> list[str]:
        return ["scontrol", "show", "config"]

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[Option]]:
        """An array is named by its own id. A job whose dependency failed is cancelled instead of pending forever."""
        ids = [job[0].partition("_")[0] if len(job) > 1 else job[0] for job in jobs]
        return "afterok:" + ":".join(ids), [("kill-on-invalid-dep", "yes")]

    def step_script(self, spec: JobSpec) -> str:
        """srun in the allocation, on the given hosts, confined to the cores and GPUs that it requests."""
        request = task_request(spec.plan)
        options = [("exact", None), *self._slice(request)]
        options = override(options, self._launch_args(request), request)
        own = SchedulerLines(self.name, _JOB_ID, before=[f"unset {' '.join(_OF_THE_JOB)}"])
        return step_script(spec, own, launch=["srun", *words(options)], last='"--nodelist=${2-}"')

    def _for_this_job(self, spec: JobSpec) -> Iterator[Option]:
        logs = str(spec.log)
        if "\\" in logs:
            raise PlanError("sbatch does not support paths with a backslash", where=logs, fix="hydra.sweep.dir=PATH")
        one_line(logs, "hydra.sweep.dir")
        pattern = f"{logs}/{spec.key}".replace("%", "%%")
        if spec.elements > 1:
            yield "array", f"0-{spec.elements - 1}{self._throttle(spec.plan.request)}"
            yield "output", f"{pattern}.%A_%a.log"
        else:
            yield "output", f"{pattern}.%j.log"
        yield "comment", spec.tag

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["sbatch", "--parsable", str(script)]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """salloc runs the script on this machine, whose srun starts the ranks; within an allocation srun is enough."""
        request = allocated(task_request(spec.plan))
        nodes = env.get("SLURM_JOB_NUM_NODES") if env.get("SLURM_JOB_ID") else None
        if nodes is not None:
            if nodes.isdigit():
                check_surrounding(task_request(spec.plan), env["SLURM_JOB_ID"], int(nodes))
            return ["bash", str(script)]
        return ["salloc", *words(self._of_salloc(request)), "bash", str(script)]

    def attach_notes(self, request: Request) -> tuple[str, ...]:
        left_out = [f"--{name}" for name, _ in request.submit_args if name in _NOT_FOR_SALLOC]
        if not left_out:
            return ()
        have = "have" if len(left_out) > 1 else "has"
        why = "salloc does not have it; launch.bg=true submits with sbatch"
        return (f"{', '.join(left_out)} {have} no effect on a run at this console: {why}",)

    def trial_command(self, script: Path, spec: JobSpec) -> list[str]:
        """salloc has no --test-only; sbatch writes the same messages."""
        request = allocated(task_request(spec.plan))
        return ["sbatch", "--test-only", *words(self._of_salloc(request)), str(script)]

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """A step with a terminal in an allocation; other steps can use its resources, too (--overlap)."""
        attach, request = self.attach_command(script, spec, env), task_request(spec.plan)
        step = [("nodes", "1"), ("ntasks", "1"), ("overlap", None), ("pty", None), ("export", "ALL")]
        if request.cpus_per_proc is not None:
            step.append(("cpus-per-task", str(request.cpus_per_proc)))
        options, _ = container.around(spec)
        return [*attach[:-2], "srun", *words(step), *options, "bash", str(script)]

    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str]:
        waits: list[Option] = [("wait", None)] if attached else []
        own = [*waits, *([("job-name", name)] if name else []), *options]
        return ["sbatch", "--parsable", *words(own), str(script), *args]

    def state_command(self, id_: str) -> list[str]:
        return ["scontrol", "show", "job", id_]

    def output_command(self, id_: str) -> list[str]:
        return ["scontrol", "show", "job", "-o", id_]

    def inherited_variables(self, request: Request) -> frozenset[str]:
        unset = request.account is None and "account" not in request.removed_args
        return frozenset({"SBATCH_ACCOUNT"} if unset else ())  # the user's own default

    def default_variables(self, *, attached: bool) -> Mapping[str, str]:
        """sbatch.html, salloc.html, "INPUT ENVIRONMENT VARIABLES"."""
        command = "SALLOC" if attached else "SBATCH"
        return {key: f"{command}_{word}" for key, word in _OWN_DEFAULTS.items()}

    def ignored_variables(self, env: Mapping[str, str], *, attached: bool) -> list[str]:
        """Inside a job, its own variables are not the user's."""
        inside = bool(env.get("SLURM_JOB_ID"))
        options = re.compile(r"(SALLOC|SBATCH)_(?!(CPU|MEM)_BIND|DEBUG)" if inside else _OPTIONS)
        other = "SBATCH_" if attached else "SALLOC_"
        return sorted(name for name in env if options.match(name) and not name.startswith(other))

    def step_environment(self, env: Mapping[str, str], request: Request, allocation: Allocation) -> dict[str, str]:
        """SLURM_* from which srun takes its defaults in the step; the outer job's own are dropped.

        srun.html, "INPUT ENVIRONMENT VARIABLES".
        """
        memory = str(request.mem_per_node or 0)  # 0: with the other steps, all that the job has
        new = {"SLURM_JOB_ID": allocation.job_id, "SLURM_EXACT": "1", "SLURM_MEM_PER_NODE": memory}
        if any(allocation.gpus) and request.gpu_request not in ("none", "gpus-per-task"):
            gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
            new |= {"SLURM_GPUS_PER_NODE": str(gpus)} if gpus else {"SLURM_STEP_GRES": "none"}
        step = env.get("SLURM_STEP_ID", "")
        if step.isdigit() and int(step) < _SPECIAL_STEPS:  # in a shell of srun --pty, which holds all resources
            new["SLURM_OVERLAP"] = "1"
        return cleaned(env) | new

    def rank_info(self, env: Mapping[str, str]) -> RankInfo | None:
        return ranks.rank_info(env)

    def cpus_of_tasks(self, env: Mapping[str, str]) -> list[list[int]]:
        return ranks.cpus_of_tasks(env)

    def gpus_of_task(self, env: Mapping[str, str]) -> str:
        return ranks.gpus_of_task(env)

    def array_id(self, env: Mapping[str, str]) -> str:
        return ranks.array_id(env)

    def answer_command(self) -> Sequence[str]:
        return ("scontrol", "ping")

    def answers(self, stdout: str) -> bool:
        return re.search(r"\bis UP\b", stdout) is not None

    def is_disabled(self, env: Mapping[str, str]) -> bool:
        return env.get("SLURM_CONF") == os.devnull

    def nodes_command(self) -> Sequence[str]:
        return sinfo.COMMAND

    def node_facts(self, stdout: str, queue: str | None, *, with_gpus: bool) -> Mapping[str, Any]:
        return sinfo.facts(sinfo.parse(stdout), queue, with_gpus=with_gpus)

    def largest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        return sinfo.largest(sinfo.parse(stdout), queue)

    def longest_queue(self, stdout: str, queue: str | None) -> tuple[str, int] | None:
        return sinfo.longest(sinfo.parse(stdout), queue)

    def takes_less_time(self, request: Request) -> bool:
        return any(self.options.canonical(name) == "time-min" for name, _ in request.submit_args)

    def listed_queues(self, stdout: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind.partition for kind in sinfo.parse(stdout)))

    def mpiexec_environment(self, procs_per_node: int, cpus_per_proc: int | None) -> dict[str, str]:
        """srun starts one process of mpiexec per node, which gets the cores of all ranks there."""
        if cpus_per_proc:
            return {"SRUN_CPUS_PER_TASK": str(procs_per_node * cpus_per_proc)}
        return {"SLURM_CPU_BIND": "none"}


def _own_id(env: Mapping[str, str]) -> str:
    """Return the id of the surrounding job. SLURM_JOB_ID alone could be ambiguous: one element has the array's id."""
    array, element = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else env.get("SLURM_JOB_ID", "")


def _outlive_ranks(spec: JobSpec) -> Iterator[str]:
    """Keep the script alive after its ranks, so that it can name lost nodes and requeue; limit SLURM's own requeues."""
    most = spec.plan.request.max_requeues
    if spec.attached:
        return
    # replica groups name their own losses; stopped with the job, they would try to restart, and fail
    if not spec.packs and (most or (spec.plan.request.nodes > 1 and not spec.plan.rendezvous.has_replicas)):
        yield "trap : TERM  # SLURM signals the ranks too: wait for them, then report how they ended"
    if most:
        yield f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ] || scontrol update "jobid={_JOB_ID}" requeue=0'


def _on_nodes(nodes: range) -> list[str]:
    options = [
        ("nodes", str(len(nodes))),
        ("ntasks", str(len(nodes))),
        ("ntasks-per-node", "1"),
        ("relative", str(nodes.start)),
        ("overlap", None),
        ("input", "none"),
        ("export", "ALL"),
    ]
    return ["srun", *words(options)]
