"""What the sampler of `monitor=gpu` costs: CPU seconds for a second of a run, at its default interval.

    python benchmarks/monitor.py                 CPU, memory, network and disk; 4 minutes
    python benchmarks/monitor.py --gpu           and GPUs, by NVML or amdsmi

The sampler is started as a node's first rank starts it. Its start, in which it loads its libraries, is told apart.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import _bench

INTERVAL = 15  # seconds, as in conf/monitor/gpu.yaml
TARGET = 0.005  # of a core


def used(pid: int) -> float:
    """CPU seconds of a process until now, of all its threads."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def samples(file: Path) -> list[str]:
    """The moments that stand in a CSV."""
    lines = file.read_text().splitlines()[1:] if file.exists() else []
    return sorted({line.partition(",")[0] for line in lines})


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--gpu", action="store_true", help="measure GPUs too; fails where none answers")
    parser.add_argument("--seconds", type=float, default=240, help="after the first sample; default: 240")
    parser.add_argument("--interval", type=int, default=INTERVAL, help=f"between two samples; default: {INTERVAL}")
    options = parser.parse_args()
    with _bench.workplace(options.work) as work:
        words = [str(work / "job.host"), str(options.interval), "1", "all" if options.gpu else "none"]
        env = _bench.environment(PYTHONPATH=_bench.ROOT)
        file, log = work / "job.host.gutil.csv", work / "log"
        with log.open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "hpc_hydra.node", "monitor", *words], env=env, stderr=said, cwd=work
            )
        try:
            while len(samples(file)) < 1:
                if process.poll() is not None:
                    raise SystemExit(f"the sampler has ended\n{log.read_text()}")
                time.sleep(0.05)
            begin, start = time.perf_counter(), used(process.pid)
            time.sleep(options.seconds)
            cpu, wall = used(process.pid) - start, time.perf_counter() - begin
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        print(log.read_text(), end="")
        rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
        gpus = sorted({row[1] for row in rows if row[1]})
        if options.gpu and not gpus:
            raise SystemExit("no GPU has been read")
        found = {
            "gpus": len(gpus), "samples": len(samples(file)) - 1, "start_cpu_s": start, "cpu_s": cpu, "wall_s": wall,
            "share": cpu / wall,
        }  # fmt: skip
    columns = ["", "samples", "start, CPU s", "CPU s", "wall s", "CPU s / wall s"]
    row = [f"{len(gpus)} GPUs, every {options.interval} s", str(found["samples"]), f"{start:.2f}", f"{cpu:.2f}",
           f"{wall:.0f}", f"{cpu / wall:.4%}"]  # fmt: skip
    _bench.show("The sampler of a node", columns, [row, ["target", "", "", "", "", f"< {TARGET:.1%}"]])
    _bench.write_json(options.json, table=[found])
    if cpu / wall >= TARGET:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
