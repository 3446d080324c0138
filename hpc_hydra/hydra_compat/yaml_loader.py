"""PyYAML loaders that read scalars as OmegaConf does: `1e3` is a number, dates are strings.

OmegaConf keeps its loader in a private module: `omegaconf._utils` in 2.3, `omegaconf._yaml` in 2.4.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def omegaconf_loader() -> Any:
    """Return OmegaConf's loader class; None if this version has it elsewhere."""
    for module in ("omegaconf._utils", "omegaconf._yaml"):
        with suppress(ImportError, AttributeError):
            return importlib.import_module(module).get_yaml_loader()
    return None


@lru_cache(maxsize=1)
def fast_loader() -> Any:
    """Return a loader with OmegaConf's scalars, based on libyaml if PyYAML has it."""
    import yaml

    fast, own = getattr(yaml, "CSafeLoader", None), omegaconf_loader()
    if own is None or fast is None or issubclass(own, fast):
        return own or yaml.SafeLoader
    same = {name: getattr(own, name) for name in ("yaml_implicit_resolvers", "yaml_constructors")}
    return type("Loader", (fast,), same)
