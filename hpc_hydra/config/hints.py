"""Did-you-mean for keys and values, and for Hydra's own messages about our groups.

Must not know: planning, schedulers. Hydra is imported lazily, by `install_hints` alone.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from hpc_hydra.config.schema import GROUPS

_MARK = "_hpc_hydra_hinted"


def nearest(word: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The members of ``valid`` that ``word`` may have meant, best first; empty where none is near."""
    names = {name.lower(): name for name in valid}
    return [names[name] for name in difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.72)]


def clash_cure(group: str) -> str:
    """What to type where a configuration of the user's own has the name of one of our groups."""
    own = {"scheduler": "scheduler@lr_scheduler: cosine"}.get(group, f"{group}@my_{group}: ...")
    name = own.partition("@")[2].partition(":")[0]
    return (
        f"if `{group}` holds a configuration of your own, keep it apart: `- {own}` in the defaults list "
        f"(your code then reads cfg.{name}), or rename it"
    )


def hint(message: str, cause: BaseException | None = None) -> str:
    """What to add to an error of Hydra's, or an empty string. ``cause`` is the OmegaConf error below it."""
    text = f"{message}\n{cause or ''}"
    lines: list[str] = []
    key, parent = getattr(cause, "key", None), getattr(cause, "parent_node", None)
    if isinstance(key, str) and isinstance(parent, (dict, _dict_config())) and " not in " in str(cause):
        near = nearest(key, [str(name) for name in parent])
        full = str(getattr(cause, "full_key", None) or key)
        if near and "Did you mean" not in text:
            lines.append("Did you mean: " + ", ".join(f"'{full[: -len(key)]}{name}'" for name in near) + "?")
        group = full.partition(".")[0]
        if not near and group in GROUPS and full != group:
            lines.append(f"Try: {clash_cure(group)}")
    elif (found := re.search(r"Multiple values for (\w+)", text)) and found[1] in GROUPS:
        lines.append(f"Try: `- override {found[1]}: ...` to choose one of hpc_hydra's; {clash_cure(found[1])}")
    elif (found := re.search(r"is not a subclass of (\w+?)(?:Config|Schema)\b", text)) and found[1].lower() in GROUPS:
        lines.append(f"Try: {clash_cure(found[1].lower())}")
    return "\n".join(lines)


def _dict_config() -> type[Any]:
    from omegaconf import DictConfig

    return DictConfig


def install_hints() -> None:
    """Let Hydra's composition errors say what was meant, also on Hydra 1.3. Does nothing the second time.

    This wraps two methods of Hydra's internal config loader; where a version has them not, messages stay Hydra's own.
    """
    try:
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
    except ImportError:
        return
    apply = getattr(ConfigLoaderImpl, "_apply_overrides_to_config", None)
    if apply is not None and not hasattr(apply, _MARK):
        ConfigLoaderImpl._apply_overrides_to_config = staticmethod(_hinted(apply))  # type: ignore[method-assign]
    load = getattr(ConfigLoaderImpl, "load_configuration", None)
    if load is not None and not hasattr(load, _MARK):
        ConfigLoaderImpl.load_configuration = _hinted(load)  # type: ignore[method-assign]


def _hinted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _extend(error)
            raise

    setattr(wrapped, _MARK, True)
    return wrapped


def _extend(error: Exception) -> None:
    from hydra.errors import HydraException

    if not isinstance(error, HydraException) or hasattr(error, _MARK):
        return
    if not error.args or not isinstance(error.args[0], str):
        return
    more = hint(error.args[0], error.__cause__ or error.__context__)
    if more:
        error.args = (f"{error.args[0].rstrip()}\n{more}", *error.args[1:])
    setattr(error, _MARK, True)
