"""`hpc-hydra systems`: the list, this machine, and one machine variable by variable."""

from __future__ import annotations

import json

import pytest

from hpc_hydra.cli.systems import main
from hpc_hydra.system import index
from tests.unit.system.conftest import SLURM_IS_UP, machine

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
    assert "no adapter yet" in rows["polaris"]
    assert "This machine: frontier" in out
    assert "→ full host name: login05.frontier.olcf.ornl.gov" in out


def test_unknown_machine_is_told_what_it_is_taken_as(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], machine(commands=SLURM_IS_UP | {"sinfo": "gpu*|8|32000|gpu:4\n"})) == 0
    out = capsys.readouterr().out
    assert "This machine: none of these" in out
    assert "taken as: scheduler slurm, cores per node 8, gpus per node 4" in out


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
    assert "LD_LIBRARY_PATH={env:CRAY_LD_LIBRARY_PATH}   [put before what is there]" in capsys.readouterr().out


def test_own_defaults_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    me = machine(env={"HOME": "/home/me"}, files={FILE: OWN})
    main(["frontier"], me)
    out = capsys.readouterr().out
    assert f"Your defaults ({FILE})\n  scheduler.account=abc123\n  scheduler.mail_type=FAIL\n" in out
    main([], me)
    assert "used only with a system of your own of that name: mine" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["fronteir"], ["Frontier"], ["Perlmuter"]])
def test_a_name_near_a_machine_is_corrected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, machine()) == 2
    assert "Try: " in (err := capsys.readouterr().err)
    assert "frontier" in err or "perlmutter" in err


@pytest.mark.parametrize("words", [["--wrong"], ["frontier", "lumi"]])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, machine()) == 2
    assert "usage:" in capsys.readouterr().err
