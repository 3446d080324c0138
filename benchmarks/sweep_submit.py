"""A sweep of many runs, from the command to its last submission, against hydra-submitit-launcher 1.2.0.

Both submit the same app (eight config groups) to the same fake sbatch, which answers with ids and notes the time. Each
works in a fresh environment with hydra-core 1.3.8. Counted: time until the last sbatch returned, what was written until
then, and memory. The peer would then wait for its jobs: it is ended by its process id.

    python benchmarks/sweep_submit.py                    1,000 runs of both, 10,000 of ours
    python benchmarks/sweep_submit.py --runs 100 --large 0
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import _bench

PEER = "hydra-submitit-launcher==1.2.0"

# sbatch answers with the next id, in the form that was asked for, and notes when; the others know of no trouble.
FAKES = {
    "sbatch": """#!/bin/bash
[ "$1" = --version ] && { echo "slurm 23.11.4"; exit; }
id=$(( 1000 + $(wc -l < "$FAKE_LOG") ))
case " $* " in *" --parsable "*) echo "$id" ;; *) echo "Submitted batch job $id" ;; esac
echo "$EPOCHREALTIME" >> "$FAKE_LOG"
""",
    "scontrol": """#!/bin/bash
case "$*" in
  *config*) echo "MaxArraySize            = 1001"; echo "MaxJobCount             = 100000" ;;
esac
""",
    "sinfo": '#!/bin/bash\ncase "$*" in *version*|*-V*) echo "slurm 23.11.4" ;; esac\n',
    "squeue": "#!/bin/bash\n",
    "sacct": "#!/bin/bash\necho 'JobID|State'\n",
    "scancel": "#!/bin/bash\n",
    "srun": "#!/bin/bash\n[ \"$1\" = --version ] && echo 'slurm 23.11.4'\n",
}


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of both (default: 1000)")
    parser.add_argument("--large", type=int, default=10_000, help="of ours only; 0: none (default: 10000)")
    parser.add_argument("--rounds", type=int, default=1, help="each this many times, in turn (default: 1)")
    options = parser.parse_args()
    with _bench.workplace(options.work) as work:
        tools = make_fakes(work / "bin")
        ours = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA)
        peer = _bench.make_venv(work / "peer", PEER, _bench.HYDRA)
        cases = [("hpc_hydra", ours, options.runs), (PEER, peer, options.runs)] * options.rounds
        if options.large:
            cases += [("hpc_hydra", ours, options.large)]
        found = [sweep(name, python, runs, tools, work) for name, python, runs in cases]
    report(found, options.runs)
    _bench.write_json(options.json, sweeps=found)


def make_fakes(folder: Path) -> Path:
    """Write the fake commands of SLURM; return their directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FAKES.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def sweep(name: str, python: Path, runs: int, tools: Path, work: Path) -> dict[str, Any]:
    """Submit one sweep in a directory of its own."""
    folder, log = work / "case", work / "sbatch.log"
    shutil.rmtree(folder, ignore_errors=True)
    log.write_text("")
    is_peer = name == PEER
    app = _bench.make_app(folder, *(["override hydra/launcher: submitit_slurm"] if is_peer else ["hpc"]))
    env = _bench.environment(FAKE_LOG=log, PATH=f"{tools}:{os.environ['PATH']}")
    values = ",".join(f"{number / runs:.6f}" for number in range(runs))
    command = [str(python), str(app), "-m", f"lr={values}", "hydra.sweep.dir=sweep"]
    command += ["hydra.launcher.timeout_min=60"] if is_peer else ["scheduler=slurm", "system=local", "launch.bg=true"]
    before = set(folder.rglob("*"))
    with (work / "output").open("wb") as output:
        begun, started = time.time(), time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        if is_peer:
            wait_for_submission(process, log)
            _bench.end(process)
        usage = _bench.finish(process, started)
    stamps = [float(line.replace(",", ".")) for line in log.read_text().split()]
    if not stamps or (usage.code and not is_peer):
        raise SystemExit(f"{name} did not submit (exit code {usage.code}):\n{(work / 'output').read_text()}")
    written = [path for path in folder.rglob("*") if path not in before and "__pycache__" not in path.parts]
    result = {
        "name": name,
        "runs": runs,
        "seconds": stamps[-1] - begun,
        "until_prompt": None if is_peer else usage.wall,
        "submissions": len(stamps),
        "files": sum(path.is_file() for path in written),
        "bytes": sum(path.lstat().st_blocks * 512 for path in written),  # what du says
        "peak_rss": usage.peak_rss,
    }
    print(f"{name}, {runs} runs: {result['seconds']:.1f} s")
    return result


def wait_for_submission(process: subprocess.Popen[Any], log: Path) -> None:
    """Wait until sbatch has returned and its caller has had time to write what belongs to it."""
    size, since = 0, time.monotonic()
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:  # its usage is read later
        now = log.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        if size and time.monotonic() - since > 3:
            return
        time.sleep(0.05)


def report(found: list[dict[str, Any]], runs: int) -> None:
    peers = [case for case in found if case["name"] == PEER]
    reference = min(peers, key=lambda case: case["seconds"])
    rows = []
    for case in found:
        same = case["runs"] == runs and case["name"] != PEER
        share = f"1/{reference['seconds'] / case['seconds']:.1f}" if same else ""
        rows.append(
            [
                case["name"],
                f"{case['runs']:,}",
                f"{case['seconds']:.2f} s",
                share,
                f"{1000 * case['seconds'] / case['runs']:.2f} ms",
                str(case["submissions"]),
                f"{case['files']:,}",
                f"{case['bytes'] / 1e6:.2f} MB",
                f"{case['peak_rss'] / 1e6:.0f} MB",
            ]
        )
    columns = ["", "runs", "to last sbatch", "of the peer", "a run", "sbatch calls", "files", "on disk", "peak memory"]
    _bench.show("A sweep, from the command to its last submission", columns, rows)


if __name__ == "__main__":
    main()
