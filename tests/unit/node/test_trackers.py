"""What experiment trackers are told, so that a sweep groups itself there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_hydra.node.rank.trackers import Metrics, metrics_of, variables
from hpc_hydra.records import metrics

from .conftest import Frozen


def told(env: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    given = {
        "sweep": Path("/x/multirun/2026-11-28/07-30-00"), "program": "/x/train.py", "num": 3, "system": "frontier",
        "overrides": ["scheduler=slurm", "resources.nodes=2", "+optim.lr=0.1", "layers=[1,2]", "logging.debug=true"],
        "run_dir": Path("/x/run/3"),
    }  # fmt: skip
    return variables(env or {}, **{**given, **more})  # type: ignore[arg-type]


def test_a_run_has_name_group_tags_and_folders() -> None:
    found = told()
    assert found["WANDB_NAME"] == "3 resources.nodes=2 optim.lr=0.1 layers=[1,2]" == found["MLFLOW_RUN_NAME"]
    assert found["WANDB_RUN_GROUP"] == "train 2026-11-28/07-30-00"
    assert found["WANDB_TAGS"] == "frontier,resources.nodes=2,optim.lr=0.1"  # a comma would part a tag
    assert found["WANDB_DIR"] == "/x/run/3"
    assert found["TENSORBOARD_LOGGING_DIR"] == "/x/multirun/2026-11-28/07-30-00/tensorboard/3"
    assert json.loads(found["MLFLOW_RUN_CONTEXT"])["mlflow.runName"] == found["WANDB_NAME"]


def test_what_the_user_set_stays() -> None:
    assert "WANDB_NAME" not in told({"WANDB_NAME": "mine"}) and "WANDB_TAGS" in told({"WANDB_NAME": "mine"})


def test_names_are_no_longer_than_the_tools_take() -> None:
    found = told(overrides=["a=" + "x" * 500])
    assert len(found["WANDB_NAME"]) <= 128 and all(len(tag) <= 64 for tag in found["WANDB_TAGS"].split(","))


def test_ranks_have_the_variables_of_trackers(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze("print(os.environ['WANDB_RUN_GROUP'], '|', os.environ['WANDB_NAME'])")
    frozen.env["WANDB_NAME"] = "mine"
    assert frozen.run()[0] == 0
    assert frozen.log().startswith("train ") and frozen.log().rstrip().endswith("| mine")


class Writer:
    """TensorBoard's method."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int | None]] = []

    def add_scalar(self, name: str, value: float, step: int | None) -> None:
        self.scalars.append((name, value, step))


def test_metrics_go_to_active_runs_and_added_writers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []
    wandb = SimpleNamespace(run=SimpleNamespace(log=lambda values, step: seen.append(("wandb", values, step))))
    mlflow = SimpleNamespace(
        active_run=lambda: "one", log_metrics=lambda values, step, synchronous: seen.append(("mlflow", values, step))
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    found, writer = Metrics({}, tmp_path), Writer()
    found.add(writer)
    found.add(lambda values, step: seen.append(("mine", values, step)))
    found.log({"loss": 0.5}, 3)
    assert seen == [(name, {"loss": 0.5}, 3) for name in ("wandb", "mlflow", "mine")]
    assert writer.scalars == [("loss", 0.5, 3)] and [metric.step for metric in metrics.read(tmp_path)] == [3]
    with pytest.raises(TypeError, match="has no method add_scalar"):
        found.add("tensorboard")


def test_runs_that_are_not_active_get_nothing_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    Metrics({}, None).log({"loss": 0.5}, None)
    assert "mlflow" not in sys.modules


def test_a_tracker_that_fails_is_reported_once_and_the_others_continue(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(values: object, step: object) -> None:
        raise ConnectionError("no server")

    found, writer = Metrics({}, None), Writer()
    found.add(fails)
    found.add(writer)
    for step in (1, 2):
        found.log({"loss": 0.5}, step)
    assert capsys.readouterr().err == "hpc_hydra: warning: function gets no more metrics: ConnectionError: no server\n"
    assert len(writer.scalars) == 2


def test_runs_of_one_process_have_metrics_and_writers_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HPC_HYDRA_OUTPUT_DIR", "HPC_HYDRA_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    writer = Writer()
    metrics_of(tmp_path / "0").add(writer)
    for run, step in (("0", 1), ("0", 2), ("1", 1)):
        metrics_of(Path(str(tmp_path), run)).log({"loss": 0.5}, step)
    assert [metric.step for metric in metrics.read(tmp_path / "0")] == [1, 2]
    assert [metric.step for metric in metrics.read(tmp_path / "1")] == [1]
    assert len(writer.scalars) == 2
