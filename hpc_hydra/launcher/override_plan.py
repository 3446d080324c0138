"""Plan a frozen run again with additional overrides.

Only our own groups are used: other parts of the configuration, and the user's types, are not loaded. Must not know:
jobs, the manifest.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_hydra.config import load
from hpc_hydra.config.schema import GROUPS, Settings
from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher import override_values
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import RunRecord, apply_overrides, fix_run, parse_override
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers.planner import plan as make_plan
from hpc_hydra.suggest import nearest
from hpc_hydra.system import detect

if TYPE_CHECKING:
    from omegaconf import DictConfig

_COMMAND_KEYS = {
    "launch.bg": "--bg",
    "launch.dry_run": "hpc-hydra status, which shows what would be resumed",
    "launch.setup_only": "the scripts in .hpc_hydra/jobs can be submitted by hand",
    "launch.output_script": "the scripts are in .hpc_hydra/jobs",
    "launch.launch_dir": "the sweep stays in its directory",
    "launch.batch_script": "a new sweep",
    "launch.snapshot": "the code of a sweep is frozen when it is launched, or not at all",
    "launch.debug": "python train.py launch.debug=true with the overrides of the run",
}
_TRUSTED = ("omegaconf", "hydra", "hpc_hydra", "hydra_plugins", "cloudpickle")


class Replanner:
    """Applies the same overrides to runs of a sweep. Raises `ConfigError` for overrides that cannot be applied."""

    def __init__(self, sweep: Path, overrides: Sequence[str]) -> None:
        self.sweep = sweep
        self.overrides = check(overrides)
        self._interpolates: dict[int, bool] = {}  # base → whether our groups contain interpolations
        self._plans: dict[tuple[int, tuple[str, ...]], tuple[Settings, Plan]] = {}

    def replan(self, run: Run, record: RunRecord) -> Run:
        """Return the run with its new plan, and with the new overrides among its overrides."""
        keys = {_key(text) for text in self.overrides}
        kept = tuple(text for text in run.overrides if _key(text) not in keys)
        overrides = (*kept, *self.overrides)
        ours = tuple(text for text in overrides if _is_ours(text))
        key = (record.base, overrides if self._interpolates.get(record.base, True) else ours)
        if key not in self._plans:
            settings = self._settings(run, record, overrides)
            self._plans[key] = (settings, make_plan(settings, run.plan.request.job_name))
        settings, plan = self._plans[key]
        seed = settings.launch.seed if "launch.seed" in keys and settings.launch.seed is not None else run.seed
        return replace(run, overrides=overrides, plan=plan, seed=seed)

    def _settings(self, run: Run, record: RunRecord, overrides: Sequence[str]) -> Settings:
        from hydra.core.hydra_config import HydraConfig
        from hydra.core.utils import setup_globals
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        setup_globals()
        cfg, applied = read_base(self.sweep, record)
        if "launch" not in cfg:
            raise ConfigError(
                "this application is configured without hpc_hydra's groups, so they cannot be changed for a run",
                where="--",
                fix="add `- hpc` to its defaults list and start again",
            )
        rest = [text for text in overrides if text not in applied]
        failed = _apply_others(cfg, [text for text in rest if not _is_ours(text)])
        for text in filter(_is_ours, rest):
            try:
                apply_overrides(cfg, [text], None)
            except (HydraException, OmegaConfBaseException) as error:
                cause = (str(error.__cause__ or error).strip().splitlines() or [""])[0]
                raise ConfigError(cause, where=text, fix=_nearest(_key(text))) from error
        self._interpolates[record.base] = _has_interpolations(cfg)
        if failed and self._interpolates[record.base]:
            raise ConfigError(
                f"{failed[0]} needs types of the program, and our groups may refer to it",
                where="--",
                fix="plain values instead of ${…} in " + ", ".join(GROUPS),
            )
        fix_run(cfg, self.sweep, run.num, run.dir)
        HydraConfig.instance().cfg = cfg  # type: ignore[assignment]
        given = frozenset(_key(text) for text in overrides)
        return detect.resolve(load.settings(cfg), earlier=run.plan.request, said=given)


def check(overrides: Sequence[str]) -> tuple[str, ...]:
    """Refuse overrides that cannot change a frozen run. Raises `ConfigError`."""
    from hydra.errors import OverrideParseException

    for text in overrides:
        try:
            parsed = parse_override(text)
        except OverrideParseException as error:
            raise ConfigError(" ".join(str(error).split()), where=text, fix="resources.time_limit=2h") from None
        key = str(parsed.key_or_group)
        group = key.split(".")[0].split("@")[0].split("/")[0]
        if group not in GROUPS:
            near = "".join(f"{name}{text.lstrip('+~').removeprefix(group)}; or " for name in nearest(group, GROUPS)[:1])
            raise ConfigError(
                "the configuration of a run is frozen; only single keys can change, of the groups " + ", ".join(GROUPS),
                where=text,
                fix=f"{near}keys such as resources.time_limit=2h; a new sweep for other values of your own keys",
            )
        if "." not in key:
            raise ConfigError(
                "the configuration of a run is frozen; another group choice is not possible",
                where=text,
                fix=f"single keys, {group}.KEY=VALUE; a new sweep for another {group}",
            )
        if parsed.is_sweep_override():
            raise ConfigError("a resumed run takes one value for each key", where=text, fix="one value")
        if parsed.is_delete():
            raise ConfigError("keys cannot be removed", where=text, fix=f"{key.lstrip('~')}=null")
        if key in _COMMAND_KEYS:
            raise ConfigError("does not apply to a resumed run", where=text, fix=_COMMAND_KEYS[key])
    override_values.check(overrides)
    return tuple(overrides)


def _apply_others(cfg: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Apply overrides of the user's own keys. Return those that fail because they need a type of the program."""
    failed = []
    for text in overrides:
        try:
            apply_overrides(cfg, [text], None)
        except Exception:
            failed.append(text)
    return failed


def _has_interpolations(cfg: DictConfig) -> bool:
    from omegaconf import OmegaConf

    return "${" in str([OmegaConf.to_container(cfg[group], resolve=False) for group in GROUPS])


def _nearest(key: str) -> str:
    """Suggest keys of our groups."""
    import difflib
    from dataclasses import fields

    keys = [f"{group}.{field.name}" for group, kind in GROUPS.items() for field in fields(kind)]
    near = difflib.get_close_matches(key, keys, n=3)
    return " or ".join(near) if near else "a key of " + ", ".join(GROUPS)


def _is_ours(override: str) -> bool:
    return _key(override).split(".")[0].split("@")[0] in GROUPS


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def read_base(sweep: Path, record: RunRecord) -> tuple[DictConfig, frozenset[str]]:
    """Read a run's base: the frozen configuration and the overrides already applied to it.

    Nothing of the user's is imported: values of the user's own types are placeholders, so only our groups are usable.
    """
    with SweepPaths(sweep).bases.open("rb") as file:
        file.seek(record.base)
        base = _Unpickler(file).load()
    return base["cfg"], frozenset(base["applied"])


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        first = module.split(".")[0]
        if first != "__main__" and (first in _TRUSTED or first in sys.stdlib_module_names):
            return super().find_class(module, name)
        return _Closed


class _Closed:
    """Placeholder for an object of a type that is not imported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass
