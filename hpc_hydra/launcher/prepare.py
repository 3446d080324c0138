"""Turn overrides into runs: compose each run once, plan it (equal requests only once), choose its directory.

Must not know: how runs are submitted. Writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hpc_hydra.config import load, source
from hpc_hydra.config.schema import GROUPS, Settings
from hpc_hydra.config.secrets import MASK, is_secret
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.launcher import checks, origins, override_values
from hpc_hydra.launcher.compose import Base, Composed, Composer, raw_list
from hpc_hydra.launcher.left_out import LeftOut
from hpc_hydra.launcher.origins import Sources
from hpc_hydra.launcher.plugin import BUNDLE
from hpc_hydra.planning import packing, requirements
from hpc_hydra.planning.requirements import Missing
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.records import command_template
from hpc_hydra.records.batching import Run
from hpc_hydra.records.frozen_config import fix_run, literal, parse_override
from hpc_hydra.schedulers.planner import plan as make_plan
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.system import allocation, detect
from hpc_hydra.ui.origins import Origins

_LONGEST_NAME = 60  # characters of the default job name
_SECONDS = re.compile(r"\$\{now:[^}]*%[STXcfs]")  # a directory name with a time stamp in seconds
# Keys that apply to the whole command and cannot differ between runs.
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


LONGEST = 255  # maximum bytes of a file name on common file systems


@dataclass
class Prepared:
    """The runs of one batch."""

    runs: list[Run]
    bases: list[Base]
    settings: Settings  # of the first run
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()  # what sites require


@dataclass
class Preparer:
    """Turns overrides into runs. One object serves all batches of a command line."""

    loader: ConfigLoader
    master: DictConfig
    bundle: Sequence[str] = ()  # overrides of the bundle, for an application without it in its defaults list
    attached: bool = False  # one run, attached to this console
    without_defaults: frozenset[str] = frozenset()  # keys that the user's own defaults do not set
    _bases: list[Base] = field(default_factory=list)
    _base_numbers: dict[int, int] = field(default_factory=dict)
    _plans: dict[Any, tuple[Settings, Plan]] = field(default_factory=dict)
    _missing: dict[Plan, tuple[Missing, ...]] = field(default_factory=dict)
    _defaults: dict[int, list[Any]] = field(default_factory=dict)  # by base: Hydra's final defaults list
    _asked: dict[Plan, Callable[[], Sources]] = field(default_factory=dict)  # of a dry run
    _interpolates: dict[int, bool] = field(default_factory=dict)
    _dirs: dict[Path, int] = field(default_factory=dict)
    _brief: dict[int, bool] = field(default_factory=dict)
    _shortened: list[str] = field(default_factory=list)
    _left_out: LeftOut = field(default_factory=LeftOut)

    @cached_property
    def composer(self) -> Composer:
        return Composer(self.loader, self.master, checks.unnamed(raw_list(self.master.hydra.overrides.task)))

    @contextmanager
    def claimed(self) -> Iterator[Preparer]:
        """Within this context, a sweep directory named by a time stamp is used by no other launch."""
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
        """The sweep directory of this launch, absolute."""
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
        """`launch.launch_dir`, as `-l` of torchrun-hpc: "" gets a time-stamped name, "." is the current directory."""
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
        if "launch" in self.master:
            override_values.check(raw_list(self.master.hydra.overrides.task))
        runs: list[Run] = []
        settings: Settings | None = None
        seeds = random.SystemRandom()
        orig = HydraConfig.instance().cfg
        try:
            for num, overrides in enumerate(job_overrides, start=first):
                run, run_settings = self._run(num, tuple(overrides), seeds)
                settings = settings or run_settings
                _check_whole_command(settings, run_settings)
                runs.append(run)
        finally:
            HydraConfig.instance().cfg = orig
        if settings is None:
            raise ConfigError("the sweep has no runs", where="overrides", fix="lr=0.1,0.01")
        notes = dict.fromkeys(note for run in runs for note in run.plan.notes)
        only = packing.alone(runs[0].plan) if len(runs) == 1 else ()
        missing = dict.fromkeys(one for run in runs for one in self._missing.get(run.plan, ()))
        further = (*only, *self._shortened[:1], *self._left_out.notes)
        return Prepared(runs, self._bases, settings, (*notes, *further), tuple(missing))

    def prepare_as_composed(self) -> Prepared:
        """Plan the one run of a command line without sweeps, whose configuration is the master itself."""
        overrides = tuple(raw_list(self.master.hydra.overrides.task))
        self.composer.adopt(overrides)
        prepared = self.prepare([[]], 0)
        return replace(prepared, runs=[replace(run, overrides=overrides) for run in prepared.runs])

    def check_files(self, prepared: Prepared) -> None:
        """Check the place of the bundle, and values that YAML misreads. Raises `ConfigError`."""
        for base in prepared.bases[:50]:
            checks.check_hydra(self.master, base.cfg, base.applied)
            defaults = checks.check_files(self.loader, base.cfg, self._files_chosen(base), sweeping=False)
            self._defaults[self._number(base)] = defaults

    def _files_chosen(self, base: Base, overrides: Sequence[str] = ()) -> list[str]:
        """Return the overrides that select the files of a base, followed by ``overrides``."""
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
            self._bases.append(base)  # also keeps it alive, so that its id stays unique
        return self._base_numbers[key]

    def _dir(self, composed: Composed, num: int, *, brief: bool) -> Path:
        """Return the run's directory, and set up ``${hydra:...}`` in our groups for this run."""
        if brief:
            folder = self.root / str(num)
        else:
            cfg = composed.cfg
            with read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.job.num, cfg.hydra.job.id = num, str(num)
            HydraConfig.instance().cfg = cfg  # type: ignore[assignment]
            subdir = str(OmegaConf.select(cfg, "hydra.sweep.subdir"))
            configured = self._launch_dir is None
            root = _absolute(str(OmegaConf.select(cfg, "hydra.sweep.dir"))) if configured else self.root
            root = self.root if root == self._named else root
            whole = _absolute(str(root / subdir))
            folder = _shortened(whole)
            if folder != whole:
                note = f"run {num}: {whole.name[:40]}… has more than {LONGEST} bytes and is shortened to {folder.name}"
                self._shortened.append(note)
            fix_run(cfg, self.root, num, folder, job_id="???")  # the scheduler's id is not known yet
            with read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.runtime.output_dir = literal(str(folder))
            checks.check_interpolations(cfg)
        other = self._dirs.setdefault(folder, num)
        if other != num:
            raise ConfigError(
                f"runs {other} and {num} would have the same output directory {folder}",
                where="hydra.sweep.subdir",
                fix="hydra.sweep.subdir='${hydra.job.num}'",
            )
        return folder

    def _is_brief(self, base: Base) -> bool:
        """Whether runs of this base do not use ``hydra``: default directories, no interpolation in our groups."""
        key = self._number(base)
        if key not in self._brief:
            raw = {name: composition.written(base.cfg.hydra.sweep, name) for name in ("dir", "subdir")}
            usual = raw["subdir"] == "${hydra.job.num}" and raw["dir"] == self._raw_dir
            plain = "${" not in str(raw["dir"]).replace("${now:", "")
            self._brief[key] = usual and plain and not self._has_interpolations(base)
        return self._brief[key]

    @cached_property
    def job_name(self) -> str:
        """Name of the jobs without `scheduler.job_name`: that of the program, as far as all schedulers accept it."""
        name = re.sub(r"[^\w.-]+", "_", str(self.master.hydra.job.name), flags=re.ASCII)
        return name[:_LONGEST_NAME].strip("_.-") or Request.job_name

    @cached_property
    def _raw_dir(self) -> Any:
        return composition.written(self.master.hydra.sweep, "dir")

    def _plan(self, cfg: DictConfig, overrides: Sequence[str], base: Base) -> tuple[Settings, Plan]:
        key = self._key(cfg, overrides, base)
        if key not in self._plans:
            given = _given_keys((*base.applied, *overrides) if "launch" in cfg else self.bundle)
            try:
                typed = given | _given_keys(self._files_chosen(base))
                configured = load.settings(cfg if "launch" in cfg else self._bundle, typed)
            except ConfigError as error:
                raise checks.with_file(error, self.loader, cfg, self._files_chosen(base, overrides)) from None
            settings = detect.resolve(configured, attached=self.attached, said=given | self.without_defaults)
            try:
                plan = make_plan(settings, self.job_name)
            except HpcHydraError as error:
                named = detect.named(error, configured, settings)
                raise checks.with_file(named, self.loader, cfg, self._files_chosen(base, overrides)) from None
            misspelt = load.misspelt_groups(cfg).items()
            for name, near in misspelt:
                self._refuse_in_system(cfg, name, near)
            notes = detect.notes(configured, settings, attached=self.attached)
            notes += detect.beyond_partition(settings, plan.request)
            notes += tuple(
                f"{key!r} in the configuration is not a group of hpc_hydra: did you mean {near}?"
                for key, near in misspelt
            )
            plan = replace(plan, notes=(*plan.notes, *notes)) if notes else plan
            plan = self._left_out.applied(plan, settings.launch.inside)
            self._plans[key] = (settings, plan)
            adapter = adapter_for(plan.request.scheduler)
            found = requirements.missing(settings, plan.request, adapter.options)
            if found and allocation.current(adapter, settings.launch.inside) is None:
                self._missing.setdefault(plan, found)
            if settings.launch.dry_run:
                self._asked.setdefault(plan, partial(self._sources, configured, settings, overrides, base))
        return self._plans[key]

    def origins(self, run: Plan, plan: Plan, script: str, *, packed: bool = False) -> Origins:
        """Return the origins of the directives and variables of a job, in a dry run.

        Args:
            run: plan of a run of the job.
            plan: plan of the job.
            packed: the job is an allocation for several runs.
        """
        return origins.origins(self._asked[run](), plan, script, run if packed else None)

    def _sources(self, asked: Settings, resolved: Settings, overrides: Sequence[str], base: Base) -> Sources:
        if "launch" not in base.cfg:
            with source.shown():
                found = checks.places(self.loader, BUNDLE, self.bundle)
            return Sources(asked, resolved, {"hydra.launcher.bundle": self.bundle}, lambda: found, self.attached)
        typed = {origins.COMMAND_LINE: raw_list(self.master.hydra.overrides.task), "the sweeper": overrides}
        chosen = self._files_chosen(base, overrides)
        name, known = base.cfg.hydra.job.config_name, self._defaults.get(self._number(base), ())
        files = partial(checks.places, self.loader, name, chosen, known)
        return Sources(asked, resolved, typed, files, self.attached)

    def filled(self, run: Run, words: Sequence[str]) -> list[str]:
        """Return the arguments of a command with the values of a run, as far as they are known before its start."""
        plan = run.plan
        cfg = self.composer.compose(run.overrides).cfg
        fix_run(cfg, self.root, run.num, run.dir, job_id="???")
        with read_write(cfg.hydra), open_dict(cfg.hydra):
            cfg.hydra.runtime.output_dir = literal(str(run.dir))
        orig, HydraConfig.instance().cfg = HydraConfig.instance().cfg, cfg  # type: ignore[assignment]
        try:
            known = {
                "output_dir": str(run.dir),
                "run_dir": str(run.dir),
                "sweep_dir": str(self.root),
                "num": str(run.num),
            }
            known |= command_template.from_config(cfg, list(words))
        finally:
            HydraConfig.instance().cfg = orig
        known |= {name: MASK for name in known if is_secret(name.rpartition(".")[2], plan.secrets)}
        known |= {"num_nodes": str(plan.request.nodes), "world_size": str(plan.world_size)}
        known |= {"procs_per_node": str(plan.request.procs_per_node)}
        return [command_template.fill(word, lambda name: known.get(name, f"{{{name}}}")) for word in words]

    def _refuse_in_system(self, cfg: DictConfig, name: str, near: str) -> None:
        """Refuse a misspelled group in the file of the selected system. In other files, it may be the user's key."""
        from hpc_hydra.system.index import origin

        choice = OmegaConf.select(cfg, "hydra.runtime.choices.system")
        folders = [
            Path(source.path) for source in self.loader.get_sources() if source.scheme() in ("file", "hpc_hydra")
        ]
        if choice and (file := origin(str(choice), tuple(folders), name)):
            raise ConfigError(f"there is no group {name!r}", where=f"{file}: {name}", fix=f"{near}:")

    @cached_property
    def _bundle(self) -> DictConfig:
        """Our groups, for an application without them."""
        with source.shown():
            return self.loader.load_configuration(BUNDLE, list(self.bundle), run_mode=RunMode.RUN)

    def _key(self, cfg: DictConfig, overrides: Sequence[str], base: Base) -> Any:
        """Return a key that is equal for runs with equal settings: base and our groups' overrides, or values."""
        if "launch" not in cfg:
            return "bundle"
        ours = tuple(o for o in overrides if _first(parse_override(o).key_or_group) in GROUPS)
        if not self._has_interpolations(base) and not any("${" in o for o in ours):
            return (self._number(base), ours)
        try:
            resolved = {g: OmegaConf.to_container(cfg[g], resolve=True) for g in GROUPS}
            return json.dumps([resolved, sorted(_given_keys(ours))], sort_keys=True, default=repr)
        except Exception:
            return object()  # `load.settings` reports the error

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
                "but applies to the whole command",
                where=f"launch.{name}",
                fix=f"one value for launch.{name}",
            )


def _shortened(path: Path) -> Path:
    """Shorten each name in a path to `LONGEST` bytes. Different names stay different by a hash."""
    return Path(*(part if len(os.fsencode(part)) <= LONGEST else _short(os.fsencode(part)) for part in path.parts))


def _short(name: bytes) -> str:
    mark = hashlib.sha256(name).hexdigest()[:12]
    return f"{name[: LONGEST - len(mark) - 1].decode(errors='ignore')}-{mark}"


def _given_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Return the keys that overrides set, add or remove."""
    return frozenset(str(parse_override(text).key_or_group) for text in overrides)


def _is_unnamed(launch_dir: object) -> bool:
    """Whether `launch.launch_dir` requests a directory with a generated name."""
    return str(launch_dir) in ("", "true", "True")


def _first(key: str) -> str:
    return key.replace("[", ".").split(".", 1)[0].split("/", 1)[0]


def _absolute(path: str) -> Path:
    return Path(os.path.normpath(Path(path).absolute()))
