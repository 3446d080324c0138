"""A rank that is any command: fills what only the rank knows, and chooses the interpreter for Python programs.

Must not know: who started the rank, the scheduler, torch (`node.script` does, where the plan asks for it).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_hydra.planning.types import Plan
from hpc_hydra.records.command_template import RANK_KEYS, YIELDING, fill, from_config, names, unknown
from hpc_hydra.records.frozen_config import RunRecord, literal, read_plans, thaw

if TYPE_CHECKING:
    from omegaconf import DictConfig

_WRAPPER = ("-m", "hpc_hydra.node", "script")


def is_wrapped(argv: tuple[str, ...]) -> bool:
    """Whether a command from `ready` starts the user's program by `node.script`."""
    return any(argv[at : at + len(_WRAPPER)] == _WRAPPER for at in range(len(argv)))


def ready(
    sweep: Path, record: RunRecord, env: MutableMapping[str, str] = os.environ, *, job_id: str = ""
) -> tuple[str, ...]:
    """What a rank executes, its ``{key}`` filled; values of ``launch.env`` are filled in ``env``.

    ``job_id`` is the scheduler's, for ``hydra.job.id``.

    Raises `ConfigError` for a key that is neither in the run's configuration nor known on a rank.
    """
    program = record.program
    plan = read_plans(sweep)[record.plan]
    argv = program.argv
    if program.fill:
        variables = [var for var in plan.env if var.origin.startswith("launch.env") and var.name in env]
        texts = [*argv, *(var.value for var in variables)]
        value = _values(sweep, record, plan, env, texts, job_id)
        for var in variables:
            env[var.name] = fill(var.value, value)
        argv = tuple(fill(word, value) for word in argv)
    if program.target != "python":
        return argv
    wrapper: tuple[str, ...] = ()
    if plan.rendezvous.init == "launcher":
        wrapper = (*_WRAPPER, "--init", "--")
    elif plan.rendezvous.fraction_max_gpu_mem is not None:
        wrapper = (*_WRAPPER, "--")
    return (sys.executable, *program.flags, *wrapper, *argv)


def _values(
    sweep: Path, record: RunRecord, plan: Plan, env: MutableMapping[str, str], texts: list[str], job_id: str
) -> Callable[[str], str]:
    known = {name: env.get(variable, "") for name, variable in RANK_KEYS.items()}
    known["num_nodes"] = str(plan.request.nodes)
    if any(name not in known or name in YIELDING for name in names(texts)):  # the configuration is read only if needed
        known.update(from_config(_composed(sweep, record, job_id), texts))

    def value(name: str) -> str:
        if name not in known:
            raise unknown(name)
        return known[name]

    return value


def _composed(sweep: Path, record: RunRecord, job_id: str) -> DictConfig:
    """The run's configuration; ``${hydra:...}`` can be resolved from now on."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.utils import setup_globals
    from omegaconf import read_write

    setup_globals()
    cfg = thaw(sweep, record, job_id=job_id or None)
    with read_write(cfg.hydra):
        cfg.hydra.runtime.output_dir = literal(str(record.dir))
    HydraConfig.instance().set_config(cfg)
    return cfg
