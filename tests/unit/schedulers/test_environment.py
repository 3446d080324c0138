"""What another job left in the environment does not reach a new one."""

from __future__ import annotations

import pytest

from hpc_hydra.schedulers.environment import cleaned

LEFT = """SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_CPU_BIND SLURM_CPUS_PER_TASK SLURM_NTASKS SLURM_NTASKS_PER_NODE
SLURM_GPUS_PER_NODE SLURM_JOB_NUM_NODES SLURM_DISTRIBUTION SLURM_TRES_PER_TASK SLURM_EXPORT_ENV SLURM_STEP_ID
SBATCH_PARTITION SBATCH_TIMELIMIT SBATCH_MEM_PER_NODE SBATCH_EXPORT SBATCH_ACCOUNT SRUN_CPUS_PER_TASK SQUEUE_FORMAT
SCANCEL_INTERACTIVE SACCT_FORMAT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR
MASTER_PORT TORCHELASTIC_RUN_ID PMI_RANK PMI2_FD PMIX_RANK OMPI_COMM_WORLD_RANK OMPI_MCA_ess_base_jobid PALS_RANKID
FLUX_JOB_ID FLUX_TASK_RANK LSB_JOBID LSB_HOSTS LS_JOBPID JSM_NAMESPACE_RANK BSUB_QUIET HPC_HYDRA_RUN
HPC_HYDRA_SPAWN_RANK SUBMITIT_EXECUTOR LS_TASKID LSF_PM_TASKID CSM_ALLOCATION_ID"""
STAY = """PATH HOME SLURM_CONF SLURM_CLUSTERS SLURM_JWT FLUX_URI LSF_ENVDIR OMPI_MCA_btl OMPI_MCA_pml NCCL_DEBUG
OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PRTE_ALLOW_RUN_AS_ROOT
RANKS MY_RANK MASTER_ADDRESS HYDRA_FULL_ERROR PMIND LD_LIBRARY_PATH SLURMX"""


@pytest.mark.parametrize("name", LEFT.split())
def test_it_goes(name: str) -> None:
    assert cleaned({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", STAY.split())
def test_it_stays(name: str) -> None:
    assert cleaned({name: "1"}) == {name: "1"}


def test_the_mapping_itself_is_not_touched() -> None:
    env = {"RANK": "5", "PATH": "/bin"}
    cleaned(env)
    assert env == {"RANK": "5", "PATH": "/bin"}


def test_visible_gpus_of_a_job_go_and_those_of_a_shell_stay() -> None:
    assert cleaned({"CUDA_VISIBLE_DEVICES": "2"}) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert cleaned({"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_ID": "1"}) == {}


def test_what_is_kept_is_named() -> None:
    assert cleaned({"SBATCH_ACCOUNT": "a", "SBATCH_QOS": "b"}, keep={"SBATCH_ACCOUNT"}) == {"SBATCH_ACCOUNT": "a"}
