"""Within a lane: trainings of digits that are preempted, timed out and lose a node, and one that is left alone.

Prints the digests of their final weights. Must not know: what they should be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import hpc_hydra
from tests.chaos import world

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "train_examples" / "digits_ddp"
EPOCHS = 12
DIGESTS = """
import sys, hashlib, checkpoint
for path in sys.argv[1:]:
    model = checkpoint.load(checkpoint.Path(path))["model"]
    print(hashlib.sha256(b"".join(name.encode() + model[name].numpy().tobytes() for name in sorted(model))).hexdigest())
"""
PATIENCE = 240.0


class Training:
    """One run of the example on two nodes."""

    def __init__(self, folder: Path, name: str, nodes: str, *words: str) -> None:
        self.sweep, self.name, self.nodes = folder / name, name, nodes
        argv = [sys.executable, str(EXAMPLE / "train.py"), "-m", "scheduler=slurm", "resources.nodes=2"]
        argv += ["resources.procs_per_node=1", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0"]
        argv += ["launch.seed=7", f"epochs={EPOCHS}", "launch.bg=true", f"hydra.sweep.dir={self.sweep}"]
        done = self._run(*argv, f"scheduler.nodelist='{nodes}'", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(self.sweep.parent)}
        return subprocess.run(argv, env=env, cwd=self.sweep.parent, capture_output=True, text=True, timeout=PATIENCE)

    def checkpoints(self) -> list[Path]:
        return sorted(self.sweep.glob("0/checkpoints/*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))

    def trains(self) -> None:
        assert world.await_true(lambda: len(self.checkpoints()) >= 2, PATIENCE), f"{self.name} does not train"

    def state(self) -> str:
        return hpc_hydra.Sweep(self.sweep).status()[0].state

    def await_state(self, *words: str) -> str:
        return str(world.await_true(lambda: (now := self.state()) in words and now, PATIENCE))

    def completed(self, *overrides: str) -> dict[str, Any]:
        """Resume until it is, as a user does; returns its state and how often it was started."""
        for _ in range(4):
            if (state := self.await_state("completed", "failed", "cancelled", "timeout", "lost")) == "completed":
                break
            self._run(sys.executable, "-m", "hpc_hydra.cli", "resume", str(self.sweep), "--", *overrides)
        return {"state": state, "attempts": len(list(self.sweep.glob("0/logs/*/")))}


def digests(trainings: list[Training]) -> list[str]:
    """Of the final weights of each."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (EXAMPLE, ROOT)))}
    argv = [sys.executable, "-c", DIGESTS, *(str(each.checkpoints()[-1]) for each in trainings)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def stop_ranks(sweep: Path) -> None:
    for each in world.processes():
        if each.env.get("HPC_HYDRA_SWEEP") == str(sweep) and "rank" in each.words:
            each.kill(signal.SIGSTOP)


def main(folder: Path) -> None:
    left, right = "node[01-02]", "node[03-04]"
    alone = Training(folder, "undisturbed", left)
    timed_out = Training(folder, "timed_out", right, "resources.time_limit=1m")
    timed_out.trains()
    stop_ranks(timed_out.sweep)  # it would end in time
    found = {"undisturbed": alone.completed()}
    preempted = Training(folder, "preempted", left, "scheduler.queue=spot", "launch.max_requeues=1")
    preempted.trains()
    urgent = ("--partition=debug", "--exclusive", "--nodes=2", f"--nodelist={left}", "--output=/dev/null")
    world.call("sbatch", *urgent, "--wrap=true")
    assert timed_out.await_state("timeout") == "timeout", timed_out.state()
    lost = Training(folder, "node_lost", right, "launch.max_requeues=1")
    lost.trains()
    world.node("kill", "node04")
    world.await_true(lambda: world.node_states().get("node04", "").startswith("down"), PATIENCE)
    world.node("start", "node04")
    world.await_true(world.all_up, PATIENCE)
    found["timed_out"] = timed_out.completed("resources.time_limit=20m")
    found |= {each.name: each.completed() for each in (preempted, lost)}
    for name, digest in zip(found, digests([alone, timed_out, preempted, lost]), strict=True):
        found[name]["weights"] = digest
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
