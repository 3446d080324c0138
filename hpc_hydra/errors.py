"""The errors that users see. Each says what is wrong, where, and what to type instead."""

from __future__ import annotations


class HpcHydraError(Exception):
    """Base of all errors of this package.

    Args:
        what: what is wrong, in one sentence that names the value.
        where: the configuration key, environment variable, file or host that is wrong.
        fix: what to type or change instead; printed after ``Try:``.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}\n  Try: {fix}" if fix else text)


class ConfigError(HpcHydraError):
    """A key, value or combination in the configuration cannot be used."""


class PlanError(HpcHydraError):
    """The system cannot satisfy the request, or the scheduler does not support it."""


class SchedulerError(HpcHydraError):
    """The scheduler is missing, refused a job, or did not answer."""


class SweepError(HpcHydraError):
    """A sweep directory is missing, damaged, or from an incompatible version."""


class RendezvousError(HpcHydraError):
    """Ranks cannot find each other, or have contradictory identities."""

    exit_code = 1


NO_DIRECTORY = ConfigError("the current directory has been deleted", fix="cd to an existing directory")
