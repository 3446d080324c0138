"""SLURM: sbatch and srun. Options as of 22.05 to 25.05; slurm.schedmd.com/sbatch.html, srun.html, squeue.html.

Pure: no command is run here. Must not know: submitit, the launcher, the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hpc_hydra.errors import PlanError, SchedulerError
from hpc_hydra.planning.options import SPELLINGS
from hpc_hydra.planning.types import RankInfo, Request
from hpc_hydra.scheduler import container
from hpc_hydra.scheduler.base import Allocation, Dialect, JobSpec, JobStatus, Refusal, Standing, State
from hpc_hydra.scheduler.environment import cleaned
from hpc_hydra.scheduler.hostlist import counts, expand
from hpc_hydra.scheduler.options import Option, canonical, merge, one_line
from hpc_hydra.scheduler.shell import job_script, pack_script, step_script
from hpc_hydra.scheduler.slurm_reasons import in_words, never_starts

GPU_REQUESTS = ("gpus-per-node", "gpus-per-task", "gres", "none")
"""Spellings of GPUs. `gpus-per-node` shows each rank all GPUs of its share of the node: LOCAL_RANK chooses, and NCCL
can use peer-to-peer transport. `gpus-per-task` shows each rank its own only."""

ALIASES = SPELLINGS["slurm"].short
_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"})  # and gres=gpu:N
_ONE_OF = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"exclusive", "oversubscribe"},
    {"requeue", "no-requeue"},
)
_REFUSED = {  # options that change what is submitted, or what the commands print, with what to do instead
    "array": "a sweep: key=1,2,3",
    "help": "man sbatch",
    "multi-prog": "hpc-hydra run -- COMMAND",
    "parsable": "leave it out: it is always there",
    "pty": "salloc, then srun --pty",
    "test-only": "launch.dry_run=true",
    "usage": "man sbatch",
    "version": "sbatch --version",
    "wrap": "hpc-hydra run -- COMMAND",
}
_REFUSED_BY_SBATCH = _REFUSED | {"wait": "scheduler.launch_extra.wait for srun; the launcher waits by itself"}

_OF_THE_JOB = (  # what srun would take for options of a step
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
_NOT_FOR_SALLOC = frozenset({"open-mode", "no-requeue", "requeue", "output", "error", "input", "export", "export-file"})

STATES = {
    "PENDING": State.PENDING,
    "CONFIGURING": State.PENDING,  # nodes are being booted
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,  # requeued and held
    "POWER_UP_NODE": State.PENDING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "UPDATE_DB": State.RUNNING,
    "EXPEDITING": State.PENDING,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "BOOT_FAIL": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "NODE_FAIL": State.FAILED,
    "OUT_OF_MEMORY": State.FAILED,
    "PREEMPTED": State.FAILED,
    "RECONFIG_FAIL": State.FAILED,
    "CANCELLED": State.CANCELLED,
    "REVOKED": State.CANCELLED,  # another cluster of the federation runs it
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
}

_SPECIAL_STEPS = 4294967280  # batch, extern and interactive steps have numbers from here on (slurm_common.h)
_LIMIT = re.compile(r"\b(QOS|Assoc)\w*Submit\w*|job submit limit|Resource temporarily unavailable", re.IGNORECASE)
_TRANSIENT = re.compile(
    r"timed out|Unable to contact|Zero Bytes were transmitted|Connection (refused|reset)|standby mode|try again"
    r"|Communication connection failure|Transport endpoint|temporarily unable|Unexpected message received"
    r"|Temporary failure in name resolution|Broken pipe",
    re.IGNORECASE,
)
_PERMANENT = re.compile(r"\b(QOS|Assoc)(Max|Min|Grp)(?!\w*Submit)\w+")
_SBATCH_SAYS = re.compile(r"^sbatch: (error: )?(Batch job submission failed: )?")
_NO_PARTITION = re.compile(r"invalid partition specified|Invalid partition name", re.IGNORECASE)
_SQUEUE = "JobArrayID:|,State:|,exit_code:|,StartTime:|,Reason:"
_SACCT = "JobID,State,ExitCode,Start,Reason"


class SlurmDialect(Dialect):
    """sbatch runs the script on the first node; srun starts one task per rank, whatever their number."""

    name = "slurm"
    program = "sbatch"
    has_arrays = True
    can_pack = True
    can_warn = True
    can_requeue = True
    can_lose_nodes = True
    steps_side_by_side = True
    kills_ranks = "srun"

    def check(self, request: Request) -> None:
        self.check_warning(request)
        for name, value in request.submit_args:
            self._check_option(name, value, request, _REFUSED_BY_SBATCH)
        for name, value in request.launch_args:
            self._check_option(name, value, request, _REFUSED)
        self.directives(request)
        self.launch(request)
        self._throttle(request)

    @staticmethod
    def _check_option(name: str, value: str | None, request: Request, refused: Mapping[str, str]) -> None:
        option, key = canonical(name, ALIASES), f"scheduler.extra.{name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", option):
            raise PlanError(f"{name!r} is no option of sbatch or srun", where="scheduler.extra")
        if option in refused:
            raise PlanError(f"--{option} cannot be set", where=key, fix=refused[option])
        if value is not None:
            one_line(value, key)
        size = {
            "nodes": ("resources.nodes", request.nodes),
            "ntasks": ("resources.nodes", request.world_size),
            "ntasks-per-node": ("resources.procs_per_node", (request.allocation or (request.procs_per_node,))[0]),
        }
        if option in size and value != str(size[option][1]):
            raise PlanError(
                f"--{option}={value} contradicts the size of the job, which is {size[option][1]}",
                where=key,
                fix=f"{size[option][0]}=NUMBER instead",
            )

    def directives(self, request: Request) -> list[Option]:
        return merge(
            self._stated(request),
            request.submit_args,
            request.removed_args,
            aliases=ALIASES,
            exclusive=_ONE_OF,
        )

    def _stated(self, request: Request) -> Iterator[Option]:
        yield "job-name", one_line(request.job_name, "scheduler.job_name")
        yield "nodes", str(request.nodes)
        tasks, cpus = request.allocation or (request.procs_per_node, request.cpus_per_proc)
        yield "ntasks-per-node", str(tasks)
        if cpus is not None:
            yield "cpus-per-task", str(cpus)
        yield from self._gpus(request)
        if request.mem_per_node is not None:
            yield "mem", f"{request.mem_per_node}M" if request.mem_per_node else "0"
        if request.time_limit is not None:
            yield "time", time_limit(request.time_limit)
        if request.exclusive:
            yield "exclusive", None
        for option, key, value in (
            ("partition", "queue", request.queue),
            ("account", "account", request.account),
            ("qos", "qos", request.qos),
            ("reservation", "reservation", request.reservation),
            ("dependency", "dependency", request.dependency),
            ("constraint", "constraint", request.constraint),
            ("nodelist", "nodelist", request.nodelist),
            ("exclude", "exclude", request.exclude),
            ("mail-type", "mail_type", request.mail_type),
            ("mail-user", "mail_user", request.mail_user),
            ("comment", "comment", request.comment),
        ):
            if value is not None:
                yield option, one_line(value, f"scheduler.{key}")
        yield "open-mode", "append"
        yield "requeue" if request.max_requeues else "no-requeue", None
        if request.warning is not None:
            yield "signal", request.warning  # without B: to the steps, not the script
        if request.no_kill:
            yield "no-kill", None

    def _gpus(self, request: Request) -> Iterator[Option]:
        """GPUs in the one spelling of the system; none of ours where the user gives another."""
        spelling = request.gpu_request or GPU_REQUESTS[0]
        if spelling not in GPU_REQUESTS:
            raise PlanError(
                f"{spelling!r} is no way to ask for GPUs", where="system.gpu_request", fix=" | ".join(GPU_REQUESTS)
            )
        given = {canonical(name, ALIASES): value or "" for name, value in (*request.submit_args, *request.launch_args)}
        if not request.gpus_per_proc or spelling == "none":
            return
        per_node = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
        if request.shared_gpus and spelling == "gpus-per-task":
            raise PlanError(
                "ranks that share GPUs cannot each ask for some",
                where="resources.oversubscribe",
                fix="system.gpu_request=gpus-per-node",
            )
        other = given.pop("gres", None)
        if given.keys() & _GPUS or (other is not None and "gpu" in other):
            return
        if other is not None and spelling == "gres":
            raise PlanError(
                f"gres={other} would replace the {per_node} GPUs of a node",
                where="scheduler.extra.gres",
                fix=f"scheduler.extra.gres='gpu:{per_node},{other}'",
            )
        if spelling == "gres":
            yield "gres", f"gpu:{per_node}"
        else:
            yield spelling, str(per_node if spelling == "gpus-per-node" else request.gpus_per_proc)

    def launch(self, request: Request, *, attached: bool = False) -> list[str]:
        given = [
            (name, value) for name, value in request.launch_args if not self._for_sbatch_only(name, value, request)
        ]
        step = [*self._step(request)]
        if attached:  # else the first Ctrl-C only shows the state of the tasks
            step.append(("quit-on-interrupt", None))
        options = merge(step, given, request.removed_args, aliases=ALIASES, exclusive=_ONE_OF)
        return ["srun", *map(_flag, options)]

    def launch_replica(self, request: Request) -> list[str]:
        """A step that overlaps with the others: the agents in it share out the cores and GPUs of their nodes."""
        places = {"nodes": "{nodes}", "ntasks": "{nodes}"}
        options = [(name, places.get(name, value)) for name, value in self._step(request)]
        given = [
            (name, value) for name, value in request.launch_args if not self._for_sbatch_only(name, value, request)
        ]
        merged = merge(
            [*options, ("nodelist", "{hosts}"), ("overlap", None), ("input", "none")],
            given, request.removed_args, aliases=ALIASES, exclusive=_ONE_OF,
        )  # fmt: skip
        return ["srun", *map(_flag, merged)]

    def hosts(self, env: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(expand(env.get("SLURM_JOB_NODELIST", "")))

    def _step(self, request: Request) -> Iterator[Option]:
        yield "nodes", str(request.nodes)
        yield "ntasks", str(request.world_size)
        yield "ntasks-per-node", str(request.procs_per_node)
        if request.cpus_per_proc is not None:  # not inherited from sbatch since 22.05
            yield "cpus-per-task", str(request.cpus_per_proc)
        if request.gpu_request == "gpus-per-task":  # else the step has what the job has, and confines no rank
            yield from self._gpus(request)
        yield "kill-on-bad-exit", "0" if request.step_goes_on else "1"
        if request.step_goes_on:
            yield "no-kill", None
        yield "wait", "0"  # a rank that ended well may wait for slow ones, whatever the site's default is
        yield "export", "ALL"  # also where the job was submitted with --export=NONE
        for option, key, value in (
            ("mpi", "scheduler.mpi", request.mpi),
            ("gpu-bind", "system.gpu_bind", request.gpu_bind),
            ("cpu-bind", "system.cpu_bind", request.cpu_bind),
        ):
            if value is not None:
                yield option, one_line(value, key)

    @staticmethod
    def _for_sbatch_only(name: str, value: str | None, request: Request) -> bool:
        """`export`, given for both commands, is about what the job inherits; the ranks get what the script exports."""
        if canonical(name, ALIASES) != "export" or (value or "").split(",")[0] == "ALL":
            return False
        if any(canonical(other, ALIASES) == "export" and its == value for other, its in request.submit_args):
            return True
        raise PlanError(
            f"srun --export={value} would keep the job's environment from the ranks",
            where="scheduler.launch_extra.export",
            fix="launch.env.NAME=VALUE, or scheduler.submit_extra.export for sbatch",
        )

    def script(self, spec: JobSpec) -> str:
        request = spec.plan.tasks
        further = range(
            0 if spec.attached else 1, len(spec.held.hosts) if spec.held else request.nodes
        )  # nodes that the script itself does not run on
        elsewhere = _once_on_each_node(further) if further else ()
        job_id = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
        options = merge(self._for_this_job(spec), self.directives(request), request.removed_args, aliases=ALIASES)
        directives = [f"#SBATCH {_directive(option)}" for option in options]
        if spec.packs:
            return pack_script(
                spec,
                scheduler=self.name,
                directives=directives,
                index="${SLURM_ARRAY_TASK_ID:-0}",
                job_id=job_id,
                other_nodes=elsewhere,
                workdir="chdir" not in dict(options),
            )
        return job_script(
            spec,
            scheduler=self.name,
            directives=directives,
            launch=self.launch(request, attached=spec.attached),
            select='"${1:-${runs[${SLURM_ARRAY_TASK_ID:-0}]}}"',
            job_id=job_id,
            replica=self.launch_replica(spec.plan.step),
            other_nodes=elsewhere,
            before=_before_requeues(spec, job_id),
            workdir="chdir" not in dict(options),
        )

    def restarts(self, env: Mapping[str, str]) -> int:
        count = env.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdigit() else 0

    def standing_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = _own_id(env)
        return ["scontrol", "show", "job", "-o", job] if job else None

    def parse_standing(self, stdout: str) -> Standing | None:
        """While its script runs, a job that was cancelled and one that reached its limit are both COMPLETING."""
        fields = dict(word.split("=", 1) for word in stdout.split() if "=" in word)
        if "JobState" not in fields:
            return None
        return Standing(
            fields["JobState"] == "RUNNING",
            reached_limit=fields.get("Reason") == "TimeLimit",
            is_preempted=fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"),
        )

    def requeue_command(self, env: Mapping[str, str]) -> list[str]:
        return ["scontrol", "requeue", _own_id(env)]

    def after(self, jobs: Sequence[tuple[str, ...]]) -> tuple[str, list[Option]]:
        """A whole array by its own id; what waits for something that failed is cancelled, not kept for ever."""
        ids = [job[0].partition("_")[0] if len(job) > 1 else job[0] for job in jobs]
        return "afterok:" + ":".join(ids), [("kill-on-invalid-dep", "yes")]

    def step_script(self, spec: JobSpec) -> str:
        """srun in the allocation, on the hosts that it is told, confined to the cores and GPUs it asks for."""
        request = spec.plan.tasks
        options = [("exact", None), *self._slice(request)]
        given = [pair for pair in request.launch_args if not self._for_sbatch_only(*pair, request)]
        options = merge(options, given, request.removed_args, aliases=ALIASES, exclusive=_ONE_OF)
        return step_script(
            spec,
            scheduler=self.name,
            launch=["srun", *map(_flag, options)],
            last='"--nodelist=${2-}"',
            job_id="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
            before=(f"unset {' '.join(_OF_THE_JOB)}",),
        )

    def _slice(self, request: Request) -> Iterator[Option]:
        """The options of a step, and what it takes of the allocation: without, the first step would take it all."""
        stated = dict(self._step(request))
        yield from stated.items()
        if "gpus-per-task" not in stated:
            yield from list(self._gpus(request)) or [("gres", "none")]
        # 0: memory is not counted, and the step may use what the allocation has
        yield "mem", f"{request.mem_per_node}M" if request.mem_per_node else "0"

    def _for_this_job(self, spec: JobSpec) -> Iterator[Option]:
        logs = str(spec.log)
        if "\\" in logs:
            raise PlanError("sbatch cannot write to a path with a backslash", where=logs, fix="hydra.sweep.dir=PATH")
        one_line(logs, "hydra.sweep.dir")
        pattern = f"{logs}/{spec.key}".replace("%", "%%")
        if spec.elements > 1:
            yield "array", f"0-{spec.elements - 1}{self._throttle(spec.plan.request)}"
            yield "output", f"{pattern}.%A_%a.log"
        else:
            yield "output", f"{pattern}.%j.log"
        yield "comment", spec.tag

    @staticmethod
    def _throttle(request: Request) -> str:
        if request.array_parallelism is None:
            return ""
        if request.array_parallelism < 1:
            raise PlanError(f"{request.array_parallelism} jobs at a time", where="scheduler.array_parallelism", fix="1")
        return f"%{request.array_parallelism}"

    def submit_command(self, script: Path, spec: JobSpec) -> list[str]:
        return ["sbatch", "--parsable", str(script)]

    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """salloc runs the script here, and its srun on the nodes; within an allocation srun is a step of that one."""
        request = spec.plan.tasks
        held = env.get("SLURM_JOB_NUM_NODES") if env.get("SLURM_JOB_ID") else None
        if held is not None:
            if held.isdigit() and int(held) < request.nodes:
                raise PlanError(
                    f"{request.nodes} nodes, but the allocation {env['SLURM_JOB_ID']} that this is in has {held}",
                    where="resources.nodes",
                    fix=f"resources.nodes={held} or less, or launch.bg=true for a job of its own",
                )
            return ["bash", str(script)]
        options = [option for option in self.directives(request) if option[0] not in _NOT_FOR_SALLOC]
        return ["salloc", *map(_flag, options), "bash", str(script)]

    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """An allocation and in it a step with a terminal, which leaves its resources to further steps (--overlap)."""
        attach, request = self.attach_command(script, spec, env), spec.plan.tasks
        step = [("nodes", "1"), ("ntasks", "1"), ("overlap", None), ("pty", None), ("export", "ALL")]
        if request.cpus_per_proc is not None:
            step.append(("cpus-per-task", str(request.cpus_per_proc)))
        options, _ = container.around(spec)
        return [*attach[:-2], "srun", *map(_flag, step), *options, "bash", str(script)]

    def batch_command(self, script: Path, args: Sequence[str], request: Request, *, attached: bool) -> list[str]:
        options = self.directives(request)
        if attached:
            kept = [option for option in options if option[0] not in _NOT_FOR_SALLOC]
            return ["salloc", *map(_flag, kept), "bash", str(script), *args]
        return ["sbatch", "--parsable", *map(_flag, options), str(script), *args]

    def parse_ids(self, stdout: str, spec: JobSpec) -> tuple[str, ...]:
        """The last line that is an id (a site may print a banner), with ``;cluster`` where there are several."""
        lines = [line.strip() for line in stdout.splitlines()]
        found = [match[1] for line in lines if (match := re.fullmatch(r"(\d+)(;\S+)?", line))]
        found = found or re.findall(r"^\s*Submitted batch job (\d+)", stdout, re.MULTILINE)
        if not found:
            raise SchedulerError(f"sbatch gave no job id, it said: {stdout.strip() or '(nothing)'}", where="sbatch")
        return self._ids(found[-1], spec)

    @staticmethod
    def _ids(job: str, spec: JobSpec) -> tuple[str, ...]:
        return tuple(f"{job}_{i}" for i in range(spec.elements)) if spec.elements > 1 else (job,)

    def array_limit_command(self) -> list[str]:
        return ["scontrol", "show", "config"]

    def parse_array_limit(self, stdout: str) -> int | None:
        """MaxArraySize is one more than the largest index, and ours begin with 0 (slurm.conf)."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", stdout, re.MULTILINE)
        return int(found[1]) or None if found else None

    def classify(self, message: str) -> Refusal:
        if _PERMANENT.search(message):
            return "permanent"
        if _LIMIT.search(message):
            return "limit"
        return "transient" if _TRANSIENT.search(message) else "permanent"

    def refusal(self, message: str) -> str:
        said = [
            re.sub(r"^sbatch: (error: )?(Batch job submission failed: )?", "", line) for line in message.splitlines()
        ]
        first = said[0] if said else message
        return first if _NO_PARTITION.match(first) else "; ".join(dict.fromkeys(filter(None, said)))

    def advice_command(self, message: str) -> list[str] | None:
        return ["sinfo", "--noheader", "--format=%R"] if _NO_PARTITION.search(message) else None

    def parse_advice(self, stdout: str) -> str | None:
        names = list(dict.fromkeys(stdout.split()))
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more (sinfo)" if len(names) > 12 else "")
        return f"scheduler.queue=NAME, the partitions are {shown}" if names else None

    def keeps(self, request: Request) -> frozenset[str]:
        return frozenset({"SBATCH_ACCOUNT"} if request.account is None else ())  # a person's own default

    def find_command(self, spec: JobSpec) -> list[str]:
        return ["squeue", "--noheader", "--me", "--states=all", "--format=%F|%k|%o"]

    def parse_found(self, stdout: str, spec: JobSpec, script: Path) -> tuple[str, ...]:
        """By the tag, which is the comment; where the comment is the user's, by the script's path."""
        for line in stdout.splitlines():
            job, _, rest = line.partition("|")
            ours = rest.startswith(f"{spec.tag}|") or (spec.plan.request.comment and rest.endswith(f"|{script}"))
            if job.strip().isdigit() and ours:
                return self._ids(job.strip(), spec)
        return ()

    def status_commands(self, ids: Sequence[str]) -> list[list[str]]:
        """squeue knows waiting, running and lately ended jobs, without accounting; sacct all of the past."""
        jobs = ",".join(dict.fromkeys(job.partition("_")[0] for job in ids))
        squeue = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}", f"--Format={_SQUEUE}"]
        sacct = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={jobs}", f"--format={_SACCT}"]
        return [squeue, sacct]

    def parse_status(self, command: Sequence[str], stdout: str) -> dict[str, JobStatus]:
        found: dict[str, JobStatus] = {}
        for line in stdout.splitlines():
            fields = [field.strip() for field in line.split("|", 4)]
            if len(fields) < 5 or not fields[0][:1].isdigit():
                continue
            job, native, code, start, reason = fields
            words = native.split()  # "CANCELLED by 1000"
            native = words[0].rstrip("+") if words else ""
            state = STATES.get(native, State.UNKNOWN)
            exit_code, signal = _exit(code) if state.is_finished else (None, None)
            if state is State.CANCELLED and exit_code == 0:  # it has none
                exit_code = None
            reason = "" if reason in ("None", "(null)") else reason
            if state is State.PENDING or (state is State.CANCELLED and reason == "DependencyNeverSatisfied"):
                reason = in_words(reason)
            elif state is State.CANCELLED and in_words(reason) != reason:  # why it waited before
                reason = ""
            never = state is State.PENDING and never_starts(reason)
            status = JobStatus(state, native, exit_code, signal, reason, _time(start), never)
            found.update(dict.fromkeys(_elements(job), status))
        return found

    def status_of(self, job: str, said: Mapping[str, JobStatus]) -> JobStatus | None:
        """Elements of an array that ended before they began are told of by the array's own id, and only so."""
        array = said.get(job.partition("_")[0])
        return said.get(job) or (array if array and array.state.is_finished else None)

    def is_unknown_job(self, message: str) -> bool:
        return "Invalid job id specified" in message

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        elements: dict[str, list[int]] = {}
        for job, _, index in (text.partition("_") for text in ids):
            elements.setdefault(job, []).extend([int(index)] if index else [])
        return ["scancel", *(f"{job}_[{_ranges(i)}]" if i else job for job, i in elements.items())]

    def allocation_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("SLURM_JOB_ID", "")
        return ["scontrol", "show", "job", "-o", job] if job.isdigit() else None

    def parse_allocation(self, stdout: str, env: Mapping[str, str]) -> Allocation | None:
        """From ``scontrol show job``; cores of each node as salloc says them, else in equal parts."""
        fields = dict(word.split("=", 1) for word in stdout.split() if "=" in word)
        if fields.get("JobState") != "RUNNING":
            return None
        hosts = expand(fields["NodeList"])
        total = int(fields["NumCPUs"])
        try:
            slots = counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
        except ValueError:
            slots = ()
        if len(slots) != len(hosts) or sum(slots) != total:
            slots = (total // len(hosts),) * len(hosts)
        gpus = re.search(r"\bgres/gpu=(\d+)", fields.get("TRES", "") + fields.get("AllocTRES", ""))
        each = int(gpus[1]) // len(hosts) if gpus else 0
        return Allocation(env["SLURM_JOB_ID"], hosts, slots, (each,) * len(hosts))

    def step_environment(self, env: Mapping[str, str], request: Request, held: Allocation) -> dict[str, str]:
        """srun takes these for options (srun.html, "INPUT ENVIRONMENT VARIABLES"). What else the outer job, or the
        step that this is in, says about itself is left out: it would be taken for options, too."""
        memory = str(request.mem_per_node or 0)  # 0: with the other steps, all that the job has
        new = {"SLURM_JOB_ID": held.job_id, "SLURM_EXACT": "1", "SLURM_MEM_PER_NODE": memory}
        if any(held.gpus) and request.gpu_request not in ("none", "gpus-per-task"):
            gpus = request.shared_gpus or request.procs_per_node * request.gpus_per_proc
            new |= {"SLURM_GPUS_PER_NODE": str(gpus)} if gpus else {"SLURM_STEP_GRES": "none"}
        step = env.get("SLURM_STEP_ID", "")
        if step.isdigit() and int(step) < _SPECIAL_STEPS:  # a shell of srun --pty holds all, and shares it
            new["SLURM_OVERLAP"] = "1"
        return cleaned(env) | new

    def steps_command(self, env: Mapping[str, str]) -> list[str] | None:
        job = env.get("SLURM_JOB_ID", "")
        return ["scontrol", "show", "step", "-o", job] if job.isdigit() else None

    def parse_steps(self, stdout: str) -> dict[tuple[str, int], str]:
        found = {}
        for part in re.split(r"(?=\bStepId=)", stdout):
            step, place = re.search(r"\bStepId=(\S+)", part), re.search(r"\bSrunHost:Pid=(\S+):(\d+)", part)
            if step and place:
                found[place[1].partition(".")[0], int(place[2])] = step[1]
        return found

    def warn_steps_command(self, steps: Sequence[str]) -> list[str]:
        return ["scancel", "--signal=TERM", *steps]

    def identity(self, env: Mapping[str, str]) -> RankInfo | None:
        from hpc_hydra.scheduler.slurm_ranks import identity

        return identity(env)


def _own_id(env: Mapping[str, str]) -> str:
    """Of a job's own script: an element by its array, as the last element's id is also that of the whole array."""
    array, element = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else env.get("SLURM_JOB_ID", "")


def _before_requeues(spec: JobSpec, job_id: str) -> Iterator[str]:
    """The script outlives its ranks, to requeue the job; SLURM itself requeues a preempted one, but not for ever."""
    most = spec.plan.request.max_requeues
    if most and not spec.attached:
        yield "trap : TERM  # SLURM tells the ranks too: wait for them, then say how they ended"
        yield f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ] || scontrol update "jobid={job_id}" requeue=0'


