"""What was typed of a request, in the options of a submit command: for scripts with directives of their own.

Must not know: any scheduler, the command line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields, replace

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.capabilities import BatchScripts
from hpc_hydra.schedulers.options import Option, key_of

_SPELLING = {"gpu_request", "gpu_type", "flavour"}  # how something is said, not what


def typed_request(request: Request, typed: Collection[str], options: Collection[str]) -> Request:
    """``request`` without what comes from presets and defaults.

    Args:
        typed: its fields that were given on the command line.
        options: names of free-form options that were.
    """
    kept = {*typed, *_SPELLING}
    bare = {f.name: f.default for f in fields(Request) if f.default is not MISSING and f.name not in kept}
    bare["submit_args"] = tuple(pair for pair in request.submit_args if pair[0] in options)
    return replace(request, **bare)


def typed_options(scheduler: BatchScripts, request: Request, typed: Collection[str]) -> list[Option]:
    """Options of the submit command for what was typed, and no others.

    Args:
        request: of `typed_request`.

    Raises:
        PlanError: an option that the scheduler counts by something that was not typed.
    """
    given = {name for name, _ in request.submit_args}
    kept = []
    for option in scheduler.directives(request):
        if option[0] in scheduler.options.sizes and option[0] not in given:
            asks, needs = scheduler.options.sizes[option[0]]
            if not set(asks) & set(typed):
                continue
            missing = [key_of(name) for name in needs if name not in typed]
            if missing:
                there = next(name for name in asks if name in typed)
                raise PlanError(
                    f"scheduler={scheduler.name} counts it together with {' and '.join(missing)}, which only the script"
                    " knows",
                    where=key_of(there),
                    fix=f"{' '.join(f'{key}=NUMBER' for key in missing)} as well, or change the script",
                )
        kept.append(option)
    return kept
