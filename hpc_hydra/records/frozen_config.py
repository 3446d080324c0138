"""The frozen sweep: the composed configuration of every run, written once at submission and read by each rank.

A *base* is a composed, unresolved configuration with some overrides already applied; there is one per distinct set of
group choices. A run is a base and its remaining overrides. ``${oc.env:RANK}`` therefore resolves on the rank, while
``${now:}`` and Hydra's directories are fixed at submission. Editing a YAML file later changes nothing.

Must not know: how configurations are composed, submitted or run. Light: imports Hydra only to thaw.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal

from hpc_hydra.errors import SweepError
from hpc_hydra.hydra_compat import composition
from hpc_hydra.planning.types import Plan, to_json
from hpc_hydra.records.codec import check_size, checked
from hpc_hydra.records.files import GONE, into_new_place, is_gone, write_json
from hpc_hydra.records.layout import A_SWEEP, FORMAT, SweepPaths

if TYPE_CHECKING:
    from omegaconf import DictConfig

ProgramKind = Literal["script", "module", "code", "task", "command"]


@dataclass(frozen=True)
class TaskId:
    """Identifies the launched function: a program may have several ``@hydra.main``, and call one several times."""

    module: str
    name: str  # qualified
    before: int = 0  # earlier launches of this function by the same process


@dataclass(frozen=True)
class Program:
    """How the user's program was started, so that a rank can start it again.

    ``script``: ``target`` is its absolute path. ``module``: ``target`` is the argument of ``-m``. ``code``: ``code``
    came from the command line or standard input. ``task``: there is no program to start again (a notebook, a test); the
    function is in task.pkl. ``command``: ``argv`` is run as is, or passed to Python if ``target`` is "python".
    ``fill``: fill ``{key}`` in ``argv`` from the run's configuration.
    """

    kind: ProgramKind
    target: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""  # where the command was typed; for kind "task", the launcher's working directory
    sys_path0: str | None = None  # the first entry of sys.path, as set by Python
    flags: tuple[str, ...] = ()  # interpreter flags, e.g. ("-X", "faulthandler")
    umask: int = 0o022
    pythonpath: tuple[str, ...] = ()  # prepended to PYTHONPATH of the ranks: this package, if it is not installed
    fill: bool = False
    launch: str = ""  # unique to this launch; job scripts contain it too, and ranks compare the two
    # Sweeps of earlier versions lack the following fields: their ranks get the run's overrides as sys.argv and run the
    # first task function that the program reaches.
    typed: tuple[str, ...] | None = None  # sys.argv at the program's start
    code: str = ""
    task: TaskId | None = None
    arrived: str | None = None  # working directory at the launch, if ``cwd`` is uncertain; ranks compare


@dataclass(frozen=True)
class RunRecord:
    """One run, without its configuration: what its supervisor needs."""

    num: int
    overrides: tuple[str, ...]
    plan: str  # key in plans.json
    base: int  # byte offset of its base in bases.pkl
    seed: int
    dir: Path  # its output directory, absolute
    program: Program = field(repr=False)


class Freezer:
    """Writes the frozen sweep. Call `flush` before submitting anything."""

    def __init__(self, sweep: Path, program: Program) -> None:
        self.paths = SweepPaths(sweep)
        self.program = program
        self.paths.meta.mkdir(parents=True, exist_ok=True)
        self._bases = self.paths.bases.open("ab")
        self._runs = self.paths.runs.open("ab")
        write_json(self.paths.program, {"format": FORMAT, **asdict(program)})

    def add_base(self, cfg: DictConfig, applied: Iterable[str]) -> int:
        """Add a composed configuration that already contains the overrides ``applied``; return its key."""
        offset = self._bases.seek(0, os.SEEK_END)
        base = {"applied": tuple(applied), "cfg": cfg}
        self._bases.write(_dumps(base, by_value=self.program.kind == "task"))
        return offset

    def add_run(self, num: int, overrides: Sequence[str], *, plan: str, base: int, seed: int, dir: Path) -> None:
        """Add one run. ``dir`` is absolute."""
        try:
            shown = str(dir.relative_to(self.paths.root))
        except ValueError:
            shown = str(dir)
        line = {"num": num, "plan": plan, "base": base, "seed": seed, "dir": shown, "overrides": list(overrides)}
        self._runs.write(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        )

    def write_plans(self, plans: Mapping[str, Plan]) -> None:
        """Write all plans of the sweep, including those of earlier batches."""
        write_json(self.paths.plans, {key: to_json(plan) for key, plan in plans.items()})

    def write_task(self, payload: Mapping[str, Any]) -> None:
        """Write the function and its state, for a program that cannot be started again."""
        with self.paths.task.open("wb") as file:
            file.write(_dumps(dict(payload), by_value=True))
            _sync(file)

    def flush(self) -> None:
        """Flush everything to disk."""
        for file in (self._bases, self._runs):
            _sync(file)

    def close(self) -> None:
        self._bases.close()
        self._runs.close()


def read_program(sweep: Path) -> Program:
    """Read how the user's program was started. Raises `SweepError` if this is no sweep of the present format."""
    path = SweepPaths(sweep).program
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        if is_gone(sweep):
            raise SweepError(GONE, where=str(sweep), fix=f"{into_new_place(sweep)}; else launch again") from None
        raise SweepError("this is not a sweep directory", where=str(sweep), fix=A_SWEEP) from None
    except (ValueError, RecursionError) as error:
        raise SweepError(f"cannot be read: {error}", where=str(path), fix="restore the file from a copy") from error
    if not isinstance(data, dict):
        raise _damaged("it is not a JSON object", path)
    if data.get("format") != FORMAT:
        raise SweepError(
            f"written in format {data.get('format')}; this version reads format {FORMAT}",
            where=str(path),
            fix="use the version of hpc_hydra that started the sweep",
        )
    try:
        program = checked(Program, data)
        if not 0 <= program.umask <= 0o777:
            raise ValueError(f"umask is {program.umask!r:.80}")
        return program
    except ValueError as error:
        raise _damaged(str(error), path) from None


