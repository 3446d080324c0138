"""Submission to the first all-reduce on a real SLURM: hpc_hydra against what one would write by hand.

Every way starts the same number of ranks, which import torch, form a gloo group and all-reduce one number; rank 0 then
notes the time. The clock starts when sbatch is called (a wrapper notes that, the same for all ways), and, in a second
table, when the command is typed. The ways take turns, with the same OMP_NUM_THREADS.

    python benchmarks/start.py                           20 rounds of 2 nodes x 2 ranks
    python benchmarks/start.py --rounds 3 --only hpc_hydra srun-hydra

The directory of the work must be shared by the nodes, and their clocks must agree.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import _bench

JOB_NAME = f"bench-start-{os.getpid()}"  # of all jobs of this benchmark
PATIENCE = 300.0  # seconds until a start has failed

STAMP = '''
import json, os, time


def stamp(torch):
    """All-reduce one number; rank 0 notes when it was done."""
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    if torch.distributed.get_rank() == 0:
        found = {"time": time.time(), "world_size": int(ones.item()), "omp": os.environ.get("OMP_NUM_THREADS")}
        path = os.environ["BENCH_STAMP"]
        with open(path + ".tmp", "w") as file:
            json.dump(found, file)
        os.replace(path + ".tmp", path)


def by_hand():
    """What a script without hpc_hydra does: identity from SLURM (or torchrun), address from the batch script."""
    import torch
    import torch.distributed

    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID")))
    size = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS")))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    stamp(torch)
    torch.distributed.destroy_process_group()
'''

APPS = {
    "stamp.py": STAMP,
    "plain.py": "from stamp import by_hand\n\nby_hand()\n",
    "by_hand.py": """
import hydra
from stamp import by_hand


@hydra.main(version_base=None, config_path="conf", config_name="bare")
def main(cfg):
    by_hand()


if __name__ == "__main__":
    main()
""",
    "app.py": """
import hydra
import hpc_hydra
from stamp import stamp


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg):
        import torch

        stamp(torch)


if __name__ == "__main__":
    main()
""",
    "peer.py": """
import sys
import submitit
import stamp


def task():
    submitit.helpers.TorchDistributedEnvironment().export()
    stamp.by_hand()


if __name__ == "__main__":
    executor = submitit.SlurmExecutor("submitit")
    nodes, procs = map(int, sys.argv[1:3])
    executor.update_parameters(nodes=nodes, ntasks_per_node=procs, cpus_per_task=1, time=10, job_name=sys.argv[3])
    executor.submit(task).results()
