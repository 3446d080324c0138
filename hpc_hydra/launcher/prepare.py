"""Overrides → runs: each composed once, its plan made (equal requests only once), its directory fixed.

Must not know: how runs are submitted. Writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpc_hydra.config import load, source, yaml_pitfalls
from hpc_hydra.config.schema import GROUPS, Settings
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.launcher import checks
from hpc_hydra.launcher.compose import Base, Composed, Composer, raw_list
from hpc_hydra.launcher.plugin import BUNDLE
from hpc_hydra.planning import packing
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import fix_run, literal, parse_override
from hpc_hydra.schedulers.planner import plan as make_plan
from hpc_hydra.system import detect

_SECONDS = re.compile(r"\$\{now:[^}]*%[STXcfs]")  # in the name of a directory that a time gives
# Keys that say what becomes of the whole command: they cannot differ from run to run.
_WHOLE_COMMAND = (
    "dry_run",
    "setup_only",
    "output_script",
    "launch_dir",
    "bg",
    "inside",
    "debug",
    "on_interrupt",
    "on_failure",
    "best",
    "quiet",
    "confirm_above",
    "snapshot",
)


LONGEST = 255  # bytes of a file's name, on all file systems that are met


@dataclass
class Prepared:
    """The runs of one batch."""

    runs: list[Run]
    bases: list[Base]
    settings: Settings  # of the first run
    notes: tuple[str, ...] = ()


@dataclass
class Preparer:
    """Makes runs out of overrides. One object for all batches of a command line."""

    loader: ConfigLoader
    master: DictConfig
    bundle: Sequence[str] = ()  # overrides of the bundle, for an application that does not list it
    attached: bool = False  # one run at this console
    _bases: list[Base] = field(default_factory=list)
    _base_numbers: dict[int, int] = field(default_factory=dict)
    _plans: dict[Any, tuple[Settings, Plan]] = field(default_factory=dict)
    _interpolates: dict[int, bool] = field(default_factory=dict)
    _dirs: dict[Path, int] = field(default_factory=dict)
    _brief: dict[int, bool] = field(default_factory=dict)
    _shortened: list[str] = field(default_factory=list)

    @cached_property
    def composer(self) -> Composer:
        return Composer(self.loader, self.master, checks.unnamed(raw_list(self.master.hydra.overrides.task)))

    @contextmanager
    def claimed(self) -> Iterator[Preparer]:
        """Meanwhile, a sweep directory whose name is the second is one that no other launch has."""
        given = OmegaConf.select(self.master, "launch.launch_dir")
        is_ours = _is_unnamed(given) if given is not None else bool(_SECONDS.search(str(self._raw_dir)))
        if not is_ours or any(OmegaConf.select(self.master, f"launch.{key}") for key in ("dry_run", "debug")):
            yield self
            return
        from hpc_hydra.launcher import reuse

        self.root = reuse.claim(self._named)
        try:
            yield self
        finally:
            reuse.release()

    @cached_property
    def root(self) -> Path:
        """The sweep directory, absolute, of which no other launch knows."""
        return self._named

    @cached_property
    def _named(self) -> Path:
        """The sweep directory as configured; ``launch.launch_dir`` replaces ``hydra.sweep.dir``."""
        self.composer.fix_now([str(OmegaConf.to_container(self.master.hydra.sweep, resolve=False))])
        folder = self._launch_dir
        text = str(self.master.hydra.sweep.dir) if folder is None else folder
        return _absolute(text)

    @cached_property
    def _launch_dir(self) -> str | None:
        """As `-l` of torchrun-hpc: nothing given, a folder with the time in its name; "." this folder."""
        folder = OmegaConf.select(self.master, "launch.launch_dir")
        if folder is None:
            return None
        if _is_unnamed(folder):
            name = OmegaConf.select(self.master, "hydra.job.name") or "launch"
            stamp = OmegaConf.create({"now": "${now:%Y-%m-%d_%H-%M-%S}"}).now
            return f"launch-{name}_{stamp}"
        return str(folder)

    def prepare(self, job_overrides: Sequence[Sequence[str]], first: int) -> Prepared:
        """Compose and plan a batch. Raises what Hydra raises for bad overrides, and `HpcHydraError`."""
        runs: list[Run] = []
        settings: Settings | None = None
        seeds = random.SystemRandom()
        orig = HydraConfig.instance().cfg
        try:
            for num, overrides in enumerate(job_overrides, start=first):
                run, found = self._run(num, tuple(overrides), seeds)
                settings = settings or found
                _check_whole_command(settings, found)
                runs.append(run)
        finally:
            HydraConfig.instance().cfg = orig
        if settings is None:
            raise ConfigError("there are no runs", where="overrides", fix="give a sweep values: lr=0.1,0.01")
        notes = dict.fromkeys(note for run in runs for note in run.plan.notes)
        only = packing.alone(runs[0].plan) if len(runs) == 1 else ()
        return Prepared(runs, self._bases, settings, (*notes, *only, *self._shortened[:1]))

    def check_files(self, prepared: Prepared) -> None:
        """The bundle in the wrong place, and values that YAML reads as something else. Raises `ConfigError`."""
        yaml_pitfalls.check_overrides(raw_list(self.master.hydra.overrides.task))
        for base in prepared.bases[:50]:
            checks.check_hydra(self.master, base.cfg, base.applied)
            checks.check_files(self.loader, base.cfg, self._files_chosen(base), sweeping=False)

    def _files_chosen(self, base: Base, overrides: Sequence[str] = ()) -> list[str]:
        """Overrides that choose the files of a base, and further ones."""
        given = base.applied if base.given is None else base.given
        return list(dict.fromkeys((*raw_list(self.master.hydra.overrides.hydra), *given, *overrides)))

    def _run(self, num: int, overrides: tuple[str, ...], seeds: random.Random) -> tuple[Run, Settings]:
        refers = any("${hydra" in text for text in overrides)
        composed = self.composer.compose(overrides, brief=lambda base: not refers and self._is_brief(base))
        folder = self._dir(composed, num, brief=not refers and self._is_brief(composed.base))
        settings, plan = self._plan(composed.cfg, overrides, composed.base)
        seed = settings.launch.seed if settings.launch.seed is not None else seeds.randrange(2**32)
        return Run(num, overrides, plan, folder, seed, self._number(composed.base)), settings

    def _number(self, base: Base) -> int:
        key = id(base)
        if key not in self._base_numbers:
            self._base_numbers[key] = len(self._bases)
            self._bases.append(base)  # also keeps it alive, so that its id stays its own
        return self._base_numbers[key]

    def _dir(self, composed: Composed, num: int, *, brief: bool) -> Path:
        """The run's directory; what ``${hydra:...}`` in our groups asks for is that of the run from now on."""
        if brief:
            found = self.root / str(num)
        else:
            cfg = composed.cfg
            with read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.job.num, cfg.hydra.job.id = num, str(num)
            HydraConfig.instance().cfg = cfg  # type: ignore[assignment]
            subdir = str(OmegaConf.select(cfg, "hydra.sweep.subdir"))
            own = self._launch_dir is None
            root = _absolute(str(OmegaConf.select(cfg, "hydra.sweep.dir"))) if own else self.root
            root = self.root if root == self._named else root
            whole = _absolute(str(root / subdir))
            found = _shortened(whole)
            if found != whole:
                note = f"run {num}: {whole.name[:40]}… has more than {LONGEST} bytes, and is shortened to {found.name}"
                self._shortened.append(note)
            fix_run(cfg, self.root, num, found, job_id="???")  # the scheduler's, which nobody knows yet
            with read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.runtime.output_dir = literal(str(found))
            checks.check_interpolations(cfg)
        other = self._dirs.setdefault(found, num)
        if other != num:
            raise ConfigError(
                f"runs {other} and {num} would have the same output directory {found}",
                where="hydra.sweep.subdir",
                fix="hydra.sweep.subdir='${hydra.job.num}'",
            )
        return found

    def _is_brief(self, base: Base) -> bool:
        """Whether runs of this base need nothing of ``hydra``: plain directories, no interpolation in our groups."""
        key = self._number(base)
        if key not in self._brief:
            raw = {name: composition.written(base.cfg.hydra.sweep, name) for name in ("dir", "subdir")}
            usual = raw["subdir"] == "${hydra.job.num}" and raw["dir"] == self._raw_dir
            plain = "${" not in str(raw["dir"]).replace("${now:", "")
            self._brief[key] = usual and plain and not self._has_interpolations(base)
        return self._brief[key]

    @cached_property
    def _raw_dir(self) -> Any:
        return composition.written(self.master.hydra.sweep, "dir")

    def _plan(self, cfg: DictConfig, overrides: Sequence[str], base: Base) -> tuple[Settings, Plan]:
        key = self._key(cfg, overrides, base)
        if key not in self._plans:
            try:
                asked = load.settings(cfg if "launch" in cfg else self._bundle)
            except ConfigError as error:
                raise checks.with_file(error, self.loader, cfg, self._files_chosen(base, overrides)) from None
            said = _said(overrides if "launch" in cfg else self.bundle)
            settings = detect.resolve(asked, attached=self.attached, said=said)
            try:
                plan = make_plan(settings)
            except HpcHydraError as error:
                named = detect.named(error, asked, settings)
                raise checks.with_file(named, self.loader, cfg, self._files_chosen(base, overrides)) from None
            misspelt = load.misspelt_groups(cfg).items()
            for name, near in misspelt:
                self._refuse_in_system(cfg, name, near)
            notes = detect.notes(asked, settings, attached=self.attached)
            notes += tuple(
                f"{key!r} in the configuration is no group of hpc_hydra: did you mean {near}?" for key, near in misspelt
            )
            self._plans[key] = (settings, replace(plan, notes=(*plan.notes, *notes)) if notes else plan)
        return self._plans[key]

    def _refuse_in_system(self, cfg: DictConfig, name: str, near: str) -> None:
        """A group that the file of the chosen system misspells. (In other files, a key may be of the user's own.)"""
        from hpc_hydra.system.index import origin

        choice = OmegaConf.select(cfg, "hydra.runtime.choices.system")
        folders = [
            Path(source.path) for source in self.loader.get_sources() if source.scheme() in ("file", "hpc_hydra")
        ]
        if choice and (file := origin(str(choice), tuple(folders), name)):
            raise ConfigError(f"there is no group {name!r}", where=f"{file}: {name}", fix=f"{near}:")

    @cached_property
    def _bundle(self) -> DictConfig:
        """Our groups, for an application that does not have them."""
        with source.shown():
            return self.loader.load_configuration(BUNDLE, list(self.bundle), run_mode=RunMode.RUN)

    def _key(self, cfg: DictConfig, overrides: Sequence[str], base: Base) -> Any:
        """What a run's settings depend on: its base and its overrides of our groups, or their values in the end."""
        if "launch" not in cfg:
            return "bundle"
        ours = tuple(o for o in overrides if _first(parse_override(o).key_or_group) in GROUPS)
        if not self._has_interpolations(base) and not any("${" in o for o in ours):
            return (self._number(base), ours)
        try:
            resolved = {g: OmegaConf.to_container(cfg[g], resolve=True) for g in GROUPS}
            return json.dumps([resolved, sorted(_said(ours))], sort_keys=True, default=repr)
        except Exception:
            return object()  # let `load.settings` say what is wrong

    def _has_interpolations(self, base: Base) -> bool:
        number = self._number(base)
        if number not in self._interpolates:
            cfg = base.cfg
            nodes: list[Any] = [composition.node(cfg, group) for group in GROUPS if group in cfg]
            containers = [OmegaConf.to_container(node, resolve=False) for node in nodes if OmegaConf.is_config(node)]
            self._interpolates[number] = "${" in str(containers)
        return self._interpolates[number]


