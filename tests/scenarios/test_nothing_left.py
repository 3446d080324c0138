"""However a run ends, nothing of it stays on any node: no process, port, file in /dev/shm, /tmp or its directories."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpc_hydra.sweep.status import ENDED
from tests.awaiting import await_true
from tests.cluster.fixtures import NODES, Cluster

from .conftest import Probe
from .test_coming_back import hpc, runs

APP = """
import os, subprocess, sys, time
from pathlib import Path
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    if cfg.ending != "supervisor":  # without a supervisor only a scheduler with cgroups finds it
        subprocess.Popen(["sleep", "600"])  # the program's own, which it forgets
    Path(cfg.folder, f"{cfg.ending}.{os.environ['RANK']}").touch()
    while cfg.ending in ("success", "failure") and not Path(cfg.folder, f"{cfg.ending}.go").exists():
        time.sleep(0.1)
    if cfg.ending == "failure":
        raise ValueError("on purpose")
    if cfg.ending != "success":
        time.sleep(600)

if __name__ == "__main__":
    main()
"""
OF_ITSELF = ("success", "failure")
KILLED = ("rank", "supervisor", "job_script", "launch_command")


class Run:
    """The processes of one run on all nodes of this machine, and of the launcher."""

    def __init__(self, probe: Probe, num: int) -> None:
        self.probe, self.num = probe, num

    def processes(self) -> list[psutil.Process]:
        mine = (f"HPC_HYDRA_SWEEP={self.probe.sweep}\0".encode(), f"HPC_HYDRA_RUN={self.num}\0".encode())
        return [p for p in everything(self.probe.tmp) if all(text in environ(p.pid) for text in mine)]

    def victims(self, what: str) -> list[psutil.Process]:
        every = self.processes()
        starters = {"srun", "spawn"}
        ranks = [p for p in every if words(p.pid)[-1:] == ["rank"] and not starters & set(words(p.pid))]
        pids = {p.pid for p in ranks}
        supervisors = [p for p in ranks if p.ppid() not in pids]
        launched = [p for p in every if words(p.pid)[:1] == ["srun"] or " spawn " in " ".join(words(p.pid))]
        if what == "rank":
            return [p for p in ranks if p.ppid() in {s.pid for s in supervisors}][:1]
        if what == "supervisor":
            return supervisors[:1]
        if what == "launch_command":
            return launched
        parents = {p.ppid() for p in launched} - {p.pid for p in launched}
        return [psutil.Process(pid) for pid in parents]


def environ(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def everything(folder: Path) -> list[psutil.Process]:
    """Processes on all nodes that have to do with a folder: by environment, command line, directory or open files."""
    mine, found = str(folder), []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            texts = [environ(process.pid).decode(errors="replace"), " ".join(words(process.pid)), process.cwd()]
            texts += [file.path for file in process.open_files()]
            if any(mine in text for text in texts):
                found.append(process)
    return found


def shared_memory(cluster: Cluster | None) -> set[tuple[str, str]]:
    """Entries of /dev/shm, by node, but for those of MPI, which only jobs of other tests use."""
    if cluster is None:
        listed = {"here": "\n".join(path.name for path in Path("/dev/shm").iterdir())}
    else:
        listed = {node: cluster.node(node).exec(["ls", "-A", "/dev/shm"]).stdout for node in NODES}
    names = {(node, name) for node, text in listed.items() for name in text.splitlines()}
    return {(node, name) for node, name in names if not name.startswith("mpich_")}


def leftovers(folder: Path) -> list[str]:
    """Files that only a running process needs: temporary ones, sockets, pipes, places to meet."""
    found = []
    for path in folder.rglob("*"):
        kind = path.lstat().st_mode
        recorded = (".hydra", ".hpc_hydra", ".last_words.json", ".failed.0")
        known = path.name in recorded or not path.name.startswith(".")
        meets = path.name.startswith((".hpc_hydra-", ".hpc_hydra_"))
        if not known or meets or path.suffix == ".tmp" or stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
            found.append(str(path.relative_to(folder)))
    return found


def described(processes: list[psutil.Process]) -> list[str]:
    return [f"{p.pid} {' '.join(words(p.pid))[:150]}" for p in processes]


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Probe, Cluster | None]:
    cluster: Any = request.getfixturevalue("slurm_cluster") if request.param == "slurm" else None
    return Probe(tmp_path, request.param), cluster


def test_nothing_of_a_run_stays_however_it_ends(
    place: tuple[Probe, Cluster | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run for each ending, in one sweep; at last the launcher is killed while one run goes on."""
    probe, cluster = place
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    for folder in (here, scratch):
        folder.mkdir()
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "config.yaml").write_text("defaults: [hpc, _self_]\n")
    monkeypatch.setenv("TMPDIR", str(scratch))
    endings = [*OF_ITSELF, "cancel", *KILLED, *(["time_limit"] if cluster else []), "launcher"]
    shape = ["resources.nodes=2", "resources.procs_per_node=1"] if cluster else ["resources.procs_per_node=2"]
    argv = probe.argv(
        *shape, "resources.cpus_per_proc=1", "resources.gpus_per_proc=0", "resources.time_limit=20m",
        "logging.timestamps=1", "monitor=gpu", "monitor.interval=1", f"+folder={here}", f"+ending={','.join(endings)}",
        app=tmp_path / "app.py",
    )  # fmt: skip
    argv = [word for word in argv if word != f"out={probe.out}"]
    before, in_tmp = shared_memory(cluster), set(Path("/tmp").iterdir())
    with probe.started(argv=argv) as launcher:
        for num, ending in enumerate(endings):  # on this machine one after the other
            begun = await_true(lambda ending=ending: launcher.poll() or len(list(here.glob(f"{ending}.[01]"))) == 2)
            assert begun is True, (ending, sorted(here.iterdir()), begun and launcher.communicate()[0])
            run = Run(probe, num)
            if ending in OF_ITSELF:
                (here / f"{ending}.go").touch()
            elif ending == "cancel":
                hpc(probe, "cancel", str(num))
            elif ending == "time_limit":
                job = runs(probe)[num]["job_id"]
                subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=0:01"], check=True, timeout=60)
            elif ending in KILLED:
                victims = run.victims(ending)
                assert victims, (ending, described(run.processes()))
                for victim in victims:
                    with suppress(psutil.NoSuchProcess):
                        victim.kill()
        if cluster:  # its limit is a minute
            await_true(lambda: not Run(probe, endings.index("time_limit")).processes())
        ended = await_true(lambda: sum(run["state"] in ENDED for run in runs(probe)) == len(endings) - 1)
        assert ended, runs(probe)
        assert run.processes()
        launcher.kill()
    hpc(probe, "cancel")  # the run goes on without its launcher
    await_true(lambda: not everything(tmp_path))
    assert described(everything(tmp_path)) == []  # so no port is listened at, either
    assert list(scratch.iterdir()) == [] and leftovers(tmp_path) == []
    new = {path.name for path in set(Path("/tmp").iterdir()) - in_tmp if "hpc_hydra" in path.name}
    assert not {name for name in new if not name.startswith("hpc_hydra-")}  # those belong to commands of other tests
    await_true(lambda: not shared_memory(cluster) - before)  # those of other tests go, too
    assert not shared_memory(cluster) - before
    states = {ending: run["state"] for ending, run in zip(endings, runs(probe), strict=True)}
    assert states["success"] == "completed" and "completed" not in [states[e] for e in endings[1:]], states
