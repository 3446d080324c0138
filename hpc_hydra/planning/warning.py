"""The warning before the time limit, and the limit of requeues after a warning or preemption.

Pure. Must not know: how a scheduler sends a signal.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpc_hydra.config.schema import Settings
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.types import Rendezvous, Request
from hpc_hydra.planning.units import clock, seconds, warning_within

SIGNALS = ("USR1", "USR2")
DEFAULT_SIGNAL, DEFAULT_BEFORE = "USR1", 60
_LONGEST = 65535  # seconds that sbatch's --signal takes


@dataclass(frozen=True)
class Warned:
    """The result of `warning`."""

    warning: str | None = None  # USR1@120: the signal, and seconds before the end
    max_requeues: int = 0


def warning(settings: Settings, time_limit: int | None, meet: Rendezvous) -> Warned:
    """Check `launch.signal`, `launch.signal_before_end` and `launch.max_requeues`.

    Args:
        time_limit: seconds; None: the scheduler's default.
        meet: how the ranks are started.

    Raises `ConfigError`.
    """
    launch = settings.launch
    before = seconds(launch.signal_before_end, "launch.signal_before_end", bare=False)
    name = _name(launch.signal, asked=before is not None)
    if name is not None:
        _check_start(meet, "launch.signal" if launch.signal is not None else "launch.signal_before_end")
        before = before or DEFAULT_BEFORE
        if before > _LONGEST or (time_limit is not None and before >= time_limit):
            limit = min(_LONGEST, time_limit or _LONGEST)
            raise ConfigError(
                f"{clock(before)} before the end is before the run begins, which may take {clock(limit)}"
                if limit == time_limit
                else f"{clock(before)} is more than the {clock(limit)} that schedulers take",
                where="launch.signal_before_end",
                fix=(f"launch.signal_before_end={warning_within(limit)}, or " if limit > 1 else "")
                + "a longer resources.time_limit",
            )
    return Warned(None if name is None else f"{name}@{before}", _requeues(settings, meet))


def notes(request: Request) -> tuple[str, ...]:
    """Return a note if runs can be requeued but get no warning: then the time limit ends them."""
    if not request.max_requeues or request.warn_signal is not None:
        return ()
    asked = f"launch.max_requeues={request.max_requeues}"
    before = warning_within(request.time_limit)
    missing = f"without a warning before it (launch.signal_before_end={before})"
    return (f"{asked}: a run that reaches its time limit is not requeued {missing}",)


def _name(given: str | None, *, asked: bool) -> str | None:
    if given is None:
        return DEFAULT_SIGNAL if asked else None
    name = given.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise ConfigError(
            f"{given!r} is not a warning signal", where="launch.signal", fix=f"launch.signal={SIGNALS[0]}"
        )
    return name


def _check_start(meet: Rendezvous, key: str) -> None:
    if meet.launcher == "mpiexec":
        raise ConfigError(
            "mpiexec starts the ranks and does not forward the warning", where=key, fix="rendezvous.launcher=scheduler"
        )


def _requeues(settings: Settings, meet: Rendezvous) -> int:
    key, asked = "launch.max_requeues", settings.launch.max_requeues
    if asked < 0:
        raise ConfigError(f"{asked} is not a number of requeues", where=key, fix=f"{key}=3, or 0 for never")
    if not asked:
        return 0
    if settings.launch.batch_script is not None:
        raise ConfigError(
            "applies to generated job scripts only: your own script decides when it is requeued",
            where=key,
            fix="scheduler.submit_extra={requeue: null}, or leave out launch.batch_script",
        )
    if meet.has_replicas:
        raise ConfigError(
            "replica groups are restarted within the job",
            where=key,
            fix="rendezvous.max_restarts=3, or rendezvous=torchrun",
        )
    return asked
