"""How a run ended, in words, for tables, summaries, the report and the job's log.

Must not know: where the words are shown, how the outcome was determined.
"""

from __future__ import annotations

import re
import shlex
import signal

from hpc_hydra.planning.units import clock, warning_within
from hpc_hydra.records.cause import AS_AFTER
from hpc_hydra.records.codec import readable
from hpc_hydra.records.collect import NOT_STARTED, attempts
from hpc_hydra.records.files import is_there
from hpc_hydra.records.job_log import INSTALL
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.requeue_policy import BY_SCHEDULER, HUNG, SAVED_AND_ENDED, is_of_nodes
from hpc_hydra.records.types import Outcome

_LIMIT = ("", "timeout", "timeout: timelimit", "the time limit was reached")
_BY_USER = re.compile(r"CANCELLED by (\d+)")
_REQUEUE_REASONS = {  # of `requeue_policy.why_again`
    "preempted": "preempted", "warned that its time is up": "warned", SAVED_AND_ENDED: "asked to save",
    BY_SCHEDULER: "requeued by the scheduler", HUNG: "hung",
}  # fmt: skip
_THREAD_AT_EXIT = "terminate called without an active exception"  # of C++: a thread was neither joined nor detached
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def sentence(outcome: Outcome, limit: int | None = None) -> str:
    """Describe an outcome: ``failed after 12.0 s: rank 2 on n01: ValueError: boom (exit code 1)``.

    The time is that of the newest attempt.

    Args:
        limit: the time limit, seconds.
    """
    after = []
    if outcome.started and outcome.ended and outcome.ended > outcome.started:
        after.append(duration(outcome.ended - outcome.started) + " of the last attempt" * (outcome.requeues > 0))
    after += counts(outcome)
    text = f"{outcome.status} after {' and '.join(after)}" if after else str(outcome.status)
    why, code = reason(outcome, limit), exit_code(outcome)
    if why:
        text += f": {why}"
    if code and not re.search(rf"\bexit code {code}\b", why):
        text += f" (exit code {code})"
    return text


def counts(outcome: Outcome) -> list[str]:
    """Return how often a run was started again: ``2 restarts``, ``1 requeue``."""
    found = ((outcome.restarts, "restart"), (outcome.requeues, "requeue"))
    return [f"{count} {word}{'s' * (count > 1)}" for count, word in found if count]


def reason(outcome: Outcome, limit: int | None = None) -> str:
    """Return why a run ended, or "" if its status says it all. ``limit`` is the time limit in seconds."""
    why = _BY_USER.sub(lambda match: f"cancelled by {_user(int(match[1]))}", outcome.reason or "")
    if outcome.status == "timeout" and why.lower() in _LIMIT:
        return f"time limit {clock(limit)} reached" if limit else "the time limit was reached"
    if outcome.status == "cancelled" and why.lower() in ("", "cancelled"):
        return "by an unknown user" if outcome.attempt else "never started"
    return why or ("" if outcome.status == "completed" else "no reason is known")


def exit_code(outcome: Outcome) -> int | None:
    """Return the exit code of a run, or None if it never started or if its end was not observed."""
    if outcome.status in ("completed", "failed"):
        known = bool(outcome.attempt) or outcome.exit_code != 1  # 1 is the placeholder for "no exit code"
    else:
        known = bool(outcome.attempt) and outcome.exit_code != 1 and outcome.status != "lost"
    return outcome.exit_code if known else None


