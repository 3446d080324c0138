"""README and docs say what is so: their commands run, their links lead somewhere, their keys exist.

The convention of the fences is told in docs/development.md.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hpc_hydra.config.schema import GROUPS
from tests import forking

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCUMENTS = sorted([*TOP, *(ROOT / "docs").rglob("*.md")])
LIGHT = ROOT / "tests/chaos/light"  # in place of torch: the programs that pages show only use hpc_hydra.distributed
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)


class Block(NamedTuple):
    language: str
    mark: str  # the second word of the info string: test, dry, cluster, shown: why, file=NAME
    body: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document."""
    for match in FENCE.finditer(text):
        language, _, mark = match["info"].strip().partition(" ")
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.M)
        yield Block(language, mark.strip(), body, text[: match.start()].count("\n") + 1)


def prose(text: str) -> str:
    """A document without its blocks."""
    return FENCE.sub("", text)


def commands(body: str) -> list[str]:
    """The commands of a block: a trailing backslash joins lines; blank lines and comments are left out."""
    lines = body.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def dry(command: str) -> str:
    """The same command, which prints what it would submit and touches nothing."""
    bare = command.partition("  #")[0].rstrip()
    words = shlex.split(bare)
    if words[:2] == ["hpc-hydra", "torchrun"]:
        return bare.replace("hpc-hydra torchrun", "hpc-hydra torchrun --dry-run", 1)
    if words[:2] in (["hpc-hydra", "run"], ["hpc-hydra", "doctor"]):
        return bare.replace(f"hpc-hydra {words[1]}", f"hpc-hydra {words[1]} launch.dry_run=true", 1)
    assert words[0] == "python", f"a dry command launches: python, or hpc-hydra run, doctor or torchrun: {command}"
    return f"{bare} launch.dry_run=true"


def scripts(body: str) -> list[str]:
    """What is run one by one: the commands of a block; all of it, where one needs another or the shell's state."""
    if re.search(r"<<|&$|^(?:for|until) ", body, re.M):
        return [body]
    return [command.partition("  #")[0].rstrip() for command in commands(body)]


def execute(script: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run what a shell reads; a single Python command that the shell would leave as it is, as a fork."""
    words = [] if re.search(r"[\n$`|<>;&*]", script) else shlex.split(script)
    if words and words[0] in ("python", "hpc-hydra"):
        argv = [sys.executable, *(["-m", "hpc_hydra.cli"] if words[0] == "hpc-hydra" else []), *words[1:]]
        return forking.run(argv, env=env, cwd=folder, timeout=300, torch="train_examples" in script)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def write_files(document: Path, folder: Path) -> None:
    """Write the files whose contents a document shows."""
    for block in blocks(document.read_text()):
        if block.mark.startswith("file="):
            file = folder / block.mark.removeprefix("file=")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body)


def run(document: Path, kinds: set[str], folder: Path) -> int:
    """Run a document's blocks of these kinds, in order, in one folder; returns how many ran."""
    (folder / "train_examples").symlink_to(ROOT / "train_examples")
    write_files(ROOT / "docs" / "get-started.md", folder)
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"USER": "me", **os.environ, "PATH": tools, "PYTHONPATH": f"{LIGHT}:{ROOT}"}
    training = {"OMP_NUM_THREADS": "1", **env, "PYTHONPATH": str(ROOT)}
    ran = 0
    write_files(document, folder)
    for block in blocks(document.read_text()):
        if block.language != "sh" or block.mark not in kinds:
            continue
        for script in map(dry, commands(block.body)) if block.mark == "dry" else scripts(block.body):
            done = execute(script, folder, training if "train_examples" in script else env)
            assert done.returncode == 0, f"{document.name}:{block.line}\n{script}\n{done.stdout}{done.stderr}"
        ran += 1
    return ran


def having(*kinds: str) -> list[Path]:
    """The documents with a block of one of these kinds."""
    return [d for d in DOCUMENTS if any(b.language == "sh" and b.mark in kinds for b in blocks(d.read_text()))]


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.mark.timeout(900)  # a document is one test, with all its sweeps
@pytest.mark.parametrize("document", having("test", "dry"), ids=name)
def test_the_commands_of_a_document_run(document: Path, tmp_path: Path) -> None:
    assert run(document, {"test", "dry"}, tmp_path) > 0


@pytest.mark.cluster
@pytest.mark.parametrize("document", having("cluster"), ids=name)
def test_the_commands_of_a_document_run_on_slurm(document: Path, tmp_path: Path) -> None:
    assert run(document, {"cluster"}, tmp_path) > 0


