"""What the job script starts: ``python -m hpc_hydra.node rank | finish CODE | pack | spawn … | mpiexec … | …``.

Light: a rank's supervisor is one per rank, and forks before anything heavy is imported.
"""

from __future__ import annotations

import sys

if not getattr(sys.flags, "safe_path", False) and sys.path:
    del sys.path[0]  # `-m` put the working directory there: a user's json.py must not become ours

USAGE = """usage: python -m hpc_hydra.node rank | finish CODE | pack | monitor … | script -- command…
       python -m hpc_hydra.node spawn|ssh|mpiexec|blaunch|guard|replicas [options] -- command…"""

ELSEWHERE = {
    "blaunch": "hpc_hydra.schedulers.lsf.blaunch",
    "mpiexec": "hpc_hydra.node.modes.mpiexec",
    "replicas": "hpc_hydra.node.modes.torchft",
    "lighthouse": "hpc_hydra.node.modes.lighthouse",
    "doctor": "hpc_hydra.node.doctor",
}
"""Commands whose errors are told here → the module with the function of the same name."""


def main(argv: list[str]) -> int:
    what = argv[0] if argv else ""
    if what in ("rank", "worker", "program"):
        from hpc_hydra.node.rank import gc_tuning

        gc_tuning.rest()  # until the program is loaded
    if what in ("rank", "worker"):
        from hpc_hydra.processes import Signals

        signals = Signals()  # before all else: a warning may come at once
        if what == "rank":
            from hpc_hydra.node.rank.supervisor import supervise

            done = supervise(signals)
        else:
            from hpc_hydra.node.modes.torchrun_worker import supervise_worker

            done = supervise_worker(signals)
        return done if isinstance(done, int) else done()
    if what == "program":
        from hpc_hydra.node.rank.exec_program import resume

        return resume()
    from hpc_hydra.processes import speak_any_text

    speak_any_text()  # not a program's own streams, above
    if what == "finish" and len(argv) == 2:
        from hpc_hydra.processes import ignore_signals

        ignore_signals()  # the script that starts it does, too: what comes before this line must not end it
        from hpc_hydra.node.finalize import finish

        return finish(argv[1])
    if what == "pack":
        from hpc_hydra.node.packing.runner import main as pack

        return pack(argv[1:])
    if what == "ask_ranks" and len(argv) == 3:
        from hpc_hydra.schedulers.allocation_queue import ask_ranks
        from hpc_hydra.schedulers.registry import dialect

        return 0 if ask_ranks(dialect(argv[1]), int(argv[2])) else 1
    if what == "monitor" and len(argv) == 6:
        from hpc_hydra.node.monitor import main as monitor

        return monitor(argv[1:])
    if what == "spawn":
        from hpc_hydra.node.modes.spawn import spawn

        return spawn(argv[1:])
    if what == "ssh":
        from hpc_hydra.schedulers.ssh.launch import ssh

        return ssh(argv[1:])
    if what == "host":
        from hpc_hydra.schedulers.ssh.agent import host

        return host()
    if what == "function":
        from hpc_hydra.node.function import function

        return function()
    if what == "guard":
        from hpc_hydra.node.guard import guard

        return guard(argv[1:])
    if what in ELSEWHERE:
        from importlib import import_module

        from hpc_hydra.errors import HpcHydraError

        try:
            return int(getattr(import_module(ELSEWHERE[what]), what)(argv[1:]))
        except HpcHydraError as error:
            print(f"hpc_hydra: {error}", file=sys.stderr)
            return error.exit_code
    if what == "script":
        from hpc_hydra.node.rank.script import script

        return script(argv[1:])
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
