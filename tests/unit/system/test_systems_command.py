"""`hpc-hydra systems`: the list, this machine, and one machine variable by variable."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_hydra.cli.systems import main
from hpc_hydra.errors import ConfigError, HpcHydraError
from hpc_hydra.system import detect, index
from tests.unit.system.conftest import SLURM_IS_UP, auto, machine

FILE = "/home/me/.config/hpc_hydra/defaults.yaml"
OWN = 'frontier: {scheduler: {account: abc123}}\n"*": {scheduler: {mail_type: FAIL}}\nmine: {launch: {seed: 1}}\n'
ON_FRONTIER = ("login05", "login05.frontier.olcf.ornl.gov")


def test_list_names_every_machine_and_marks_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], machine(*ON_FRONTIER)) == 0
    out = capsys.readouterr().out
    rows = {line.replace("→", " ").split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(index.names()) <= set(rows)
    assert [name for name in index.names() if rows[name].startswith("→")] == ["frontier"]
    assert rows["frontier"].split()[1:] == ["frontier", "slurm", "56", "8", "gfx90a", "64", "batch"]
    assert "no adapter yet" not in out
    assert "This machine: frontier" in out
    assert "→ full host name: login05.frontier.olcf.ornl.gov" in out


def test_unknown_machine_is_told_what_it_is_taken_as(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], machine(commands=SLURM_IS_UP | {"sinfo": "gpu*|8|32000|gpu:4\n"})) == 0
    out = capsys.readouterr().out
    assert "This machine: none of these" in out
    assert "Detected: scheduler slurm, cores per node 8, gpus per node 4" in out


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"], machine(*ON_FRONTIER)) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["this"] == "frontier"
    assert [row["name"] for row in data["systems"]] == list(index.names())
    assert data["why"][-1] == {"looked_at": "scheduler of frontier", "found": "slurm", "decided": True}


@pytest.mark.parametrize("name", index.names())
def test_one_machine_is_explained_variable_by_variable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name], machine()) == 0
    out = capsys.readouterr().out
    system = index.preset(name)
    for variable, preset in system.env.items():
        for one in preset if isinstance(preset, list) else [preset]:
            assert f"  {variable}={one['value']}" in out
            for fact in ("why", "source", "checked"):
                assert one[fact] in out
    for required, about in system.requires.items():
        assert re.search(
            rf"\n  [a-z.]*\.{required}\n +why: +{re.escape(about['why'])}\n"
            rf" +source: +{re.escape(about['source'])} \(checked {about['checked']}\)\n",
            out,
        )
    assert "why=" not in out
    for queue in system.queues:
        assert f"  {queue}" in out
    assert main([name, "--json"], machine()) == 0
    assert json.loads(capsys.readouterr().out)["env"] == system.env


def test_limits_and_conditions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["frontier"], machine())
    out = capsys.readouterr().out
    assert "batch (default): partition batch, max nodes 9472, 2h for 1-91 nodes, 6h for 92-183 nodes" in out
    assert "when:    plugin librccl-net.so, nodes >1" in out
    main(["vista"], machine())
    assert "gpus per node 0" in capsys.readouterr().out
    main(["tuolumne"], machine())
    assert "LD_LIBRARY_PATH={env:CRAY_LD_LIBRARY_PATH}   [prepended to the existing value]" in capsys.readouterr().out


def test_own_defaults_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    me = machine(env={"HOME": "/home/me"}, files={FILE: OWN})
    main(["frontier"], me)
    out = capsys.readouterr().out
    assert f"Your defaults ({FILE})\n  scheduler.account=abc123\n  scheduler.mail_type=FAIL\n" in out
    main([], me)
    assert "used only with your own system of that name: mine" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fronteir", "Frontier", "Perlmuter"])
def test_a_name_near_a_machine_is_corrected(name: str) -> None:
    with pytest.raises(ConfigError, match=r"frontier|perlmutter") as error:
        main([name], machine())
    assert error.value.exit_code == 2 and "--config-dir" in (error.value.fix or "")


def test_the_machine_that_a_configuration_selects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [hpc, _self_, {override system: frontier}]\n")
    assert main(["-cd", str(tmp_path), "-cn", "mine"], machine()) == 0
    assert "The configuration selects system=frontier" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--wrong"], ["frontier", "lumi"], ["frontier", "--config-dir", "/nowhere"]])
def test_wrong_usage(words: list[str]) -> None:
    with pytest.raises(HpcHydraError):
        main(words, machine())


MINE = """\
# @package _global_
defaults: [frontier, _self_]
system:
  name: my_frontier
  hostnames: [mine\\d+]
  interface: hsn1
  queues: {nightly: {partition: batch, max_time: 2h}}
  env: {MY_VARIABLE: {value: "1", why: a reason, source: "https://example.org", checked: 2026-01-31}}
"""
SHORT = (
    "defaults:\n  - override /scheduler: slurm\nname: atlas\nscheduler: slurm\ncores_per_node: 64\ngpus_per_node: 4\n"
)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder with two machines of a person's own, in both forms that Hydra reads."""
    folder = tmp_path / "hpc_hydra"
    (folder / "system").mkdir(parents=True)
    (folder / "system" / "my_frontier.yaml").write_text(MINE)
    (folder / "system" / "atlas.yaml").write_text(SHORT)
    return folder


