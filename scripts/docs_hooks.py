"""What mkdocs does not know of docs/: words after the language of a fence, pages kept elsewhere, the table of keys.

See mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from hpc_hydra.cli.keys import kind
from hpc_hydra.config import reference
from hpc_hydra.config.reference import Key
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.schedulers import key_effects

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}
"""Pages of the site, and the files of the repository that hold their text."""


def on_files(files: Files, config: Any, **_: object) -> Files:
    for page, source in ELSEWHERE.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, config: Any, **_: object) -> str:
    # "```sh test" → "```sh"; "```yaml file=config.yaml" → a block with that title
    text = re.sub(r"^( *```+\w+) +file=(\S+)$", r'\1 title="\2"', markdown, flags=re.M)
    text = re.sub(r"^( *```+\w+) +(?!title=)\S.*$", r"\1", text, flags=re.M)
    for page, source in ELSEWHERE.items():
        text = text.replace(f"](../{source}", f"]({page}").replace(f"]({source}", f"]({page}")
    if config.repo_url:  # files outside docs/
        text = re.sub(r"\]\((?:\.\./|(?=LICENSE))", f"]({config.repo_url.rstrip('/')}/blob/main/", text)
    return text.replace("<!-- keys -->", "\n\n".join(map(group, GROUPS))) if "<!-- keys -->" in text else text


def group(name: str) -> str:
    """The keys of a group as a section."""
    keys = list(reference.keys(name))
    rows = [("key", "type", "default", "meaning"), *map(_row, keys)]
    effects = [(key, found) for key in keys if any((found := key_effects.effects(key)).values())]
    parts = [f"## {name}", reference.about(name), *_table(rows)]
    if effects:
        schedulers = key_effects.schedulers()
        rows = [("for example", *(f"on {scheduler}" for scheduler in schedulers))]
        for key, found in effects:
            given = f"{key.name}={reference.value_text(key_effects.sample(key))}"
            rows.append((_code(given), *(_becomes(found.get(scheduler, "")) for scheduler in schedulers)))
        parts += _table(rows)
    return "\n\n".join(parts)


def _row(key: Key) -> tuple[str, ...]:
    notes = [html.escape(key.meaning, quote=False)]
    if key.choices:
        notes.append(f"One of {', '.join(map(_code, key.choices))}.")
    if key.example is not None:
        notes.append(f"Example: {_code(reference.value_text(key.example))}.")
    default = reference.default_text(key)
    anchor = f'<a id="{key.name}"></a>'
    name = key.name.partition(".")[2]
    return f"{anchor}{_code(name)}", kind(key), default if default == "required" else _code(default), " ".join(notes)


def _becomes(text: str) -> str:
    if text.startswith("not supported"):
        return html.escape(text, quote=False)
    return _code(text) if text else "—"


def _code(text: str) -> str:
    return f"`{text}`"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    head, *body = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *body]
    yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
