"""``hpc-hydra nodes``: nodes that failed your runs, which new jobs leave out for some hours.

Must not know: files, schedulers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_hydra.cli.scan import Option, UsageError, did_you_mean, format_help, scan_among

if TYPE_CHECKING:
    from hpc_hydra.records.bad_nodes import Remembered

OPTIONS = (
    Option(("--help", "-h"), "flag", help="show this help"),
    Option(("--forget",), "flag", help="use these nodes again: names, or all"),
    Option(("--json",), "flag", help="machine-readable output"),
)
ALL = "all"
USAGE = "hpc-hydra nodes [--json] | hpc-hydra nodes --forget HOST ... | --forget all"
ABOUT = """List the nodes that failed your runs: a check before the run found a fault, or the node was lost under it.
New jobs on the same system leave them out for 12 hours, resumed and requeued runs, too."""


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra nodes``; returns the exit code. Raises `HpcHydraError`."""
    words, given = scan_among(OPTIONS, argv)
    if "help" in given:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, "example: hpc-hydra nodes --forget node03"))
        return 0
    from hpc_hydra.records.bad_nodes import remembered

    found = remembered()
    if "forget" in given:
        return _forget(words, found)
    if words:
        raise UsageError("takes no names without --forget", where=words[0], fix=f"hpc-hydra nodes --forget {words[0]}")
    if "json" in given:
        from hpc_hydra.ui import sweep_tables

        print(sweep_tables.as_json([_data(one) for one in found]))
    elif not found:
        print("no bad nodes are remembered", flush=True)
    else:
        from hpc_hydra.ui.columns import table

        rows = [("host", "system", "found", "until", "reason"), *map(_row, found)]
        print(table(rows, ["", *(str(one.sweep) for one in found)]), flush=True)
    return 0


def _forget(words: Sequence[str], found: Sequence[Remembered]) -> int:
    from hpc_hydra.records.bad_nodes import forget

    if not words:
        raise UsageError("expects names of nodes", where="--forget", fix=f"hpc-hydra nodes --forget HOST, or {ALL}")
    hosts = {one.node.host for one in found}
    words = [host for word in words for host in ([word] if word in hosts else _expanded(word))]
    for word in words if ALL not in words else ():
        if word not in hosts:
            near = did_you_mean(word, hosts)
            raise UsageError(
                "this node is not remembered as bad" + (f"; did you mean {near}?" if near else ""),
                where=word,
                fix="hpc-hydra nodes, which lists them",
            )
    chosen = [one for one in found if ALL in words or one.node.host in words]
    forget(chosen)
    print(f"forgotten: {' '.join(dict.fromkeys(one.node.host for one in chosen)) or 'none'}", flush=True)
    return 0


def _expanded(word: str) -> Sequence[str]:
    from hpc_hydra.schedulers.hostlist import expand

    try:
        return expand(word)
    except ValueError as error:
        raise UsageError(str(error), where=word, fix="hpc-hydra nodes, which lists them") from None


def _where(one: Remembered) -> str:
    """Return the name of the system; of one that no file describes, its scheduler and cluster."""
    from hpc_hydra.system.detect import UNKNOWN

    name = one.place.scheduler if one.place.system == UNKNOWN else one.place.system
    return name if not one.place.cluster else f"{name} ({one.place.cluster})"


def _row(one: Remembered) -> tuple[str, ...]:
    found, until = (time.strftime("%m-%d %H:%M", time.localtime(at)) for at in (one.node.time, one.node.until))
    return one.node.host, _where(one), found, until, one.node.reason


def _data(one: Remembered) -> dict[str, object]:
    def iso(at: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at))

    return {
        "host": one.node.host,
        "system": one.place.system,
        "scheduler": one.place.scheduler,
        "cluster": one.place.cluster or None,
        "reason": one.node.reason,
        "found_by": one.node.found_by,
        "time": iso(one.node.time),
        "until": iso(one.node.until),
        "sweep": str(one.sweep),
    }
