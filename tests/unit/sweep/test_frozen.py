"""The frozen sweep gives back what was put in, from one file each, and says what is wrong with a damaged one."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hpc_hydra.errors import SweepError
from hpc_hydra.planning.types import EnvVar, Plan, Request
from hpc_hydra.records.frozen_config import (
    Freezer,
    Program,
    literal,
    load_task,
    read_plans,
    read_program,
    read_run,
    read_runs,
)

pytestmark = pytest.mark.hydra

PROGRAM = Program("script", "/home/a b/é.py", cwd="/home/a b", sys_path0="/home/a b", flags=("-X", "dev"), umask=0o027)
PLAN = Plan("local", Request("slurm", 2, 4, setup_lines=("a 'b'",)), env=(EnvVar("A", "$(x)\n", when=(("env", "B"),)),))


class Colour(Enum):
    RED = 1


@dataclasses.dataclass
class Model:
    colour: Colour = Colour.RED


def frozen(sweep: Path, count: int = 12, program: Program = PROGRAM) -> Freezer:
    freezer = Freezer(sweep, program)
    for num in range(count):
        freezer.add_run(num, [f"x={num}", "name='é\n'"], plan="plan0", base=0, seed=num + 7, dir=sweep / f"d{num}")
    freezer.write_plans({"plan0": PLAN})
    freezer.flush()
    return freezer


def test_a_run_is_found_by_its_number(tmp_path: Path) -> None:
    frozen(tmp_path)
    for num in (0, 1, 11):
        run = read_run(tmp_path, num)
        assert (run.num, run.overrides, run.seed) == (num, (f"x={num}", "name='é\n'"), num + 7)
        assert run.dir == tmp_path / f"d{num}" and run.program == PROGRAM
    with pytest.raises(SweepError, match="no run 12"):
        read_run(tmp_path, 12)


def test_all_runs_are_read_in_order_without_a_torn_last_line(tmp_path: Path) -> None:
    freezer = frozen(tmp_path, 3)
    with freezer.paths.runs.open("ab") as file:
        file.write(b'{"num":3,"plan":"pl')
    assert [run.num for run in read_runs(tmp_path)] == [0, 1, 2]


def test_a_directory_outside_of_the_sweep_stays_absolute(tmp_path: Path) -> None:
    freezer = Freezer(tmp_path / "sweep", PROGRAM)
    freezer.add_run(0, [], plan="plan0", base=0, seed=0, dir=tmp_path / "elsewhere")
    freezer.flush()
    assert read_run(tmp_path / "sweep", 0).dir == tmp_path / "elsewhere"


def test_plans_and_program_come_back_equal(tmp_path: Path) -> None:
    frozen(tmp_path)
    assert read_plans(tmp_path) == {"plan0": PLAN}
    assert read_program(tmp_path) == PROGRAM


def test_what_is_no_sweep_or_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="is gone"):
        read_run(tmp_path, 0)
    (tmp_path / ".hpc_hydra").mkdir()
    with pytest.raises(SweepError, match="not a sweep directory"):
        read_run(tmp_path, 0)
    freezer = frozen(tmp_path)
    data = json.loads(freezer.paths.program.read_text())
    freezer.paths.program.write_text(json.dumps({**data, "format": 99}))
    with pytest.raises(SweepError, match="format 99"):
        read_run(tmp_path, 0)


def test_further_batches_are_appended(tmp_path: Path) -> None:
    freezer = frozen(tmp_path, 2)
    freezer.add_run(2, ["y=1"], plan="plan1", base=5, seed=0, dir=tmp_path / "2")
    freezer.flush()
    assert [run.num for run in read_runs(tmp_path)] == [0, 1, 2]


def test_a_function_comes_back_by_value_with_the_name_of_its_file(tmp_path: Path) -> None:
    from hydra.core.singleton import Singleton

    freezer = Freezer(tmp_path, dataclasses.replace(PROGRAM, kind="task"))
    offset = 41
    freezer.write_task({"function": lambda x: x + offset, "singletons": Singleton.get_state()})
    function = load_task(tmp_path)
    assert function(1) == 42
    assert function.__code__.co_filename == __file__


def test_types_of_a_configuration_come_back(tmp_path: Path) -> None:
    import pickle

    freezer = frozen(tmp_path)
    offset = freezer.add_base(OmegaConf.structured(Model), ["x=1"])
    freezer.flush()
    with freezer.paths.bases.open("rb") as file:
        file.seek(offset)
        base = pickle.load(file)
    assert base["applied"] == ("x=1",) and base["cfg"].colour is Colour.RED


def test_a_type_without_a_name_is_kept_by_value(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Local:
        x: int = 3

    freezer = frozen(tmp_path)
    freezer.add_base(OmegaConf.structured(Local), [])
    freezer.flush()
    assert freezer.paths.bases.stat().st_size


@pytest.mark.parametrize("text", ["plain", "a${b}", "x\\${y}", "\\", "a\\\\${b}", "${now:%H}", "$x{", "é"])
def test_a_directory_name_is_never_an_interpolation(text: str) -> None:
    assert OmegaConf.create({"dir": literal(text)}).dir == text
