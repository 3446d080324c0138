"""Jobs of a scheduler under test: small bash programs as ranks, and what becomes of them."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.schedulers.base import JobSpec, JobStatus, Scheduler, State, Submitter
from tests.fakes.scheduler_state import Cluster

ROOT = Path(__file__).parents[2]
SAY = "say = lambda *said: os.write(1, (' '.join(map(str, said)) + '\\n').encode());"  # one write: ranks share a file
PATIENCE = 300.0  # seconds; the cluster may be busy with others' jobs


def nothing() -> None:
    """What can be looked at where a command alone tells states."""


def states_in(cluster: Any) -> Callable[[], Any]:
    """A look at the states of all jobs, where a stand-in keeps them; it takes no command."""
    return (lambda: [job.state for job in cluster.jobs()]) if isinstance(cluster, Cluster) else nothing


@dataclass
class Jobs:
    """Submits small bash programs as ranks, and waits for states."""

    name: str
    root: Path
    submitter: Submitter
    ids: list[str] = field(default_factory=list)
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)
    defaults: dict[str, Any] = field(default_factory=dict)  # what every request of this scheduler has
    look: Callable[[], Any] = nothing  # another value says that a state has changed

    @property
    def adapter(self) -> Scheduler:
        return self.submitter.adapter

    def takes(self, **fields: Any) -> bool:
        """Whether the scheduler supports such a request."""
        try:
            self.submitter.check(self.request(**fields))
        except PlanError:
            return False
        return True

    @property
    def nodes(self) -> int:
        """Two, where the scheduler has so many."""
        return 2 if self.takes(nodes=2) else 1

    def request(self, **fields: Any) -> Request:
        usual = {"scheduler": self.name, "nodes": 1, "procs_per_node": 1, "time_limit": 300}
        return Request(**(usual | self.defaults | fields))

    def spec(self, program: str, *, runs: Sequence[int] = (0,), key: str = "job0", **fields: Any) -> JobSpec:
        """``program`` is run by bash in each rank; the finish command passes on the exit code."""
        log = self.root / ".hpc_hydra" / "jobs"
        log.mkdir(parents=True, exist_ok=True)
        return JobSpec(
            key=key,
            plan=Plan(system="test", request=self.request(**fields)),
            runs=tuple(runs),
            sweep=self.root,
            workdir=self.root,
            tag=f"test-{self.unique}-{key}",
            log=log,
            rank_command=("bash", "-c", program),
            finish_command=("bash", "-c", 'echo "finish $1"; exit "$1"', "finish"),
            environ={"HPC_HYDRA_PLAN": "plan0"},
            pythonpath=(str(ROOT),),
        )

    def submit(self, program: str, **fields: Any) -> tuple[str, ...]:
        spec = self.spec(program, **fields)
        self.submitter.check(spec.plan.request)
        ids = self.submitter.submit(spec, self.write(spec))
        self.ids += ids
        return ids

    def write(self, spec: JobSpec) -> Path:
        script = spec.log / f"{spec.key}.sh"
        script.write_text(self.submitter.adapter.script(spec))
        return script

    def until(self, ids: Sequence[str], there: Callable[[JobStatus], bool]) -> list[JobStatus]:
        """States of these jobs, once ``there`` holds for all."""
        end, pause = time.monotonic() + PATIENCE, 0.3 if self.look is nothing else 1
        while True:
            seen, soon = self.look(), time.monotonic() + pause
            if all(map(there, (said := self.submitter.poll(ids)).values())):
                break
            assert time.monotonic() < end, f"still {said}"
            while self.look() == seen and time.monotonic() < soon:
                time.sleep(0.05)
        assert list(said) == list(ids)
        return list(said.values())

    def ended(self, ids: Sequence[str]) -> list[JobStatus]:
        return self.until(ids, lambda status: status.state.is_finished)

    def running(self, ids: Sequence[str]) -> list[JobStatus]:
        return self.until(ids, lambda status: status.state is State.RUNNING)

    def coded(self, ids: Sequence[str]) -> list[JobStatus]:
        """States of these jobs, once their exit codes are known."""
        return self.until(ids, lambda status: status.exit_code is not None)

    def log(self, job: str, key: str = "job0") -> str:
        folder = self.root / ".hpc_hydra" / "jobs"
        for name in (f"{job}.log", f"{key}.{job}.log"):
            if (folder / name).exists():
                return (folder / name).read_text()
        raise AssertionError(f"no log of {job} among {sorted(path.name for path in folder.iterdir())}")

    def appears(self, name: str) -> str:
        """The content of a file in the working directory, once it has some."""
        end = time.monotonic() + PATIENCE
        while not (path := self.root / name).exists() or not path.read_text():
            assert time.monotonic() < end, f"no {name}"
            time.sleep(0.05)
        return path.read_text()

    def told(self, id_: str, key: str = "job0") -> list[Any]:
        """What the ranks of a job printed by `IN_PYTHON`, in the order of their ranks."""
        lines = re.findall(r"^(?:\S+: )?told (.*)$", self.log(id_, key), re.M)  # some name the host before
        return [said for _, said in sorted(map(json.loads, lines), key=lambda pair: pair[0])]


IN_PYTHON = (  # one write a line: ranks share a file
    "import json, os, sys\n"
    "from hpc_hydra.schedulers import registry\n"
    "env = dict(os.environ)\n"
    "info = registry.rank_info(env['HPC_HYDRA_SCHEDULER'], env)\n"
    "def tell(said): os.write(1, f'told {json.dumps([info.rank, said])}\\n'.encode())\n"
)
WITH_ADAPTER = (
    "import subprocess\n"
    "from hpc_hydra.schedulers import capability_defaults\n"
    "adapter = registry.adapter_for(env['HPC_HYDRA_SCHEDULER'])\n"
    "def ask(argv):\n"
    "    full = {**env, **capability_defaults.command_environment(adapter, env)}\n"
    "    return subprocess.run(argv, env=full, stdout=subprocess.PIPE, text=True, check=True).stdout\n"
)


def in_python(code: str) -> str:
    """A program for ranks in Python: it has ``env``, ``info``, ``tell(value)``, ``adapter`` and ``ask(argv)``."""
    program = IN_PYTHON + (WITH_ADAPTER if "adapter" in code else "") + code  # which takes longer to import
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
