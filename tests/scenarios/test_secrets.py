"""However a run is started, a secret of `launch.env` reaches its ranks, and nobody but the owner can read it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.schedulers.functions import FluxExecutor, LsfExecutor
from tests import forking

from .conftest import ROOT

SECRET = "hunter 2, it's $(so)"
STEP = """\
import hashlib, json, os, sys
from pathlib import Path
found = {"digest": hashlib.sha256(os.fsencode(os.environ["X_TOKEN"])).hexdigest()}
if sys.argv[1:] == ["look"]:  # what is removed at the end can be looked at only now
    from tests.scenarios.test_secrets import look
    found["told"], found["wide"] = look(Path(os.environ["TOP"]), os.environ["X_TOKEN"])
Path(os.environ["SAW"], f"{os.environ.get('HPC_HYDRA_RUN', 'x')}.{os.environ.get('RANK', 'x')}").write_text(
    json.dumps(found))
"""
STAND_INS = {"flux": "fake_flux", "lsf": "fake_lsf", "csm": "fake_csm", "slurm": "slurm_cluster", "ssh": "ssh_hosts"}
SMALL = ("resources.nodes=1", "resources.procs_per_node=2", "resources.cpus_per_proc=1", "resources.gpus_per_proc=0")
SLURM, SSH = (pytest.param(name, marks=pytest.mark.cluster) for name in ("slurm", "ssh"))


def look(top: Path, secret: str) -> tuple[list[str], list[str]]:
    """Files below a folder that others could read and that tell a secret, and scripts that others have rights to."""
    told, wide = [], []
    for path in top.rglob("*"):
        try:
            mode, text = path.stat().st_mode, path.read_bytes() if path.is_file() else b""
            inside = [folder for folder in path.parents if folder.is_relative_to(top) and folder != top]
            closed = not mode & 0o077 or any(not folder.stat().st_mode & 0o077 for folder in inside)
        except FileNotFoundError:
            continue
        if secret.encode() in text and (not closed or path.suffix == ".sh"):
            told.append(str(path))
        if b"\n# job" in text and path.suffix == ".sh" and mode & 0o777 != 0o700:
            wide.append(f"{path} {mode & 0o777:o}")
    return told, wide


@dataclass
class Place:
    """A folder with a program, and words that choose a scheduler."""

    top: Path
    words: Sequence[str]
    state: Path | None = None  # where the stand-in keeps what it was given
    stdin: str = ""
    said: str = field(default="", init=False)

    def __post_init__(self) -> None:
        for name in ("saw", "tmp"):
            (self.top / name).mkdir()
        (self.top / "step.py").write_text(STEP)

    @property
    def value(self) -> str:
        return f"launch.env.X_TOKEN='{SECRET}'".replace("it's", "it\\'s")

    def start(self, *words: str, code: int = 0, command: Sequence[str] = ("-m", "hpc_hydra.cli")) -> None:
        """Run a command line; what it says is added up."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SAW": str(self.top / "saw"), "TOP": str(self.top)}
        env |= {"TMPDIR": str(self.top / "tmp"), "HOME": str(self.top / "tmp")}
        argv = [sys.executable, *command, *words]
        umask = os.umask(0)
        try:
            if self.stdin:
                done = subprocess.run(
                    argv, cwd=self.top, env=env, capture_output=True, text=True, timeout=180, input=self.stdin
                )
            else:
                done = forking.run(argv, cwd=self.top, env=env, timeout=180)
        finally:
            os.umask(umask)
        self.said += done.stdout + done.stderr
        assert done.returncode == code, self.said

    def check(self, *, runs: int = 1, ranks: int = 2) -> None:
        """The ranks had the value; nothing that was said and nothing that others can read has it."""
        saw = [json.loads(path.read_text()) for path in sorted((self.top / "saw").iterdir())]
        assert [one["digest"] for one in saw] == [hashlib.sha256(SECRET.encode()).hexdigest()] * runs * ranks
        assert [one.get(key) or [] for one in saw for key in ("told", "wide")] == [[]] * 2 * len(saw)
        assert look(self.top, SECRET) == ([], [])
        assert SECRET not in self.said
        given = [path for path in self.state.rglob("*") if path.is_file()] if self.state else []
        assert [path for path in given if SECRET.encode() in path.read_bytes()] == []


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = request.param
    there: Any = request.getfixturevalue(STAND_INS[name]) if name in STAND_INS else None
    words = [f"scheduler={'lsf' if name in ('lsf', 'csm') else name}"]
    if name in ("lsf", "csm"):
        words += [f"scheduler.flavour={'csm' if name == 'csm' else 'standard'}"]
    if name == "ssh":
        words += [*there.overrides, "scheduler.hosts=[node01]"]
    return Place(tmp_path, [*words, *SMALL], there.root if name in ("flux", "lsf", "csm") else None)


