"""The faults: what each does to the machine, and how it is mended.

Each is a function of the round and the fault. It returns what it hit ("": there was nothing to hit), and its mending.
Must not know: what has to hold afterwards.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.chaos import world
from tests.chaos.plan import Fault

T = TypeVar("T")
Mend = Callable[[], object]


Done = tuple[str, Mend]
SOON = 30.0  # seconds within which SLURM notices what happened


class Victim(Protocol):
    """The round, as far as faults know it."""

    def launchers(self) -> list[int]: ...  # pids of what the user has started
    def resume(self) -> None: ...  # starts `hpc-hydra resume`, and does not wait


def nothing() -> None:
    """No mending."""


def picked(things: Sequence[T], fault: Fault) -> T | None:
    return things[int(fault.pick * len(things))] if things else None


def _killed(found: Sequence[world.Process], fault: Fault, what: str) -> Done:
    victim = picked(sorted(found, key=lambda each: each.pid), fault)
    if victim is None:
        return "", nothing
    victim.kill()
    return f"{what} {victim.pid} of run {victim.env.get('HPC_HYDRA_RUN', '?')}", nothing


def _of_nodes(*commands: str) -> list[world.Process]:
    """Processes of `python -m hpc_hydra.node COMMAND`; srun has these words, too."""
    found = []
    for each in world.processes():
        _, _, after = " ".join(each.words).partition(" hpc_hydra.node ")
        if "HPC_HYDRA_SWEEP" in each.env and each.name != "srun" and after.partition(" ")[0] in commands:
            found.append(each)
    return found


def _of_ranks() -> list[world.Process]:
    """Supervisors, agents and programs: a program is a fork of its supervisor."""
    return [each for each in _of_nodes("rank", "worker") if "HPC_HYDRA_ATTEMPT" in each.env]


def _programs() -> list[world.Process]:
    """The user's."""
    ours = _of_ranks()
    return [each for each in ours if each.pid not in {other.parent for other in ours}]


def kill_rank(_: Victim, fault: Fault) -> Done:
    """The user's program."""
    return _killed(_programs(), fault, "rank")


def kill_supervisor(_: Victim, fault: Fault) -> Done:
    """The parent of a program, or an agent, or its supervisor."""
    ours = _of_ranks()
    return _killed([each for each in ours if each.pid in {other.parent for other in ours}], fault, "supervisor")


def kill_script(_: Victim, fault: Fault) -> Done:
    """The batch script, which becomes the packer of packed runs, or the script of one of these."""
    scripts = re.compile(r"/slurm_script$|/\.hpc_hydra/jobs/[^/]*\.sh$")
    found = [each for each in world.processes() if any(scripts.search(word) for word in each.words[:2])]
    return _killed([*found, *_of_nodes("pack")], fault, "script")


def kill_srun(_: Victim, fault: Fault) -> Done:
    """Its second process, too: srun forks a helper."""
    found = [each for each in world.processes() if each.name == "srun"]
    first = [each for each in found if each.parent not in {other.pid for other in found}]
    hit, mend = _killed(first, fault, "srun")
    return hit, mend


def _busy(fault: Fault) -> str:
    """A node, preferably with a job."""
    found = {name for job in world.jobs() or () if job.state == "RUNNING" for name in world.hosts(job.nodes)}
    name = picked(sorted(found) or world.NODES, fault)
    assert name is not None
    return name


def kill_node(_: Victim, fault: Fault) -> Done:
    """Power failure of a node; it boots once SLURM has noticed, as no real node is faster."""
    name = _busy(fault)
    world.node("kill", name)

    def boot() -> None:
        world.await_true(lambda: world.node_states().get(name, "").startswith("down"), SOON)
        world.node("start", name)

    return name, boot


def cut_link(_: Victim, fault: Fault) -> Done:
    name = _busy(fault)
    world.node("cut", name)
    return name, lambda: world.node("join", name)


def restart_controller(_: Victim, fault: Fault) -> Done:
    world.controller("stop")
    return "slurmctld", lambda: world.controller("start")


