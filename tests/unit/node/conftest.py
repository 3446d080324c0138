"""A frozen sweep of a script, and its ranks as real processes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.tasks import task_request
from hpc_hydra.planning.types import Logging, Plan, Rendezvous, Request
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths
from tests import forking
from tests.awaiting import await_true

ROOT = Path(__file__).parents[3]
ATTEMPT = "20260101-000000-77"
CONFIG = "note: x\nhydra:\n  job:\n    name: app\n"
RANK = "import sys; from hpc_hydra.node.__main__ import main; sys.exit(main(['rank']))"
HEAD = """
    import os, sys, time, signal, json
    import hydra
    from pathlib import Path
    RANK = int(os.environ.get("RANK", "-1"))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def spawned(rank: int, size: int, host: str = os.uname().nodename) -> dict[str, str]:
    """What the launch command tells a rank."""
    return {"HPC_HYDRA_SPAWN_RANK": str(rank), "HPC_HYDRA_SPAWN_SIZE": str(size), "HPC_HYDRA_SPAWN_HOST": host}


@dataclass
class Frozen:
    """A sweep of one run; `start` runs it as the local scheduler's job script does."""

    root: Path
    plan: Plan
    env: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.root / "0")

    def environ(self, **more: str) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("HPC_HYDRA_", "SLURM_"))}
        return {
            **mine, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "HPC_HYDRA_SWEEP": str(self.root),
            "HPC_HYDRA_JOB": "job0", "HPC_HYDRA_SCHEDULER": "local", "HPC_HYDRA_RUN": "0", "HPC_HYDRA_ATTEMPT": ATTEMPT,
            **self.env, **more,
        }  # fmt: skip

    def spawn(self, **env: str) -> subprocess.Popen[str]:
        procs = str(task_request(self.plan).world_size)
        argv = [sys.executable, "-m", "hpc_hydra.node", "spawn", "--procs", procs, "--"]
        argv += [sys.executable, "-m", "hpc_hydra.node", "rank"]
        return subprocess.Popen(
            argv, env=self.environ(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def rank(self, rank: int, size: int, code: str = "", **env: str) -> subprocess.Popen[str]:
        """The supervisor of one rank; ``code`` is run before it begins."""
        return subprocess.Popen(
            [sys.executable, *(["-c", f"{code}\n{RANK}"] if code else ["-m", "hpc_hydra.node", "rank"])],
            env=self.environ(**spawned(rank, size, "h"), **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, torch: bool = False, **env: str) -> tuple[int, dict[str, Any]]:
        """Run all ranks, their supervisors forked by `forking`, without a launch command."""
        size = task_request(self.plan).world_size

        def rank(num: int) -> subprocess.CompletedProcess[str]:
            mine = self.environ(**spawned(num, size), **({"OMP_NUM_THREADS": "1"} if torch else {}), **env)
            return forking.run([sys.executable, "-m", "hpc_hydra.node", "rank"], env=mine, torch=torch)

        with ThreadPoolExecutor(size) as threads:
            ranks = list(threads.map(rank, range(size)))
        code = next((done.returncode for done in ranks if done.returncode), 0)
        return self._ended(code, "".join(done.stdout + done.stderr for done in ranks))

    def launch(self, **env: str) -> tuple[int, dict[str, Any]]:
        """Run it by the launch command, which ends the other ranks when one fails."""
        with self.spawn(**env) as process:
            out, _ = process.communicate(timeout=180)
        return self._ended(process.returncode, out)

    def _ended(self, code: int, out: str) -> tuple[int, dict[str, Any]]:
        done = self.finish(code)
        assert self.paths.outcome.exists() and "Traceback" not in out, out + done.stdout + done.stderr
        return done.returncode, self.outcome()

    def finish(self, code: int, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hpc_hydra.node", "finish", str(code)]
        return forking.run(argv, env=self.environ(**env))

    def outcome(self) -> dict[str, Any]:
        return json.loads(self.paths.outcome.read_text())

    def log(self, rank: int = 0) -> str:
        return self.paths.rank_log(ATTEMPT, rank).read_text()

    def end(self, rank: int) -> dict[str, Any]:
        return json.loads(self.paths.rank_end(ATTEMPT, rank).read_text())

    def pids(self) -> list[int]:
        """Processes that belong to this sweep."""
        found = []
        for proc in Path("/proc").iterdir():
            if proc.name.isdigit() and int(proc.name) != os.getpid():
                try:
                    if f"HPC_HYDRA_SWEEP={self.root}\0".encode() in (proc / "environ").read_bytes():
                        found.append(int(proc.name))
                except OSError:
                    continue
        return [pid for pid in found if alive(pid)]


@pytest.fixture
def freeze(tmp_path: Path) -> Iterator[Callable[..., Frozen]]:
    """`freeze(body, procs=2, …)`: a sweep of a script whose task function has this body."""
    made = []

    def make(
        body: str = "pass", *, procs: int = 1, config: str = CONFIG, overrides: tuple[str, ...] = (), nodes: int = 1,
        program: Program | None = None, outside: str = "", plan: dict[str, Any] | None = None, seed: int = 5,
        rendezvous: Rendezvous | None = None, logging: Logging | None = None, main: str = "main()",
        warning: str | None = None, time_limit: int | None = None, **prog: Any,
    ) -> Frozen:  # fmt: skip
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf" / "config.yaml").write_text(config)
        script = tmp_path / "train.py"
        script.write_text(
            textwrap.dedent(HEAD) + textwrap.dedent(outside)
            + '@hydra.main(version_base="1.3", config_path="conf", config_name="config")\ndef main(cfg):\n'
            + textwrap.indent(textwrap.dedent(body), "    ")
            + f"\n\nif __name__ == '__main__':\n    {main}\n"
        )  # fmt: skip
        sweep = tmp_path / "sweep"
        program = program or Program(
            "script", str(script), **{"cwd": str(tmp_path), **prog}, sys_path0=str(tmp_path), pythonpath=(str(ROOT),)
        )
        request = Request("local", nodes, procs, warning=warning, time_limit=time_limit)
        chosen = Plan("local", request, rendezvous or Rendezvous(timeout=200), logging or Logging(), **(plan or {}))
        freezer = Freezer(sweep, program)
        base = freezer.add_base(compose(tmp_path / "conf"), ())
        freezer.add_run(0, overrides, plan="plan0", base=base, seed=seed, dir=sweep / "0")
        freezer.write_plans({"plan0": chosen})
        freezer.flush()
        freezer.close()
        made.append(Frozen(sweep, chosen))
        return made[-1]

    yield make
    for frozen in made:
        assert await_true(lambda frozen=frozen: not frozen.pids()), "processes were left behind"


def compose(conf: Path) -> Any:
    import hydra
    from omegaconf import open_dict, read_write

    with hydra.initialize_config_dir(str(conf), job_name="app", version_base="1.3"):
        cfg = hydra.compose("config", return_hydra_config=True)
    with read_write(cfg), open_dict(cfg):
        cfg.hydra.job.name = "app"
        cfg.hydra.runtime.cwd = str(conf.parent)
        cfg.hydra.runtime.output_dir = "???"
    return cfg


__all__ = ["ATTEMPT", "Frozen", "await_true", "replace"]