def time_limit(seconds: int) -> str:
    """``[D-]HH:MM:00``, rounded up to the minute, SLURM's resolution. Raises `PlanError` for less than a second."""
    if seconds < 1:
        raise PlanError(
            f"{seconds} s is no time limit (0 would be none at all)", where="resources.time_limit", fix="1h"
        )
    minutes = -(-seconds // 60)
    days, minutes = divmod(minutes, 24 * 60)
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def _once_on_each_node(nodes: range) -> list[str]:
    options = [
        ("nodes", str(len(nodes))),
        ("ntasks", str(len(nodes))),
        ("ntasks-per-node", "1"),
        ("relative", str(nodes.start)),
        ("overlap", None),
        ("input", "none"),
        ("export", "ALL"),
    ]
    return ["srun", *map(_flag, options)]


def _flag(option: Option) -> str:
    name, value = option
    return f"--{name}" if value is None else f"--{name}={value}"


def _directive(option: Option) -> str:
    """For a #SBATCH line: sbatch takes a backslash for an escape in either kind of quotes."""
    text = _flag(option)
    if re.fullmatch(r"[\w@%+=:,./\[\]-]*", text, re.ASCII):
        return text
    name, _, value = text.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _exit(text: str) -> tuple[int | None, int | None]:
    """Exit code (128+n for signal n) and signal, from sacct's ``7:0`` and ``0:9`` or squeue's wait status.

    sacct takes 128 off a code above 127 (255 is ``127:0``), which cannot be undone; squeue, asked first, does not.
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        code, signal = int(match[1]), int(match[2])
    elif text.isdigit():
        code, signal = int(text) >> 8, int(text) & 0x7F
    else:
        return None, None
    return (128 + signal, signal) if signal else (code, None)


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A, Unknown, None
        return None


def _elements(job: str) -> tuple[str, ...]:
    """``5_[0-2,4%2]`` are four elements."""
    try:
        return expand(re.sub(r"%\d+\]", "]", job)) if "[" in job else (job,)
    except ValueError:
        return (job,)


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in parts)
