"""A scheduler of another package: the one that docs/write-a-scheduler.md builds, with a yard that runs its jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hpc_hydra.config import load, store
from hpc_hydra.errors import ConfigError
from hpc_hydra.launcher import checks
from hpc_hydra.schedulers import registry
from tests.unit.test_docs import blocks

ROOT = Path(__file__).parents[3]
YARD = """\
#!{python}
import json, os, signal, subprocess, sys
from pathlib import Path

place, (what, *words) = Path(__file__).parent / "jobs", sys.argv[1:]
place.mkdir(exist_ok=True)
if what == "submit":
    job = f"y{{sum(1 for _ in place.glob('*.pid')) + 1}}"
    env = {{**os.environ, "YARD_JOB": job}}
    line = 'bash "$@"; echo $? > "$YARD_END"'
    process = subprocess.Popen(["bash", "-c", line, "yard", *words], start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={{**env, "YARD_END": str(place / f"{{job}}.end")}})
    (place / f"{{job}}.pid").write_text(str(process.pid))
    print("yard: thank you\\n" + job)
elif what == "list":
    for job in words:
        end = place / f"{{job}}.end"
        print(job, *(("ended", end.read_text().strip()) if end.exists() and end.read_text() else ("runs", "-")))
elif what == "kill":
    for job in words:
        os.killpg(int((place / f"{{job}}.pid").read_text()), signal.SIGTERM)
elif what == "spread":
    env = {{**os.environ, "YARD_RANKS": words[0], "YARD_HOSTS": os.uname().nodename}}
    ranks = [subprocess.Popen(words[1:], env={{**env, "YARD_RANK": str(n)}}) for n in range(int(words[0]))]
    sys.exit(max(rank.wait() for rank in ranks))
"""
APP = """\
import os, hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}, x is {cfg.x}"

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the documentation, installed below ``yard``, its commands, and an application."""
    folder = tmp_path_factory.mktemp("yard")
    for block in blocks((ROOT / "docs/write-a-scheduler.md").read_text()):
        if block.mark.startswith("file="):
            file = folder / block.mark.removeprefix("file=")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body)
    (folder / "yard/hpc_hydra_yard/conf/__init__.py").touch()
    toml = (folder / "yard/pyproject.toml").read_text()
    _, _, points = toml.partition('[project.entry-points."hpc_hydra.schedulers"]\n')
    info = folder / "yard/hpc_hydra_yard-1.0.dist-info"  # what pip makes of the toml
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hpc-hydra-yard\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hpc_hydra.schedulers]\n" + points.replace('"', ""))
    (folder / "yard_bin").mkdir()
    (folder / "yard_bin/yard").write_text(YARD.format(python=sys.executable))
    (folder / "yard_bin/yard").chmod(0o755)
    (folder / "app.py").write_text(APP)
    (folder / "config.yaml").write_text("defaults: [hpc, _self_]\nx: 0\n")
    return folder


def start(yard: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(yard / "yard_bin"), os.environ["PATH"]])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(yard / "yard"), str(ROOT)]), "PATH": path}
    return subprocess.run(
        [sys.executable, "app.py", "-m", *words], cwd=yard, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


def test_one_class_and_one_yaml_are_a_scheduler(yard: Path) -> None:
    words = ["scheduler=yard", "scheduler.queue=north", "resources.procs_per_node=2", "x=1,2"]
    done = start(yard, *words, f"hydra.sweep.dir={yard}/sweep")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((yard / f"sweep/{num}/outcome.json").read_text()) for num in (0, 1)]
    assert [one["result"] for one in found] == ["0 of 2, x is 1", "0 of 2, x is 2"]
    assert "#YARD --yard=north" in (yard / "sweep/.hpc_hydra/jobs/job0.sh").read_text()


def test_what_it_lacks_is_refused(yard: Path) -> None:
    done = start(yard, "scheduler=yard", "scheduler.qos=high", "launch.dry_run=true")
    assert done.returncode == 2
    assert "scheduler.qos: scheduler=yard does not support it" in done.stderr


def test_nobody_looks_for_other_packages_unless_an_unknown_name_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(group: str) -> None:
        raise AssertionError("looked for other packages")

    monkeypatch.setattr(metadata, "entry_points", looked)
    checks.rank_of({"PATH": "/bin"})
    for name in registry.built_in():
        registry.adapter_for(name)
        load.from_mapping({"system": {"name": "x"}, "scheduler": {"name": name}})
    with pytest.raises(AssertionError, match="looked"):
        registry.adapter_for("yard")


def test_a_name_that_no_package_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert store.plugged() == {}
    with pytest.raises(ConfigError, match="none of hpc_hydra's"):
        load.from_mapping({"system": {"name": "x"}, "scheduler": {"name": "yard"}})
