"""What experiment trackers are told, so that a sweep groups itself there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hpc_hydra.node.rank.trackers import variables

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


def test_ranks_have_them(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze("print(os.environ['WANDB_RUN_GROUP'], '|', os.environ['WANDB_NAME'])")
    frozen.env["WANDB_NAME"] = "mine"
    assert frozen.run()[0] == 0
    assert frozen.log().startswith("train ") and frozen.log().rstrip().endswith("| mine")
