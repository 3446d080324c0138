"""What a program reports to its supervisor, by a pipe: that its function returned, or its exception.

Must not know: how the program is started, what follows.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


class Report:
    """Reads what the program reports: that its function returned, or its exception."""

    def __init__(self, reader: int) -> None:
        os.set_blocking(reader, False)  # a helper process may keep the other end open
        self._reader, self._data = reader, b""
        self.found: dict[str, Any] = {}
        self._returned: float | None = None  # monotonic

    def look(self) -> None:
        """Read new reports."""
        with contextlib.suppress(OSError):
            while more := os.read(self._reader, 65_536):
                self._data += more
        *lines, self._data = self._data.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if "returned" in report:
                    self._returned = report["at"]
                else:
                    self.found = self.found or report

    def returned_before(self, stopped_at: float | None) -> bool:
        """Whether the function returned before the stop signal, and no exception followed."""
        self.look()
        in_time = self._returned is not None and (stopped_at is None or self._returned < stopped_at)
        return in_time and not self.found

    def failed_before(self, stopped_at: float | None) -> bool:
        """Whether an exception came before the stop signal."""
        self.look()
        return stopped_at is not None and self.found.get("at", stopped_at) < stopped_at
