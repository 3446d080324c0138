"""PyYAML's loader that reads scalars as OmegaConf does: `1e3` is a number, dates are text.

OmegaConf keeps its loader in a private module: `omegaconf._utils` in 2.3, `omegaconf._yaml` in 2.4.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def omegaconf_loader() -> Any:
    """OmegaConf's own class; None where this version keeps it elsewhere."""
    for module in ("omegaconf._utils", "omegaconf._yaml"):
        with suppress(ImportError, AttributeError):
            return importlib.import_module(module).get_yaml_loader()
    return None


@lru_cache(maxsize=1)
def fast_loader() -> Any:
    """A loader on libyaml, where PyYAML has it, with OmegaConf's scalars."""
    import yaml

    fast, its = getattr(yaml, "CSafeLoader", None), omegaconf_loader()
    if its is None or fast is None or issubclass(its, fast):
        return its or yaml.SafeLoader
    same = {name: getattr(its, name) for name in ("yaml_implicit_resolvers", "yaml_constructors")}
    return type("Loader", (fast,), same)
