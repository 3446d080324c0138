"""Did-you-mean for keys and values, and errors of ours in place of Hydra's where they are about our groups.

Must not know: planning, schedulers. Hydra is imported lazily, by `install_hints` alone.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

MARK = "_hpc_hydra_hinted"


def nearest(word: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The members of ``valid`` that ``word`` may have meant, best first; empty where none is near."""
    import difflib  # only where something is wrong

    names = {name.lower(): name for name in valid}
    return [names[name] for name in difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.72)]


def quoted(override: str) -> str:
    """An override with Hydra's quotes in it as a word of the shell, easy to read where that is possible."""
    import re
    import shlex

    return shlex.quote(override) if re.search(r"[$`!\\\"]", override) else f'"{override}"'


def clash_cure(group: str) -> str:
    """What to type where a configuration of the user's own has the name of one of our groups."""
    own = {"scheduler": "scheduler@lr_scheduler: cosine"}.get(group, f"{group}@my_{group}: ...")
    name = own.partition("@")[2].partition(":")[0]
    return (
        f"if `{group}` holds a configuration of your own, keep it apart: `- {own}` in the defaults list "
        f"(your code then reads cfg.{name}), or rename it"
    )


def install_hints() -> None:
    """Let Hydra's composition errors about our groups say what was meant. Does nothing the second time.

    A program with ``@hydra.main`` ends with one error of ours and exit code 2, where Hydra would print its own and end
    with 1; to others, Hydra's exceptions say what to try. This wraps three functions of Hydra's internals; where a
    version has them not, messages stay Hydra's own.
    """
    try:
        from hydra._internal import hydra, utils
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
    except ImportError:
        return
    report: Any = vars(utils).get("run_and_report")
    if callable(report) and not hasattr(report, MARK):
        for module in (utils, hydra):
            if getattr(module, "run_and_report", None) is report:
                vars(module)["run_and_report"] = _reporting(report)
    apply = getattr(ConfigLoaderImpl, "_apply_overrides_to_config", None)
    if apply is not None and not hasattr(apply, MARK):
        ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_hinted(apply))  # type: ignore[method-assign]
    load = getattr(ConfigLoaderImpl, "load_configuration", None)
    if load is not None and not hasattr(load, MARK):
        ConfigLoaderImpl.load_configuration = _hinted(load)  # type: ignore[method-assign]


def _hinted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _extend(error)
            raise

    setattr(wrapped, MARK, True)
    return wrapped


def _reporting(report: Any) -> Callable[[Callable[[], Any]], Any]:
    """Hydra's ``run_and_report``, which prints what a program's start raises and ends it."""

    @functools.wraps(report)
    def reporting(function: Callable[[], Any]) -> Any:
        return report(functools.partial(_answering, function))

    setattr(reporting, MARK, True)
    return reporting


def _answering(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        from hpc_hydra.hydra_compat.errors import explain

        theirs = os.environ.get("HYDRA_FULL_ERROR") == "1" or _of_the_task(error)
        said = None if theirs else explain(error)
        if said is None:
            raise
        print(f"hpc_hydra: {said}", file=sys.stderr)
        sys.exit(said.exit_code)


def _of_the_task(error: BaseException) -> bool:
    """Whether the user's function raised it: whatever it is, it is told as any error of theirs."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in ("run_job", "_run_job"):
            return True
        trace = trace.tb_next
    return False


def _extend(error: Exception) -> None:
    from hydra.errors import HydraException

    if not isinstance(error, HydraException) or hasattr(error, MARK):
        return
    if not error.args or not isinstance(error.args[0], str):
        return
    from hpc_hydra.hydra_compat.errors import explain

    said = explain(error)
    setattr(error, MARK, said)
    if said is not None and said.fix:
        error.args = (f"{error.args[0].rstrip()}\nTry: {said.fix}", *error.args[1:])
