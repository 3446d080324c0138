"""A secret reaches the ranks byte for byte, and is told nowhere."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.config.load import from_mapping
from hpc_hydra.config.secrets import MASK, masked, masked_words
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.schedulers import registry
from hpc_hydra.schedulers.job_script import interactive_script, write_secrets
from tests.unit.schedulers.specs import request, spec

from .conftest import App

SECRET = "hunter 2"
VALUES = ["it's", 'say "hi"', "$(touch PWNED)", "line\nbreak", "é 東京", "", "back\\slash", "%j"]


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("launch.env.WANDB_API_KEY=x", f"launch.env.WANDB_API_KEY={MASK}"),
        ("+launch.env.hf_token='a=b\nc'", f"+launch.env.hf_token={MASK}"),
        ("launch.env={MY_PASSWORD:x}", f"launch.env={MASK}"),
        ("container.env.A_SECRET_B=x", f"container.env.A_SECRET_B={MASK}"),
        ("++hydra.job.env_set.X_KEY=x", f"++hydra.job.env_set.X_KEY={MASK}"),
        ("scheduler.extra.X_KEY=x", f"scheduler.extra.X_KEY={MASK}"),
        ("system.env.X_KEY.value=x", f"system.env.X_KEY.value={MASK}"),
        ("launch.env.MY_PIN=x", f"launch.env.MY_PIN={MASK}"),
        ("launch.env.KEYBOARD=x", "launch.env.KEYBOARD=x"),
        ("model.token_dim=3", "model.token_dim=3"),
        ("launch.env.A=X_TOKEN", "launch.env.A=X_TOKEN"),
        ("-m", "-m"),
    ],
)
def test_overrides_are_shown_without_secrets(override: str, shown: str) -> None:
    assert masked(override, ["*_PIN"]) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-x", "A_KEY=1", "B=2", "C_TOKEN=x y\nz", "-v"], ["-x", f"A_KEY={MASK}", "B=2", f"C_TOKEN={MASK}", "-v"]),
        (["-xA_KEY=1"], [f"-xA_KEY={MASK}"]),
        (["--xargs=A_KEY=1", "D_PIN=3"], [f"--xargs=A_KEY={MASK}", f"D_PIN={MASK}"]),
        (["-vx", "A_KEY=1", "launch.env.B_KEY=1"], ["-vx", f"A_KEY={MASK}", f"launch.env.B_KEY={MASK}"]),
        (["max_tokens=5", "--max-tokens=5"], ["max_tokens=5", "--max-tokens=5"]),
    ],
)
def test_command_lines_are_shown_without_secrets(words: list[str], shown: list[str]) -> None:
    assert masked_words(words, ["*_PIN"]) == shown


def test_an_error_about_a_secret_does_not_tell_it() -> None:
    groups = {"system": {"name": "x"}, "scheduler": {"name": "local"}}
    for value in (3.14159, [3.14159]):
        with pytest.raises(ConfigError) as error:
            from_mapping({**groups, "launch": {"env": {"X_TOKEN": value}}})
        assert "3.14159" not in str(error.value) and "launch.env.X_TOKEN" in str(error.value)


@pytest.mark.parametrize("scheduler", ["slurm", "flux", "lsf", "ssh", "local"])
@pytest.mark.parametrize("trace", [False, True])
def test_scripts_read_secrets_from_a_file_that_only_the_owner_can(scheduler: str, trace: bool, tmp_path: Path) -> None:
    env = [EnvVar(f"V{n}_TOKEN", value, "force") for n, value in enumerate([SECRET, *VALUES])]
    env += [EnvVar("SET_KEY", SECRET), EnvVar("ON_NODE_KEY", f"{SECRET}{{host}}", expand=True), EnvVar("A", "b")]
    asked = request(scheduler=scheduler, hosts=("h1",) if scheduler == "ssh" else ())
    made = spec(asked, root=tmp_path, env=tuple(env))
    made = replace(made, plan=replace(made.plan, logging=replace(made.plan.logging, trace=trace)))
    text = registry.adapter_for(scheduler).script(made)
    assert SECRET not in text + interactive_script(made) and "touch PWNED" not in text and "export A=b" in text
    write_secrets(made)
    (file,) = (tmp_path / ".hpc_hydra/jobs").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (line,) = [line for line in text.splitlines() if str(file) in line]
    code = "set -x; " * trace + f"SET_KEY=mine; {line}; env -0"
    done = subprocess.run(["bash", "-c", code], capture_output=True, cwd=tmp_path, check=True)
    seen = dict(entry.split("=", 1) for entry in os.fsdecode(done.stdout).split("\0") if "=" in entry)
    assert [seen[f"V{n}_TOKEN"] for n in range(1 + len(VALUES))] == [SECRET, *VALUES]
    assert "SET_KEY" not in seen and SECRET.encode() not in done.stderr and not (tmp_path / "PWNED").exists()


def test_nothing_of_a_sweep_tells_a_secret(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.write(config="defaults: [hpc, _self_]\nx: 0\nlaunch: {secrets: [MY_PIN]}\n")
    script = (
        "import hydra, os\n@hydra.main(version_base=None, config_path='.', config_name='config')\n"
        "def main(cfg):\n    assert os.environ['X_TOKEN'] == os.environ['MY_PIN'] == 'hunter 2'\n"
        "    if cfg.x == 2: raise ValueError('bad')\nmain()\n"
    )
    (app.folder / "app.py").write_text(script)
    words = ("-m", "scheduler=local", f"launch.env.X_TOKEN='{SECRET}'", f"launch.env.MY_PIN='{SECRET}'")
    words = (*words, "x=1,2", "hydra.sweep.dir=sweep")
    assert SECRET not in (dry := app.start(*words, "launch.dry_run=true")).stdout + dry.stderr and not dry.returncode
    done = app.start(*words)
    assert done.returncode == 1 and "1 of 2 runs failed" in done.stderr and SECRET not in done.stdout + done.stderr
    sweep = app.folder / "sweep"
    for command in ("status", "status --json", "results", "results --json", "report -o report.html"):
        name, *options = command.split()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(app.folder)
            main([name, str(sweep), *options])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err, command
    again = [sys.executable, "-m", "hpc_hydra.cli", "resume", str(sweep), "--", "launch.env.Y_TOKEN=hunter 2"]
    done = subprocess.run(again, cwd=app.folder, capture_output=True, text=True)
    assert done.returncode == 1 and "ValueError: bad" in done.stderr and SECRET not in done.stdout + done.stderr
    told = [path for path in app.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    told.remove(app.folder / "app.py")
    assert told  # the records have it, for ranks and for resuming; nobody else reads them
    for path in told:
        modes = [one.stat().st_mode & 0o077 for one in (path, *path.parents) if one.is_relative_to(sweep)]
        assert 0 in modes, path
