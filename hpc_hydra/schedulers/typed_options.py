"""The part of a request that the user typed, as options of a submit command: for scripts with their own directives.

Must not know: any scheduler, the command line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields, replace

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.capabilities import BatchScripts
from hpc_hydra.schedulers.options import Option, key_of

SPELLING = frozenset({"gpu_request", "gpu_type", "flavour"})
"""Fields that are no options, but change how others are written."""


def typed_request(request: Request, typed: Collection[str], options: Collection[str]) -> Request:
    """Return ``request`` without what comes from presets and defaults.

    Args:
        typed: fields that were given on the command line.
        options: names of free-form options that were given on the command line.
    """
    kept = {*typed, *SPELLING}
    bare = {f.name: f.default for f in fields(Request) if f.default is not MISSING and f.name not in kept}
    bare["submit_args"] = tuple(pair for pair in request.submit_args if pair[0] in options)
    return replace(request, **bare)


def typed_options(scheduler: BatchScripts, request: Request, typed: Collection[str]) -> list[Option]:
    """Return the options of the submit command for what was typed.

    Args:
        request: as returned by `typed_request`.

    Raises:
        PlanError: the value of an option depends on a key that was not typed.
    """
    theirs, table = {name for name, _ in request.submit_args}, scheduler.options
    kept = []
    for option in scheduler.directives(request):
        if option[0] in table.always_ours and option[0] not in theirs:
            continue
        if option[0] in table.sizes and option[0] not in theirs:
            asks, needs = table.sizes[option[0]]
            if not set(asks) & set(typed):
                continue
            missing = [key_of(name) for name in needs if name not in typed]
            if missing:
                cause = next(name for name in asks if name in typed)
                raise PlanError(
                    f"scheduler={scheduler.name} also needs {' and '.join(missing)}, which only the script sets",
                    where=key_of(cause),
                    fix=f"{' '.join(f'{key}=NUMBER' for key in missing)} as well, or change the script",
                )
        kept.append(option)
    return kept
