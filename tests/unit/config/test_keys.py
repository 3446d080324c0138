"""Every key has a meaning, and `hpc-hydra keys` says what it becomes."""

from __future__ import annotations

import json

import pytest
import yaml

from hpc_hydra.cli.main import main
from hpc_hydra.config import reference
from hpc_hydra.config.reference import Key
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.config.store import conf_dir
from hpc_hydra.config.values import check_value
from hpc_hydra.schedulers import key_effects

KEYS = [key for group in GROUPS for key in reference.keys(group)]


def test_every_key_has_a_meaning_and_a_type() -> None:
    """In hpc_hydra/config/schema.py, with `key(default, "Meaning.", "unit")`."""
    without = [key.name for key in KEYS if not key.meaning.endswith(".") or (key.type == "any" and key.example is None)]
    assert without == []


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.example is not None and "*" not in key.name], ids=lambda key: key.name
)
def test_examples_are_valid(key: Key) -> None:
    assert check_value(key.name, key.example) is not None


@pytest.mark.parametrize("group", GROUPS)
def test_the_defaults_are_those_of_the_files(group: str) -> None:
    defaults = {key.name.partition(".")[2]: key.default for key in reference.keys(group)}
    for file in (conf_dir() / group).glob("*.yaml"):
        if group != "system":
            values = yaml.safe_load(file.read_text())
            assert [k for k, v in values.items() if k not in ("name", "kind") and v != defaults[k]] == [], file.name


def test_a_key_becomes_an_option_of_each_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "resources.time_limit", "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert (key["type"], key["default"], key["example"]) == ("time", None, "2h")
    assert key["becomes"] == {
        "flux": "--time-limit=7200s",
        "lsf": "-W 2:00",
        "pbs": "-l walltime=02:00:00",
        "slurm": "--time=02:00:00",
    }


@pytest.mark.parametrize("name", ["nodes", "gpus_at_least", "gpumem_at_least", "procs_per_node", "gpus_per_proc"])
def test_a_size_becomes_whole_options_of_each_scheduler(name: str) -> None:
    (key,) = reference.find(f"resources.{name}")
    for scheduler, words in key_effects.effects(key).items():
        assert words and not words.endswith(("--", "-n", "nodes", "procs")), (scheduler, words)
        assert name != "gpus_per_proc" or "gpu" in words, (scheduler, words)


@pytest.mark.parametrize(
    ("name", "by_script"),
    [("signal_before_end", {"pbs"}), ("signal", {"pbs"}), ("max_requeues", {"pbs", "flux"})],
)
def test_what_the_job_script_does_is_said(name: str, by_script: set[str]) -> None:
    (key,) = reference.find(f"launch.{name}")
    effects = key_effects.effects(key)
    assert {scheduler for scheduler, words in effects.items() if words == "by the job script"} == by_script
    assert all(words and "hpc_hydra" not in words for words in effects.values())


def test_what_a_scheduler_does_not_support_is_said() -> None:
    (key,) = reference.find("scheduler.reservation")
    effects = key_effects.effects(key)
    assert effects["slurm"] == "--reservation=course"
    assert effects["flux"].startswith("not supported; ")


def test_keys_are_found_by_group_by_full_name_and_by_last_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys"]) == 0
    listed = capsys.readouterr().out
    assert all(group in listed for group in GROUPS)
    assert main(["keys", "launch"]) == 0
    assert "on_interrupt" in capsys.readouterr().out
    assert [key.name for key in reference.find("procs_per_node")] == ["resources.procs_per_node"]
    assert [key.name for key in reference.find("system.queues.gpu.qos")] == ["system.queues.*.qos"]
    assert [key.name for key in reference.find("partition")] == ["scheduler.queue", "system.queues.*.partition"]
    assert [key.name for key in reference.find("time")] == ["resources.time_limit"]
    assert [key.name for key in reference.find("--ntasks-per-node")] == ["resources.procs_per_node"]
    assert main(["keys", "timelimit"]) == 2
    assert "Try: resources.time_limit" in capsys.readouterr().err
    assert main(["keys", "resources.nodez"]) == 2
    assert "Try: resources.nodes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["partition", "--partition", "scheduler.partition"])
def test_the_name_of_an_option_finds_the_key(name: str) -> None:
    assert reference.find(name)[0].name == "scheduler.queue"
