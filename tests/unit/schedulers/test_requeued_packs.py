"""`launch.max_requeues` of packed runs: who can, and what the job script says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_hydra.errors import PlanError
from hpc_hydra.planning.types import Plan, Request
from hpc_hydra.schedulers import capability_checks
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.registry import adapter_for


def script(scheduler: str, most: int) -> str:
    plan = Plan("test", Request(scheduler, 1, 1, cpus_per_proc=1, job_name="train", max_requeues=most))
    places = {"sweep": Path("/s"), "workdir": Path("/w"), "log": Path("/s/jobs")}
    return adapter_for(scheduler).script(
        JobSpec("job0", plan, (3, 4, 5), tag="t", rank_command=("x",), finish_command=("y",), packs=(2, 1), **places)
    )


def test_slurm_puts_it_back_until_it_was_often_enough() -> None:
    text, never = script("slurm", 2), script("slurm", 0)
    assert "#SBATCH --requeue\n" in text and '[ "${SLURM_RESTART_COUNT:-0}" -lt 2 ] || scontrol update' in text
    assert "#SBATCH --no-requeue\n" in never and "scontrol" not in never


def test_on_flux_the_run_that_names_the_pack_is_submitted_again() -> None:
    text = script("flux", 2)
    again, name = (line for line in text.splitlines() if "AGAIN" in line or "train." in line)
    assert again.endswith('="${2:-0}"') and name.endswith("=train.${1:-3}.t")
    env = {name.split()[1].partition("=")[0]: "train.3.t"}
    command = adapter_for("flux").resubmit_command(env, Path("/s/jobs/job0.sh"), 3, 1, "f9")
    assert command == [
        "flux",
        "batch",
        "--job-name=train.3.t.1",
        "--dependency=afterany:f9",
        "/s/jobs/job0.sh",
        "3",
        "1",
        "f9",
    ]


@pytest.mark.parametrize("scheduler", ["lsf", "ssh"])
def test_elsewhere_it_is_refused_by_name(scheduler: str) -> None:
    with pytest.raises(PlanError) as error:
        capability_checks.check_packing(adapter_for(scheduler), Request(scheduler, 1, 1, max_requeues=1))
    assert error.value.where == "launch.max_requeues" and "resume" in str(error.value.fix)
    capability_checks.check_packing(adapter_for(scheduler), Request(scheduler, 1, 1))
