"""``hpc-hydra report --serve``: the report over HTTP, to anyone who has the address, which contains a token.

Without the token every request is refused. Must not know: what the page and its news contain (`ui.report.live`).
"""

from __future__ import annotations

import gzip
import hmac
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import HpcHydraError

if TYPE_CHECKING:
    from hpc_hydra.ui.report.live import LiveReport

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


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
            return self._answer(200, "application/json", self.server.report.news(_version(query)))
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


def _version(query: str) -> int:
    """Return the version that ``since=N`` names; 0 for anything else."""
    found = re.fullmatch(r"since=(\d{1,15})", query, re.ASCII)
    return int(found[1]) if found else 0


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