@pytest.mark.parametrize("at_home", [True, False])
def test_a_machine_of_ones_own_is_explained_like_any(
    conf: Path, at_home: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    me = machine(env={"XDG_CONFIG_HOME": str(conf.parent)}) if at_home else machine()
    where = [] if at_home else ["--config-dir", str(conf)]
    assert main(["my_frontier", *where], me) == 0
    out = capsys.readouterr().out
    assert "gpus_per_node" in out and "nightly: partition batch" in out and "MY_VARIABLE=1" in out
    assert re.search(r"interface +hsn1\n", out) and "NCCL_SOCKET_IFNAME=hsn0" in out
    assert main(["--json", *where], me) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["systems"]}
    assert [name for name, row in rows.items() if row["own"]] == ["atlas", "my_frontier"]
    assert (rows["atlas"]["cores_per_node"], rows["atlas"]["scheduler"], rows["atlas"]["adapter"]) == (
        64,
        "slurm",
        True,
    )
    assert main(where, me) == 0
    assert "my_frontier (yours)" in capsys.readouterr().out


def test_what_the_file_of_a_machine_leaves_out_is_not_shown(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (conf / "system" / "atlas.yaml").write_text(SHORT + "env: {PLAIN: 1}\nrequires: {account: true, qos: null}\n")
    assert main(["atlas", "--config-dir", str(conf)], machine()) == 0
    out = capsys.readouterr().out
    assert out.startswith("atlas\n") and "PLAIN=1\n" in out and not re.search("checked|why:|source:", out)
    assert "(system.requires)\n  scheduler.account\n\n" in out and "qos" not in out


def test_a_machine_that_starts_from_this_one_is_explained(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "# @package _global_\ndefaults: [local, _self_]\nsystem: {name: bench, gpus_per_node: 3}\n"
    (conf / "system" / "bench.yaml").write_text(text)
    assert main(["bench", "--config-dir", str(conf)], machine()) == 0
    assert re.search(r"gpus_per_node +3\n", capsys.readouterr().out)


def test_a_machine_at_home_is_detected(conf: Path) -> None:
    me = machine("mine01", env={"XDG_CONFIG_HOME": str(conf.parent)})
    done = detect.resolve(auto(), probe=me)
    assert (done.system.name, done.system.interface, done.scheduler.name) == ("my_frontier", "hsn1", "slurm")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# @package _global_\ndefaults: [mine, _self_]\n", "mine → mine"),
        ("# @package _global_\ndefaults: [fronteer, _self_]\n", "frontier"),
        ("system:\n  name: [", "mine.yaml, line "),
        ("# @package _global_\nsystem: frontier\n", "not a mapping"),
        ("# @package _global_\nsystem: {name: mine, core_per_node: 4}\n", "system.core_per_node"),
    ],
)
def test_a_file_of_ones_own_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        main(["mine", "--config-dir", str(tmp_path)], machine())
    assert said in str(error.value)


GLOBAL = "# @package _global_\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("7", "=7"), ('"7"', "=7"), ("null", ": removed"), ("[1, {value: a}]", "=1"), ("a b", "=a b")],
)
def test_a_variable_with_a_plain_value_is_explained(
    tmp_path: Path, value: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text(f"{GLOBAL}system: {{name: mine, env: {{PLAIN: {value}}}}}\n")
    assert main(["mine", "--config-dir", str(tmp_path)], machine()) == 0
    assert f"  PLAIN{shown}\n" in capsys.readouterr().out


UNUSABLE = {
    "time": (GLOBAL + "system: {name: x, queues: {a: {max_time: 20 mins}}}", "system.queues.a.max_time"),
    "times": (GLOBAL + 'system: {name: x, queues: {a: {time_by_nodes: {"1-4": soon}}}}', "time_by_nodes.1-4"),
    "nodes": (GLOBAL + "system: {name: x, queues: {a: {time_by_nodes: {few: 1h}}}}", "time_by_nodes.few"),
    "memory": (GLOBAL + "system: {name: x, mem_per_node: much}", "system.mem_per_node"),
    "scheduler": (GLOBAL + "system: {name: x, scheduler: slrum}", "system.scheduler"),
    "variable": (GLOBAL + "system: {name: x, env: {A: 1.5}}", "system.env.A"),
    "default": (GLOBAL + "system: {name: x, all_queues: true, default_queue: b, queues: {a: {}}}", "default_queue"),
    "lines": (GLOBAL + "system: {name: x}\nscheduler: {setup_lines: module load x}", "scheduler.setup_lines"),
    "group": (GLOBAL + "system: {name: x}\nschedulr: {account: a}", "schedulr"),
    "key": (GLOBAL + "system: {name: x, core: 4}", "system.core"),
    "bytes": (b"system: {name: \xff\xfe}", "UTF-8"),
    "folder": (None, "cannot be read"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_file_that_a_launch_could_not_use_is_named_and_the_others_are_listed(
    conf: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, key = UNUSABLE[kind]
    file = conf / "system" / "bad.yaml"
    file.mkdir() if text is None else file.write_bytes(text if isinstance(text, bytes) else text.encode())
    me = machine(env={"XDG_CONFIG_HOME": str(conf.parent)})
    assert main([], me) == 2
    out, err = capsys.readouterr()
    assert "atlas (yours)" in out and "frontier" in out and "bad" not in out
    assert len(err.splitlines()) == 1 and str(file) in err and key in err
    with pytest.raises(ConfigError) as caught:
        main(["bad"], me)
    assert str(file) in str(caught.value) and key in str(caught.value)
    assert main(["atlas"], me) == 0


def test_a_key_of_ones_own_beside_the_groups_is_left_alone(conf: Path) -> None:
    text = GLOBAL + "system: {name: x}\nlogger: {verbose: true}\nlauncher: {env: {}}\nresource: {path: a}\n"
    (conf / "system" / "good.yaml").write_text(text)
    assert main(["good"], machine(env={"XDG_CONFIG_HOME": str(conf.parent)})) == 0
