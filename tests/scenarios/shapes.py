"""The shapes that users' programs have: each with its files, and the words that start it from the project's folder."""

from __future__ import annotations

import stat
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

CONFIG = """\
defaults: [hpc, _self_]
lr: 0
extra: none
out: ${oc.env:SEEN}
hydra: {sweep: {dir: "${oc.env:SEEN}/sweep.${now:%H%M%S%f}"}, job: {name: job}}
"""
SEE = '''
"""What the program sees when this is imported, and in its task function."""
import json, os, sys
MAIN = sys.modules["__main__"]
OURS = ("scheduler=", "hydra/", "resources.")
def words(argv):
    return [word for word in argv if not word.startswith(OURS)]
BEFORE = {
    "argv": words(sys.argv), "cwd": os.getcwd(), "path": sys.path[0], "main": getattr(MAIN, "__file__", None),
    "spec": getattr(getattr(MAIN, "__spec__", None), "name", None), "optimize": sys.flags.optimize,
    "X": {k: v for k, v in sys._xoptions.items()}, "warn": sys.warnoptions[:1],
}
def saw(cfg, function="main", **more):
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import get_original_cwd
    h = HydraConfig.get()
    now = {
        "function": function, "argv": words(sys.argv), "cwd": os.getcwd(), "original": get_original_cwd(),
        "lr": cfg.lr, "extra": cfg.extra, "task": words(h.overrides.task),
        "global": GlobalHydra.instance().is_initialized(), **more,
    }
    with open(f"{cfg.out}/{function}.{cfg.lr}.{cfg.extra}.json", "x") as file:
        json.dump({"before": BEFORE, "in": now}, file)
    return now
'''
HEAD = """
import os, sys
import hydra
import see
MAIN = dict(version_base="1.3", config_path={conf!r}, config_name="config")
"""
TASK = """
@hydra.main(**MAIN)
def main(cfg):
    return see.saw(cfg)
"""
RUN = "\nif __name__ == '__main__':\n    main()\n"


@dataclass(frozen=True)
class Shape:
    """One way to write and start a program. ``{py}``, ``{dir}`` and ``{conf}`` are filled in words and files."""

    files: Mapping[str, str]
    start: tuple[str, ...] = ("{py}", "train.py")
    cwd: str = "."
    stdin: str | None = None  # a file that is the program's standard input, or "|NAME": through a pipe
    seen: int = 1  # how many runs tell what they see
    by_value: bool = False  # a function without a program: nothing before it is run again
    words: tuple[str, ...] = ("-m", "lr=7")
    env: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False  # how the interpreter starts is not what is shown


def script(before: str = "", task: str = TASK, run: str = RUN, head: str = HEAD) -> str:
    return dedent(before) + head + dedent(task) + dedent(run)


def of(text: str, *start: str, name: str = "train.py", **more: object) -> Shape:
    return Shape({name: text}, start or ("{py}", name), **more)  # type: ignore[arg-type]


