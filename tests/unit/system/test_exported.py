"""Defaults of the scheduler's own in a person's shell: they fill what nothing else says. All are told."""

from __future__ import annotations

import pytest

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers import capability_defaults, registry
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.system.detect import notes as notes_of
from hpc_hydra.system.detect import resolve
from tests.unit.system.conftest import Composed, machine

SLURM = ("system=frontier", "resources.nodes=1")
NERSC = ("system=perlmutter", "resources.nodes=1")
LSF = ("system=lassen", "resources.nodes=1")


def launched(composed: Composed, asked: tuple[str, ...], *, attached: bool = False, **env: str) -> tuple[Request, str]:
    probe = machine(env={"HOME": "/nowhere", **env})
    settings = composed(*asked)
    resolved = resolve(settings, probe=probe, attached=attached)
    return plan(resolved).request, "\n".join(notes_of(settings, resolved, probe, attached=attached))


@pytest.mark.parametrize(
    ("asked", "env", "key", "value"),
    [
        (SLURM, {"SBATCH_ACCOUNT": "m1"}, "account", "m1"),
        (SLURM, {"SBATCH_PARTITION": "extended"}, "queue", "extended"),  # before the system's default
        (SLURM, {"SBATCH_RESERVATION": "week"}, "reservation", "week"),
        (SLURM, {"SBATCH_QOS": "debug"}, "qos", "debug"),
        (NERSC, {"SBATCH_QOS": "shared"}, "qos", "shared"),  # with the queue that it belongs to
        (LSF, {"LSB_DEFAULTPROJECT": "p1"}, "project", "p1"),
        (LSF, {"LSB_DEFAULT_USERGROUP": "g1"}, "user_group", "g1"),
        (LSF, {"LSB_DEFAULTQUEUE": "pdebug"}, "queue", "pdebug"),
    ],
)
def test_a_default_of_the_shell_is_asked_for_and_told(
    asked: tuple[str, ...], env: dict[str, str], key: str, value: str, composed: Composed
) -> None:
    request, told = launched(composed, asked, **env)
    assert getattr(request, key) == value
    (name,) = env
    assert value in told and name in told and "from your shell" in told and "not used" not in told


@pytest.mark.parametrize(
    ("further", "env", "key", "value"),
    [
        (("scheduler.account=mine",), {"SBATCH_ACCOUNT": "m1"}, "account", "mine"),
        (("scheduler.queue=extended",), {"SBATCH_PARTITION": "debug"}, "queue", "extended"),
        (("+scheduler.extra.A=mine",), {"SBATCH_ACCOUNT": "m1"}, "account", "mine"),
        (("+scheduler.submit_extra.account=mine",), {"SBATCH_ACCOUNT": "m1"}, "account", "mine"),
        (("scheduler.remove=[account]",), {"SBATCH_ACCOUNT": "m1"}, "account", None),
        (("system.denied_flags=[account]",), {"SBATCH_ACCOUNT": "m1"}, "account", None),
        (
            ("+system.queues.mine.account=mine", "scheduler.queue=mine"),
            {"SBATCH_ACCOUNT": "m1"},
            "account",
            "mine",
        ),
        ((), {"SBATCH_TIMELIMIT": "1"}, "account", None),
        ((), {"SLURM_CPU_BIND": "cores"}, "account", None),
        ((), {"SBATCH_MEM_PER_NODE": "64"}, "mem_per_node", None),
        (("system.all_queues=true",), {"SBATCH_PARTITION": "batsh"}, "queue", "batch"),
    ],
)
def test_what_is_said_elsewhere_stays_and_the_shells_word_is_told_to_be_kept_away(
    further: tuple[str, ...], env: dict[str, str], key: str, value: str | None, composed: Composed
) -> None:
    request, told = launched(composed, (*SLURM, *further), **env)
    assert getattr(request, key) == value
    ((name, text),) = env.items()
    assert f"not used: {name}={text}" in told
    assert "from your shell" not in told


@pytest.mark.parametrize(
    "env",
    [
        {"SBATCH_ACCOUNT": "mine"},  # the same
        {"SALLOC_ACCOUNT": "other"},  # sbatch does not read it
        {"SLURM_CONF": "/etc/slurm.conf", "SLURM_TIME_FORMAT": "relative", "SLURM_ROOT": "/opt", "SBATCH_DEBUG": "1"},
        {"SQUEUE_FORMAT": "%i", "SBATCH_ACCOUNT": ""},
        # of a job around this one
        {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "x", "SBATCH_CPU_BIND": "y", "SRUN_DEBUG": "3", "SLURM_NTASKS": "4"},
        {"LSB_DEFAULTPROJECT": "p", "SLURM_DISTRIBUTION_": "x"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_no_word_about_what_changes_nothing(env: dict[str, str], composed: Composed) -> None:
    request, told = launched(composed, (*SLURM, "scheduler.account=mine"), **env)
    assert (request.account, told) == ("mine", "")


def test_what_a_terminal_would_obey_is_told_escaped(composed: Composed) -> None:
    _, told = launched(composed, SLURM, SBATCH_CONSTRAINT="\x1b[2Jx\ny")
    assert "not used: SBATCH_CONSTRAINT='\\x1b[2Jx\\ny'" in told


def test_a_run_at_this_console_reads_what_salloc_reads(composed: Composed) -> None:
    env = {"SALLOC_PARTITION": "extended", "SBATCH_PARTITION": "debug", "SALLOC_TIMELIMIT": "5"}
    request, told = launched(composed, SLURM, attached=True, **env)
    assert request.queue == "extended"
    assert "SALLOC_PARTITION" in told and "SALLOC_TIMELIMIT=5" in told and "SBATCH" not in told


def test_without_a_scheduler_the_shells_words_mean_nothing(composed: Composed) -> None:
    env = {"SBATCH_ACCOUNT": "m1", "SBATCH_TIMELIMIT": "1", "LSB_DEFAULTQUEUE": "q"}
    request, told = launched(composed, ("system=local", "scheduler=local", "resources.nodes=1"), **env)
    assert (request.account, request.queue, told) == (None, None, "")


@pytest.mark.parametrize("earlier", [{}, {"SBATCH_ACCOUNT": "m1", "SBATCH_PARTITION": "debug"}])
def test_a_run_that_is_planned_again_keeps_what_it_had(
    earlier: dict[str, str], composed: Composed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = launched(composed, SLURM, **earlier)
    now = machine(env={"HOME": "/nowhere", "SBATCH_ACCOUNT": "other", "SBATCH_PARTITION": "extended"})
    again = plan(resolve(composed(*SLURM, "resources.time_limit=1h"), probe=now, earlier=first)).request
    assert (again.account, again.queue) == (first.account, first.queue)


def test_every_key_is_one_of_ours() -> None:
    """And each can be asked for."""
    for name in registry.built_in():
        for attached in (True, False):
            for key in capability_defaults.default_variables(registry.adapter_for(name), attached=attached):
                assert key in Request.__dataclass_fields__
