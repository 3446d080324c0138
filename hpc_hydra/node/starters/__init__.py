"""Our own launch commands, for where those of a scheduler or an MPI need help; commands of `hpc_hydra.node`."""
