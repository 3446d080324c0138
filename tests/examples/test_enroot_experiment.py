"""A production command line of sbatch and pyxis as a configuration: the script has each of its options."""

from __future__ import annotations

import re
import sys

import pytest

from tests import forking
from tests.examples.conftest import ROOT, environment

CODE = "/scratch/me/py-in-container/lit-gpt"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = forking.run(
        [sys.executable, ROOT / "train_examples/digits_ddp/train.py", "-m", "launch.dry_run=script",
         "+experiment=enroot_h800"],
        env=environment(USER="me", DEBUG="1"), cwd=tmp_path_factory.mktemp("here"), torch=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "option",
    ["--nodes=4", "--gpus-per-node=8", "--ntasks-per-node=8", "--cpus-per-task=28", "--account=itscspod",
     "--partition=admin"],
)  # fmt: skip
def test_sbatch_is_asked_for_it(shown: str, option: str) -> None:
    assert f"#SBATCH {option}\n" in shown


@pytest.mark.parametrize(
    "option",
    ["--mpi=none", "--container-image=/scratch/me/home/containers/pytorch-23.10.sqsh", "--no-container-mount-home",
     "--container-remap-root", f"--container-workdir={CODE}", "--cpus-per-task=28"],
)  # fmt: skip
def test_srun_is_asked_for_it(shown: str, option: str) -> None:
    srun = re.search(r"^srun (.*\\\n)+.*", shown, re.M)
    assert srun and option in srun[0].replace("\\\n", " ").split()


def test_its_mounts_and_debugging(shown: str) -> None:
    mounts = f"--container-mounts={CODE}:{CODE},/scratch/me/data:{CODE}/data:ro,/scratch/me/out:{CODE}/out,"
    assert mounts in shown
    for line in ("PYTHONFAULTHANDLER=1", "NCCL_DEBUG=WARN", "NCCL_DEBUG_SUBSYS=INIT,NET", "OMP_NUM_THREADS=28"):
        assert f"export {line}" in shown
    assert "\nset -x\n" in shown  # DEBUG=1 in the shell
