"""Names of the files in a sweep directory. Pure.

<sweep>/multirun.yaml                      Hydra's own record of the command line
<sweep>/.hpc_hydra/manifest.jsonl          append-only: intended and completed submissions, cancellations …
<sweep>/.hpc_hydra/plans.json              every distinct Plan, by key
<sweep>/.hpc_hydra/runs.jsonl              one line a run: number, plan, base, overrides
<sweep>/.hpc_hydra/bases.pkl               one composed, unresolved config per distinct set of group choices
<sweep>/.hpc_hydra/program.json            how the user's program was started (script or module, cwd, sys.path …)
<sweep>/.hpc_hydra/task.pkl                only for functions without a program to start again (notebooks, closures)
<sweep>/.hpc_hydra/launched.json           commit, packages, command line; launched.diff: uncommitted changes
<sweep>/.hpc_hydra/code/                   only with launch.snapshot: the code that the jobs import
<sweep>/.hpc_hydra/jobs/<job>.sh           the job script of a group of runs
<sweep>/.hpc_hydra/jobs/<job>.<id>.log     output of the scheduler and the batch shell
<sweep>/.hpc_hydra/jobs/<job>.<plan>.toml  only with container=edf: the description of the container
<sweep>/.hpc_hydra/ended/<machine>.jsonl   outcomes of many runs in one file, to read fewer files
<sweep>/.hpc_hydra/bad_nodes/<host>.jsonl  nodes that failed a run (records/bad_nodes)
<sweep>/.hpc_hydra/console_input.json      only while a run is attached to a console: where rank 0 gets its input
<sweep>/.hpc_hydra/lib/                    only with a container: a copy of this package for the ranks
<sweep>/.hpc_hydra/jobs/<job>.pack.json    packed runs: the runs of each allocation, and the resources of each run
<sweep>/.hpc_hydra/jobs/<job>.<plan>.sh    packed runs: the script of one run, in its part of the allocation
<sweep>/.hpc_hydra/jobs/<job>.<id>.pack.jsonl    packed runs: one line for each start and end of a run
<sweep>/.hpc_hydra/jobs/<job>.<id>.asked   name of the successor job, written before it is submitted
<sweep>/.hpc_hydra/jobs/<job>.<id>.next    id of the successor job (launch.max_requeues, by resubmission)
<sweep>/.hpc_hydra/jobs/<job>.cancel       packed runs to cancel, one number per line
<sweep>/<subdir of a run>/                 written once the run starts:
    .hydra/  <task>.log                    Hydra's output, written by rank 0
    outcome.json                           how the run ended (authoritative)
    result.pkl                             a return value that is not JSON
    metrics.jsonl                          metrics logged during training (records/metrics)
    hpc_launcher_hostlist.txt              hosts of the run, one per line (logging.save_hostlist)
    logs/<attempt>/rank_<r>.log            output of each rank
    logs/<attempt>/step.log                packed runs: output of the launch command
    logs/<attempt>/rank_<r>.end.json       how a rank ended; .failed.<round>, .saved.<round>: one has (records/rank_end)
    logs/<attempt>/rendezvous.json         address and port of rank 0
    logs/<attempt>/preflight.json          what the preflight found; preflight/: files by which its processes meet
    logs/<attempt>/.last_words.json        preallocated space for a note that the disk is full
    logs/<attempt>/rounds.json             how often torchrun's agents started the ranks
    logs/<attempt>/torchrun_<n>.round.json elastic runs: the last round in which node n started ranks
    logs/<attempt>/torchrun_<n>.log        output of the agent of node n; torchrun_<n>/ is torchrun's --log-dir
    logs/<attempt>/<job>.<host>.gutil.csv  with a monitor: samples of a node; .gutil has them as text
    logs/<attempt>/replica_<n>/            the same files for each replica group (torchft); its ranks count from 0
    logs/<attempt>/replicas.json           states of the replica groups; lighthouse.log: output of their lighthouse
    logs/<attempt>/rank_<r>.result.json    result of a command ($HPC_HYDRA_RESULT); that of rank 0 counts
    logs/<attempt>/stacks/<id>/            stacks of the ranks (records/stacks), one file a rank
    logs/<attempt>/hung.json               since when the run has made no progress (records/hang)
    logs/<attempt>/flight_recorder/        what torch's flight recorder wrote when a collective timed out
    logs/<attempt>/returned.json           return value of rank 0's task function, or a reference to result.pkl
    logs/<attempt>/outcome.json            how the attempt ended, moved here when the run is submitted again
    logs/<attempt>/requests.jsonl          requests to the running ranks (records/requests), one a line
    logs/<attempt>/answers.jsonl           what the ranks have done about them
    STOP                                   a user's file, here or in <sweep>: save and end, as `checkpoint --stop`
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

META = ".hpc_hydra"
A_SWEEP = "a directory such as multirun/2026-11-29/14-05-14 or outputs/…"  # for messages
ATTEMPT_TIME = "%Y%m%d-%H%M%S"  # prefix of an attempt's name, in UTC: daylight saving time does not break sorting
FORMAT = 1  # format version of everything below META; readers refuse other versions


def attempt_name(job_id: str, now: float) -> str:
    """Return the name of an attempt that begins at ``now`` (Unix time, seconds), in the format of job scripts."""
    return f"{time.strftime(ATTEMPT_TIME, time.gmtime(now))}-{job_id}"


def is_attempt(name: str) -> bool:
    """Whether this is the name of an attempt, rather than of a program's own directory below ``logs/``."""
    day, _, rest = name.partition("-")
    return len(day) == 8 and day.isdigit() and rest[:6].isdigit() and rest[6:7] == "-"


