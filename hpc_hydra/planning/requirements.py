"""What a site asks of every job (`system.requires`), such as an account, and what a request lacks of it.

Must not know: how a scheduler spells it, detection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpc_hydra.config.schema import Settings, SystemConfig
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.options import OptionTable, spoken_for
from hpc_hydra.planning.types import Request
from hpc_hydra.suggest import nearest

KEYS = {
    "account": "scheduler.account",
    "project": "scheduler.project",
    "queue": "scheduler.queue",
    "qos": "scheduler.qos",
    "constraint": "scheduler.constraint",
    "time_limit": "resources.time_limit",
}
"""Names in `system.requires`, which are fields of a request → full keys. Any other name is a free option."""
_EXAMPLES = {"time_limit": "1h", "account": "PROJECT", "project": "PROJECT"}
_SAME = {"account": ("user_group",)}  # fields of the same meaning
_ENTRY = ("why", "source", "checked")


def full_key(name: str) -> str:
    """Return the key that sets what the site requires by this name."""
    return KEYS.get(name, f"scheduler.extra.{name}")


@dataclass(frozen=True)
class Missing:
    """A value that the site requires and a request lacks."""

    system: str
    name: str
    about: str  # why, source and date

    @property
    def key(self) -> str:
        return full_key(self.name)

    @property
    def note(self) -> str:
        """The fact, and what to type."""
        return f"{self.key} is not set, and {self.system} requires it ({self.about}): {self.fix}"

    @property
    def fix(self) -> str:
        return f"{self.key}={_EXAMPLES.get(self.name, 'NAME')}"


def missing(settings: Settings, request: Request, options: OptionTable) -> tuple[Missing, ...]:
    """Return what the site of a request requires and the request lacks.

    Empty if the job goes to a scheduler other than the site's.

    Args:
        settings: after detection and the user's defaults.
        options: of the scheduler. A requirement that the user's free options set or remove is not missing.

    Raises `ConfigError` for an entry of `system.requires` that cannot be read.
    """
    system = settings.system
    wanted = {name: about for name, entry in system.requires.items() if (about := _about(name, entry)) is not None}
    if not wanted or system.scheduler not in (None, settings.scheduler.name):
        return ()
    spoken = {*spoken_for(settings, options), *request.removed_args, *(name for name, _ in request.submit_args)}
    return tuple(Missing(system.name, name, about) for name, about in wanted.items() if not _has(request, name, spoken))


def _has(request: Request, name: str, spoken: Collection[str]) -> bool:
    """Whether a request has what is required. ``spoken``: keys and names of the user's free options."""
    fields = (name, *_SAME.get(name, ())) if name in KEYS else ()
    return KEYS.get(name, name) in spoken or any(getattr(request, field) is not None for field in fields)


def check(system: SystemConfig) -> None:
    """Raise `ConfigError` for an entry of `system.requires` that cannot be read."""
    for name, entry in system.requires.items():
        _about(name, entry)


def refusal(found: Sequence[Missing], defaults_file: str) -> ConfigError:
    """Return the error for a submission without what the site requires."""
    first = found[0]
    names = " and ".join(one.key for one in found)
    settable = ", ".join(f"{one.key.partition('.')[0]}: {{{one.name}: ...}}" for one in found if one.name in KEYS)
    return ConfigError(
        f"{first.system} requires {'it' if len(found) == 1 else 'them'} ({'; '.join(one.about for one in found)})",
        where=names,
        fix=" ".join(one.fix for one in found)
        + (f", or once for all in {defaults_file}: `{first.system}: {{{settable}}}`" if settable else "")
        + f"; system.requires.{first.name}=null submits without",
    )


def _about(name: str, entry: object) -> str | None:
    """Return why, source and date of an entry; None for one that is switched off."""
    where = f"system.requires.{name}"
    if name not in KEYS and (near := nearest(name, KEYS)):
        raise ConfigError(f"{name!r} is neither a key nor an option", where=where, fix=" or ".join(near))
    if entry is None or entry is False:
        return None
    if entry is True:
        return "system.requires"
    if not isinstance(entry, Mapping) or any(word not in _ENTRY for word in entry):
        raise ConfigError(
            f"{entry!r} is not a mapping of {', '.join(_ENTRY)}", where=where, fix=f"{name}: {{why: ..., source: ...}}"
        )
    why, source, checked = (str(entry.get(word) or "") for word in _ENTRY)
    return ", ".join(text for text in (why, source, checked and f"checked {checked}") if text) or "system.requires"
