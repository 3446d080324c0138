"""What runs on each host of an LSF job; how it runs there is tested over the stand-in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.starters.guard import guard
from hpc_hydra.schedulers.base import Allocation
from hpc_hydra.schedulers.lsf.blaunch import Blaunch, blaunch

HELD = Allocation("12[3]", ("node01", "node03"), (2, 2))


def test_a_host_gets_the_variables_of_the_first_but_those_of_its_own(tmp_path: Path) -> None:
    env = {
        "NOTE": "it's \"so\" $(x)\n東京 \udcff", "PATH": "/usr/bin:/bin", "LSB_JOBID": "12", "LS_SUBCWD": "/x",
        "CUDA_VISIBLE_DEVICES": "2", "HOSTNAME": "node01", "TMPDIR": "/tmp/12", "BASH_FUNC_module%%": "() { :; }",
    }  # fmt: skip
    script = tmp_path / "script"
    script.write_text(Blaunch().text(env, HELD, str(tmp_path), ["env", "-0"]), errors="surrogateescape")
    own = {"CUDA_VISIBLE_DEVICES": "0,1", "HOSTNAME": "node03", "LSB_JOBID": "12", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", script, "1"], env=own, capture_output=True, check=True)
    seen = dict(pair.split("=", 1) for pair in done.stdout.decode(errors="surrogateescape").split("\0") if "=" in pair)
    assert seen["NOTE"] == env["NOTE"]
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HOSTNAME"], seen["PWD"]) == ("0,1", "node03", str(tmp_path))
    assert "TMPDIR" not in seen and "LS_SUBCWD" not in seen
    names = ("NODE", "HOSTS", "JOB")
    assert [seen[f"HPC_HYDRA_LSF_{name}"] for name in names] == ["1", "node01 node03", "12[3]"]


@pytest.mark.parametrize(
    ("env", "said"), [({}, "no LSF job"), ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4"}, "this job has 1: a")]
)
def test_too_few_hosts_are_an_error(env: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSB_JOBID", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match=said):
        blaunch(["--nodes", "2", "--procs", "1", "--", "true"])


@pytest.mark.parametrize("argv", [[], ["--"], ["jsrun"]])
def test_a_guard_needs_a_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        guard(argv)
    assert ended.value.code == 2
    assert "usage: python -m hpc_hydra.node guard" in capsys.readouterr().err
