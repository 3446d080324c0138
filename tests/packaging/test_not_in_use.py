"""Being installed changes nothing: an application without the bundle behaves, prints and exits as without us."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

APP = """\
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(sorted(cfg.items(), key=str))
    if cfg.get("boom"):
        raise ValueError("boom")

if __name__ == "__main__":
    main()
"""
CONF = {
    "config": "defaults: [{scheduler: cosine}, _self_]\nlr: 1\nsystem: linux\nlaunch: {verbose: 0}\nlogging: true\n",
    "scheduler/cosine": "gamma: 0.1\n",
    "scheduler/step": "gamma: 0.5\n",
    "bare": "lr: 1\n",
}
WITHOUT = """\
import importlib.metadata as metadata
import os, sys
root = os.environ["HIDDEN"]
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != root]
found = metadata.MetadataPathFinder.find_distributions
def find(*args, **kwargs):
    return (one for one in found(*args, **kwargs) if one.metadata["Name"] != "hpc-hydra")
metadata.MetadataPathFinder.find_distributions = find
"""
COMMANDS = [
    "lr=2", "nope=1", "+boom=1", "lr={", "lr=1,2", "-m lr=1,2", "-m scheduler=cosine,step", "-m nope=1,2",
    "scheduler=slurm", "scheduler.gamm=2", "+scheduler=step", "system=frontier", "+system=frontier",
    "launch.dry_run=true", "logging=default", "resources.nodes=2", "monitor=gpu", "hydra/launcher=nope", "--cfg job",
    "--help", "--info defaults-tree", "--nope", "~lr", "scheduler=step", "--config-name bare system=frontier",
    "--config-name nope",
]  # fmt: skip


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(APP)
    for name, text in CONF.items():
        file = folder / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "without").mkdir()
    (folder / "without" / "sitecustomize.py").write_text(WITHOUT)
    return folder


EACH = """\
import contextlib, json, os, runpy, sys
import hydra, hydra._internal.hydra, hydra._internal.utils  # once, for all commands
answers = {}
for command in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        for number, name in ((0, os.devnull), (1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["app.py", *command.split(), "hydra.run.dir=runs", "hydra.sweep.dir=runs"]
        code = 0
        try:
            runpy.run_path("app.py", run_name="__main__")
        except SystemExit as leaving:
            code = leaving.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers[command] = [code, open("out").read(), open("err").read()]
json.dump(answers, sys.stdout)
"""
OURS_TO_LIST = re.compile(r"(?m)^\tprovider=hpc_hydra, .*\n|^\thpc\n|^\[[^]]*\](?=\[HYDRA\])")
"""The search path names us; so does the list of launchers and sweepers, as any plugin of that kind. And a time."""


def answers(app: Path, *, installed: bool) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of each command."""
    root = Path(__file__).resolve().parents[2]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"HIDDEN": str(root), "PYTHONPATH": str(root if installed else app / "without")}
    done = subprocess.run(
        [sys.executable, "-c", EACH], input=json.dumps(COMMANDS), env=env, cwd=app,
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return {
        command: (code, OURS_TO_LIST.sub("", out), OURS_TO_LIST.sub("", err))
        for command, (code, out, err) in json.loads(done.stdout).items()
    }


def test_an_application_without_the_bundle_is_as_without_us(app: Path) -> None:
    with_us, without = answers(app, installed=True), answers(app, installed=False)
    assert {code for code, _, _ in without.values()} == {0, 1, 2}
    assert with_us == without


SCAN = """\
import inspect, json, sys
import hydra, omegaconf
import hydra._internal.hydra, hydra._internal.utils, hydra._internal.config_loader_impl, hydra._internal.defaults_list
import hydra._internal.callbacks, hydra.core.utils, hydra.main, hydra.compose

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("hydra", "omegaconf"):
            for key, value in vars(module).items():
                found[name, key] = id(value)
                if inspect.isclass(value):
                    found.update({(name, key, inner): id(its) for inner, its in vars(value).items()})
    return found

before = attributes()
from hydra.core.plugins import Plugins
scanned = [plugin.__name__ for plugin in Plugins.instance().discover()]
assert "HpcLauncher" in scanned, scanned
after = attributes()
print([key for key in before if key[1:] != ("__builtins__",) and after.get(key) != before[key]])
"""


def test_the_scan_of_plugins_replaces_nothing_of_hydras() -> None:
    done = subprocess.run([sys.executable, "-c", SCAN], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
