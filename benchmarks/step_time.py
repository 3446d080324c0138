"""The training loop under our launch and under plain torchrun: tokens per second of the GPT example, by DDP and FSDP2.

    python benchmarks/step_time.py                         # on a machine with 2 GPUs: 124M parameters, about 8 minutes
    python benchmarks/step_time.py --tiny --rounds 3       # on CPUs, to try it
    python benchmarks/step_time.py --exact                 # losses and weights, bit for bit; 4 minutes
    python benchmarks/step_time.py --only ddp model=350m   # what follows are overrides of train_examples/gpt

Both ways start the same script with the same overrides, in turn, by this interpreter; what is compared is the median of
the lines that a run writes after its first two. The losses of both must be the same: within 0.1 %, or with ``--exact``,
which trains by ``deterministic=true``, in every digit of every step of every run, and the weights in every bit.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from _bench import ROOT, arguments, compare, environment, interleaved, workplace, write_json

SCRIPT = ROOT / "train_examples" / "gpt" / "train.py"
LINE = re.compile(r"Step (\d+) - Avg Loss: ([\d.]+), (\d+) tokens/s")
WEIGHTS = re.compile(r"Fingerprint of the weights: (\w+)")
FIXED = ("launch.seed=1", "save_every=1000000", "warmup_steps=10")
GPUS = ("model=124m", "steps=50", "log_every=5", "batch_size=128", "micro_batch_size=32")
TINY = ("steps=24", "log_every=2", "batch_size=16", "micro_batch_size=4", "model.context=32")
EXACT = ("deterministic=true", "log_every=1")
SHORT = ("model=124m", "model.layers=4", "steps=150", "batch_size=16", "micro_batch_size=4")  # on GPUs
TARGET = 0.99  # of torchrun's tokens per second


@dataclass(frozen=True)
class Trained:
    """What one run has learned."""

    losses: dict[int, float]  # by step
    weights: str | None  # their fingerprint, with deterministic=true


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, help="default: 5, with --exact 2")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before those that count; default: 1")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model for CPUs")
    parser.add_argument("--exact", action="store_true", help="ask for losses and weights that are equal bit for bit")
    parser.add_argument("--only", choices=["ddp", "fsdp"], help="one of the two")
    parser.add_argument("overrides", nargs="*", help="of the GPT example")
    args = parser.parse_args()
    model = TINY if args.tiny else SHORT if args.exact else GPUS
    size = (*FIXED, *model, *(EXACT if args.exact else ()), *args.overrides)
    rounds = args.rounds or (2 if args.exact else 5)
    kinds = [args.only] if args.only else ["ddp", "fsdp"]
    runs: dict[str, list[Trained]] = {}
    with workplace(args.work) as folder:
        ways = {}
        for kind in kinds:
            words = [*size, f"parallel={kind}"]
            ways[f"{kind}, hpc_hydra"] = way(f"{kind}, hpc_hydra", ours(args.ranks, words), folder, runs)
            ways[f"{kind}, torchrun"] = way(f"{kind}, torchrun", torchrun(args.ranks, words), folder, runs)
        samples = interleaved(ways, rounds, warm_up=0 if args.exact else args.warm_up)
    lines, bad = [], 0
    for kind in kinds:
        mine = {name: found for name, found in samples.items() if name.startswith(kind)}
        found = compare(f"{kind}: tokens per second, {args.ranks} ranks", mine, "tokens/s", [f"{kind}, torchrun"])
        ratio = found[0]["ratios"][f"{kind}, torchrun"]["median"]
        trained = [(name, run) for name in (f"{kind}, torchrun", f"{kind}, hpc_hydra") for run in runs[name]]
        apart, same = differences(trained)
        print(f"{kind}: {ratio:.3f} of torchrun's tokens per second (target {TARGET}); {same}")
        bad += not equal(trained) if args.exact else ratio < TARGET or apart > 1e-3
        learned = [{"way": name, **asdict(run)} for name, run in trained]
        lines += [*found, {"way": kind, "ratio": ratio, "loss_apart": apart, "said": same, "runs": learned}]
    write_json(args.json, samples=samples, table=lines, overrides=size, device=device())
    sys.exit(1 if bad and (args.exact or not args.tiny) else 0)


def equal(trained: list[tuple[str, Trained]]) -> bool:
    """Whether all runs have the same losses and weights; weights that nobody knows are not."""
    return len({(tuple(run.losses.items()), run.weights) for _, run in trained}) == 1 and bool(trained[0][1].weights)


def differences(trained: list[tuple[str, Trained]]) -> tuple[float, str]:
    """How far the losses of runs are apart from those of the first one at most, relatively; and a sentence on it."""
    (first, one), *others = trained
    apart, said = 0.0, []
    for number, (name, run) in enumerate(others, 2):
        steps = [step for step, loss in one.losses.items() if run.losses.get(step) != loss]
        far = max(
            (abs(run.losses.get(step, math.inf) - one.losses[step]) / one.losses[step] for step in steps), default=0
        )
        apart = max(apart, far)
        if steps:
            said.append(
                f"run {number} ({name}) differs from run 1 ({first}) first in step {steps[0]}, by {far:.2e} at most"
            )
        elif run.weights != one.weights:
            said.append(f"run {number} ({name}) has other weights than run 1 ({first}), and equal losses")
    same = f"losses of {len(one.losses)} steps are equal in {len(trained)} runs"
    if one.weights and not said:
        same += f", and weights ({one.weights})"
    return apart, "; ".join(said) or same


def ours(ranks: int, words: list[str]) -> list[str]:
    return [str(SCRIPT), "-m", "scheduler=local", f"resources.procs_per_node={ranks}", "hydra.sweep.dir={dir}", *words]


def torchrun(ranks: int, words: list[str]) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*start, str(SCRIPT), "hydra.run.dir={dir}", *words]


def way(name: str, words: list[str], folder: Path, runs: dict[str, list[Trained]]) -> Callable[[], dict[str, float]]:
    """A function that trains once, adds what was learned to ``runs``, and returns the tokens per second."""
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
        weights = WEIGHTS.search(logs[0])
        losses = {int(step): float(loss) for step, loss, _ in found}
        runs.setdefault(name, []).append(Trained(losses, weights and weights[1]))
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
