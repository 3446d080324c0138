"""What mkdocs does not know of docs/: words after the language of a fence, pages that are kept elsewhere.

See mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"changelog.md": "CHANGELOG.md"}
"""Pages of the site, and the files of the repository that hold their text."""


def on_files(files: Files, config: Any, **_: object) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    # "```sh test" → "```sh"; "```yaml file=config.yaml" → a block with that title
    text = re.sub(r"^( *```+\w+) +file=(\S+)$", r'\1 title="\2"', markdown, flags=re.M)
    text = re.sub(r"^( *```+\w+) +(?!title=)\S.*$", r"\1", text, flags=re.M)
    for page, source in ELSEWHERE.items():
        text = text.replace(f"](../{source}", f"]({page}")
    return text