def stop_accounting(_: Victim, fault: Fault) -> Done:
    world.accounting("stop")
    return "slurmdbd", lambda: world.accounting("start")


def fill_tmp(_: Victim, fault: Fault) -> Done:
    name, file = _busy(fault), "/tmp/full"
    world.node("exec", name, "dd", "if=/dev/zero", f"of={file}", "bs=1M")
    return f"/tmp of {name}", lambda: world.node("exec", name, "rm", "-f", file)


def _job(fault: Fault, *states: str) -> str:
    job = picked([job for job in world.jobs() or () if job.state in states], fault)
    return "" if job is None else job.id


def _asked(command: Sequence[str], job: str) -> Done:
    done = world.call(*command, job) if job else None
    return (job if done is not None and done.returncode == 0 else ""), nothing


def scancel(_: Victim, fault: Fault) -> Done:
    return _asked(["scancel"], _job(fault, "PENDING", "RUNNING"))


def requeue(_: Victim, fault: Fault) -> Done:
    """By an administrator; refused for jobs that must not be requeued."""
    return _asked(["scontrol", "requeue"], _job(fault, "RUNNING"))


def preempt(_: Victim, fault: Fault) -> Done:
    """A more urgent job takes the nodes of one in partition spot."""
    job = picked([job for job in world.jobs() or () if job.state == "RUNNING"], fault)
    if job is None:
        return "", nothing
    number = str(len(world.hosts(job.nodes)))
    words = ["--partition=debug", "--exclusive", f"--nodes={number}", f"--nodelist={job.nodes}", "--job-name=urgent"]
    done = world.call("sbatch", "--parsable", "--output=/dev/null", *words, f"--wrap=sleep {fault.lasts:.0f}")
    return (f"{job.id} by {done.stdout.strip()}" if done.returncode == 0 else ""), nothing


def hang(_: Victim, fault: Fault) -> Done:
    """The user's program, until the time limit of its job, which is a minute."""
    rank = picked(sorted(_programs(), key=lambda each: (each.env["HPC_HYDRA_RUN"], each.pid)), fault)
    if rank is None:
        return "", nothing
    rank.kill(signal.SIGSTOP)
    job = rank.env["SLURM_JOB_ID"]
    return (job if world.call("scontrol", "update", f"JobId={job}", "TimeLimit=1").returncode == 0 else ""), nothing


def suspend(_: Victim, fault: Fault) -> Done:
    hit, _mend = _asked(["scontrol", "suspend"], job := _job(fault, "RUNNING"))
    return hit, lambda: world.call("scontrol", "resume", job)


def _signalled(victim: Victim, fault: Fault, number: signal.Signals) -> Done:
    pid = picked(victim.launchers(), fault)
    if pid is None:
        return "", nothing
    world.send(pid, number)
    return f"launcher {pid}", nothing


def kill_launcher(victim: Victim, fault: Fault) -> Done:
    return _signalled(victim, fault, signal.SIGKILL)


def hang_up_launcher(victim: Victim, fault: Fault) -> Done:
    return _signalled(victim, fault, signal.SIGHUP)


def stop_launcher(victim: Victim, fault: Fault) -> Done:
    pid = picked(victim.launchers(), fault)
    hit, _mend = _signalled(victim, fault, signal.SIGSTOP)
    return hit, lambda: world.send(pid or 0, signal.SIGCONT)


def two_resumes(victim: Victim, fault: Fault) -> Done:
    """Two at once, while jobs and maybe the first launcher are active."""
    victim.resume()
    victim.resume()
    return "resume, twice", nothing


ALL: dict[str, Callable[[Victim, Fault], Done]] = {
    each.__name__: each
    for each in (
        kill_rank, kill_supervisor, kill_script, kill_srun, kill_node, cut_link, restart_controller, stop_accounting,
        fill_tmp, scancel, requeue, preempt, hang, suspend, kill_launcher, hang_up_launcher, stop_launcher, two_resumes,
    )
}  # fmt: skip
