"""No command stumbles over a text that the standard streams cannot say."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job, Outcome

ODD = "é 東京 \U0001f600 \udcff"
ROOT = Path(__file__).parents[3]
APP = """\
import hydra
@hydra.main(version_base="1.3", config_path=".", config_name="c")
def main(cfg):
    if cfg.bad:
        raise ValueError("\u6771\u4eac")
    return {"note": "\u6771\u4eac", "x": 1.5}
main()
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that returned, and one that failed, with such texts wherever there can be any."""
    root = tmp_path_factory.mktemp("sweep")
    freezer = Freezer(root, Program("script", str(root / f"{ODD[:4]}.py"), cwd=str(root)))
    base = freezer.add_base(OmegaConf.create({"hydra": {}, "x": ODD[:4]}), ())
    for num in (0, 1):
        freezer.add_run(num, (f"x={ODD}{num}",), plan="p", base=base, seed=0, dir=root / str(num))
        paths = RunPaths(root / str(num))
        paths.attempt("20260101-000000-7").mkdir(parents=True)
        log = paths.rank_log("20260101-000000-7", 0)
        log.write_text(f"said {ODD}\n", errors="surrogateescape", encoding="utf-8")
        ended = Outcome(num, "completed", 0, log.parent.name, result={"note": ODD[:6]}, result_kind="json")
        if num:
            ended = Outcome(num, "failed", 1, log.parent.name, reason=ODD, log=str(log), last_lines=(ODD,))
        write_json(paths.outcome, to_json(ended))
    freezer.write_plans({"p": Plan("test", Request("local", 1, 1))})
    freezer.flush()
    freezer.close()
    manifest = Manifest(root)
    manifest.started(argv=[ODD[:4]], host="h", pid=1, runs=2)
    job = Job("job0", "p", (0, 1), "tag", ("job0.0", "job0.1"))
    manifest.submitting(job, "local")
    manifest.submitted(job)
    manifest.finished(failed=1)
    return root


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["status", "{sweep}"], 0), (["status", "--json", "{sweep}"], 0), (["results", "{sweep}"], 0),
        (["results", "--json", "{sweep}"], 0), (["results", "--csv", "{sweep}"], 0), (["logs", "1", "{sweep}"], 0),
        (["wait", "{sweep}"], 1), (["report", "{sweep}"], 0), (["cancel", "{sweep}"], 0),
        (["run", f"launch.env.X='{ODD[:6]}'", "launch.dry_run=true", "scheduler=slurm", "--", "echo", ODD[:6]], 0),
        (["torchrun", "--dry-run", "-l", "here", "echo", ODD[:6]], 0),
        (["status", f"/nowhere/{ODD}"], 2), ([ODD], 2), (["run", f"nokey{ODD}=1", "--", "true"], 2),
    ],
)  # fmt: skip
def test_a_command_says_what_it_can(encoding: str, sweep: Path, argv: list[str], code: int) -> None:
    kept = io.BytesIO()
    stream = io.TextIOWrapper(kept, encoding=encoding, errors="strict")
    with redirect_stdout(stream), redirect_stderr(stream):
        assert main([word.replace("{sweep}", str(sweep)) for word in argv]) == code
        stream.flush()
    said = kept.getvalue().decode(encoding, "strict" if argv[0] != "logs" else "replace")  # a log is shown as it is
    assert said.strip()
    if "--json" in argv:
        told = json.loads(said)
        assert ODD[:4] in str(told["runs"] if isinstance(told, dict) else told)


def test_a_sweep_in_the_c_locale_is_launched_and_looked_at(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "c.yaml").write_text("defaults: [hpc, _self_]\nbad: false\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **C_LOCALE}

    def said(*argv: str) -> str:
        done = subprocess.run([sys.executable, *argv], cwd=tmp_path, env=env, capture_output=True, timeout=120)
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert "UnicodeEncodeError" not in text and "UnicodeDecodeError" not in text, text
        return text

    launch = ("app.py", "-m", "scheduler=local", "hydra.sweep.dir=s", "bad=false,true")
    assert "failed" in said(*launch)
    outcome = json.loads((tmp_path / "s" / "0" / "outcome.json").read_text(encoding="utf-8"))
    assert outcome["result"] == {"note": "\u6771\u4eac", "x": 1.5}
    assert "1.5" in said("-m", "hpc_hydra.cli", "results", "s")