def check_launch(sweep: Path, program: Program, launch: str | None) -> None:
    """Check that the records belong to the launch that wrote the job script, ``launch``. Raises `SweepError`."""
    if launch is not None and launch != program.launch:
        raise SweepError(
            f"another launch ({program.launch or 'unnamed'}) has replaced the records of this job's launch ({launch})",
            where=str(sweep),
            fix="start the runs again, with a hydra.sweep.dir that no other launch uses",
        )


def read_run(sweep: Path, num: int) -> RunRecord:
    """Read the record of one run, without unpickling anything. Raises `SweepError`."""
    program = read_program(sweep)
    path = SweepPaths(sweep).runs
    with _present(path):
        data = path.read_bytes()
    mark = b'{"num":%d,' % num
    at = data.rfind(b"\n" + mark) + 1  # the last line of a run counts: resuming may change its plan
    if not data.startswith(mark, at):
        raise SweepError(f"there is no run {num}", where=str(path))
    end = data.find(b"\n", at)
    try:
        return _record(sweep, json.loads(data[at : end if end >= 0 else None]), program)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"the line of run {num}: {error}", path) from None


def read_runs(sweep: Path) -> Iterator[RunRecord]:
    """Yield all run records in the order of writing; the last record of a run counts. Skips an unfinished last line.

    Raises `SweepError`.
    """
    program = read_program(sweep)
    path = SweepPaths(sweep).runs
    with _present(path), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _record(sweep, json.loads(line), program)
            except (ValueError, RecursionError) as error:
                raise _damaged(f"line {number}: {error}", path) from None


def read_plans(sweep: Path) -> dict[str, Plan]:
    """Read all plans of the sweep, by key. Raises `SweepError`."""
    path = SweepPaths(sweep).plans
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise SweepError(f"cannot be read: {why}", where=str(path), fix="restore the file from a copy") from error
    if not isinstance(data, dict):
        raise _damaged("it is not a JSON object", path)
    plans = {}
    for key, plan in data.items():
        try:
            plans[key] = checked(Plan, plan)
            check_size(plans[key].request)
        except ValueError as error:
            raise _damaged(f"{key}: {error}", path) from None
    return plans


