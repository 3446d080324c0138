"""Jobs that the user starts at a console: attached runs, shells, the user's own job scripts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_hydra.planning.types import Request
from hpc_hydra.schedulers.base import JobSpec, Scheduler
from hpc_hydra.schedulers.options import Option


class Attach(Scheduler):
    """Runs a job script attached to this console."""

    @abstractmethod
    def attach_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """Command that runs the script in a new allocation, or in the one of ``env``.

        ``["bash", script]`` if no new allocation is needed.
        """

    def trial_command(self, script: Path, spec: JobSpec) -> list[str] | None:
        """Command that fails if the scheduler refuses the allocation of `attach_command`; None if there is none.

        It allocates nothing.
        """
        return None

    def attach_notes(self, request: Request) -> tuple[str, ...]:
        """What a user should know of `attach_command`, such as options that it leaves out."""
        return ()

    def pending_command(self) -> list[str] | None:
        """Command that lists the user's pending jobs, for `parse_pending`; None if there is none."""
        return None

    def parse_pending(self, stdout: str, session: int) -> str | None:
        """Return why the job that `attach_command` waits for in this process session will never start; else None."""
        return None


class InteractiveShell(Scheduler):
    """Starts a shell on a node."""

    @abstractmethod
    def shell_command(self, script: Path, spec: JobSpec, env: Mapping[str, str]) -> list[str]:
        """Command that runs the script on the first node of an allocation, attached to this terminal."""


class BatchScripts(Scheduler):
    """Submits the user's own job script (``launch.batch_script``)."""

    @abstractmethod
    def batch_command(
        self, script: Path, args: Sequence[str], options: Sequence[Option], *, name: str | None, attached: bool
    ) -> list[str] | None:
        """Command that submits the script, with ``options`` overriding its directives; None if unsupported.

        Args:
            name: name of the job; None keeps the script's.
            attached: the caller waits; output and exit code come from this command, or from the job if there is an
                `output_command`.
        """

    def state_command(self, id_: str) -> list[str] | None:
        """Command that shows a user the state of a job in the background; None if there is none."""
        return None

    def output_command(self, id_: str) -> list[str] | None:
        """Command that prints where a job writes, for `parse_output`; None if `batch_command` prints the output."""
        return None

    def parse_output(self, stdout: str, id_: str) -> tuple[Path | None, Path | None]:
        """Return the absolute paths of a job's standard output and error; None if unknown, or for the same file."""
        return None, None

    def wait_command(self, id_: str) -> list[str] | None:
        """Command that waits for a job and exits with its exit code; None if `batch_command` does so itself."""
        return None
