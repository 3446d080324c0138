"""Results are Hydra's JobReturn, in the order of runs, whoever asks: a sweeper, a notebook, a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from hpc_hydra.launcher.compose import Composer
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.types import Outcome
from hpc_hydra.sweep.results import RunFailed, RunReturn

from .conftest import App
from .fakes import runs

OK = Outcome(0, "completed", 0, job_id="17_0", result=41.5, result_kind="json")


@pytest.fixture
def result(tmp_path: Path, composed: Callable[..., Any]) -> Callable[..., RunReturn]:
    sweep = tmp_path / "sweep"
    run = replace(runs(sweep, 1)[0], overrides=("x=7",))
    freezer = Freezer(sweep, Program("script", "app.py"))
    base = Composer(*composed("hydra.job.chdir=false")).compose(run.overrides).base
    key = freezer.add_base(base.cfg, base.applied)
    freezer.add_run(0, run.overrides, plan="plan0", base=key, seed=1, dir=run.dir)
    freezer.flush()
    return lambda outcome, kind="script": RunReturn(sweep, run, outcome, task_name="app", program_kind=kind)


@pytest.mark.hydra
def test_a_result_has_all_fields_of_hydras_job_return(result: Callable[..., RunReturn], tmp_path: Path) -> None:
    found = result(OK)
    assert isinstance(found, JobReturn) and found.status is JobStatus.COMPLETED and found.return_value == 41.5
    assert found.overrides == ["x=7"] and found.task_name == "app"
    assert found.cfg is not None and found.cfg.x == 7 and "hydra" not in found.cfg
    assert found.hydra_cfg is not None and found.hydra_cfg.hydra.job.id == "17_0"
    assert found.hydra_cfg.hydra.runtime.output_dir == str(tmp_path / "sweep" / "0")
    assert found.working_dir == str(Path.cwd())


def test_configurations_are_read_only_when_asked_for(result: Callable[..., RunReturn], tmp_path: Path) -> None:
    found = result(OK)
    shutil.rmtree(tmp_path / "sweep")
    assert found.return_value == 41.5


def test_a_failure_is_raised_with_its_reason_and_log(result: Callable[..., RunReturn]) -> None:
    failed = Outcome(0, "failed", 7, rank=2, reason="rank 2 on n1: ValueError: boom", log="/s/0/rank_2.log")
    found = result(failed)
    assert found.status is JobStatus.FAILED
    with pytest.raises(RunFailed, match=r"run 0: rank 2 on n1: ValueError: boom \(log: /s/0/rank_2.log\)"):
        _ = found.return_value


def test_what_could_not_be_kept_is_said(result: Callable[..., RunReturn]) -> None:
    outcome = replace(OK, result=None, result_kind="unserialisable", result_note="could not be serialised: generator")
    assert result(outcome).return_value == "could not be serialised: generator"


def test_a_lost_pickle_does_not_lose_the_run(result: Callable[..., RunReturn]) -> None:
    found = result(replace(OK, result=None, result_kind="pickle"))
    assert "cannot be read" in found.return_value and found.status is JobStatus.COMPLETED


def test_results_of_a_real_sweep_come_in_order(app: App) -> None:
    (app.folder / "app.py").write_text(
        "import hydra, json\nfrom hydra.experimental.callback import Callback\n"
        "@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg):\n    return {'x': cfg.x}\n"
        "if __name__ == '__main__':\n"
        "    from hpc_hydra.launcher import sweeper\n"
        "    finish = sweeper.finish\n"
        "    def note(results, **kw):\n"
        "        print('RESULTS', json.dumps([(r.return_value, r.cfg.x) for r in results]))\n"
        "        finish(results, **kw)\n"
        "    sweeper.finish = note\n"
        "    main()\n"
    )
    done = app.start("-m", "scheduler=local", "x=3,1,2")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")]
    assert json.loads(line.partition(" ")[2]) == [[{"x": x}, x] for x in (3, 1, 2)]