""",
    "conf/bare.yaml": "defaults: [{group0: one}, {group1: one}, _self_]\nlr: 0.1\n",
}

BATCH = """#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH --cpus-per-task={cpus}
#SBATCH --time=10
#SBATCH --output=job.%j.log
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
srun --cpus-per-task={cpus} {command}
"""

WRAPPER = """#!/bin/bash
echo "$EPOCHREALTIME" >> "$BENCH_SUBMITTED"
exec {sbatch} "$@"
"""

HYDRA_BY_HAND, TORCH_ONLY = "srun-hydra", "srun-torch"


class Ways:
    """The ways to start, each a method that returns its seconds."""

    def __init__(self, work: Path, python: Path, nodes: int, procs: int) -> None:
        self.work, self.python, self.nodes, self.procs = work, python, nodes, procs
        self.case = work / "case"
        shutil.rmtree(self.case, ignore_errors=True)
        _bench.make_app(self.case, "hpc", groups=2)
        for name, text in APPS.items():
            (self.case / name).write_text(text.lstrip())
        sbatch = shutil.which("sbatch")
        if sbatch is None:
            raise SystemExit("this benchmark needs a SLURM: sbatch is not here")
        tools = work / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "sbatch").write_text(WRAPPER.format(sbatch=shlex.quote(sbatch)))
        (tools / "sbatch").chmod(0o755)
        self.submitted, self.stamp = work / "submitted", work / "stamp.json"
        self.env = _bench.environment(
            PATH=f"{tools}:{os.environ['PATH']}", BENCH_SUBMITTED=self.submitted, BENCH_STAMP=self.stamp,
            OMP_NUM_THREADS="1",
        )  # fmt: skip

    def fork_server(self) -> dict[str, float]:
        return self.hpc_hydra("rendezvous.fork_server=true")

    def hpc_hydra(self, *more: str) -> dict[str, float]:
        sizes = [f"resources.nodes={self.nodes}", f"resources.procs_per_node={self.procs}"]
        sizes.append(f"scheduler.job_name={JOB_NAME}")
        cpus = ["resources.gpus_per_proc=0", "resources.cpus_per_proc=1", "resources.time_limit=10"]
        return self._timed([self.python, "app.py", "-m", "scheduler=slurm", *sizes, *cpus, *more])

    def same_script(self) -> dict[str, float]:
        """The script of `hpc_hydra`, started by srun: `distributed(cfg)` finds its ranks itself."""
        return self._batch("app.py", f"{self.python} app.py")

    def hydra_by_hand(self) -> dict[str, float]:
        return self._batch("by_hand.py", f"{self.python} by_hand.py")

    def torch_only(self) -> dict[str, float]:
        return self._batch("plain.py", f"{self.python} plain.py")

    def torchrun(self) -> dict[str, float]:
        command = (
            f"{self.python} -m torch.distributed.run --nnodes={self.nodes} --nproc-per-node={self.procs} "
            "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv-id=$SLURM_JOB_ID plain.py"
        )
        return self._batch("torchrun", command, tasks=1)

    def submitit(self) -> dict[str, float]:
        return self._timed([self.python, "peer.py", str(self.nodes), str(self.procs), JOB_NAME])

    def _batch(self, name: str, command: str, tasks: int | None = None) -> dict[str, float]:
        tasks = tasks or self.procs
        text = BATCH.format(nodes=self.nodes, tasks=tasks, cpus=self.procs // tasks, command=command)
        (self.case / f"{name}.sh").write_text(text)
        return self._timed(["sbatch", f"--job-name={JOB_NAME}", f"{name}.sh"], is_batch=True)

    def _timed(self, command: Sequence[str | Path], *, is_batch: bool = False) -> dict[str, float]:
        wait_for_end(self.env)
        self.stamp.unlink(missing_ok=True)
        self.submitted.write_text("")
        begun = time.time()
        with (self.work / "output").open("w+") as output:
            # The wrapper of sbatch is found by the PATH of `env`, also for the program itself.
            words = ["/usr/bin/env", *map(str, command)]
            process = subprocess.Popen(words, cwd=self.case, env=self.env, stdout=output, stderr=subprocess.STDOUT)
            deadline = time.monotonic() + PATIENCE
            while not self.stamp.exists():
                if time.monotonic() > deadline or process.poll() or (not is_batch and process.poll() is not None):
                    process.kill()
                    output.seek(0)
                    raise SystemExit(f"{' '.join(words)} did not start its ranks:\n{output.read()}{self._logs()}")
                time.sleep(0.01)
            found = json.loads(self.stamp.read_text())
            code = process.wait(PATIENCE)
            output.seek(0)
            text = output.read()
            if code != 0:
                raise SystemExit(f"{' '.join(words)}: exit code {code}\n{text}")
        if found["world_size"] != self.nodes * self.procs or found["omp"] != "1":
            raise SystemExit(f"{' '.join(words)} started something else: {found}")
        submitted = float(self.submitted.read_text().split()[0].replace(",", "."))
        return {"seconds from sbatch": found["time"] - submitted, "seconds from command": found["time"] - begun}

    def _logs(self) -> str:
        logs = sorted(self.case.rglob("*.log"), key=lambda path: path.stat().st_mtime)
        return "".join(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}\n" for path in logs[-3:])


def wait_for_end(env: Mapping[str, str]) -> None:
    """Wait until this benchmark's jobs have left the queue, so that they do not disturb the next start."""
    mine = ["squeue", "--noheader", f"--name={JOB_NAME}"]
    while subprocess.run(mine, env=env, capture_output=True, text=True).stdout.strip():
        time.sleep(0.1)


def warn_of_others(env: Mapping[str, str]) -> None:
    """Say what else is in the queue: times then include waiting."""
    jobs = subprocess.run(["squeue"], env=env, capture_output=True, text=True).stdout
    if len(jobs.splitlines()) > 1:
        print(f"other jobs are in the queue; times may include waiting for them:\n{jobs}")


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default: 20")
    parser.add_argument("--nodes", type=int, default=2, help="default: 2")
    parser.add_argument("--procs", type=int, default=2, help="ranks on each node (default: 2)")
    parser.add_argument("--only", nargs="+", metavar="WAY", help="only these ways")
    options = parser.parse_args()
    with _bench.workplace(options.work, base=Path.cwd()) as work:
        python = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA, also=["torch"])
        starts = Ways(work, python, options.nodes, options.procs)
        ways = {
            "hpc_hydra": starts.hpc_hydra,
            "hpc_hydra, fork server": starts.fork_server,
            "srun, same script": starts.same_script,
            HYDRA_BY_HAND: starts.hydra_by_hand,
            TORCH_ONLY: starts.torch_only,
            "srun-torchrun": starts.torchrun,
            "submitit": starts.submitit,
        }
        unknown = set(options.only or ()) - set(ways)
        if unknown:
            raise SystemExit(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(ways)}")
        ways = {name: way for name, way in ways.items() if not options.only or name in options.only}
        warn_of_others(starts.env)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            samples = _bench.interleaved(ways, options.rounds)
            wait_for_end(starts.env)
        except BaseException:
            subprocess.run(["scancel", "--quiet", f"--name={JOB_NAME}"], check=False)
            raise
    references = [name for name in (HYDRA_BY_HAND, "srun, same script", TORCH_ONLY) if name in ways]
    title = f"First all-reduce of {options.nodes} nodes x {options.procs} ranks"
    table = []
    for quantity in ("seconds from sbatch", "seconds from command"):
        table += _bench.compare(title, samples, quantity, references)
    _bench.write_json(options.json, samples=samples, table=table)


if __name__ == "__main__":
    main()
