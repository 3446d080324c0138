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
PMIX_NAMESPACE PMIX_SERVER_URI41 PMIX_HOSTNAME PMIX_GDS_MODULE PRTE_LAUNCHED OMPI_UNIVERSE_SIZE OMPI_FILE_LOCATION
OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_ess_num_procs OMPI_MCA_ess OMPI_MCA_pmix OMPI_MCA_initial_wdir HYDI_CONTROL_FD
HPC_HYDRA_SPAWN_RANK SUBMITIT_EXECUTOR LS_TASKID LSF_PM_TASKID CSM_ALLOCATION_ID PBS_JOBID PBS_NODEFILE
PBS_O_WORKDIR"""
STAY = """PATH HOME SLURM_CONF SLURM_CLUSTERS SLURM_JWT FLUX_URI LSF_ENVDIR OMPI_MCA_btl OMPI_MCA_pml NCCL_DEBUG
OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PRTE_ALLOW_RUN_AS_ROOT
OMPI_MCA_plm_rsh_agent OMPI_MCA_orte_tmpdir_base OMPI_MCA_ras_base_verbose OMPI_CC PRTE_MCA_plm_ssh_agent PMIX_MCA_gds
PMIX_DEBUG HYDRA_BOOTSTRAP HYDRA_LAUNCHER_EXEC I_MPI_FABRICS I_MPI_HYDRA_BOOTSTRAP MPICH_GPU_SUPPORT_ENABLED
RANKS MY_RANK MASTER_ADDRESS HYDRA_FULL_ERROR PMIND LD_LIBRARY_PATH SLURMX PBS_DEFAULT
ENVIRONMENT NCPUS"""


@pytest.mark.parametrize("name", LEFT.split())
def test_it_goes(name: str) -> None:
    assert cleaned({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", STAY.split())
def test_it_stays(name: str) -> None:
    assert cleaned({name: "1"}) == {name: "1"}


@pytest.mark.parametrize("rank", ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PRTE_LAUNCHED"])
def test_in_a_rank_of_mpi_parameters_of_its_launcher_go_too(rank: str) -> None:
    own = {"OMPI_MCA_btl": "self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "HYDRA_FULL_ERROR": "1", "I_MPI_FABRICS": "shm"}
    launcher = ["OMPI_MCA_plm", "OMPI_MCA_orte_tmpdir_base", "PMIX_MCA_gds", "PRTE_MCA_ras", "I_MPI_INFO_NP"]
    assert cleaned({**own, **dict.fromkeys(launcher, "1"), rank: "2"}) == own


def test_the_mapping_itself_is_not_touched() -> None:
    env = {"RANK": "5", "PATH": "/bin"}
    cleaned(env)
    assert env == {"RANK": "5", "PATH": "/bin"}


def test_visible_gpus_of_a_job_go_and_those_of_a_shell_stay() -> None:
    assert cleaned({"CUDA_VISIBLE_DEVICES": "2"}) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert cleaned({"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_ID": "1"}) == {}


def test_what_is_kept_is_named() -> None:
    assert cleaned({"SBATCH_ACCOUNT": "a", "SBATCH_QOS": "b"}, keep={"SBATCH_ACCOUNT"}) == {"SBATCH_ACCOUNT": "a"}
