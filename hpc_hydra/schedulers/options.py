"""Options of a scheduler's commands: those of the request, and the user's free options that add, override or remove.

Must not know: any scheduler; spellings come as tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.options import OptionTable
from hpc_hydra.planning.types import Request

Option = tuple[str, str | None]  # name without dashes; None for a bare flag
_GROUPS = {
    **dict.fromkeys(("nodes", "procs_per_node", "gpus_per_proc", "cpus_per_proc", "mem_per_node"), "resources"),
    **dict.fromkeys(("time_limit", "exclusive"), "resources"),
    **dict.fromkeys(("gpu_request", "gpu_type", "gpu_bind", "cpu_bind"), "system"),
}


def key_of(field: str) -> str:
    """Return the full key of a request's field."""
    return f"{_GROUPS.get(field, 'scheduler')}.{field}"


def check_lacks(scheduler: str, table: OptionTable, request: Request) -> None:
    """Refuse what the scheduler does not support. Raises `PlanError` naming the key."""
    for field, fix in table.lacks.items():
        if (value := getattr(request, field)) is not None:
            raise PlanError(
                f"scheduler={scheduler} does not support {key_of(field)}={value}", where=key_of(field), fix=fix
            )


def supported_gpu_request(table: OptionTable, request: Request) -> str:
    """Return how the request asks for GPUs. Raises `PlanError` if the scheduler does not support it."""
    found = request.gpu_request or table.gpu_requests[0]
    if found not in table.gpu_requests:
        raise PlanError(f"{found!r} is not supported", where="system.gpu_request", fix=" | ".join(table.gpu_requests))
    return found


def texts(table: OptionTable, request: Request, names: Iterable[str], group: str = "") -> Iterator[Option]:
    """Yield the options of ``names`` whose keys, in ``group.`` if given, are set to a text."""
    for name in names:
        key = table.keys[name]
        value = getattr(request, key.partition(".")[2])
        if key.startswith(group) and key != "scheduler.job_name" and value is not None:
            yield name, one_line(value, key)


def override_options(
    ours: Iterable[Option],
    extra: Iterable[Option],
    removed: Iterable[str],
    *,
    table: OptionTable,
    exclusive: Sequence[Collection[str]] = (),
) -> list[Option]:
    """Override our options by the user's.

    Args:
        ours: options of the request, in order.
        extra: free options; the last of a name counts. Each replaces our option of the same name, in its place, and
            ours of the same group in ``exclusive``.
        removed: names of our options to leave out.
        table: with the canonical names of options.
        exclusive: groups of options of which a command may hold one.
    """
    theirs = {table.canonical(name): value for name, value in extra}
    replaced = {mate for group in exclusive if theirs.keys() & set(group) for mate in group}
    without = {table.canonical(name) for name in removed}
    result: dict[str, str | None] = {}
    for name, value in ours:
        if name in theirs:
            result[name] = theirs.pop(name)
        elif name not in replaced and name not in without:
            result[name] = value
    return list((result | theirs).items())


def one_line(value: str, key: str) -> str:
    """Return ``value``. Raises `PlanError` if it is not one line of printable text."""
    if not value.isprintable():
        raise PlanError(f"{value!r} contains a line break or another control character", where=key)
    return value
