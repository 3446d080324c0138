"""``hpc-hydra report --serve``: the report over HTTP, to one person, while the sweep runs.

The page asks for what has changed since its last version. Files and the scheduler are asked only when a page asks, at
most every `EVERY` seconds. The address contains a random token; without it every request is refused.
Must not know: how the states of runs are determined, what the page shows.
"""

from __future__ import annotations

import gzip
import hmac
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


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
        self._views: dict[int, RunView] = {}
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
                parts.append(f'"details":{_object(details)}')
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
        views = self._select(look(self.sweep, known=self._views, index=self._index))
        self._views = {view.run.num: view for view in views}
        self._data.update(views)
        new = self._version + 1
        now = time.time()
        head = self._data.head(now)
        changed = self._put("head", -1, head, new)
        if manifest != self._manifest or ("launch", -1) not in self._texts:
            changed |= self._put("launch", -1, self._data.launch(), new)
        for row in self._data.rows():
            changed |= self._put("row", row["num"], row, new)
        for num, details in self._data.details().items():
            changed |= self._put("details", num, details, new)
        self._version = new if changed else self._version
        self._manifest, self._active = manifest, bool(head["active"])

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


class _Handler(BaseHTTPRequestHandler):
    """Answers two addresses: the page and its news."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hpc-hydra", ""
    timeout = 60  # seconds without a request, or without progress of an answer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        token, *rest = path.split("/")[1:] or [""]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return self._answer(403, "text/plain", "open the address that hpc-hydra report --serve printed\n")
        if rest not in ([""], ["data"]):
            return self._answer(404, "text/plain", "there is no such page\n")
        try:
            if rest == [""]:
                return self._answer(200, "text/html", self.server.report.page(self.server.library))
            since = query.removeprefix("since=")
            return self._answer(
                200, "application/json", self.server.report.news(int(since) if since.isdecimal() else 0)
            )
        except HpcHydraError as error:
            return self._answer(503, "text/plain", f"{error}\n")

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        packed = len(body) > 1000 and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            body = gzip.compress(body, 1)
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], report: LiveReport, library: str) -> None:
        self.report, self.library = report, library
        self.token = secrets.token_urlsafe(24)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def serve(report: LiveReport, library: str, host: str, port: int, ready: Callable[[Sequence[str]], None]) -> None:
    """Serve a report until the process is interrupted.

    Args:
        library: the text of plotly.js.
        port: 0 chooses a free one.
        ready: called with the lines to print: the address, and how to reach it from another machine.

    Raises:
        HpcHydraError: the address is not available.
    """
    try:
        server = _Server((host, port), report, library)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise HpcHydraError(why, where=f"--host {host} --port {port}", fix="--port 0, for a free one") from error
    with server:
        port = server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        lines = [f"http://{shown}:{port}/{server.token}/"]
        if os.environ.get("SSH_CONNECTION") and host == "127.0.0.1":
            lines.append(f"on your own machine first: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}")
        ready(lines)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
