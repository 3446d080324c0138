"""What the benchmarks share: measured commands, interleaved rounds, throw-away environments, tables and JSON."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HYDRA = "hydra-core==1.3.8"  # the release that hydra-submitit-launcher 1.2.0 and torch users have today


# Commands


@dataclass(frozen=True)
class Usage:
    """What one process and the children it waited for have used."""

    code: int  # exit code; -n for signal n
    wall: float  # seconds
    cpu: float  # seconds, user and system
    peak_rss: int  # bytes, of the largest single process


def finish(process: subprocess.Popen[Any], started: float) -> Usage:
    """Wait for a process started at ``started`` (`time.perf_counter`) and say what it used."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started
    return Usage(process.returncode, wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def measure(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str]) -> Usage:
    """Run a command to its end.

    Raises:
        SystemExit: it failed; its output is shown.
    """
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen([str(c) for c in command], cwd=cwd, env=env, stdout=output, stderr=output)
        usage = finish(process, started)
        if usage.code != 0:
            output.seek(0)
            text = output.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(map(str, command))}\nexit code {usage.code}\n{text}")
    return usage


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that would wait for a scheduler that is not there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def interleaved(
    ways: Mapping[str, Callable[[], dict[str, float]]], rounds: int, *, warm_up: int = 1
) -> dict[str, dict[str, list[float]]]:
    """Run every way once a round, each round beginning with another one, every second one in the other order; return
    the samples of each quantity.

    Noise of the machine then falls on all ways alike, and ratios within a round mean something.
    """
    names = list(ways)
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in (names[shift:] + names[:shift])[:: -1 if number % 2 else 1]:
            found = ways[name]()
            print(f"  round {number + 1}/{rounds}  {name}: " + "  ".join(f"{k} {v:.3f}" for k, v in found.items()))
            if number >= 0:
                for quantity, value in found.items():
                    samples[name].setdefault(quantity, []).append(value)
    return samples


# Environments


def environment(**changes: str | Path) -> dict[str, str]:
    """This process's variables, without those that make a child a rank, a job's step or part of a checkout."""
    left_out = ("SLURM_", "SBATCH_", "HPC_HYDRA_", "TORCHELASTIC_", "PYTHONPATH", "VIRTUAL_ENV")
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out) and k not in ranks}
    if "SLURM_CONF" in os.environ:
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return {**kept, "PYTHONDONTWRITEBYTECODE": "", **{k: str(v) for k, v in changes.items()}}


def make_venv(path: Path, *requirements: str | Path, also: Sequence[str] = ()) -> Path:
    """Make an environment and return its interpreter; one that is there already is used again.

    Args:
        path: where.
        requirements: handed to pip.
        also: modules of the running environment that shall be found too (torch is too large to install twice).
    """
    python = path / "bin" / "python"
    if (path / "complete").exists():
        if ROOT in requirements:  # it may have changed since
            again = ["install", "-qq", "--force-reinstall", "--no-deps", str(ROOT)]
            subprocess.run([python, "-m", "pip", *again], check=True, env=environment())
        return python
    print(f"making {path} with {', '.join(map(str, requirements))}")
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", *map(str, requirements)], check=True, env=environment())
    if also:
        lent = {str(Path(_origin(module)).parents[1]) for module in also}
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        (Path(site) / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")
    subprocess.run([python, "-m", "compileall", "-q", path / "lib"], check=False)
    (path / "complete").touch()
    return python


def _origin(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"this benchmark needs {module}. Try: {sys.executable} -m pip install {module}")
    return spec.origin


@contextlib.contextmanager
def workplace(work: Path | None, base: Path | None = None) -> Iterator[Path]:
    """The directory of a benchmark: the given one, which stays, or a temporary one (in ``base``)."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="hpc_hydra_bench_", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_app(folder: Path, *defaults: str, groups: int = 8) -> Path:
    """Write a Hydra app with that many config groups of two options each, as a training program has; return it."""
    conf = folder / "conf"
    for number in range(groups):
        group = conf / f"group{number}"
        group.mkdir(parents=True, exist_ok=True)
        for option in ("one", "two"):
            text = f"name: {option}\nwidth: {number}\nrate: 0.1\nlayers: [1, 2, 3]\nnested: {{a: 1, b: text}}\n"
            (group / f"{option}.yaml").write_text(text)
    overrides = [line for line in defaults if line.startswith("override ")]
    first = [line for line in defaults if line not in overrides]
    lines = [*first, *(f"group{number}: one" for number in range(groups)), "_self_", *overrides]
    entries = "".join(f"  - {line}\n" for line in lines)
    (conf / "config.yaml").write_text(f"defaults:\n{entries}\nlr: 0.1\nseed: 1\n")
    app = folder / "app.py"
    app.write_text(
        "import hydra\n\n\n"
        '@hydra.main(version_base=None, config_path="conf", config_name="config")\n'
        "def main(cfg):\n    return cfg.lr\n\n\n"
        'if __name__ == "__main__":\n    main()\n'
    )
    return app


# Results


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples and the table to this file")
    parser.add_argument("--work", type=Path, metavar="DIR", help="work here and keep it (default: temporary)")
    return parser


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {
        "median": statistics.median(values), "low": quartiles[0], "high": quartiles[2],
        "min": min(values), "max": max(values), "n": len(values),
    }  # fmt: skip


def ratio(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """How many times the reference, round by round (same index: same round)."""
    return spread([a / b for a, b in zip(values, reference, strict=True)])


def compare(
    title: str, samples: Mapping[str, Mapping[str, Sequence[float]]], quantity: str, references: Sequence[str]
) -> list[dict[str, Any]]:
    """Print one line a way: median and range of a quantity, and its ratio to each reference; return the lines."""
    lines: list[dict[str, Any]] = []
    for name, quantities in samples.items():
        if quantity not in quantities:
            continue
        line: dict[str, Any] = {"way": name, "quantity": quantity, **spread(quantities[quantity])}
        line["ratios"] = {
            other: ratio(quantities[quantity], samples[other][quantity]) for other in references if other != name
        }
        lines.append(line)
    cells = [
        [
            line["way"],
            f"{line['median']:.3f}",
            f"{line['min']:.3f}–{line['max']:.3f}",
            *(
                f"{found['median']:.2f} ({found['low']:.2f}–{found['high']:.2f})"
                if (found := line["ratios"].get(other))
                else "1"
                for other in references
            ),
        ]
        for line in lines
    ]
    show(title, ["", f"{quantity}, median", "range", *(f"× {other}" for other in references)], cells)
    return lines


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print()
    console.print(table)


def write_json(path: Path | None, **found: Any) -> None:
    """Write what was found, and on what, for the record."""
    if path is None:
        return
    machine = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"), "cpus": os.cpu_count(), "load": os.getloadavg(),
        "python": platform.python_version(), "kernel": platform.release(), "command": sys.argv,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n")
