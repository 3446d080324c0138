"""The words [RUNS] [SWEEP_DIR] of commands: their parser, and the runs they select.

Must not know: the commands.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_hydra.cli.scan import UsageError
from hpc_hydra.config.store import expanded
from hpc_hydra.errors import SweepError
from hpc_hydra.records.layout import A_SWEEP

if TYPE_CHECKING:
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import SweepRecords

_RUNS = """
  RUNS       3, 0-4, 1,5, a state (lost, pending …; failed
             includes timeout and lost) or an override (lr=0.1).
             You may give several: all that match any of them."""
_DIR = f"""
  SWEEP_DIR  {A_SWEEP}
             (default: the newest sweep in or below the current directory)"""


class _Parser(argparse.ArgumentParser):
    """Reports errors as `UsageError`, with what to type instead."""

    typed: Sequence[str] = ()

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.typed = list(args or ())
        return super().parse_known_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where=self.prog.rpartition(" ")[2], fix=self._fix(message))

    def _fix(self, message: str) -> str:
        from hpc_hydra.suggest import nearest

        if message.startswith("unrecognized arguments: "):
            flags = dict.fromkeys(re.findall(r"(?<!\S)--[a-z][a-z-]*", self.format_help()))
            words = [word.partition("=")[0] for word in message.split() if word.startswith("-")]
            return " or ".join(nearest(words[0], flags) if words else ()) or f"{self.prog} --help"
        if found := re.fullmatch(
            r"argument (?:\S+/)?(?P<flag>\S+): ignored explicit argument '(?P<value>.*)'", message
        ):
            kept = [
                found["flag"] if one.endswith(f"={found['value']}") and one[0] == "-" else one for one in self.typed
            ]
            into = f" > {shlex.quote(found['value'])}" if found["flag"] in ("--csv", "--json") else ""
            return f"{self.prog} {shlex.join(kept)}{into}"
        if found := re.fullmatch(r"argument (?P<one>\S+): not allowed with argument (?P<other>\S+)", message):
            return f"{found['one']} or {found['other']}"
        return str(self.epilog).partition(": ")[2]


def parser(name: str, about: str, *, example: str, runs: bool = True) -> argparse.ArgumentParser:
    """Return a parser of RUNS, if ``runs``, and SWEEP_DIR, as ``words``; its help ends with ``example``."""
    words = "[RUNS] [SWEEP_DIR]" if runs else "[SWEEP_DIR]"
    found = _Parser(
        prog=f"hpc-hydra {name}",
        usage=f"hpc-hydra {name} {words} [options]",
        description=f"{about}\n{_RUNS if runs else ''}{_DIR}",
        epilog=f"example: {example}",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
        add_help=False,
    )
    found.add_argument("-h", "--help", action="help", help="show this help")
    found.add_argument("words", nargs="*", metavar=words, help=argparse.SUPPRESS)
    return found


def split(words: Sequence[str], command: str) -> tuple[list[str], str | None]:
    """Split ``words`` into RUNS and the directory, in any order. Raises `UsageError`."""
    from hpc_hydra.sweep.selection import is_selection

    runs = [word for word in words if is_selection(word)]
    dirs = [word for word in words if not is_selection(word)]
    unknown = next((word for word in dirs if not expanded(word).is_dir()), None)
    if unknown is not None:
        from hpc_hydra.suggest import nearest
        from hpc_hydra.sweep.known import is_sweep
        from hpc_hydra.sweep.status import WORDS

        if (path := expanded(unknown)).exists():
            sweep = next(filter(is_sweep, path.absolute().parents), None)
            fix = _plain(command, runs, str(sweep)) if sweep else "hpc-hydra list, for all your sweeps"
            raise UsageError("this is a file, not a directory", where=unknown, fix=fix)
        near = nearest(unknown, WORDS)
        raise UsageError(
            f"{unknown!r} is neither a directory nor a selection of runs"
            + (f"; did you mean {' or '.join(near)}?" if near else ""),
            where=command,
            fix="RUNS as 3, 0-4, 1,5, failed or lr=0.1, or a sweep directory",
        )
    if len(dirs) > 1:
        raise UsageError(
            f"{dirs[1]!r} is a second directory",
            where=command,
            fix=_plain(command, runs, dirs[0]),
        )
    return runs, dirs[0] if dirs else None


def _plain(command: str, runs: Sequence[str], sweep: str) -> str:
    return shlex.join(["hpc-hydra", command, *runs, sweep])


def open_records(given: str | None) -> SweepRecords:
    """Open the sweep of a directory; without one, the newest in or below the current directory."""
    from hpc_hydra.sweep.store import find_sweep, open_sweep

    return open_sweep(find_sweep(given))


def selected(sweep: SweepRecords, runs: Sequence[str] = ()) -> list[RunView]:
    """Look at the runs of a sweep and return those that ``runs`` select. Raises `SweepError` if a word matches none."""
    from hpc_hydra.sweep.recover import recover
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.sweep.status import look

    recover(sweep)
    views = look(sweep)
    try:
        return select(views, runs)
    except SweepError as error:
        raise SweepError(error.what, where=f"{error.where}, of {sweep.root}", fix=error.fix) from None
