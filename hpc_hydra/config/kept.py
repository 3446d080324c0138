"""Keeps what Hydra composed of the files that ship with this package, from one start to the next.

A command of `hpc-hydra run` brings no configuration files of its own: what Hydra composes before it applies the values
of the command line depends on the groups that are chosen, and on nothing else. Reading and merging some twenty files
for it is a quarter of the time of a start. So it is kept in the user's cache directory, as Python keeps its bytecode:
with the state of every file that it was made from, not where Python is told to write none, and never needed. Everything
else, the values of the command line and all errors, is Hydra's own at every start.

Must not know: the command line, plans.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hpc_hydra.config import remembered
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.config.store import conf_dir

_FORMAT = 1
_FILES = 64  # kept at most; the oldest go
_PROVIDERS = {"hydra", "hpc_hydra", "schema"}  # of configuration files: Hydra, this package, dataclasses


@contextlib.contextmanager
def compositions(loader: Any, parse: Callable[[Sequence[str]], list[Any]]) -> Iterator[None]:
    """Within this, `loader` takes the composition of the chosen groups from the cache, or puts it there.

    For a primary configuration that never changes. Does nothing where Hydra is not built as it is known here.

    Args:
        loader: Hydra's.
        parse: gives Hydra's reading of overrides, which may be an earlier one.
    """
    module: Any = import_module("hydra._internal.config_loader_impl")
    create: Any = getattr(module, "create_defaults_list", None)
    compose: Any = getattr(loader, "_compose_config_from_defaults_list", None)
    parser = getattr(module, "OverridesParser", None)
    if None in (create, compose, parser) or type(loader) is not module.ConfigLoaderImpl:
        yield
        return
    key: bytes | None = None
    kept: dict[str, Any] | None = None
    made: Any = None

    def creating(**asked: Any) -> Any:
        nonlocal key, kept, made
        key, overrides = _key(asked)
        kept = None if key is None else _read(key)
        if kept is None:
            made = create(**asked)
            return made
        vars(overrides).update(kept["overrides"])
        return module.DefaultsList(
            defaults=kept["defaults"],
            defaults_tree=None,  # for `--info defaults-tree` alone
            config_overrides=overrides.config_overrides,
            overrides=overrides,
        )

    def composing(defaults: Any, repo: Any) -> Any:
        if kept is not None:
            remembered.note(loader, defaults)
            return kept["cfg"]
        cfg = compose(defaults=defaults, repo=repo)
        if key is not None:
            rest = {name: value for name, value in vars(made.overrides).items() if name != "config_overrides"}
            _write(key, {"defaults": made.defaults, "overrides": rest, "cfg": cfg})
        return cfg

    module.create_defaults_list = creating
    module.OverridesParser = _Parser(parser, parse)
    loader._compose_config_from_defaults_list = composing
    try:
        yield
    finally:
        module.create_defaults_list = create
        module.OverridesParser = parser
        del loader._compose_config_from_defaults_list


class _Parser:
    """Stands for Hydra's class of parsers."""

    def __init__(self, kind: Any, parse: Callable[[Sequence[str]], list[Any]]) -> None:
        self._kind, self._parse = kind, parse

    def create(self, config_loader: Any = None) -> Any:
        return self._kind.create(config_loader) if config_loader is not None else self

    def parse_overrides(self, overrides: Sequence[str]) -> list[Any]:
        return [copy.copy(parsed) for parsed in self._parse(overrides)]


def _key(asked: dict[str, Any]) -> tuple[bytes | None, Any]:
    """All that a composition depends on, and Hydra's reading of the overrides; no key where that is not all."""
    from hydra import version
    from hydra._internal.defaults_list import Overrides
    from hydra.core.config_store import ConfigStore

    names = {"repo", "config_name", "overrides_list", "prepend_hydra", "skip_missing"}
    if set(asked) != names:
        return None, None
    sources = [(source.provider, source.path) for source in asked["repo"].get_sources()]
    others = {provider for provider, _ in sources} - _PROVIDERS
    stored = ConfigStore.instance().repo
    if others or "hpc.yaml" in stored or any(group in stored for group in GROUPS):
        return None, None
    try:
        overrides = Overrides(repo=asked["repo"], overrides_list=asked["overrides_list"])
    except Exception:  # Hydra says it
        return None, None
    if overrides.append_group_defaults or overrides.deletions:
        return None, None
    choices = list(overrides.override_choices.items())
    flags = [asked[name] for name in ("config_name", "prepend_hydra", "skip_missing")]
    return repr((_state(), str(version.getbase()), sources, flags, choices)).encode(), overrides


@lru_cache(maxsize=1)
def _state() -> str:
    """Versions and files that a composition is made by and from."""
    import hydra.conf
    import omegaconf

    package = Path(__file__).parents[1]
    code = [*sorted(Path(__file__).parent.glob("*.py")), package / "launcher" / "plugin.py"]
    code += [Path(module.__file__ or "") for module in (hydra, hydra.conf, omegaconf)]
    texts = [Path(folder, name) for folder, _, files in os.walk(conf_dir()) for name in files]
    found = [(str(path), *_stamp(path)) for path in (*code, *sorted(texts))]
    return repr((_FORMAT, sys.implementation.cache_tag, hydra.__version__, omegaconf.__version__, found))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def folder() -> Path:
    """Where compositions are kept: `$XDG_CACHE_HOME/hpc_hydra`, else `~/.cache/hpc_hydra`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "hpc_hydra"


def _file(key: bytes) -> Path:
    return folder() / f"composed-{hashlib.sha256(key).hexdigest()[:32]}.pickle"


def _read(key: bytes) -> dict[str, Any] | None:
    """None where there is none, or it is of another user, who could have put anything there."""
    try:
        with _file(key).open("rb") as file:
            owner = os.fstat(file.fileno())
            if owner.st_uid != os.geteuid() or owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            if file.readline() != hashlib.sha256(key).hexdigest().encode() + b"\n":
                return None
            found = pickle.load(file)
    except Exception:  # torn, or of a class that is no more: it is made again
        return None
    return found if isinstance(found, dict) else None


def _write(key: bytes, content: dict[str, Any]) -> None:
    """At once or not at all; without a home, a place, or a name for one of its types, it is not kept."""
    if sys.dont_write_bytecode:
        return
    path = _file(key)
    with contextlib.suppress(OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError):
        data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".composed-")
        try:
            with open(number, "wb") as file:
                file.write(hashlib.sha256(key).hexdigest().encode() + b"\n" + data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        files = sorted(path.parent.glob("composed-*.pickle"), key=_stamp, reverse=True)
        for old in files[_FILES:]:
            old.unlink(missing_ok=True)
