"""A scheduler under test, and jobs for it: `pytest tests/conformance --scheduler=NAME` takes this machine's own.

Without the switch: the real ones that tests bring up, and stand-ins for those that they cannot.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.schedulers.base import JobSpec, JobStatus, State, Submitter
from hpc_hydra.schedulers.registry import submitter

ROOT = Path(__file__).parents[2]
SCHEDULERS = {  # what it needs
    "local": (),
    "slurm": (pytest.mark.cluster,),
    "ssh": (pytest.mark.cluster,),
    "lsf": (),
    "lsf-csm": (),
    "flux": (),
}
FIXTURES = {
    "slurm": "slurm_cluster",
    "ssh": "ssh_hosts",
    "lsf": "fake_lsf",
    "lsf-csm": "fake_csm",
    "flux": "fake_flux",
}
SAY = "say = lambda *said: os.write(1, (' '.join(map(str, said)) + '\\n').encode());"  # one write: ranks share a file
PATIENCE = 300.0  # seconds; the cluster may be busy with others' jobs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scheduler" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--scheduler")
        params = [pytest.param(name, marks=marks) for name, marks in SCHEDULERS.items()]
        metafunc.parametrize("scheduler", [pytest.param(chosen)] if chosen else params, indirect=True)


@dataclass
class Jobs:
    """Submits small bash programs as ranks, and waits for states."""

    name: str
    root: Path
    submitter: Submitter
    ids: list[str] = field(default_factory=list)
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)
    defaults: dict[str, Any] = field(default_factory=dict)  # what every request of this scheduler has

    @property
    def has_throttle(self) -> bool:
        """Whether one may say how many runs of a submission are on at a time."""
        return self.name != "flux"

    def spec(self, program: str, *, runs: Sequence[int] = (0,), key: str = "job0", **fields: Any) -> JobSpec:
        """``program`` is run by bash in each rank; the finish command passes on the exit code."""
        usual = {"scheduler": self.name, "nodes": 1, "procs_per_node": 1, "time_limit": 300}
        asked = Request(**(usual | self.defaults | fields))
        log = self.root / ".hpc_hydra" / "jobs"
        log.mkdir(parents=True, exist_ok=True)
        return JobSpec(
            key=key,
            plan=Plan(system="test", request=asked),
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
        end = time.monotonic() + PATIENCE
        while not all(map(there, (said := self.submitter.poll(ids)).values())):
            assert time.monotonic() < end, f"still {said}"
            time.sleep(0.1)
        assert list(said) == list(ids)
        return list(said.values())

    def ended(self, ids: Sequence[str]) -> list[JobStatus]:
        return self.until(ids, lambda status: status.state.is_finished)

    def running(self, ids: Sequence[str]) -> list[JobStatus]:
        return self.until(ids, lambda status: status.state is State.RUNNING)

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


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> str:
    own = request.config.getoption("--scheduler") and request.param != "ssh"  # whose hosts we make in any case
    if request.param in FIXTURES and not own:
        request.getfixturevalue(FIXTURES[request.param])
    return str(request.param)


def defaults(scheduler: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Fields that every request of a scheduler needs."""
    if scheduler == "lsf-csm":
        return {"flavour": "csm"}
    if scheduler != "ssh":
        return {}
    hosts = request.getfixturevalue("ssh_hosts")
    return {"hosts": hosts.names[:2], "launch_args": hosts.options}


@pytest.fixture
def jobs(scheduler: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    root = tmp_path / "it's a sweep, 100%j (new)"
    root.mkdir()
    name = scheduler.partition("-")[0]
    made = Jobs(name, root, submitter(name), defaults=defaults(scheduler, request))
    yield made
    said = made.submitter.poll(made.ids)
    made.submitter.cancel([job for job, status in said.items() if not status.state.is_finished])
    made.submitter.close(cancel=True)