def on(*names: Any) -> Any:
    return pytest.mark.parametrize("place", names, indirect=True)


SWEEP = ("launch.seed=1,2", "hydra.sweep.dir=sweep")


@on("flux", "csm", SLURM, SSH)
def test_a_sweep(place: Place) -> None:
    place.start("run", "-m", *place.words, place.value, *SWEEP, "--", "step.py")
    place.check(runs=2)


@on("local")
def test_what_is_told_of_a_sweep(place: Place) -> None:
    place.start("run", "-m", *place.words, place.value, *SWEEP, "--", "step.py")
    for command in ("status", "status --json", "results", "report -o report.html"):
        name, *options = command.split()
        place.start(name, "sweep", *options)
    place.check(runs=2)


@on("lsf", SLURM)
def test_runs_that_share_an_allocation(place: Place) -> None:
    words = (*place.words, place.value, *SWEEP, "system.cores_per_node=4")
    place.start("run", "-m", *words, "launch.pack=2", "--", "step.py")
    place.check(runs=2)


@on("local", "flux", "lsf", SLURM, SSH)
def test_a_run_attached_to_the_console(place: Place) -> None:
    place.start("run", *place.words, place.value, "logging.verbose=true", "--", "step.py", "look")
    place.check()


@on("flux")
def test_options_of_torchrun_hpc(place: Place) -> None:
    words = ("torchrun", "--scheduler", "flux", "-N", "1", "-n", "2", "-x", f"X_TOKEN={SECRET}", "-v")
    place.start(*words, "step.py", "look")
    place.start(*words, "--setup-only", "-l", "kept", "step.py")
    place.start("status", "kept")
    place.start("report", "kept", "-o", "report.html")
    place.check()


@on("local", "flux", "lsf", SLURM)
def test_an_interactive_shell(place: Place) -> None:
    place.stdin = f"exec {sys.executable} step.py look\n"
    place.start("shell", *place.words, place.value)
    place.check(ranks=1)


@on("local")
@pytest.mark.parametrize("more", [(), ("launch.output_script=own.sh",), ("launch.output_script=-",)])
def test_scripts_that_are_only_written(place: Place, more: Sequence[str]) -> None:
    place.start("run", *place.words, place.value, "launch.setup_only=true", *more, "--", "step.py")
    (script,) = place.top.glob("own.sh") if "own.sh" in str(more) else place.top.rglob("job0.sh")
    place.start(str(script), "0", command=("-c", "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"))
    place.check()


@on("flux", "lsf", "csm", SLURM, SSH)
def test_scripts_that_are_only_written_or_shown_for_a_scheduler(place: Place) -> None:
    for keys in (["setup_only=true"], ["setup_only=true", "output_script=own.sh"], ["dry_run=true"]):
        place.start("run", *place.words, place.value, *(f"launch.{key}" for key in keys), "--", "step.py")
    place.check(runs=0)


@on("local")
@pytest.mark.parametrize("command", ["run", "run -m", "shell"])
def test_a_dry_run(place: Place, command: str) -> None:
    behind = () if command == "shell" else ("--", "step.py")
    place.start(*command.split(), *place.words, place.value, "launch.dry_run=true", *behind)
    place.check(runs=0)


@on("local")
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("key", ["launch.env", "container.env"])
def test_a_container(place: Place, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("image/etc", "bin"):
        (place.top / folder).mkdir(parents=True)
    (place.top / "bin/apptainer").symlink_to(ROOT / "tests/fakes/apptainer")
    monkeypatch.setenv("PATH", f"{place.top / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_PYTHON", sys.prefix)
    monkeypatch.setenv("STAND_IN_BASE", sys.base_prefix)
    words = ("container=apptainer", f"container.image={place.top}/image", f"container.mounts=['{place.top}']")
    value = place.value.replace("launch.env", key)
    place.start("run", "-m", *place.words, *words, value, "hydra.sweep.dir=sweep", "--", "step.py")
    place.check()


@pytest.mark.parametrize("name", ["flux", "lsf"])
def test_functions_as_jobs(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    there = request.getfixturevalue(STAND_INS[name])
    executor = {"flux": FluxExecutor, "lsf": LsfExecutor}[name](tmp_path / "functions")
    executor.update_parameters(env={"X_TOKEN": SECRET, "PLAIN": "seen"})
    umask = os.umask(0)
    try:
        found = executor.submit(_seen).result()
    finally:
        os.umask(umask)
    assert found == (hashlib.sha256(SECRET.encode()).hexdigest(), "seen")
    assert look(tmp_path, SECRET) == ([], [])
    given = [path for path in there.root.rglob("*") if path.is_file()]
    assert [path for path in given if SECRET.encode() in path.read_bytes()] == []


def _seen() -> tuple[str, str]:
    return hashlib.sha256(os.fsencode(os.environ["X_TOKEN"])).hexdigest(), os.environ["PLAIN"]
