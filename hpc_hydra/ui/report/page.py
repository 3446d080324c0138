"""The report's page: one HTML file with its data, which works offline. plotly.js comes from the package plotly.

Must not know: sweeps, servers.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import lru_cache
from pathlib import Path

from hpc_hydra.errors import ConfigError

FOLDER = Path(__file__).parent
SCRIPTS = ("base.js", "tables.js", "axes.js", "plots.js", "live.js")  # one script, in this order


def plotly() -> str:
    """Return the text of plotly.js. Raises `ConfigError` if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigError(
            "the report's plots need the package plotly", where="report", fix="pip install plotly"
        ) from None
    return str(get_plotlyjs())


@lru_cache(maxsize=1)
def _packed(library: str) -> str:
    return _compressed(library)


def _compressed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def page(data: str, details: str, library: str) -> str:
    """Return the HTML file.

    Only the page's own scripts run: the content security policy names their hashes. The details and the library are
    compressed; the browser decompresses them.

    Args:
        data: JSON of the sweep and its runs.
        details: JSON of the details by run.
        library: the text of plotly.js.
    """
    script = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)} {_hash(library)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "STYLE": (FOLDER / "page.css").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),
        "DETAILS": _compressed(details),
        "LIBRARY": _packed(library),
        "SCRIPT": script,
    }
    pieces = (FOLDER / "page.html").read_text(encoding="utf-8").split("@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))
