"""Streaming of job output: `hpc-hydra run -- cat FILE` against `cat FILE` through the same pipe.

A gigabyte of lines goes through one pipe to a reader that throws it away. What counts is the time from the first byte
to the last; the start and the end of the launcher are in a table of its own. Everything runs on this machine.

    python benchmarks/streaming.py                       5 rounds of 1 GB
    python benchmarks/streaming.py --megabytes 100 --rounds 3
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import _bench

CAT = "cat"
LINE = 100  # bytes, as of a training log


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--megabytes", type=int, default=1000, help="of output; default: 1000")
    options = parser.parse_args()
    with _bench.workplace(options.work) as work:
        python = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA)
        folder = work / "case"
        folder.mkdir(exist_ok=True)
        file = folder / "output"
        _write(file, options.megabytes * 1_000_000)
        env = _bench.environment()
        number = itertools.count()

        def run(
            *overrides: str, command: Sequence[str] = (CAT, str(file)), stream: int = 1, ranks: int = 1
        ) -> dict[str, float]:
            argv = [python, "-m", "hpc_hydra.cli", "run", "scheduler=local", *overrides, "--", *command]
            return _through_a_pipe(argv, env, folder, stream, ranks * file.stat().st_size)

        to_stderr = ("sh", "-c", 'exec cat "$1" >&2', "sh", str(file))
        ways = {
            CAT: lambda: _through_a_pipe([CAT, str(file)], env, folder, 1, file.stat().st_size),
            "plain": lambda: run(),
            "written to a file too": lambda: run(f"launch.launch_dir={folder}/kept{next(number)}"),
            "in colour": lambda: run("logging.color_stderr=true", command=to_stderr, stream=2),
            "of two ranks, line by line": lambda: run("resources.procs_per_node=2", ranks=2),
        }
        prefixed = lambda: run("logging.rank_prefix=true")  # noqa: E731
        if prefixed()["MB"] * 1e6 > file.stat().st_size:
            ways["with the rank before each line"] = prefixed
        else:
            print("logging.rank_prefix changes nothing on a console: left out")
        samples = _bench.interleaved(ways, options.rounds)
        table = []
        for quantity in ("streaming seconds", "whole command, seconds"):
            table += _bench.compare(f"{options.megabytes} MB of output", samples, quantity, [CAT])
        table += _bench.compare(f"{options.megabytes} MB of output", samples, "MB/s", [])
    _bench.write_json(options.json, samples=samples, table=table)


def _write(file: Path, size: int) -> None:
    line = b"epoch 12 step 001234 loss 0.123456 accuracy 0.987654 lr 1.0e-03 "
    line = line.ljust(LINE - 1, b".") + b"\n"
    if not file.exists() or file.stat().st_size != size:
        block = line * 10_000
        with file.open("wb") as out:
            for at in range(0, size, len(block)):
                out.write(block[: size - at])
    with file.open("rb") as again:  # into the page cache
        while again.read(1 << 20):
            pass


def _through_a_pipe(
    argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, stream: int, size: int
) -> dict[str, float]:
    """Run a command with one of its streams in a pipe; everything that comes is read and thrown away.

    Raises:
        SystemExit: it failed, or gave less than ``size`` bytes.
    """
    reader, writer = os.pipe()
    started = time.perf_counter()
    streams = {"stdout": writer if stream == 1 else subprocess.DEVNULL, "stderr": writer if stream == 2 else None}
    process = subprocess.Popen([str(a) for a in argv], env=env, cwd=cwd, stdin=subprocess.DEVNULL, **streams)
    os.close(writer)
    first = last = 0.0
    total = 0
    while block := os.read(reader, 1 << 20):
        last = time.perf_counter()
        first = first or last
        total += len(block)
    os.close(reader)
    usage = _bench.finish(process, started)
    if usage.code or total < size:
        raise SystemExit(f"{' '.join(map(str, argv))}\nexit code {usage.code}, {total} bytes of {size}")
    return {
        "streaming seconds": last - first,
        "MB": total / 1e6,
        "MB/s": total / 1e6 / (last - first),
        "whole command, seconds": usage.wall,
        "CPU seconds": usage.cpu,
    }


if __name__ == "__main__":
    main()
