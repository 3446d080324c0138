"""Hydra's config source for the files that ship with this package: `hpc_hydra://FOLDER`.

Hydra reads each file several times at every start, and OmegaConf 2.3 parses YAML in pure Python. This source parses a
file once per process, with libyaml if PyYAML has it. The composed result is the same as from ``file://``.
Light: imported during Hydra's plugin scan.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, List  # noqa: UP035  (a method of Hydra's interface is called `list`)

from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource

from hpc_hydra.config import in_use
from hpc_hydra.hydra_compat.yaml_loader import fast_loader

BUNDLES = ("hpc", "hpc.yaml")
_search_path: Sequence[Any] = ()


def follow(search_path: Sequence[Any]) -> None:
    """Set the search path of all sources created from now on; it may still grow."""
    global _search_path
    _search_path = search_path


_shown: list[bool] = []


@contextmanager
def shown() -> Iterator[None]:
    """Within this context, an application sees our groups even without the bundle."""
    _shown.append(True)
    try:
        yield
    finally:
        _shown.pop()


class HpcConfigSource(ConfigSource):
    """A directory of YAML files, like Hydra's ``file://``. Applications without the bundle see only the bundle."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path if "://" in path else f"{self.scheme()}://{path}")
        self._search_path = _search_path
        self._in_use: bool | None = None

    @property
    def in_use(self) -> bool:
        """Whether the application has the bundle."""
        if _shown:
            return True
        if self._in_use is None:
            self._in_use = in_use.has_bundle(self._search_path)
        return self._in_use

    @staticmethod
    def scheme() -> str:
        """The scheme of these sources in the search path."""
        return "hpc_hydra"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load a file. Raises `ConfigLoadError` if it does not exist, and PyYAML's errors."""
        path = self._file(config_path)
        try:
            info = path.stat()
        except OSError as error:
            raise ConfigLoadError(f"Config not found : {path}") from error
        if config_path in BUNDLES:
            self._in_use = True
        content, header = _read(path, info.st_mtime_ns, info.st_size)
        return ConfigResult(
            config=pickle.loads(content), path=self.full_path(), provider=self.provider, header=dict(header)
        )

    def available(self) -> bool:
        """Whether the directory exists."""
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return self.in_use and Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path).is_file() and (config_path in BUNDLES or self.in_use)

    def list(self, config_path: str, results_filter: Any) -> List[str]:  # noqa: UP006
        names: List[str] = []  # noqa: UP006
        if not self.in_use:
            return names
        for path in Path(self.path, config_path).iterdir():
            self._list_add_result(names, str(path.relative_to(self.path)), path.name, results_filter)
        return sorted(set(names))

    def _file(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))


@lru_cache(maxsize=256)
def _read(path: Path, mtime: int, size: int) -> tuple[bytes, dict[str, str | None]]:
    """Return a file's content, pickled because unpickling is faster than copying, and its ``@package`` header."""
    import yaml
    from omegaconf import OmegaConf

    text = path.read_text(encoding="utf-8")
    content = yaml.load(text, Loader=fast_loader())
    config = OmegaConf.create({} if content is None else content)
    return pickle.dumps(config, protocol=pickle.HIGHEST_PROTOCOL), ConfigSource._get_header_dict(text[:512])