PACKAGE = {"pk/__init__.py": "", "pk/train.py": script(), "pk/__main__.py": script()}
ARGPARSE = """
    import argparse, sys
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", default="default")
    own, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
"""
OWN = "@hydra.main(**MAIN)\ndef main(cfg):\n    return see.saw(cfg, data=own.data_dir)\n"
TWO = """
    @hydra.main(**MAIN)
    def pretrain(cfg):
        return see.saw(cfg, "pretrain")
    @hydra.main(**MAIN)
    def finetune(cfg):
        return see.saw(cfg, "finetune")
"""
NEMO = """
    from functools import wraps
    from hydra._internal.utils import _run_hydra, get_args_parser
    def runner(function):
        @wraps(function)
        def wrapper(cfg=None):
            if cfg is not None:
                return function(cfg)
            parser = get_args_parser()
            args = parser.parse_args()
            args.overrides.append("extra=nemo")
            _run_hydra(args, parser, task_function=function, config_path={conf!r}, config_name="config")
        return wrapper
    hydra.main(**MAIN)
    @runner
    def main(cfg):
        return see.saw(cfg)
"""
ZEN = """
    class Zen:
        def __init__(self, function): self.function = function
        def __call__(self, cfg): return self.function(cfg)
        def start(self): hydra.main(**MAIN)(self)()
    def task(cfg): return see.saw(cfg)
"""
COMPOSE = """
    @hydra.main(**MAIN)
    def main(cfg):
        other = hydra.compose("config", ["lr=8"])
        hydra.core.global_hydra.GlobalHydra.instance().clear()
        with hydra.initialize_config_dir({conf!r}, version_base="1.3"):
            third = hydra.compose("config", ["lr=9"])
        return see.saw(cfg, other=other.lr, third=third.lr)
"""
CLOSURE = """
    def make(k):
        return lambda cfg: see.saw(cfg, k=k)
    hydra.main(**MAIN)(make(3))()
"""
DOWN = script("import os\nos.chdir('work')\n")
DRIVER = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
PARENT = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))\n"
INSERTS = "import sys\nimport see, beside\nsys.path.insert(0, 'src')\nimport other\n"
BY_VALUE = """
    def test_it(monkeypatch):
        add = 1
        def closure(cfg): return see.saw(cfg, add=add)
        monkeypatch.setattr(sys, "argv", ["x", *os.environ["WORDS"].split()])
        hydra.main(**MAIN)(closure)()
"""
SHAPES: dict[str, Shape] = {
    "script that adds overrides and import paths": Shape(
        {"src/other.py": "", "beside.py": "", "train.py": script(INSERTS + "sys.argv.append('extra=added')\n")},
        forked=True,
    ),
    "dot, symlink, spaces and unicode": Shape(
        {"src/träin ü.py": script(), "my dir/link ü.py": "-> ../src/träin ü.py"}, ("{py}", "./my dir/link ü.py")
    ),
    "absolute, own options": of(
        script(ARGPARSE, OWN), "{py}", "{dir}/train.py", "--data-dir", "/x", cwd="work"
    ),
    "flags, code after": of(
        script(run="\nmain()\nsys.exit(0 if 'RANK' not in os.environ else 3)\n"),
        "{py}", "-Ou", "-X", "utf8", "-W", "ignore::UserWarning", "train.py",
    ),
    "module, chdir": Shape({**PACKAGE, "pk/train.py": DOWN}, ("{py}", "-m", "pk.train")),
    "package": Shape(PACKAGE, ("{py}", "-um", "pk")),
    "console script, compose in the task": Shape(
        {"pk/__init__.py": "", "pk/train.py": script(task=COMPOSE),
         "bin/app": "#!{py}\nimport sys\nfrom pk.train import main\nsys.exit(main())\n"}, ("{dir}/bin/app",),
        cwd="work", env={"PYTHONPATH": "{dir}"},
    ),
    "zipapp, runner of one's own": Shape(
        {"app.pyz": "zip train.py", "train.py": script(task=NEMO)}, ("{py}", "app.pyz")
    ),
    "folder, callable object": Shape({"app/__main__.py": script(task=ZEN, run="Zen(task).start()\n")}, ("{py}", "app")),
    "sub-command, code around": of(
        script(run="\ntry:\n    {'train': None, 'eval': main}[sys.argv.pop(1)]()\n"
                   "finally:\n    open(f'{os.environ[\"SEEN\"]}/finally', 'a').write('x')\n"),
        "{py}", "train.py", "eval", forked=True,
    ),
    "two mains, one of them twice": of(
        script(task=TWO, run="pretrain()\nsys.argv += ['extra=a']\nfinetune()\nsys.argv[-1] = 'extra=b'\nfinetune()\n"),
        seen=3, forked=True,
    ),
    "chdir up": of(script("import os\nos.chdir('..')\n"), "{py}", "../../train.py", cwd="work/deep"),
    "absolute, chdir": of(
        DOWN, "sh", "-c", 'cd ..; "$@"; exit $?', "sh", "{py}", "{dir}/train.py", cwd="work"
    ),
    "cProfile": of(script(), "{py}", "-m", "cProfile", "-s", "tottime", "train.py", forked=True),
    "runpy": Shape({"train.py": script(), "driver.py": DRIVER}, ("{py}", "driver.py", "train.py"), forked=True),
    "closure, parent that is a program": Shape(
        {"train.py": script(task="", run=CLOSURE), "run.py": PARENT}, ("{py}", "run.py", "train.py")
    ),
    "standard input": of(script(), "{py}", "-", stdin="train.py"),
    "pipe": of(script(), "{py}", "-", stdin="|train.py", by_value=True),
    "-c": Shape({}, ("{py}", "-c", script())),
    "pytest": of(script(task=BY_VALUE, run=""), "{py}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py",
                 name="test_it.py", by_value=True, words=(), env={"WORDS": "-m lr=7"}),
    "failure after chdir": of(script(
        "import os\nos.chdir('work')\n",
        "@hydra.main(**MAIN)\ndef main(cfg):\n    see.saw(cfg)\n    raise ValueError('mine')\n",
    ), forked=True),
}  # fmt: skip


def lay_out(shape: Shape, folder: Path) -> None:
    """Write a shape's project."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "config.yaml").write_text(CONFIG)
    (folder / "work" / "deep").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "lib" / "see.py").write_text(SEE)
    for name, text in shape.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        elif not text.startswith("zip "):
            path.write_text(filled(text, folder))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for name, text in shape.files.items():
        if text.startswith("zip "):
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.write(folder / text[4:], "__main__.py")


def filled(text: str, folder: Path) -> str:
    for name, value in {"py": sys.executable, "dir": str(folder), "prefix": f"{sys.prefix}:{sys.base_prefix}"}.items():
        text = text.replace(f"{{{name}}}", value)
    return text.replace("{conf!r}", repr(str(folder / "conf")))
