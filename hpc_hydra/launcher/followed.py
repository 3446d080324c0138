"""A session whose run is followed at this console: its output is shown, its standard input is that of this process.

Must not know: Hydra, contents of scripts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_hydra import interfaces
from hpc_hydra.config.schema import THIS_MACHINE
from hpc_hydra.launcher.console_input import ConsoleInput
from hpc_hydra.launcher.console_output import ConsoleOutput
from hpc_hydra.launcher.submit import Session
from hpc_hydra.planning.types import Plan
from hpc_hydra.records.types import Outcome
from hpc_hydra.ui.progress import Reporter


class FollowedSession(Session):
    """Submits and watches one run. Signals mean what they mean for a sweep: the run survives a closed terminal."""

    def __init__(self, *arguments: Any, output: ConsoleOutput, reporter: Reporter) -> None:
        super().__init__(*arguments)
        self.reporter = reporter
        self._output, self._input = output, ConsoleInput(self.root, _address(self.runs[0].plan))

    def run(self) -> dict[int, Outcome] | None:
        with self._input, self._output:
            return super().run()

    def conclude(self, best: str | None = None) -> int:
        """As for a sweep, without the last lines of a log that is shown anyway."""
        whole, shown = self.outcomes, self._output.shown
        self.outcomes = {
            num: replace(outcome, last_lines=()) if Path(outcome.log or "") in shown else outcome
            for num, outcome in whole.items()
        }
        code = super().conclude(best)
        self.outcomes = whole
        return code

    def _ask(self) -> str:
        with self._input.paused(), self._output.paused():
            return super()._ask()

    def _leave_at_once(self) -> str:
        self._input.withdraw()
        return super()._leave_at_once()


def _address(plan: Plan) -> str | None:
    """Return this host's address in the network by which the ranks meet; None if that is not known."""
    if plan.request.scheduler == THIS_MACHINE:
        return "127.0.0.1"
    interface = plan.rendezvous.interface
    return interfaces.address_of(interface) if interface else None