def advice(outcome: Outcome, limit: int | None = None, *, attached: bool = False, sweep: str = "") -> str | None:
    """Return what to type, or to look at, after an outcome that does not explain itself, such as SIGKILL.

    Args:
        limit: the time limit, seconds.
        attached: the run belongs to a console and leaves no sweep that could be resumed.
        sweep: the directory of the sweep, for commands that would otherwise take the newest one.
    """
    why = (outcome.reason or "").lower()
    place = f" {shlex.quote(sweep)}" if sweep else ""
    if "hpc-hydra resume" in why:
        return None
    if outcome.status == "timeout":
        more = f"resources.time_limit={-(-limit // 30)}m" if limit else "a longer resources.time_limit"
        again = f"Try: {more}" if attached else f"Try: hpc-hydra resume timeout{place} -- {more}"
        requeued = f"launch.signal_before_end={warning_within(limit)} launch.max_requeues=3"
        return f"{again}; or save checkpoints, and be warned and requeued: {requeued}"
    if "preempted" in why:
        if attached:
            return "Try: launch.bg=true launch.max_requeues=3, which queues a preempted run again"
        return f"Try: hpc-hydra resume{place}; launch.max_requeues=3 queues preempted runs again"
    if outcome.status != "failed":
        return None
    if attached and NOT_STARTED in why:
        return f"Look at: the messages above. If a node has no hpc_hydra: {INSTALL}"
    if outcome.dumps:
        return f"`torchfrtrace {shlex.quote(outcome.dumps)}` compares the last collectives of all ranks"
    if "out of memory" in re.sub(r"(cuda|hip) out of memory", "", why.replace("_", " ")):  # of the node, not a GPU
        return "Try: more memory (resources.mem_per_node=64G), or use less: fewer data-loader workers, smaller batches"
    found = re.search(rf"{AS_AFTER} (SIG[A-Z]+)", outcome.reason or "")
    signum = signal.Signals.__members__.get(found[1]) if found else outcome.signal
    look = f"Look at, unless the program itself returns {outcome.exit_code}:" if found else "Look at:"
    if signum == signal.SIGKILL or "sigkill" in why:
        where = f" on {outcome.host}" if outcome.host else ""
        return (
            f"{look} out of memory? `dmesg -T | grep -i kill`{where} names the processes that the kernel's OOM "
            "killer ended; resources.mem_per_node=64G requests more"
        )
    if signum == signal.SIGABRT and any(_THREAD_AT_EXIT in line for line in outcome.last_lines):
        return (
            f"{look} a thread of a library, such as gloo's, was running when the process ended; "
            "torch.distributed.destroy_process_group() before the end of the program stops it"
        )
    if signum in _CRASHES:
        return f"{look} logging.faulthandler=true prints the stacks of Python threads at a crash; core files: ulimit -c"
    if signum == signal.SIGBUS:
        return (
            f"{look} a full /dev/shm (`df /dev/shm`; data loaders use it), "
            "or a file that was truncated while it was read"
        )
    return None


def duration(seconds: float) -> str:
    """Format a duration as ``1:02:03`` or ``2:03``, or as ``4.2 s`` below one minute."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def requeued(paths: RunPaths, most: int) -> tuple[int, str] | None:
    """Return how often an unfinished run was requeued, and why: ``attempt 2 was preempted and requeued (1 of 2)``.

    Args:
        most: `launch.max_requeues`. If it is 0, no file is read.
    """
    names = attempts(paths) if most else []
    for number, name in list(enumerate(names, 1))[:-3:-1]:
        ended = readable(Outcome, paths.closed(name))
        if ended is not None:
            if (word := requeued_as(ended)) is None:
                return None
            count = ended.requeues + 1
            word = word if word.startswith("requeued") else f"{word} and requeued"
            return count, f"attempt {number} was {word} ({count} of {most})"
    return None


def newest_attempt(paths: RunPaths) -> int:
    """Return the number of the newest attempt of a pending or running run; it may not have begun."""
    names = attempts(paths)
    return len(names) + (bool(names) and is_there(paths.closed(names[-1])))


def was_requeued(outcome: Outcome) -> bool:
    """Whether the attempt with this outcome was requeued, rather than submitted again by ``hpc-hydra resume``."""
    return requeued_as(outcome) is not None


def requeued_as(outcome: Outcome) -> str | None:
    """Return how an attempt ended if it was requeued, such as ``preempted``; None if it was not."""
    why = outcome.reason or ""
    if is_of_nodes(why):
        return f"stopped by {why.partition(':')[0]}"
    return _REQUEUE_REASONS.get(why.partition(";")[0])


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError, OverflowError):
        return f"user {number}"
