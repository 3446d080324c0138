"""Which GPUs the environment shows: one consistent filter, whatever shell and scheduler have set."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

import hpc_hydra
from hpc_hydra.schedulers.visible_gpus import CUDA, HIP, ORDINAL, ROCR, VARIABLES, ZE, entries, show, visible

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
OTHER = "GPU-1111f937-d72c-4106-c12f-20bd9faed9f6"
COMBINATIONS = [
    {name: value for name, value in zip((ROCR, HIP, CUDA, ORDINAL), values, strict=True) if value}
    for values in product(("", "2", "2,3"), ("", "0", "1", "3", "2,3"), ("", "0", "2,3"), ("", "1", "2,3"))
]


def seen_by_hip(env: dict[str, str], gpus: int = 4) -> list[str]:
    """What ROCm's runtimes leave of a node's GPUs: ROCR first, HIP's own list within that."""
    left = [str(index) for index in range(gpus)]
    if ROCR in env:
        left = env[ROCR].split(",")
    own = env.get(HIP) or env.get(CUDA)
    return left if own is None else [left[int(entry)] for entry in own.split(",") if int(entry) < len(left)]


@pytest.mark.parametrize("by_rocr", [False, True])
def test_every_combination_becomes_one_filter_of_rocm(by_rocr: bool) -> None:
    for env in COMBINATIONS:
        told, shown = visible(env, "amd"), dict(env)
        if told.ids is None:
            assert env == {}
            continue
        show(shown, told.ids, "amd", by_rocr=by_rocr)
        assert seen_by_hip(shown) == list(told.ids) != [], env
        assert len({shown[name] for name in VARIABLES if name in shown}) == 1, env
        assert {*told.ids} <= {*env.get(ROCR, "0,1,2,3").split(",")}, env


@pytest.mark.parametrize(
    ("vendor", "env", "ids", "named"),
    [  # ids, and the variables of the warning
        ("amd", {}, None, ""),
        ("amd", {ROCR: "2,3"}, "2,3", ""),
        ("amd", {HIP: "1"}, "1", ""),
        ("amd", {CUDA: "1"}, "1", ""),
        ("amd", {ORDINAL: "1"}, "1", ""),
        ("amd", {ROCR: "4,5,6", HIP: "2,0"}, "6,4", ""),
        ("amd", {ROCR: "1", HIP: "1"}, "1", ""),  # one filter told twice, as by SLURM
        ("amd", {ROCR: "2,3", CUDA: "2,3", ORDINAL: "2,3"}, "2,3", ""),
        ("amd", {ROCR: "2,3", CUDA: "2,3", ORDINAL: "2,3", HIP: "1"}, "3", ""),
        ("amd", {ROCR: "1", HIP: "3"}, "1", f"{ROCR}=1 and {HIP}=3"),
        ("amd", {ROCR: "2,3", CUDA: "2,3", HIP: "3"}, "2,3", f"{ROCR}=2,3 and {HIP}=3"),
        ("amd", {ROCR: "2,3", HIP: "0,0"}, "2,3", f"{ROCR}=2,3 and {HIP}=0,0"),
        ("amd", {HIP: "1", CUDA: "0"}, "1", f"{HIP}=1 and {CUDA}=0"),
        ("amd", {CUDA: "1", ORDINAL: "0"}, "1", f"{CUDA}=1 and {ORDINAL}=0"),
        ("amd", {ROCR: f"{UUID},{OTHER}", HIP: OTHER}, OTHER, ""),
        ("amd", {ROCR: "0,1", HIP: UUID}, "0,1", f"{ROCR}=0,1 and {HIP}={UUID}"),
        ("amd", {ROCR: "2,3", ZE: "0"}, "2,3", ""),
        ("nvidia", {CUDA: "2,3", ROCR: "0", HIP: "7", ORDINAL: "1", ZE: "5"}, "2,3", ""),
        ("nvidia", {ROCR: "0", HIP: "7"}, None, ""),
        ("intel", {ZE: "0.0,0.1", CUDA: "7"}, "0.0,0.1", ""),
        ("intel", {CUDA: "7"}, None, ""),
        (None, {CUDA: "2,3"}, "2,3", ""),
        (None, {ZE: "1"}, "1", ""),
        (None, {ROCR: "2,3", CUDA: "2,3", ORDINAL: "2,3", ZE: "2,3"}, "2,3", ""),
    ],
)
def test_conflicting_variables_are_resolved_and_named(
    vendor: str | None, env: dict[str, str], ids: str | None, named: str
) -> None:
    told = visible(env, vendor)
    assert told.ids == (None if ids is None else tuple(ids.split(",")))
    assert named in told.conflict and bool(named) == bool(told.conflict)


@pytest.mark.parametrize(
    ("vendor", "env", "want"),
    [
        ("nvidia", {}, {CUDA: "1"}),
        ("nvidia", {CUDA: "0,1", HIP: "7"}, {CUDA: "1", HIP: "7"}),
        ("intel", {ZE: "0,1"}, {ZE: "1"}),
        ("amd", {}, {HIP: "1"}),
        ("amd", {CUDA: "0,1", ROCR: "0,1", ORDINAL: "0,1"}, {HIP: "1", CUDA: "1"}),
        (None, {}, {CUDA: "1"}),
        (None, {CUDA: "0,1", ROCR: "0,1", ORDINAL: "0,1", ZE: "0,1"}, {HIP: "1", CUDA: "1", ZE: "1"}),
    ],
)
def test_gpus_are_shown_by_the_variable_of_their_vendor(
    vendor: str | None, env: dict[str, str], want: dict[str, str]
) -> None:
    shown = dict(env)
    show(shown, ["1"], vendor)
    assert shown == want


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("2,3", ("2", "3")), (" 1 , 0 ", ("1", "0")), (f"{UUID},GPU-1a", (UUID, "GPU-1a")), ("MIG-377e", ("MIG-377e",)),
        (f"MIG-{UUID}/1/2", (f"MIG-{UUID}/1/2",)), ("", ()), ("-1", ()), ("NoDevFiles", ()), ("0,-1,2", ("0",)),
    ],
)  # fmt: skip
def test_entries_are_opaque(value: str, found: tuple[str, ...]) -> None:
    assert entries(value) == found


def test_the_variables_are_named_in_one_module() -> None:
    package = Path(hpc_hydra.__file__).parent
    naming = {
        str(source.relative_to(package))
        for source in package.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and node.value in VARIABLES
    }
    assert naming == {"schedulers/visible_gpus.py"}
