"""Options of a scheduler's commands: what we state, and the user's free-form ones that add to it, override or remove.

Must not know: any scheduler; spellings come as tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hpc_hydra.errors import PlanError

Option = tuple[str, str | None]  # name without dashes; None for a bare flag
SizeOptions = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""Options that are stated for each request → its fields that ask for one, and those that it cannot be told without."""


def canonical(name: str, aliases: Mapping[str, str]) -> str:
    """One spelling of an option: no leading dashes, long form, dashes for underscores."""
    name = name.strip().lstrip("-").replace("_", "-")
    return aliases.get(name, name)


def merge(
    ours: Iterable[Option],
    extra: Iterable[Option],
    removed: Iterable[str],
    *,
    aliases: Mapping[str, str],
    exclusive: Sequence[Collection[str]] = (),
) -> list[Option]:
    """Lay the user's options over ours.

    Args:
        ours: what the request says, in order.
        extra: free-form options; the last of a name holds. One replaces ours of the same name, and ours of the same
            group in ``exclusive``, in its place.
        removed: names of ours that are left out.
        aliases: short and other spellings of options.
        exclusive: groups of options of which a command may hold one.
    """
    theirs = {canonical(name, aliases): value for name, value in extra}
    replaced = {mate for group in exclusive if theirs.keys() & set(group) for mate in group}
    gone = {canonical(name, aliases) for name in removed}
    result: dict[str, str | None] = {}
    for name, value in ours:
        if name in theirs:
            result[name] = theirs.pop(name)
        elif name not in replaced and name not in gone:
            result[name] = value
    return list((result | theirs).items())


def one_line(value: str, key: str) -> str:
    """``value`` as it may stand in an option. Raises `PlanError` where it would not be one line of text."""
    if not value.isprintable():
        raise PlanError(f"{value!r} holds a line break or another control character", where=key)
    return value
