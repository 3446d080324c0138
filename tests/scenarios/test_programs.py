"""However a program is written and started, its ranks see what they would see under Hydra's own basic launcher."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT
from .shapes import SHAPES, Shape, filled, lay_out

Seen = Callable[[str, str], dict[str, Any]]  # of a launcher and a shape
LAUNCHERS = {
    "basic": ("hydra/launcher=basic", "hydra/sweeper=basic"),
    "local": ("scheduler=local",),
    "slurm": ("scheduler=slurm", "resources.gpus_per_proc=0"),
}


def launched(shape: Shape, folder: Path, launcher: str) -> dict[str, Any]:
    """What the program of a shape, started by a launcher, told of itself."""
    seen = folder / launcher
    seen.mkdir()
    words = LAUNCHERS[launcher]
    env = {name: filled(value, folder) for name, value in shape.env.items()}
    env |= {"SEEN": str(seen), **({"WORDS": " ".join([env["WORDS"], *words])} if "WORDS" in env else {})}
    path = [env.pop("PYTHONPATH", ""), str(folder / "lib"), str(ROOT)]
    start = [filled(word, folder) for word in shape.start] + [*shape.words, *(words if shape.words else ())]
    text = (folder / shape.stdin.lstrip("|")) if shape.stdin else Path(os.devnull)
    piped = {"input": text.read_bytes()} if (shape.stdin or "").startswith("|") else {"stdin": text.open("rb")}
    done = subprocess.run(
        start, cwd=folder / shape.cwd, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, **piped,
    )  # fmt: skip
    told = {file.name: json.loads(file.read_text()) for file in sorted(seen.glob("*.json"))}
    if shape.by_value:
        told = {name: {"in": {k: v for k, v in each["in"].items() if k != "argv"}} for name, each in told.items()}
    returned = [json.loads(file.read_text()).get("result") for file in sorted(seen.glob("sweep.*/*/outcome.json"))]
    return {"told": told, "returned": returned, "code": done.returncode, "text": done.stdout.decode(errors="replace")}


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """What each shape told under a launcher: once one is asked for, all are on their way."""
    root = tmp_path_factory.mktemp("shapes")
    params = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    chosen = dict.fromkeys(spec.params["shape"] for spec in params if spec is not None)
    folders = {name: root / str(num) for num, name in enumerate(chosen)}
    for name, folder in folders.items():
        lay_out(SHAPES[name], folder)

    running: dict[tuple[str, str], Future[dict[str, Any]]] = {}
    with ThreadPoolExecutor(3) as pool:

        def under(launcher: str, name: str) -> dict[str, Any]:
            if (launcher, name) not in running:
                for each in folders:
                    for one in {"basic", launcher} - {key[0] for key in running if key[1] == each}:
                        running[one, each] = pool.submit(launched, SHAPES[each], folders[each], one)
            return running[launcher, name].result()

        yield under


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("launcher", ["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def test_a_rank_sees_what_it_would_see_under_hydras_basic_launcher(
    seen: Seen, launcher: str, shape: str, request: pytest.FixtureRequest
) -> None:
    if launcher == "slurm":
        request.getfixturevalue("slurm_cluster")
    ours, basic = seen(launcher, shape), seen("basic", shape)
    assert len(basic["told"]) == SHAPES[shape].seen, basic["text"]
    assert ours["told"] == basic["told"], ours["text"]
    assert ours["code"] == basic["code"], ours["text"]
    if basic["code"] == 0:
        assert len(ours["returned"]) == SHAPES[shape].seen, ours["text"]
