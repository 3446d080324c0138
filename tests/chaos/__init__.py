"""Random faults on the real SLURM: rounds of short trainings with a known answer, each round from a seed.

`make chaos ROUNDS=10 SEED=1 LANES=2`; `python -m tests.chaos --help`. `plan.py` draws a round, `world.py` is the
machine that `faults.py` breaks, `game.py` plays the round, `verify.py` judges it, `lane.sh` gives it a cluster of its
own, `__main__.py` starts the lanes and prints the table. `seeds.py` has the seeds of faults that were found this way.
"""
