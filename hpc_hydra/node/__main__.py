"""What the job script starts: ``python -m hpc_hydra.node rank | finish CODE | pack | spawn … | mpiexec … | …``.

Light: a rank's supervisor is one per rank, and forks before anything heavy is imported.
"""

from __future__ import annotations

import sys

if not getattr(sys.flags, "safe_path", False) and sys.path:
    del sys.path[0]  # `-m` put the working directory there: a user's json.py must not become ours

USAGE = """usage: python -m hpc_hydra.node rank | finish CODE | pack | monitor … | script -- command…
       python -m hpc_hydra.node spawn|mpiexec|guard|replicas|… [options] -- command…"""

COMMANDS = {
    "ask_ranks": "hpc_hydra.schedulers.allocation_queue:main",
    "doctor": "hpc_hydra.node.doctor:doctor",
    "finish": "hpc_hydra.node.finalize:main",
    "function": "hpc_hydra.node.function:function",
    "guard": "hpc_hydra.node.starters.guard:guard",
    "lighthouse": "hpc_hydra.node.starters.lighthouse:lighthouse",
    "monitor": "hpc_hydra.node.monitor:main",
    "mpiexec": "hpc_hydra.node.starters.mpiexec:mpiexec",
    "pack": "hpc_hydra.node.packing.runner:main",
    "preflight": "hpc_hydra.node.preflight.driver:main",
    "preflight_node": "hpc_hydra.node.preflight.agent:node",
    "preflight_rank": "hpc_hydra.node.preflight.collective:rank",
    "replicas": "hpc_hydra.node.starters.replicas:replicas",
    "script": "hpc_hydra.node.rank.script:script",
    "spawn": "hpc_hydra.node.starters.spawn:spawn",
    "superseded": "hpc_hydra.node.superseded:superseded",
}
"""Commands → the function that takes the words behind and returns an exit code. Adapters have further ones."""


def main(argv: list[str]) -> int:
    what = argv[0] if argv else ""
    if what in ("rank", "worker", "program"):
        return run_rank(what)
    from hpc_hydra.processes import escape_unencodable_output

    escape_unencodable_output()  # not a program's own streams, above
    named = COMMANDS.get(what)
    if named is None:
        from hpc_hydra.schedulers.node_commands import node_commands

        named = node_commands().get(what)
    if named is None:
        print(USAGE, file=sys.stderr)
        return 2
    from importlib import import_module

    from hpc_hydra.errors import HpcHydraError

    module, _, name = named.partition(":")
    try:
        return int(getattr(import_module(module), name)(argv[1:]))
    except HpcHydraError as error:
        print(f"hpc_hydra: {error}", file=sys.stderr)
        return error.exit_code


def run_rank(what: str) -> int:
    """A rank's supervisor (``rank``; ``worker``: under torchrun's agent), or a program that is started anew."""
    from hpc_hydra.node.rank import gc_tuning

    gc_tuning.raise_thresholds()  # until the program is loaded
    if what == "program":
        from hpc_hydra.node.rank.exec_program import resume

        return resume()
    from hpc_hydra.processes import Signals

    signals = Signals()  # before all else: a warning may come at once
    if what == "rank":
        from hpc_hydra.node.modes import supervise

        done = supervise(signals)
    else:
        from hpc_hydra.node.modes.torchrun.worker_supervisor import supervise_worker

        done = supervise_worker(signals)
    return done if isinstance(done, int) else done()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
