"""The user's program runs on a rank as it does at home (scenarios B09, B31), on both versions of Hydra."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.node.rank.program_error import in_one_line
from hpc_hydra.records.frozen_config import Program, TaskId

from .conftest import ATTEMPT, ROOT, Frozen

Freeze = Callable[..., Frozen]
CONFIG = "note: x\nhydra:\n  job:\n    name: app\n"


RULE = "=" * 60
OTHER = 'Traceback (most recent call last):\n  File "/h/t.py", line 3, in f\n    raise ValueError("boom")\n'


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("boom\n  second  line", "boom second line"),
        (f"\n{RULE}\ntrain.py FAILED\n{RULE.replace('=', '-')}\nFailures:\n  rank : 1\n{RULE}", "train.py FAILED"),
        (f"\n\n-- Process 1 failed:\n{OTHER}ValueError: boom\nat 3\n", "-- Process 1 failed: ValueError: boom at 3"),
        (f"{OTHER}KeyError: 1\n\nDuring handling …:\n\n{OTHER}ValueError: boom", "ValueError: boom"),
        (
            "Connection reset by peer\nException raised from recvBytes at x.cpp:3 (…):\nframe #0",
            "Connection reset by peer",
        ),
        (RULE, ""),
    ],
)
def test_the_reason_has_no_tables_and_no_frames(message: str, told: str) -> None:
    assert in_one_line(RuntimeError(message)) == ": ".join(filter(None, ("RuntimeError", told)))


@pytest.mark.hydra
def test_hydra_knows_everything_on_the_rank(freeze: Freeze) -> None:
    body = """
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import get_original_cwd, to_absolute_path
    h = HydraConfig.get()
    return {"cwd": get_original_cwd(), "abs": to_absolute_path("x"), "num": h.job.num, "id": h.job.id,
            "name": h.job.name, "dir": h.runtime.output_dir, "task": list(h.overrides.task), "note": cfg.note}
    """
    frozen = freeze(body, overrides=("note='a b'",))
    here = str(frozen.root.parent)
    assert frozen.run()[1]["result"] == {
        "cwd": here, "abs": f"{here}/x", "num": 0, "id": "job0.0", "name": "app", "dir": f"{frozen.root}/0",
        "task": ["note='a b'"], "note": "a b",
    }  # fmt: skip


@pytest.mark.hydra
def test_only_rank_0_writes_hydras_files(freeze: Freeze) -> None:
    body = "import logging; logging.getLogger('me').info('rank %d', RANK)"
    frozen = freeze(body, procs=3, overrides=("note=y",))
    frozen.run()
    root = frozen.paths.root
    assert sorted(p.name for p in (root / ".hydra").iterdir()) == ["config.yaml", "hydra.yaml", "overrides.yaml"]
    assert sorted(p.name for p in root.iterdir()) == [".hydra", "app.log", "logs", "outcome.json"]
    logs = [root / "app.log", *(frozen.paths.attempt(ATTEMPT) / f"app.rank_{r}.log" for r in (1, 2))]
    for rank, log in enumerate(logs):
        assert log.read_text().endswith(f"rank {rank}\n") and len(log.read_text().splitlines()) == 1


@pytest.mark.hydra
def test_hydra_job_chdir_and_env_set_apply_on_the_rank(freeze: Freeze) -> None:
    config = CONFIG + "    chdir: true\n    env_set: {FOO: bar}\n"
    frozen = freeze("print(os.getcwd(), os.environ['FOO'])", procs=2, config=config)
    frozen.run()
    assert [frozen.log(r) for r in (0, 1)] == [f"{frozen.root}/0 bar\n"] * 2


@pytest.mark.hydra
def test_callbacks_run_once_per_run(freeze: Freeze) -> None:
    outside = """
    from hydra.experimental.callback import Callback
    class Tell(Callback):
        def on_job_start(self, config, **_): print("start", config.note)
        def on_job_end(self, config, job_return, **_): print("end", job_return.return_value)
    """
    config = CONFIG + "  callbacks:\n    tell: {_target_: __main__.Tell}\n"
    frozen = freeze("print('task'); return 3", procs=2, config=config, outside=outside)
    frozen.run()
    assert frozen.log(0) == "start x\ntask\nend 3\n" and frozen.log(1) == "task\n"


@pytest.mark.hydra
def test_interpolations_resolve_on_the_rank(freeze: Freeze) -> None:
    frozen = freeze("print(cfg.note)", procs=2, config=CONFIG.replace("x", "${oc.env:RANK}", 1))
    frozen.run()
    assert [frozen.log(r) for r in (0, 1)] == ["0\n", "1\n"]


@pytest.mark.hydra
def test_the_programs_own_resolvers_and_types_are_there(freeze: Freeze) -> None:
    outside = """
    import dataclasses, threading
    from omegaconf import OmegaConf
    LOCK = threading.Lock()
    OmegaConf.register_new_resolver("twice", lambda x: 2 * x)
    @dataclasses.dataclass
    class Answer:
        value: int
    """
    body = "import pickle; print(cfg.note, __name__, pickle.loads(pickle.dumps(Answer(1)))); return Answer(42)"
    frozen = freeze(body, config=CONFIG.replace("x", "${twice:21}", 1), outside=outside)
    outcome = frozen.run()[1]
    assert frozen.log() == "42 __main__ Answer(value=1)\n" and outcome["result_kind"] == "pickle"


def test_records_of_a_version_that_kept_no_command_line_give_the_overrides(freeze: Freeze) -> None:
    frozen = freeze("return sys.argv", overrides=("note=1",), main="main(); main()")
    kept = frozen.root / ".hpc_hydra" / "program.json"
    old = json.loads(kept.read_text())
    kept.write_text(json.dumps({name: old[name] for name in old if name not in ("typed", "code", "task", "arrived")}))
    assert frozen.run()[1]["result"] == [str(frozen.root.parent / "train.py"), "note=1"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("main(); print('never')", ""),
        ("exec('try:\\n main()\\nfinally:\\n 1/0')", "ZeroDivisionError"),
        ("exec('try:\\n main()\\nexcept SystemExit:\\n sys.exit(3)')", ""),
        ("exec('try:\\n main()\\nexcept SystemExit:\\n pass')", ""),
    ],
)
@pytest.mark.hydra
def test_the_run_ends_with_the_task_function(freeze: Freeze, after: str, said: str) -> None:
    """What comes after it does not run, and changes nothing where it does."""
    frozen = freeze("print('task'); return 1", main=after)
    code, outcome = frozen.run()
    assert (code, outcome["status"], outcome["result"]) == (0, "completed", 1)
    assert frozen.log().startswith("task\n") and said in frozen.log() and "never" not in frozen.log()


def test_a_failed_run_stays_one_where_the_program_continues(freeze: Freeze) -> None:
    code, outcome = freeze("raise ValueError('x')", main="exec('try:\\n main()\\nexcept SystemExit:\\n pass')").run()
    assert (code, outcome["status"], outcome["exit_code"]) == (1, "failed", 1)


def test_the_launched_function_is_named_where_it_is_not_reached(freeze: Freeze) -> None:
    code, outcome = freeze(typed=("train.py", "-m"), task=TaskId("__main__", "other")).run()
    assert code == 2 and "__main__.other" in outcome["reason"] and "__main__.main" in outcome["reason"]


def test_a_program_that_arrives_in_another_directory_than_at_launch_is_reported(freeze: Freeze, tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    start, outside = str(tmp_path / "work"), "os.chdir('..')\n"
    assert freeze("return 1", outside=outside, arrived=str(tmp_path), cwd=start).run()[1]["result"] == 1
    code, outcome = freeze(outside=outside, arrived=str(tmp_path), cwd=f"{start}/deep").run()
    assert code == 2 and f"{start}," in outcome["reason"] and "os.chdir" in outcome["reason"]


def test_a_rank_is_marked_so_that_nothing_is_launched_from_it(freeze: Freeze) -> None:
    assert freeze("return os.environ['HPC_HYDRA_RANK_PROCESS']").run()[1]["result"] == "1"


@pytest.mark.hydra
def test_the_config_directory_is_not_read_again(freeze: Freeze) -> None:
    frozen = freeze("return cfg.note")
    (frozen.root.parent / "conf" / "config.yaml").write_text("this: [is not\n")
    assert frozen.run()[1]["result"] == "x"


def test_a_file_named_like_one_of_ours_in_the_working_directory_does_no_harm(freeze: Freeze) -> None:
    frozen = freeze("return 1")
    for name in ("json.py", "socket.py", "logging.py"):
        (frozen.root.parent / name).write_text("raise RuntimeError('not me')\n")
    work = frozen.root.parent / "work"
    work.mkdir()
    for name in ("json.py", "ctypes.py"):
        (work / name).write_text("raise RuntimeError('not me')\n")
    frozen.env["PYTHONPATH"] = str(ROOT)
    from subprocess import run

    done = run(
        [sys.executable, "-m", "hpc_hydra.node", "finish", "0"], cwd=work, env=frozen.environ(), capture_output=True,
        text=True,
    )  # fmt: skip
    assert "not me" not in done.stderr and frozen.outcome()["status"] == "lost"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "proj"
    (root / "pk").mkdir(parents=True)
    (root / "pk" / "__init__.py").write_text("")
    (root / "pk" / "sub.py").write_text("WORD = 'sub'\n")
    (root / "pk" / "__main__.py").write_text(
        "import hydra, sys\nfrom .sub import WORD\n@hydra.main(version_base='1.3', config_path=None)\n"
        "def main(cfg):\n    print(WORD, __name__, __spec__.name, sys.argv[0]); return WORD\nmain()\n"
    )
    return root


def test_a_module_runs_with_its_package(freeze: Freeze, package: Path) -> None:
    frozen = freeze(program=Program("module", "pk", cwd="/", sys_path0=str(package), pythonpath=(str(ROOT),)))
    assert frozen.run()[1]["result"] == "sub"
    assert frozen.log() == f"sub __main__ pk.__main__ {package}/pk/__main__.py\n"


def test_a_script_imports_from_its_own_folder_whatever_the_directory(freeze: Freeze) -> None:
    frozen = freeze("from helper import X; return X", program=None)
    (frozen.root.parent / "helper.py").write_text("X = 5\n")
    program = json.loads((frozen.root / ".hpc_hydra" / "program.json").read_text())
    (frozen.root / ".hpc_hydra" / "program.json").write_text(json.dumps({**program, "cwd": "/"}))
    assert frozen.run()[1]["result"] == 5


def test_a_console_script_is_a_script(freeze: Freeze, package: Path) -> None:
    app = package / "app"
    app.write_text(
        "#!/usr/bin/python\nimport sys\nfrom pk.__main__ import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    (package / "pk" / "__main__.py").write_text(
        "import hydra\n@hydra.main(version_base='1.3', config_path=None)\ndef main(cfg):\n    return __name__\n"
    )
    frozen = freeze(program=Program("script", str(app), cwd="/", sys_path0=str(package), pythonpath=(str(ROOT),)))
    assert frozen.run()[1]["result"] == "pk.__main__"


def test_a_function_without_a_program_comes_from_its_pickle(freeze: Freeze, tmp_path: Path) -> None:
    import cloudpickle
    from hydra.core.singleton import Singleton

    secret = 41

    def closure(cfg: Any) -> Any:
        return [secret + 1, cfg.note]

    frozen = freeze(program=Program("task", cwd=str(tmp_path), pythonpath=(str(ROOT),)))
    payload = {"function": closure, "singletons": Singleton.get_state()}
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        (frozen.root / ".hpc_hydra" / "task.pkl").write_bytes(cloudpickle.dumps(payload))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert frozen.run()[1]["result"] == [42, "x"]


def test_multiprocessing_starts_the_users_module_again(freeze: Freeze) -> None:
    outside = """
    import multiprocessing
    def double(x): return 2 * x
    """
    body = "with multiprocessing.get_context('spawn').Pool(2) as pool: return pool.map(double, [1, 2])"
    assert freeze(body, outside=outside).run()[1]["result"] == [2, 4]


def test_faulthandler_tells_where_a_crash_was(freeze: Freeze) -> None:
    frozen = freeze("import ctypes; ctypes.string_at(0)")
    code, outcome = frozen.run(PYTHONFAULTHANDLER="1")
    assert code == 139 and "Fatal Python error: Segmentation fault" in frozen.log() and "train.py" in frozen.log()
    assert "SIGSEGV" in outcome["reason"]


@pytest.mark.parametrize("end", ["return 'forked'", "raise ValueError('forked')", "sys.exit('forked')"])
def test_a_forked_process_that_comes_back_from_the_task_is_not_the_rank(freeze: Freeze, end: str) -> None:
    body = f"""
    child = os.fork()
    if child == 0:
        {end}
    os.waitpid(child, 0)
    return "mine"
    """
    code, outcome = freeze(body, outside="import sys\n").run()
    assert (code, outcome["status"], outcome["result"]) == (0, "completed", "mine")


def test_a_forked_process_that_comes_back_last_replaces_nothing(freeze: Freeze) -> None:
    body = """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the rank has ended
        return "forked"
    os.set_inheritable(writer, True)
    return "mine"
    """
    code, outcome = freeze(body).run()
    assert (code, outcome["result"]) == (0, "mine")


BROKEN_STREAMS = {
    "closed": "os.close(1); os.close(2)",
    "replaced": "import io\nsys.stdout.flush()\nsys.stdout = sys.stderr = io.StringIO()\nsys.stderr.close()",
    "none": "sys.stdout = sys.stderr = None",
}


@pytest.mark.parametrize("streams", BROKEN_STREAMS.values(), ids=list(BROKEN_STREAMS))
def test_the_reason_of_a_failure_needs_no_streams(freeze: Freeze, streams: str) -> None:
    code, outcome = freeze(f"{streams}\nraise ValueError('boom')").run()
    assert code != 0 and outcome["reason"].endswith(": ValueError: boom")


def test_a_program_that_has_closed_all_its_files_finds_nothing_of_ours_in_those_it_opens(freeze: Freeze) -> None:
    body = """\
import logging
logging.root.handlers.clear()  # the log file of Hydra is closed with the others
os.closerange(3, 256)
mine = [open(f"mine.{n}", "w") for n in range(20)]
raise ValueError("boom")"""
    frozen = freeze(body)
    code, outcome = frozen.run()
    assert code == 1 and "ValueError: boom" in outcome["reason"]
    assert [path.read_text() for path in frozen.root.parent.glob("mine.*")] == [""] * 20
