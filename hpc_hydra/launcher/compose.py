"""Compose each run once, as Hydra would, without reading the YAML files again for every run.

Runs with the same group choices share a *base*, which Hydra composes. The remaining overrides are applied to a copy of
it by Hydra's own function. All other cases (overrides of ``hydra.*``, a custom config loader) are composed by Hydra in
full. Errors are Hydra's own, raised before anything is submitted.

Must not know: our configuration groups, the sweep directory.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, flag_override

from hpc_hydra.hydra_compat import composition
from hpc_hydra.records.frozen_config import apply_overrides, parse_override, record_overrides

_NOW = re.compile(r"\$\{now:([^{}]*)\}")


@dataclass(eq=False)
class Base:
    """A composed, unresolved configuration with the overrides ``applied``."""

    cfg: DictConfig  # never returned to callers, who get copies
    applied: tuple[str, ...]
    given: tuple[str, ...] | None = None  # the overrides as given to Hydra, if spelled differently

    def copy(self) -> DictConfig:
        """Return a full copy."""
        cfg = self._loaded(self._whole)
        return copy.deepcopy(self.cfg) if cfg is None else cfg

    @property
    def text(self) -> str:
        """A text that contains all strings of the configuration."""
        data = self._whole
        return str(OmegaConf.to_container(self.cfg, resolve=False)) if data is None else data.decode("utf-8", "replace")

    def copy_of_task(self) -> DictConfig:
        """Return a short-lived copy that shares its ``hydra`` node, the larger part, with all other such copies."""
        cfg = self._loaded(self._task)
        if cfg is None:
            return self.copy()
        composition.share_hydra(cfg, self._shared_hydra)
        return cfg

    @cached_property
    def _whole(self) -> bytes | None:
        return _pickled(self.cfg)

    @cached_property
    def _task(self) -> bytes | None:
        content, hydra = composition.without_hydra(self.cfg)  # keeps the position of the key
        try:
            return _pickled(self.cfg)
        finally:
            content["hydra"] = hydra

    @cached_property
    def _shared_hydra(self) -> Any:
        return composition.node(self.copy(), "hydra")

    @staticmethod
    def _loaded(data: bytes | None) -> DictConfig | None:
        return None if data is None else pickle.loads(data)


def _pickled(cfg: DictConfig) -> bytes | None:
    """Pickle a configuration; None if one of its types has no importable name."""
    try:
        data = pickle.dumps(cfg, protocol=pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return None
    return data


@dataclass(frozen=True)
class Composed:
    """The configuration of one run and its base."""

    cfg: DictConfig
    base: Base


class Composer:
    """Composes the runs of one command line.

    Args:
        loader: Hydra's config loader.
        master: the configuration that Hydra composed for the multirun.
        unnamed: keys to exclude from `override_dirname`, in addition to the user's `exclude_keys`.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig, unnamed: Sequence[str] = ()) -> None:
        self._loader, self._master, self._unnamed = loader, master, list(unnamed)
        self._bases: dict[tuple[tuple[str, ...], tuple[str, ...]], Base] = {}  # by group choices, patterns of now
        self._is_choice: dict[str, bool | None] = {}
        self._of_master: Base | None = None

    def compose(self, overrides: Sequence[str], *, brief: Callable[[Base], bool] = lambda _: False) -> Composed:
        """Return what Hydra's ``load_sweep_config`` returns for these overrides. Raises the same errors.

        Args:
            brief: tells for a base whether ``hydra`` of its runs is unused. It may then be that of another run.
        """
        self.fix_now(overrides)
        base = self._master_base(tuple(overrides))
        if base is not None:
            return Composed(base.cfg if brief(base) else base.copy(), base)
        kinds = [self._kind(o) for o in overrides]
        if None in kinds:
            base = self._base(tuple(overrides))
            return Composed(base.copy(), base)
        choices = tuple(o for o, is_choice in zip(overrides, kinds, strict=True) if is_choice)
        base = self._base_of(choices, tuple(sorted({pattern for o in overrides for pattern in _NOW.findall(o)})))
        values = [o for o, is_choice in zip(overrides, kinds, strict=True) if not is_choice]
        is_brief = brief(base)
        cfg = base.copy_of_task() if is_brief else base.copy()
        apply_overrides(cfg, values, None if is_brief else overrides)
        return Composed(cfg, base)

    def adopt(self, applied: Sequence[str]) -> None:
        """Use the master as the base without further overrides: it contains ``applied``, none of which is swept."""
        self.fix_now(_strings(OmegaConf.to_container(self._master, resolve=False)))
        self._bases[(), ()] = Base(self._master, tuple(applied))

    def _master_base(self, overrides: tuple[str, ...]) -> Base | None:
        """Return the master as a base if these are all overrides of the command line; None otherwise."""
        if overrides != self._whole_command:
            return None
        if self._of_master is None:
            self.fix_now([Base(self._master, ()).text])
            cfg = Base(self._master, ()).copy()  # includes the values just fixed
            OmegaConf.set_readonly(cfg.hydra, False)  # Hydra 1.4 sets the flag on the master, but not on runs
            self._leave_out(cfg)
            record_overrides(cfg, overrides)
            self._of_master = Base(cfg, overrides, tuple(raw_list(self._master.hydra.overrides.task)))
        return self._of_master

    @cached_property
    def _whole_command(self) -> tuple[str, ...] | None:
        """The overrides of a command line without sweeps, as a sweeper spells them for its only run.

        None if the master may differ from what Hydra would compose for that run: a group choice is missing (`???`), or
        the user's callbacks may have changed it.
        """
        hydra = self._master.hydra
        plain = OmegaConf.to_container(hydra.callbacks, resolve=False)
        choices = OmegaConf.to_container(hydra.runtime.choices, resolve=False)
        assert isinstance(choices, dict)
        if not composition.is_hydras(self._loader) or set(plain or ()) - {"hpc"} or "???" in choices.values():
            return None
        parsed = [parse_override(text) for text in raw_list(hydra.overrides.task)]
        texts = {p.get_key_element(): p.get_value_element_as_str() for p in parsed if not p.is_sweep_override()}
        return tuple(f"{key}={value}" for key, value in texts.items()) if len(texts) == len(parsed) else None

    def fix_now(self, texts: Iterable[str]) -> None:
        """Resolve every ``${now:…}`` in these texts once for all runs; the resolver cache keeps the value."""
        for text in texts:
            for pattern in _NOW.findall(text):
                with flag_override(self._master, ["struct", "readonly"], False):
                    self._master["_now_"] = f"${{now:{pattern}}}"
                    try:
                        _ = self._master["_now_"]
                    finally:
                        del self._master["_now_"]

    def _base_of(self, choices: tuple[str, ...], patterns: tuple[str, ...]) -> Base:
        """Return the base of these group choices, which holds the values of ``${now:PATTERN}`` for these patterns."""
        if (choices, patterns) not in self._bases:
            if patterns:
                base = self._base_of(choices, ())
                cfg = base.copy()
                OmegaConf.copy_cache(from_config=self._master, to_config=cfg)
                self._bases[choices, patterns] = Base(cfg, base.applied, base.given)
            else:
                self._bases[choices, patterns] = self._base(choices)
        return self._bases[choices, patterns]

    def _base(self, overrides: tuple[str, ...]) -> Base:
        cfg = self._loader.load_sweep_config(self._master, list(overrides))
        if self._unnamed:
            self._leave_out(cfg)
            record_overrides(cfg, overrides)
        self.fix_now(_strings(OmegaConf.to_container(cfg, resolve=False)))
        OmegaConf.copy_cache(from_config=self._master, to_config=cfg)
        return Base(cfg, overrides)

    def _leave_out(self, cfg: DictConfig) -> None:
        options = cfg.hydra.job.config.override_dirname
        with flag_override(cfg, ["struct", "readonly"], False):
            options.exclude_keys = [*raw_list(options.exclude_keys), *self._unnamed]

    def _kind(self, override: str) -> bool | None:
        """Return True for a group choice, False for a value, None if Hydra has to compose the run in full."""
        if override not in self._is_choice:
            self._is_choice[override] = self._classify(override)
        return self._is_choice[override]

    def _classify(self, override: str) -> bool | None:
        if not composition.is_hydras(self._loader):
            return None
        try:
            parsed = parse_override(override)
            if parsed.is_hydra_override() or parsed.is_sweep_override() or parsed.key_or_group == "hydra":
                return None
            return not composition.is_value(parsed, self._repository)
        except Exception:  # Hydra's own composition reports the error
            return None

    @cached_property
    def _repository(self) -> Any:
        hydra = self._master.hydra
        return composition.repository(self._loader, hydra.job.config_name, raw_list(hydra.overrides.hydra))


def raw_list(node: Any) -> list[str]:
    """Return the elements of a list node unresolved: overrides may contain interpolations."""
    found = OmegaConf.to_container(node, resolve=False)
    assert isinstance(found, list)
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