def _check_whole_command(first: Settings, other: Settings) -> None:
    if other is first:
        return
    for name in _WHOLE_COMMAND:
        if getattr(first.launch, name) != getattr(other.launch, name):
            raise ConfigError(
                f"differs between runs ({getattr(first.launch, name)!r} and {getattr(other.launch, name)!r}), "
                "but says what becomes of the whole command",
                where=f"launch.{name}",
                fix=f"give launch.{name} one value",
            )


def _shortened(path: Path) -> Path:
    """The path with every name short enough for a file system; equal names stay equal, others differ by a hash."""
    return Path(*(part if len(os.fsencode(part)) <= LONGEST else _short(os.fsencode(part)) for part in path.parts))


def _short(name: bytes) -> str:
    mark = hashlib.sha256(name).hexdigest()[:12]
    return f"{name[: LONGEST - len(mark) - 1].decode(errors='ignore')}-{mark}"


def _said(overrides: Sequence[str]) -> frozenset[str]:
    """Keys that overrides give, replace or take away."""
    return frozenset(str(parse_override(text).key_or_group) for text in overrides)


def _is_unnamed(launch_dir: object) -> bool:
    """Whether a launch directory is wanted, and its name left to us."""
    return str(launch_dir) in ("", "true", "True")


def _first(key: str) -> str:
    return key.replace("[", ".").split(".", 1)[0].split("/", 1)[0]


def _absolute(path: str) -> Path:
    return Path(os.path.normpath(Path(path).absolute()))