@pytest.mark.parametrize("document", having("lsf"), ids=name)
def test_the_commands_of_a_document_run_on_the_stand_in_for_lsf(
    document: Path, tmp_path: Path, fake_lsf: object
) -> None:
    assert run(document, {"lsf"}, tmp_path) > 0


@pytest.mark.parametrize("document", having("pbs"), ids=name)
def test_the_commands_of_a_document_run_on_the_stand_in_for_pbs(
    document: Path, tmp_path: Path, fake_pbs: object
) -> None:
    assert run(document, {"pbs"}, tmp_path) > 0


@pytest.mark.parametrize("document", having("flux"), ids=name)
def test_the_commands_of_a_document_run_on_the_stand_in_for_flux(
    document: Path, tmp_path: Path, fake_flux: object
) -> None:
    assert run(document, {"flux"}, tmp_path) > 0


@pytest.mark.needs("mkdocs")
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(DOCUMENTS)
    loaded = r'<(?:script|img|iframe|link rel="(?:stylesheet|icon|preconnect)")[^>]*?(?:src|href)="?(https?:)?//'
    assert [page.name for page in pages if re.search(loaded, page.read_text())] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_block_of_commands_says_whether_it_is_tested(document: Path) -> None:
    wrong = [
        f"{block.line}: {block.language} {block.mark}"
        for block in blocks(document.read_text())
        if (block.language in {"bash", "shell", "console", "zsh", ""} and not block.mark.startswith("file="))
        or (block.language == "sh" and not re.fullmatch(r"test|dry|cluster|flux|lsf|pbs|shown: \S.*", block.mark))
    ]
    assert wrong == [], (
        "write ```sh test, ```sh dry, ```sh cluster, ```sh flux, ```sh lsf, ```sh pbs or ```sh shown: why; "
        "```text for what is printed"
    )


def anchors(document: Path) -> set[str]:
    """The anchors that a document's headings make."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(document.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_keys_and_targets_that_are_named_exist(document: Path) -> None:
    keys = {group: {f.name for f in dataclasses.fields(kind)} for group, kind in GROUPS.items()}
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = document.read_text()
    code = [*re.findall(r"`([^`\n]+)`", prose(text)), *(b.body for b in blocks(text) if b.language in {"sh", "yaml"})]
    unknown = [
        found.group()
        for piece in code
        for found in re.finditer(r"(?<![\w./-])([a-z]+)\.([a-z_]+)(?![\w/.]*\.(?:py|ya?ml|md))", piece)
        if found[1] in keys and found[2] not in keys[found[1]]
    ]
    unknown += [
        f"make {target}"
        for piece in code
        for target in re.findall(r"(?:^|&& |; )make +([a-z][a-z0-9-]*)(?!=)\b", piece, re.M)
        if target not in targets
    ]
    assert unknown == []


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text in the code; values in f-strings are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "\0".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_of_troubleshooting_are_those_of_the_code() -> None:
    """In the tables with a column `message`: each part of a message between `…` stands in one text of the code."""
    sources = (ROOT / "hpc_hydra").rglob("*.py")
    texts = [text for source in sources for text in _texts(ast.parse(source.read_text()))]
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    tables = re.findall(r"^\| message \|.*\n(?:\|.*\n)*", page, re.M)
    cells = [line.split(" | ")[0].strip("| ") for table in tables for line in table.splitlines()[2:]]
    messages = [match[2] for cell in cells for match in re.finditer(r"(`+)(.+?)\1(?!`)", cell)]
    assert len(messages) > 40
    unknown = [
        message
        for message in messages
        if not any(all(part.strip() in text for part in message.split("…")) for text in texts)
    ]
    assert unknown == []


TABLES = [
    (page, code)
    for page in ("from-sbatch.md", "torchrun-hpc.md")
    for line in (ROOT / "docs" / page).read_text().splitlines()
    if line.startswith("| ")
    for code in re.findall(r"`([^`]+)`", line)
    if "…" not in code and re.match(rf"hpc-hydra run |['\"]*({'|'.join(GROUPS)})(\.[\w.]+)?=", code)
]


@pytest.mark.parametrize(("page", "code"), TABLES)
def test_overrides_in_tables_are_read_as_typed(page: str, code: str) -> None:
    from hpc_hydra.records.frozen_config import parse_override

    words = shlex.split(code.removeprefix("hpc-hydra run ").partition(" -- ")[0])
    for word in words:
        if not word.startswith("-"):
            assert parse_override(word).key_or_group in word, page
