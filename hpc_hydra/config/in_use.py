"""Detect whether an application uses the bundle; otherwise our groups are hidden from it.

Hydra asks every config source for its groups before it reads the primary config. Therefore the files that may be the
primary config are searched first: a defaults list that names ``hpc`` makes our groups visible.
Light: imported during Hydra's plugin scan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"""(?m)(?:^\s*-\s*|[\[,]\s*)["']?/?hpc(?:@[\w.]*)?["']?\s*(?:$|[,\]#])""")
_OURS = ("hydra", "hpc_hydra", "hpc_hydra_own", "schema")  # providers without a primary config
_DEPTH, _MOST = 2, 2000  # directory levels, and maximum number of files, that are searched


def names_the_bundle(text: str) -> bool:
    """Whether a YAML file seems to have the bundle in its defaults list."""
    return "defaults" in text and _NAMED.search(text) is not None


def has_bundle(search_path: Iterable[Any]) -> bool:
    """Whether a config that may be the primary one has the bundle.

    Args:
        search_path: elements of Hydra's search path, with ``provider`` and ``path``.
    """
    return _stored() or any(
        names_the_bundle(text)
        for element in search_path
        if element.provider not in _OURS and element.path
        for text in _texts(element.path)
    )


def _stored() -> bool:
    """Whether an entry of Hydra's ConfigStore has the bundle."""
    from hydra.core.config_store import ConfigStore

    from hpc_hydra.config.lazy import LazyNode

    for name, entry in ConfigStore.instance().repo.items():
        if name.endswith(".yaml") and not isinstance(entry, LazyNode):
            defaults = entry.node.get("defaults") if hasattr(entry.node, "get") else None
            if defaults is not None and any(str(one).strip("/") == "hpc" for one in defaults):
                return True
    return False


def _texts(path: str) -> Iterator[str]:
    scheme, _, rest = path.rpartition("://")
    folders = [Path(rest)] if scheme in ("", "file") else _package(rest) if scheme == "pkg" else []
    remaining = _MOST
    for top in folders:
        for folder, below, files in os.walk(top):
            if len(Path(folder).relative_to(top).parts) >= _DEPTH:
                below.clear()
            for name in files:
                remaining -= 1
                if remaining < 0:
                    return
                if name.endswith((".yaml", ".yml")):
                    try:
                        yield Path(folder, name).read_text(encoding="utf-8", errors="replace")
                    except OSError:
                        continue


def _package(name: str) -> list[Path]:
    import importlib.util

    try:
        spec = importlib.util.find_spec(name.replace("/", ".").strip(".")) if name else None
    except (ImportError, ValueError):
        return []
    return [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
