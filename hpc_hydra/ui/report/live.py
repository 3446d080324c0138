"""A report in versions, for a page that asks for what has changed since its last version.

Files and the scheduler are asked only when a page asks, at most every `EVERY` seconds. Must not know: HTTP, how the
states of runs are determined, what the page shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import HpcHydraError
from hpc_hydra.records.outcome_index import Index
from hpc_hydra.sweep.recover import recover
from hpc_hydra.sweep.status import look
from hpc_hydra.ui.report.data import ReportData, as_json
from hpc_hydra.ui.report.page import page

if TYPE_CHECKING:
    from hpc_hydra.sweep.status import RunView
    from hpc_hydra.sweep.store import SweepRecords

EVERY = 5.0  # seconds between two looks at the sweep, and between two questions of a page


class LiveReport:
    """A report in versions. Thread-safe.

    Args:
        sweep: the sweep.
        select: chooses the runs of the report.
        best: ``launch.best``.
    """

    def __init__(self, sweep: SweepRecords, select: Callable[[list[RunView]], list[RunView]], best: str | None) -> None:
        self.sweep, self._select = sweep, select
        self._data = ReportData(sweep, len(sweep.records), best)
        self._index = Index(sweep.root)
        self._lock = threading.Lock()
        self._views: dict[int, RunView] = {}  # of all runs
        self._nums: list[int] = []  # the runs of the report
        self._looked: float | None = None  # monotonic clock
        self._manifest: object = None
        self._made = 0.0  # Unix time
        self._active = True
        self._version = 0
        self._texts: dict[tuple[str, int], tuple[int, Any, str]] = {}  # kind, run → version, source, JSON

    def page(self, library: str) -> str:
        """Return the whole page. Raises `HpcHydraError`."""
        with self._lock:
            self._refresh()
            live = f'"live":{{"version":{self._version},"every":{EVERY:g}}},"made":{self._made:.3f}'
            runs, details = self._since("row", 0), self._since("details", 0)
            head = self._texts["head", -1][2], self._texts["launch", -1][2]
            data = f'{{{head[0][1:-1]},{head[1][1:-1]},{live},"runs":[{",".join(runs.values())}]}}'
            return page(data, _object(details), library)

    def news(self, since: int) -> str:
        """Return as JSON what has changed since a version. Raises `HpcHydraError`."""
        with self._lock:
            self._refresh()
            parts = [f'"version":{self._version},"made":{self._made:.3f}']
            if since != self._version:
                rows, details = self._since("row", since), self._since("details", since)
                heads = [text[1:-1] for kind in ("head", "launch") for text in self._since(kind, since).values()]
                parts.append(f'"head":{{{",".join(heads)}}},"runs":[{",".join(rows.values())}]')
                parts.append(f'"details":{_object(details)},"nums":{as_json(self._nums)}')
            return f"{{{','.join(parts)}}}"

    def _since(self, kind: str, version: int) -> dict[int, str]:
        return {num: text for (name, num), (at, _, text) in self._texts.items() if name == kind and at > version}

    def _refresh(self) -> None:
        """Look at the sweep, unless that was done a moment ago, or it has ended and was not resumed."""
        if self._looked is not None and time.monotonic() - self._looked < EVERY:
            return
        manifest = self._manifest_version()
        if self._active or manifest != self._manifest:
            self._look(manifest)
        self._looked, self._made = time.monotonic(), time.time()

    def _look(self, manifest: object) -> None:
        self.sweep.reload()
        recover(self.sweep)
        every = look(self.sweep, known=self._views, index=self._index)
        self._views = {view.run.num: view for view in every}
        views = self._select(every)
        self._data.update(views)
        new = self._version + 1
        nums = [view.run.num for view in views]
        left, joined = set(self._nums) - set(nums), set(nums) - set(self._nums)
        self._nums, kept = nums, {-1, *nums}
        self._texts = {key: text for key, text in self._texts.items() if key[1] in kept}
        now = time.time()
        head = self._data.head(now)
        changed = self._put("head", -1, head, new) or bool(left)
        if manifest != self._manifest or joined or ("launch", -1) not in self._texts:
            changed |= self._put("launch", -1, self._data.launch(), new)
        for row in self._data.rows():
            changed |= self._put("row", row["num"], row, new)
        for num, details in self._data.details().items():
            changed |= self._put("details", num, details, new)
        self._version = new if changed else self._version
        self._manifest = manifest
        self._active = any(view.is_active for view in every) or bool(self.sweep.launcher_alive)

    def _put(self, kind: str, num: int, value: Any, version: int) -> bool:
        """Keep a part of the data as JSON; return whether it differs from before."""
        before = self._texts.get((kind, num))
        if before is not None and before[1] == value:
            return False
        self._texts[kind, num] = version, value, as_json(value)
        return True

    def _manifest_version(self) -> object:
        try:
            info = self.sweep.paths.manifest.stat()
        except OSError as error:
            raise HpcHydraError(error.strerror or str(error), where=str(self.sweep.paths.manifest)) from error
        return info.st_mtime_ns, info.st_size


def _object(texts: dict[int, str]) -> str:
    return "{" + ",".join(f'"{num}":{text}' for num, text in texts.items()) + "}"