def attempt_began(name: str) -> float | None:
    """Return when an attempt began, parsed from its name, in Unix time (seconds); None if the name has no time."""
    import calendar  # imported here to keep the start of a rank fast

    try:
        return calendar.timegm(time.strptime("-".join(name.split("-")[:2]), ATTEMPT_TIME))
    except ValueError:
        return None


@dataclass(frozen=True)
class SweepPaths:
    """Paths of one sweep. ``root`` is absolute, and the same directory on login and compute nodes."""

    root: Path

    @property
    def meta(self) -> Path:
        return self.root / META

    @property
    def manifest(self) -> Path:
        return self.meta / "manifest.jsonl"

    @property
    def plans(self) -> Path:
        return self.meta / "plans.json"

    @property
    def runs(self) -> Path:
        return self.meta / "runs.jsonl"

    @property
    def bases(self) -> Path:
        return self.meta / "bases.pkl"

    @property
    def program(self) -> Path:
        return self.meta / "program.json"

    @property
    def task(self) -> Path:
        return self.meta / "task.pkl"

    @property
    def code(self) -> Path:
        return self.meta / "code"

    @property
    def launched(self) -> Path:
        return self.meta / "launched.json"

    @property
    def diff(self) -> Path:
        return self.meta / "launched.diff"

    @property
    def jobs(self) -> Path:
        return self.meta / "jobs"

    @property
    def ended(self) -> Path:
        return self.meta / "ended"

    @property
    def bad_nodes(self) -> Path:
        return self.meta / "bad_nodes"

    @property
    def console_input(self) -> Path:
        return self.meta / "console_input.json"

    @property
    def lib(self) -> Path:
        return self.meta / "lib"

    def script(self, job: str) -> Path:
        return self.jobs / f"{job}.sh"

    def pack(self, job: str) -> Path:
        return self.jobs / f"{job}.pack.json"

    def step_script(self, job: str, plan: str) -> Path:
        return self.jobs / f"{job}.{plan}.sh"

    def journal(self, job: str, id_: str) -> Path:
        return self.jobs / f"{job}.{id_}.pack.jsonl"

    def successor(self, job: str, id_: str) -> Path:
        return self.jobs / f"{job.partition('.')[0]}.{id_}.next"

    def intention(self, job: str, id_: str) -> Path:
        return self.successor(job, id_).with_suffix(".asked")

    def cancelled(self, job: str) -> Path:
        return self.jobs / f"{job}.cancel"


@dataclass(frozen=True)
class RunPaths:
    """Paths of one run; ``root`` is its output directory (Hydra's sweep.dir/sweep.subdir), absolute."""

    root: Path

    @property
    def outcome(self) -> Path:
        return self.root / "outcome.json"

    @property
    def console(self) -> tuple[Path, Path]:
        """What an attached run wrote to standard output and standard error."""
        return self.root / "out.log", self.root / "err.log"

    @property
    def result(self) -> Path:
        return self.root / "result.pkl"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def hostlist(self) -> Path:
        return self.root / "hpc_launcher_hostlist.txt"  # torchrun-hpc's name for it

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def attempt(self, attempt: str) -> Path:
        return self.logs / attempt

    def step_log(self, attempt: str) -> Path:
        return self.attempt(attempt) / "step.log"

    def rank_log(self, attempt: str, rank: int) -> Path:
        return self.attempt(attempt) / f"rank_{rank}.log"

    def rank_end(self, attempt: str, rank: int) -> Path:
        return self.attempt(attempt) / f"rank_{rank}.end.json"

    def rendezvous(self, attempt: str) -> Path:
        return self.attempt(attempt) / "rendezvous.json"

    def preflight(self, attempt: str) -> Path:
        return self.attempt(attempt) / "preflight.json"

    def replica(self, attempt: str, number: int) -> str:
        """Return the value to pass as ``attempt`` for the files of one replica group."""
        return f"{attempt}/replica_{number}"

    def replicas(self, attempt: str) -> Path:
        return self.attempt(attempt) / "replicas.json"

    def rounds(self, attempt: str) -> Path:
        return self.attempt(attempt) / "rounds.json"

    def node_round(self, attempt: str, node: int) -> Path:
        return self.attempt(attempt) / f"torchrun_{node}.round.json"

    def returned(self, attempt: str) -> Path:
        return self.attempt(attempt) / "returned.json"

    def told_result(self, attempt: str, rank: int = 0) -> Path:
        return self.attempt(attempt) / f"rank_{rank}.result.json"

    def stacks(self, attempt: str, request: str) -> Path:
        return self.attempt(attempt) / "stacks" / request

    def hung(self, attempt: str) -> Path:
        return self.attempt(attempt) / "hung.json"

    def flight_recorder(self, attempt: str) -> Path:
        return self.attempt(attempt) / "flight_recorder"

    def last_words(self, attempt: str) -> Path:
        return self.attempt(attempt) / ".last_words.json"

    def closed(self, attempt: str) -> Path:
        return self.attempt(attempt) / "outcome.json"

    def requests(self, attempt: str) -> Path:
        return self.attempt(attempt) / "requests.jsonl"

    def answers(self, attempt: str) -> Path:
        return self.attempt(attempt) / "answers.jsonl"
