#!/bin/bash
# an interactive shell of unknown

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT ${!TORCHELASTIC_@} ${!HPC_HYDRA_@}
cd -- /tmp/wt/report || exit 1

# as many threads as the rank has CPUs (resources.cpus_per_proc)
[ -n "${OMP_NUM_THREADS+x}" ] || export OMP_NUM_THREADS=8

# launch.env.A
export A='x  y'

# launch.env.PS1
export PS1='ready> '

# launch.env.PROMPT_COMMAND
export PROMPT_COMMAND='PS1="ready> "'

export PYTHONPATH=/tmp/wt/report"${PYTHONPATH:+:$PYTHONPATH}"

exec bash -i
