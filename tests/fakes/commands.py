"""Stand-ins for commands, earlier in PATH than the real ones: they note their calls, and answer as a test says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest


class Fakes:
    """`fakes.put("sbatch", "echo 12")`: a bash script; `fakes.calls("sbatch")`: argv of each call so far.

    In a script, `$REAL` is the command that it stands for, and `$CALL` the number of this call, from 1.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = os.environ["PATH"]
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{self._path}")

    def put(self, name: str, script: str) -> None:
        note = (
            "import json, os, sys; open(sys.argv[1], 'a').write(json.dumps([sys.argv[2:], dict(os.environ)]) + '\\n')"
        )
        log = shlex.quote(str(self._log(name)))
        text = "\n".join(
            [
                "#!/bin/bash",
                f'{shlex.quote(sys.executable)} -I -S -c {shlex.quote(note)} {log} "$@"',
                f"CALL=$(wc -l < {log})",
                f"REAL=$(PATH={shlex.quote(self._path)} type -P {shlex.quote(name)})",
                script,
                "",
            ]
        )
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        """As on a machine without this command: only the other stand-ins and a few tools are in PATH."""
        (self.folder / name).unlink(missing_ok=True)
        for tool in ("bash", "env", "seq", "sleep", "wc"):
            link, real = self.folder / tool, shutil.which(tool, path=self._path)
            if real and not link.exists():
                link.symlink_to(real)
        self._monkeypatch.setenv("PATH", str(self.folder))

    def calls(self, name: str) -> list[list[str]]:
        return [call[0] for call in self._records(name)]

    def environments(self, name: str) -> list[dict[str, str]]:
        return [call[1] for call in self._records(name)]

    def _records(self, name: str) -> list[list]:
        log = self._log(name)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def _log(self, name: str) -> Path:
        return self.folder / f".{name}.calls"
