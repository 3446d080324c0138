"""However a program is written and started, its ranks see what they would see under Hydra's own basic launcher."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import forking

from .conftest import ROOT
from .shapes import SHAPES, Shape, filled, lay_out

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
    whole = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **env}
    text = (folder / shape.stdin.lstrip("|")) if shape.stdin else Path(os.devnull)
    piped = {"input": text.read_text()} if (shape.stdin or "").startswith("|") else {"stdin": text.open("rb")}
    if shape.forked or (launcher == "basic" and not shape.stdin):
        done = forking.run(start, env=whole, cwd=folder / shape.cwd)
    else:
        done = subprocess.run(
            start, cwd=folder / shape.cwd, env=whole, capture_output=True, text=True, timeout=300, **piped
        )
    told = {file.name: json.loads(file.read_text()) for file in sorted(seen.glob("*.json"))}
    if shape.by_value:
        told = {name: {"in": {k: v for k, v in each["in"].items() if k != "argv"}} for name, each in told.items()}
    returned = [json.loads(file.read_text()).get("result") for file in sorted(seen.glob("sweep.*/*/outcome.json"))]
    return {"told": told, "returned": returned, "code": done.returncode, "text": done.stdout + done.stderr}


ON_SLURM = {"module, chdir", "console script, compose in the task", "standard input", "pytest", "failure after chdir"}
CASES = [
    *(("local", name) for name in SHAPES),
    *(pytest.param("slurm", name, marks=pytest.mark.cluster) for name in SHAPES if name in ON_SLURM),
]


@pytest.mark.parametrize(("launcher", "shape"), CASES)
def test_a_rank_sees_what_it_would_see_under_hydras_basic_launcher(
    tmp_path: Path, launcher: str, shape: str, request: pytest.FixtureRequest
) -> None:
    """On SLURM, one shape of each way to find the program again."""
    if launcher == "slurm":
        request.getfixturevalue("slurm_cluster")
    lay_out(SHAPES[shape], tmp_path)
    with ThreadPoolExecutor() as pool:
        basic, ours = pool.map(partial(launched, SHAPES[shape], tmp_path), ("basic", launcher))
    assert len(basic["told"]) == SHAPES[shape].seen, basic["text"]
    assert ours["told"] == basic["told"], ours["text"]
    assert ours["code"] == basic["code"], ours["text"]
    if basic["code"] == 0:
        assert len(ours["returned"]) == SHAPES[shape].seen, ours["text"]
