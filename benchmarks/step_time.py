"""The training loop under our launch and under plain torchrun: tokens per second of the GPT example, by DDP and FSDP2.

    python benchmarks/step_time.py                         # on a machine with 2 GPUs: 124M parameters, about 8 minutes
    python benchmarks/step_time.py --tiny --rounds 3       # on CPUs, to try it
    python benchmarks/step_time.py --only ddp model=350m   # what follows are overrides of train_examples/gpt

Both ways start the same script with the same overrides, in turn, by this interpreter; what is compared is the median of
the lines that a run writes after its first two. The losses of both must be the same.
"""

from __future__ import annotations

import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from _bench import ROOT, arguments, compare, environment, interleaved, workplace, write_json

SCRIPT = ROOT / "train_examples" / "gpt" / "train.py"
LINE = re.compile(r"Step (\d+) - Avg Loss: ([\d.]+), (\d+) tokens/s")
FIXED = ("launch.seed=1", "save_every=1000000", "warmup_steps=10")
GPUS = ("model=124m", "steps=50", "log_every=5", "batch_size=128", "micro_batch_size=32")
TINY = ("steps=24", "log_every=2", "batch_size=16", "micro_batch_size=4", "model.context=32")
TARGET = 0.99  # of torchrun's tokens per second


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model for CPUs")
    parser.add_argument("--only", choices=["ddp", "fsdp"], help="one of the two")
    parser.add_argument("overrides", nargs="*", help="of the GPT example")
    args = parser.parse_args()
    size = (*FIXED, *(TINY if args.tiny else GPUS), *args.overrides)
    kinds = [args.only] if args.only else ["ddp", "fsdp"]
    curves: dict[str, dict[int, float]] = {}
    with workplace(args.work) as folder:
        ways = {}
        for kind in kinds:
            words = [*size, f"parallel={kind}"]
            ways[f"{kind}, hpc_hydra"] = way(f"{kind}, hpc_hydra", ours(args.ranks, words), folder, curves)
            ways[f"{kind}, torchrun"] = way(f"{kind}, torchrun", torchrun(args.ranks, words), folder, curves)
        samples = interleaved(ways, args.rounds)
    lines, bad = [], 0
    for kind in kinds:
        mine = {name: found for name, found in samples.items() if name.startswith(kind)}
        found = compare(f"{kind}: tokens per second, {args.ranks} ranks", mine, "tokens/s", [f"{kind}, torchrun"])
        ratio = found[0]["ratios"][f"{kind}, torchrun"]["median"]
        one, other = curves[f"{kind}, hpc_hydra"], curves[f"{kind}, torchrun"]
        apart = max(abs(one[step] - other[step]) / other[step] for step in other)
        same = "equal" if one == other else f"apart by {apart:.2e} at most"
        print(f"{kind}: {ratio:.3f} of torchrun's tokens per second (target {TARGET}); loss curves are {same}")
        bad += ratio < TARGET or apart > 1e-3
        lines += [
            *found,
            {"way": kind, "ratio": ratio, "loss_apart": apart, "losses": {"ours": one, "torchrun": other}},
        ]
    write_json(args.json, samples=samples, table=lines, overrides=size, device=device())
    sys.exit(1 if bad and not args.tiny else 0)


def ours(ranks: int, words: list[str]) -> list[str]:
    return [str(SCRIPT), "-m", "scheduler=local", f"resources.procs_per_node={ranks}", "hydra.sweep.dir={dir}", *words]


def torchrun(ranks: int, words: list[str]) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*start, str(SCRIPT), "hydra.run.dir={dir}", *words]


def way(
    name: str, words: list[str], folder: Path, curves: dict[str, dict[int, float]]
) -> Callable[[], dict[str, float]]:
    """A function that trains once, keeps the losses in ``curves``, and returns the tokens per second."""
    count = 0

    def run() -> dict[str, float]:
        nonlocal count
        count += 1
        place = folder / f"{name.replace(', ', '_')}_{count}"
        command = [sys.executable, *(word.replace("{dir}", str(place)) for word in words)]
        env = environment(PYTHONPATH=ROOT, OMP_NUM_THREADS="4" if device() != "cpu" else "1")
        done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        logs = [path.read_text() for path in place.glob("0/logs/*/rank_0.log")] or [done.stdout]
        found = LINE.findall(logs[0])
        if done.returncode != 0 or len(found) < 4:
            raise SystemExit(f"{shlex.join(command)}\nexit code {done.returncode}\n{done.stdout}\n{logs[0]}")
        shutil.rmtree(place, ignore_errors=True)  # a checkpoint can be large
        curve = {int(step): float(loss) for step, loss, _ in found}
        if curves.setdefault(name, curve) != curve:
            print(f"  {name}: the losses of two runs differ")
        return {"tokens/s": statistics.median(int(speed) for _, _, speed in found[2:])}

    return run


def device() -> str:
    """What is trained on, by the driver's tool: torch is not imported here."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip().replace("\n", ", ")
    except (OSError, subprocess.CalledProcessError):
        return "cpu"


if __name__ == "__main__":
    main()
