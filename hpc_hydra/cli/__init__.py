"""``hpc-hydra run | torchrun | status | logs | …``: parse, call, print."""