@contextmanager
def _present(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SweepError("is missing", where=str(path), fix="restore the file from a copy") from None


def _damaged(why: str, path: Path) -> SweepError:
    return SweepError(f"damaged: {why}", where=str(path), fix="correct the file, or restore it from a copy")


def thaw(sweep: Path, record: RunRecord, *, job_id: str | None = None) -> DictConfig:
    """Restore the unresolved configuration of a run, with its ``hydra`` node, for `hydra.core.utils.run_job`.

    For programs of kind "script" and "module", the program must already be ``__main__``: the configuration may contain
    types that it defines.

    Args:
        job_id: becomes ``hydra.job.id``; the run's number by default.
    """
    path = SweepPaths(sweep).bases
    with path.open("rb") as file:
        file.seek(record.base)
        try:
            base = pickle.load(file)
        except (AttributeError, ImportError) as error:
            raise SweepError(
                f"the configuration of run {record.num} contains a type that cannot be imported: {error}",
                where=str(path),
                fix="define the dataclasses of your configuration at module level",
            ) from error
    cfg: DictConfig = base["cfg"]
    applied = set(base["applied"])
    apply_overrides(cfg, [o for o in record.overrides if o not in applied], record.overrides)
    fix_run(cfg, sweep, record.num, record.dir, job_id=job_id)
    return cfg


def apply_overrides(cfg: DictConfig, rest: Sequence[str], whole: Sequence[str] | None) -> None:
    """Apply ``rest`` to a base in place and record ``whole`` as its overrides, as Hydra's composition does."""
    if not rest:
        return
    composition.apply_overrides([parse_override(o) for o in rest], cfg)
    if whole is not None:
        record_overrides(cfg, whole)


@lru_cache(maxsize=20_000)
def parse_override(override: str) -> Any:
    """Parse an override with Hydra's parser; cached, as runs of a sweep repeat values and parsing is slow."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides([override])[0]


def parse_overrides(overrides: Sequence[str]) -> list[Any]:
    """Parse all overrides of a command line. Raises Hydra's error, which may refer to the whole list."""
    try:
        return [parse_override(override) for override in overrides]
    except Exception:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        return list(OverridesParser.create().parse_overrides(list(overrides)))


def record_overrides(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Replace the task overrides in ``cfg.hydra``, which a run without ``-m`` has read-only, by those of a run."""
    from omegaconf import read_write

    task = [p for p in map(parse_override, overrides) if not p.is_hydra_override()]
    with read_write(cfg.hydra):
        cfg.hydra.overrides.task = [p.input_line for p in task]
        composition.record_dirname(cfg, task)


def fix_run(cfg: DictConfig, sweep: Path, num: int, dir: Path, *, job_id: str | None = None) -> None:
    """Set a run's number, job id and directory (``hydra.sweep.dir``, ``hydra.sweep.subdir``) in ``cfg.hydra``."""
    from omegaconf import open_dict, read_write

    inside = dir.is_relative_to(sweep)
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num = num
        cfg.hydra.job.id = job_id or str(num)
        cfg.hydra.sweep.dir = literal(str(sweep if inside else dir.parent))
        cfg.hydra.sweep.subdir = literal(str(dir.relative_to(sweep)) if inside else dir.name)


def literal(text: str) -> str:
    """Escape text so that OmegaConf returns it unchanged."""
    return re.sub(r"(\\*)\$\{", lambda found: found.group(1) * 2 + r"\${", text)


def identity(function: Any) -> tuple[str, str]:
    """Return module and qualified name of a task function, or of the class of a callable object."""
    while (inner := getattr(function, "__wrapped__", None) or getattr(function, "func", None)) is not None:
        function = inner
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return str(function.__module__), str(function.__qualname__)


def load_task(sweep: Path) -> Callable[[Any], Any]:
    """Load the function of a program of kind "task"; restore singletons and resolvers of the launching process."""
    from hydra.core.singleton import Singleton

    with SweepPaths(sweep).task.open("rb") as file:
        payload = pickle.load(file)
    Singleton.set_state(payload["singletons"])
    function: Callable[[Any], Any] = payload["function"]
    return function


_TYPES = {"num": int, "plan": str, "base": int, "seed": int, "dir": str, "overrides": list}  # fields in runs.jsonl


def _record(sweep: Path, line: Any, program: Program) -> RunRecord:
    """Validate and decode a line of runs.jsonl. Raises `ValueError`."""
    if type(line) is not dict:
        raise ValueError(f"it is {line!r:.80}")
    for name, kind in _TYPES.items():
        if name not in line:
            raise ValueError(f"{name} is missing")
        value: Any = line[name]
        if type(value) is not kind or (type(value) is int and not -(2**63) <= value < 2**63):
            raise ValueError(f"{name} is {value!r:.80}")
    num, overrides, base, dir = line["num"], line["overrides"], line["base"], line["dir"]
    if num < 0 or base < 0:
        raise ValueError(f"num is {num}, and base {base}")
    if "\0" in dir:
        raise ValueError(f"dir is {dir!r:.80}")
    if not all(type(override) is str for override in overrides):
        raise ValueError(f"overrides is {overrides!r:.80}")
    return RunRecord(num, tuple(overrides), line["plan"], base, line["seed"], sweep / dir, program)


def _dumps(value: Any, *, by_value: bool) -> bytes:
    if not by_value:
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):
            pass  # a type without an importable name
    return _by_value(value)


def _by_value(value: Any) -> bytes:
    """Pickle with cloudpickle, keeping the file names of code objects for tracebacks of a notebook's functions."""
    import cloudpickle

    table = ChainMap({CodeType: _reduced_code}, cloudpickle.Pickler.dispatch_table)
    pickler: Any = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    file = io.BytesIO()
    pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _reduced_code(code: CodeType) -> Any:
    import cloudpickle

    make, arguments, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code, (make, arguments, code.co_filename)


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _sync(file: io.IOBase) -> None:
    file.flush()
    os.fsync(file.fileno())
