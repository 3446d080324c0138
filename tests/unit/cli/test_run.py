"""`hpc-hydra run` and `torchrun` on this machine: arguments, streams, exit codes, signals, files."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hydra
import pytest

from hpc_hydra.cli import run
from hpc_hydra.cli.main import main
from tests.unit.cli.running import SHOW, argv, environment, files, hpc_hydra, lines

AWKWARD = [
    "a b",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`id`",
    "a;b|c>d",
    "%j",
    "{rank}",
    "é 東京",
    "line\nbreak",
    "",
    "*",
]
LOCAL = ("run", "scheduler=local")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script; temporary files of the launcher go beside it."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    work = tmp_path / "work dir"
    work.mkdir()
    (work / "train.py").write_text(SHOW)
    return work


@pytest.mark.parametrize(
    ("chosen", "said"),
    [((), "local (detected): 1 node × 2 ranks\n"), (("system=local",), "")],
)
def test_what_was_detected_is_told(here: Path, chosen: tuple[str, ...], said: str) -> None:
    (here / "bin").mkdir()
    for name in ("bash", "date", "env", "true"):  # no scheduler's command
        (here / "bin" / name).symlink_to(f"/usr/bin/{name}")
    env = {"PATH": str(here / "bin")}
    done = hpc_hydra("run", "resources.procs_per_node=2", *chosen, "--", "true", cwd=here, env=env)
    assert (done.returncode, done.stderr) == (0, said)


def test_arguments_arrive_byte_for_byte_on_every_rank(here: Path) -> None:
    done = hpc_hydra("torchrun", "--local", "-n", "2", "train.py", *AWKWARD, cwd=here)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "out") == [f"out {rank}/2 {AWKWARD!r}" for rank in (0, 1)]
    assert lines(done.stderr, "err") == ["err 0", "err 1"]
    assert files(here) == ["train.py"]
    assert files(here.parent / "tmp") == []


@pytest.mark.parametrize("code", [120, 255])
def test_the_exit_code_is_the_scripts_own(here: Path, code: int) -> None:
    done = hpc_hydra(*LOCAL, "--", "train.py", cwd=here, env={"CODE": str(code)})
    assert done.returncode == code
    assert f"exit code {code}" in done.stderr
    assert files(here) == ["train.py"]


def test_a_signal_is_told_as_a_shell_does(here: Path) -> None:
    assert hpc_hydra(*LOCAL, "--", "bash", "-c", "kill -SEGV $$", cwd=here).returncode == 128 + signal.SIGSEGV


def test_nothing_but_the_commands_own_output_is_shown(here: Path) -> None:
    done = hpc_hydra(*LOCAL, "--", "printf", "no newline", cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no newline", "")


def test_standard_input_reaches_the_command(here: Path) -> None:
    assert hpc_hydra(*LOCAL, "--", "cat", cwd=here, stdin="one\ntwo\n").stdout == "one\ntwo\n"


def test_modules_scripts_and_programs(here: Path) -> None:
    package = here / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nfrom . import __name__ as n\nprint(n, __name__, sys.argv[1:])\n")
    program = here / "program"
    program.write_text("#!/bin/sh\necho program $1\n")
    program.chmod(0o755)
    assert hpc_hydra(*LOCAL, "--", "-m", "pkg.train", "x", cwd=here).stdout == "pkg __main__ ['x']\n"
    assert hpc_hydra(*LOCAL, "--", "program", "x y", cwd=here).stdout == "program x y\n"
    assert hpc_hydra(*LOCAL, "--", "./program", "x", cwd=here).stdout == "program x\n"


def test_variables_reach_the_ranks_byte_for_byte(here: Path) -> None:
    done = hpc_hydra(
        *LOCAL, "launch.env.A='a,b  c'", "launch.env={B: \"x\ny\"}", "--",
        sys.executable, "-c", "import os; print([os.environ['A'], os.environ['B']])", cwd=here,
    )  # fmt: skip
    assert done.stdout == "['a,b  c', 'x\\ny']\n", done.stderr


def test_fill_takes_keys_and_what_the_rank_knows(here: Path) -> None:
    done = hpc_hydra(
        *LOCAL, "resources.procs_per_node=2", "--fill", "+optim.lr=1e-3", "launch.env.WHO='r{rank}'", "--",
        "bash", "-c", 'echo "$WHO $1"', "_",
        '{rank}/{world_size}/{num_nodes}/{gpus_per_node} {optim.lr} {{lr}} {"a": {local_rank}}', cwd=here,
    )  # fmt: skip
    assert lines(done.stdout, "r") == [f'r{r} {r}/2/1/0 0.001 {{lr}} {{"a": {r}}}' for r in (0, 1)], done.stderr


@pytest.mark.hydra
def test_keys_of_hydra_are_filled_on_the_node(here: Path) -> None:
    shown = ["{o}", "{p}", "{hydra.runtime.output_dir}", "${hydra:job.name}", "${{hydra:job.num}}", "{{o}}"]
    done = hpc_hydra(
        *LOCAL, "--fill", "+o=${hydra:runtime.output_dir}", "+p=n${hydra:job.num}", "launch.env.A='{hydra.job.num}'",
        "--", "bash", "-c", 'printf "%s\\n" "$A" "$@"; test -d "$1"', "_", *shown, cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [kept] = here.glob("launch-*")  # the directory that the command was told stays
    assert done.stdout.splitlines() == ["0", str(kept), "n0", str(kept), "bash", "${hydra:job.num}", "{o}"]


def test_without_fill_braces_and_hydras_keys_are_the_commands_own(here: Path) -> None:
    done = hpc_hydra(*LOCAL, "--", "echo", "{rank} {lr} ${hydra:job.num}", cwd=here)
    assert done.stdout == "{rank} {lr} ${hydra:job.num}\n" and "--fill" in done.stderr


def test_a_sweep_fills_each_run_and_keeps_their_logs_and_a_failing_run_fails_it(here: Path) -> None:
    done = hpc_hydra(
        "run", "-m", "scheduler=local", "launch.launch_dir=sweep", "--fill", "+lr=0.1,0.2", "--",
        "bash", "-c", "echo lr={lr}; test {lr} = 0.1", cwd=here,
    )  # fmt: skip
    assert done.returncode == 1 and "1 of 2 runs failed" in done.stderr, done.stderr
    logs = sorted((here / "sweep").glob("*/logs/*/rank_0.log"))
    assert [log.read_text() for log in logs] == ["lr=0.1\n", "lr=0.2\n"]


def test_a_directory_with_machines_alone_or_with_a_configuration_of_another_name(here: Path) -> None:
    machine = here / "conf" / "system" / "mine.yaml"
    machine.parent.mkdir(parents=True)
    machine.write_text("# @package _global_\nsystem: {name: mine}\n")
    words = ["run", "--config-dir", "conf", "system=mine", "scheduler=local", "launch.dry_run=true", "--", "echo"]
    done = hpc_hydra(*words, cwd=here)
    assert done.returncode == 0 and "0    mine" in done.stdout, done.stdout + done.stderr
    (here / "conf" / "other.yaml").write_text("x: 1\n")
    done = hpc_hydra(*words, cwd=here)
    assert done.returncode == 2 and "has no config.yaml" in done.stderr, done.stderr
    assert "Try: --config-name other" in done.stderr
    done = hpc_hydra("run", "--config-name", "hpc", *words[1:], cwd=here)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "no command given"),
        (["run", "train.py"], "not an override"),
        (["run", "=3", "--", "x"], "'=3' has no key"),
        (["run", "--", ""], "the first word is empty"),
        (["run", "scheduler=local", "launch.launch_dir=train.py", "--", "x"], "train.py: this is a file"),
        (["run", "scheduler=local", "launch.output_script=train.py/x.sh", "--", "x"], "train.py: Not a directory"),
        (
            ["run", "scheduler=local", "train.py", "--epochs", "3"],
            "Try: hpc-hydra run scheduler=local -- train.py --epochs 3",
        ),
        (["run", "-m", "-cd", "conf", "x=1", "python", "t.py", "-x", "a b"], "-m -cd conf x=1 -- python t.py -x 'a b'"),
        (["run", "scheduler=local", "-m", "pkg.train", "--", "a"], "run scheduler=local -- -m pkg.train -- a"),
        (["run", "lr=1,2", "--", "true"], "for a single value \"lr='1,2'\""),
        (["run", "resources.nodes=1,2", "--", "x"], "run -m resources.nodes=1,2"),
        (["run", "nodes=2", "--", "x"], "Try: resources.nodes"),
        (["run", "lr=1", "--", "x"], "--fill +lr=VALUE"),
        (["run", "--fill", "lr=1", "--", "x"], "Try: +lr=VALUE"),
        (["run", "-m", "+lr=1,2", "--", "echo", "{lr}"], "uses {lr}, which --fill replaces\n  Try: --fill +lr=1,2"),
        (["run", "--fill", "lr=1", "--", "echo", "{lr}"], "added to the configuration with +\n  Try: +lr=1"),
        (["run", "--fill", "--", "echo", "{lr}"], "{lr} in the command is not a key"),
        (["run", "--fill", "+rank=8", "--", "echo", "{rank}"], "is set by each rank"),
        (["run", "-m", "--fill", "+lr=1,2", "--", "echo"], "{lr} in the command"),
        (["run", "--fill", "+o=${hydra:job.nam}", "--", "echo", "{o}"], "Try: hydra.job.name"),
        (["run", "--fill", "--", "echo", "${hydra:nope.x}"], "hydra.nope.x: Hydra's configuration has no such key"),
        (["run", "launch.env.A=${hydra:job.name}", "--", "x"], "--fill launch.env.A=\"'{hydra.job.name}'\""),
        (["run", "resources.nodes=${hydra:job.num}", "--", "x"], "${hydra:job.num} is not known before"),
        (["run", "resources.nodez=2", "--", "x"], "Try: resources.nodes"),
        (["run", "scheduler=local", "--", "nope.py"], "no such file"),
        (["run", "-m", "scheduler=local", "--", "nope.py"], "no such file"),
        (["run", "scheduler=local", "launch.bg=true", "--", "./nope"], "no such file"),
        (["run", "scheduler=local", "rendezvous.init=launcher", "--", "echo"], "only a Python program"),
        (["run", "scheduler=nope", "--", "x"], "scheduler: there is no 'nope'"),
        (
            ["run", "scheduler=pbs", "--", "x"],
            "qsub is not installed; does this machine have pbs?\n  Try: scheduler=local",
        ),
        (
            ["run", "scheduler=lsf", "--", "x"],
            "bsub is not installed; does this machine have lsf?\n  Try: scheduler=local",
        ),
        (["run", "--config-dir", "nowhere", "--", "x"], "no such directory"),
        (["run", "-N", "2", "--", "x"], "-N: unknown option"),
        (["run", "--config-dir", ".", "--config-name", "nope", "--", "x"], "--config-dir .: has no nope.yaml"),
        (["run", "--config-name", "nope", "--", "x"], "--config-name nope: there is no such configuration"),
        (["run", "scheduler=local", "launch.after=nowhere", "--", "x"], "launch.after"),
    ],
)
def test_mistakes_end_with_2_and_touch_nothing(
    here: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    assert main(words) == 2
    told = capfd.readouterr().err
    assert message in told and "Traceback" not in told
    assert files(here) == ["train.py"]


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (
            ["scheduler=slurm", "launch.env.NOTE=hello", "world", "launch.dry_run=true"],
            "\"launch.env.NOTE='hello world'\"",
        ),
        (["launch.env.NOTE=it's", "a", "b"], '"launch.env.NOTE=\\"it\'s a b\\""'),
        (["scheduler.setup_lines=[module", "load", "cuda]"], '"scheduler.setup_lines=[module load cuda]"'),
        (["resources.nodes=", "2"], "resources.nodes=2"),
        (["scheduler", "slurm"], "scheduler=slurm"),
        (["resources.nodes", "=", "2"], "resources.nodes=2"),
        (["resources.nodes=2", "frontier"], "system=frontier"),
        (["launch.env.NOTE=hello big 'world'"], '"launch.env.NOTE=\\"hello big \'world\'\\""'),
        (["launch.env.NOTE=a 'b' $c\\"], '"launch.env.NOTE=\\"a \'b\' \\$c\\\\\\\\\\""'),
        (["logging.out={job_id}.out"], "\"logging.out='{job_id}.out'\""),
        (
            ['scheduler.setup_lines=[export EXTRA="a b", source ./setup.sh]'],
            "\"scheduler.setup_lines=['export EXTRA=\\\"a b\\\"','source ./setup.sh']\"",
        ),
    ],
)
def test_an_override_that_cannot_be_read_is_advised_as_it_can(
    here: Path, words: list[str], advised: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    assert main(["run", *words, "--", "train.py"]) == 2
    told = capsys.readouterr().err
    assert told.rstrip().endswith(advised) and "no --" not in told, told
    assert main(["run", "scheduler=slurm", "launch.dry_run=true", *shlex.split(advised), "--", "train.py"]) == 0


@pytest.mark.parametrize(
    ("word", "advised"), [("+how=,kill", "\"+how='',kill\""), ("+how=kill (1", "\"+how='kill (1'\"")]
)
def test_an_override_of_an_own_key_that_cannot_be_read_is_advised_as_it_can(
    here: Path, word: str, advised: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    call = ["--fill", "--", "echo", "{how}"]
    assert main(["run", "-m", "scheduler=local", word, *call]) == 2
    told = capsys.readouterr().err
    assert told.rstrip().endswith(advised) and "hydra.cc" not in told, told
    assert main(["run", "-m", "scheduler=local", "launch.dry_run=true", *shlex.split(advised), *call]) == 0


@pytest.mark.parametrize(
    "words",
    [["container=apptainer", "container.image=docker://own"], ["scheduler.dependency=afterok:123"]],
)
@pytest.mark.parametrize("way", [["-m"], ["launch.bg=true"]])
def test_a_script_that_only_the_job_can_see_is_not_missed(
    way: list[str], words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    asked = ["system=frontier", "resources.nodes=1", "resources.time_limit=1h", "scheduler.account=a"]
    assert main(["run", *way, *asked, *words, "launch.setup_only=true", "--", "/opt/app/train.py"]) == 0


@pytest.mark.parametrize("way", [[], ["-m"], ["launch.bg=true"]])
def test_a_dry_run_says_that_the_script_is_missing(
    way: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    for script, said in (("trian.py", "note: trian.py: there is no such file"), ("train.py", "")):
        assert main(["run", *way, "scheduler=slurm", "launch.dry_run=true", "--", script]) == 0
        told = capsys.readouterr().err
        assert said in told and ("no such file" in told) is bool(said)


@pytest.mark.hydra
def test_the_defaults_are_those_of_the_installed_hydra() -> None:
    _, config = run.compose(run.Call(("scheduler=local",), ("true",)), name="true")
    assert hydra.__version__.startswith(str(config.hydra.runtime.version_base))


@pytest.mark.hydra
def test_a_configuration_of_ones_own(here: Path) -> None:
    conf = here / "conf"
    (conf / "model").mkdir(parents=True)
    (conf / "config.yaml").write_text("defaults: [hpc, _self_, model: small]\nlr: 0.5\n")
    (conf / "model" / "small.yaml").write_text("layers: 2\n")
    (conf / "model" / "big.yaml").write_text("layers: 9\n")
    words = (*LOCAL, "-cd", "conf", "--config-name=config", "model=big", "--fill", "--", "echo", "{lr} {model.layers}")
    assert hpc_hydra(*words, cwd=here).stdout == "0.5 9\n"


def test_what_ones_own_defaults_say_of_the_launch_holds_for_a_single_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.yaml").write_text('"*": {launch: {setup_only: true}}\n')
    monkeypatch.setenv("HPC_HYDRA_DEFAULTS", str(here / "mine.yaml"))
    done = hpc_hydra(*LOCAL, "--", "touch", "ran", cwd=here)
    assert done.returncode == 0 and "scripts are written, nothing is submitted" in done.stdout, done.stderr
    [script] = here.glob("launch-touch*/.hpc_hydra/jobs/job0.sh")  # in a directory that stays
    assert str(script.relative_to(here)) in done.stdout and not (here / "ran").exists()
    assert hpc_hydra(*LOCAL, "launch.setup_only=false", "--", "touch", "ran", cwd=here).returncode == 0
    assert (here / "ran").exists()


@pytest.mark.parametrize("where", ["typed", "mine"])
def test_a_run_that_is_a_job_of_its_own_says_so(here: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (here / "mine.yaml").write_text('"*": {launch: {snapshot: copy}}\n')
    if where == "mine":
        monkeypatch.setenv("HPC_HYDRA_DEFAULTS", str(here / "mine.yaml"))
    typed = ("launch.snapshot=copy",) * (where == "typed")
    done = hpc_hydra(*LOCAL, *typed, "--", "echo", "said", cwd=here)
    assert done.returncode == 0 and done.stderr.count("launch.snapshot makes it a job of its own") == 1, done.stderr
    [log] = here.glob("launch-echo*/logs/*/rank_0.log")
    assert log.read_text() == "said\n"


def test_a_launch_directory_keeps_script_outcome_and_output(here: Path) -> None:
    done = hpc_hydra("torchrun", "--local", "-l", "kept", "train.py", cwd=here)
    assert done.returncode == 0, done.stderr
    kept = here / "kept"
    assert (kept / "out.log").read_text() == done.stdout
    assert (kept / "err.log").read_text() == "err 0\n"
    assert (kept / "outcome.json").exists()
    assert (kept / ".hpc_hydra" / "jobs" / "job0.sh").exists()
    assert [path.name for path in here.iterdir() if path.name not in ("kept", "train.py")] == []


def test_a_bare_launch_directory_is_named_by_command_and_time(here: Path) -> None:
    assert hpc_hydra("torchrun", "--local", "-l", "--", "train.py", cwd=here).returncode == 0
    [made] = [path for path in here.iterdir() if path.is_dir()]
    assert "train" in made.name
    assert (made / "out.log").exists()


def test_the_current_directory_as_launch_directory(here: Path) -> None:
    assert hpc_hydra("torchrun", "--local", "-l", ".", "train.py", cwd=here).returncode == 0
    assert {"out.log", "err.log", "outcome.json"} <= {path.name for path in here.iterdir()}


def test_only_the_files_asked_for_are_left(here: Path) -> None:
    done = hpc_hydra(
        "torchrun", "--local", "-n", "2", "--out", "logs/o.txt", "--err", "e.txt", "--color-stderr", "--save-hostlist",
        "train.py", cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(here) == ["e.txt", "hpc_launcher_hostlist.txt", "logs", "logs/o.txt", "train.py"]
    assert (here / "logs" / "o.txt").read_text() == done.stdout
    assert sorted((here / "e.txt").read_text().splitlines()) == ["err 0", "err 1"]
    assert sorted(done.stderr.splitlines()) == ["\x1b[31merr 0\x1b[0m", "\x1b[31merr 1\x1b[0m"]
    assert (here / "hpc_launcher_hostlist.txt").read_text().strip() == os.uname().nodename


def test_verbose_tells_what_runs_where(here: Path) -> None:
    done = hpc_hydra("torchrun", "--local", "-v", "-n", "2", "-x", "MY_VAR=1", "-l", "made", "train.py", cwd=here)
    assert lines(done.stdout, "out") == ["out 0/2 []", "out 1/2 []"], done.stderr
    assert f"job0: {here}/made/.hpc_hydra/jobs/job0.sh\n" in done.stderr
    assert "rendezvous: tcp" in done.stderr and "1 × 2" in done.stderr
    assert re.search(r"^MY_VAR +1 +", done.stderr, re.MULTILINE), done.stderr
    host = os.uname().nodename
    assert all(f"rank {r} of 2 on {host}, local rank {r}; rank 0 listens at " in done.stderr for r in (0, 1))


TORCHRUN = ("torchrun", "--local", "-n", "2", "-o", "job.sh")
RUN = ("run", "scheduler=local", "resources.procs_per_node=2", "launch.output_script=job.sh")


@pytest.mark.parametrize(
    ("words", "only_written"),
    [
        (TORCHRUN, False),
        ((*TORCHRUN, "-l", "."), False),
        (RUN, True),
    ],
)
def test_a_script_that_is_written_runs_by_hand(here: Path, words: tuple[str, ...], only_written: bool) -> None:
    """The command that is printed names the file, and the directory that it needs is told."""
    option = ("--setup-only" if words[0] == "torchrun" else "launch.setup_only=true",) if only_written else ()
    behind = ("--",) if words[0] == "run" else ()
    done = hpc_hydra(*words, *option, *behind, "train.py", "a b", cwd=here)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in (done.stdout + done.stderr).splitlines() if "the job scripts read it" in line]
    folder = Path(told.partition("keep ")[2].partition(": the job scripts read it")[0])
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  bash ")]
    assert commands == ([["bash", f"{here}/job.sh", "0"]] if only_written else [])

    def by_hand(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd="/", env=environment(), capture_output=True, text=True, check=False)

    for command in (*commands, [f"{here}/job.sh"]):
        ended = by_hand(*command)
        assert ended.returncode == 0, ended.stderr
    shown = "".join(log.read_text() for log in folder.glob("**/rank_*.log")) + ended.stdout
    assert f"out 0/2 {['a b']!r}" in shown and f"out 1/2 {['a b']!r}" in shown
    (folder / ".hpc_hydra").rename(here / "moved")
    ended = by_hand("bash", f"{here}/job.sh")
    assert ended.returncode == 2
    assert f"{folder}: the directory of the sweep is gone" in ended.stderr


@pytest.mark.parametrize(
    ("words", "target"),
    [(TORCHRUN, "train.py"), (TORCHRUN, "link.sh"), (RUN, "data"), (RUN, "folder"), ((*RUN, "-m"), "pipe")],
)
def test_a_script_replaces_no_file_of_the_user(here: Path, words: tuple[str, ...], target: str) -> None:
    (here / "data").write_bytes(b"#!/bin/bash\n\xff\0")
    (here / "link.sh").symlink_to("train.py")
    (here / "folder").mkdir()
    os.mkfifo(here / "pipe")
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    words = tuple(word.replace("job.sh", target) for word in words)
    done = hpc_hydra(*words, *(("--",) if words[0] == "run" else ()), "train.py", cwd=here)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"launch.output_script: {here / target} exists and is not a job script of hpc_hydra" in done.stderr
    assert "Try:" in done.stderr and "Traceback" not in done.stderr and "out" not in done.stdout
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before
    assert (here / "link.sh").is_symlink() and (here / "pipe").is_fifo()


@pytest.mark.parametrize("scheduler", ["slurm", "ssh"])
def test_a_script_replaces_an_earlier_one_and_an_empty_file(here: Path, scheduler: str) -> None:
    (here / "job.sh").touch()
    words = ["run", "-m", f"scheduler={scheduler}", "launch.output_script=job.sh", "launch.setup_only=true"]
    words += ["scheduler.hosts=[localhost]"] if scheduler == "ssh" else []
    for name in ("a", "b"):
        done = hpc_hydra(*words, f"hydra.sweep.dir={name}", "--", "train.py", cwd=here)
        assert done.returncode == 0, done.stderr
        assert f"of the sweep {here / name}\n" in (here / "job.sh").read_text()


def test_a_batch_script_of_ones_own_runs_once(here: Path) -> None:
    (here / "job.sh").write_text('echo "$@" $NCCL_DEBUG\nexit 3\n')
    done = hpc_hydra(
        "torchrun", "--local", "-x", "NCCL_DEBUG=INFO", "--batch-script", "job.sh", "a  b", "$(id)", cwd=here
    )
    assert (done.returncode, done.stdout) == (3, "a  b $(id) INFO\n")
    assert files(here) == ["job.sh", "train.py"]


def test_lines_of_several_ranks_stay_whole(here: Path) -> None:
    (here / "many.py").write_text("for i in range(300):\n    print('x' * 60, i, 'y' * 60)\n")
    done = hpc_hydra("torchrun", "--local", "-n", "2", "many.py", cwd=here)
    assert sorted(done.stdout.splitlines()) == sorted(f"{'x' * 60} {i} {'y' * 60}" for i in range(300) for _ in (0, 1))


def started(here: Path, *words: str) -> subprocess.Popen[str]:
    """A run whose command says "up" and then waits."""
    (here / "wait.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(5)))\n"
        "open(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        argv(*words, "wait.py"), cwd=here, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    return process


def alive(here: Path) -> list[int]:
    found = []
    for path in here.glob("pid*"):
        try:
            os.kill(int(path.read_text()), 0)
        except ProcessLookupError:
            continue
        found.append(int(path.read_text()))
    return found


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_reaches_the_ranks_and_nothing_stays(here: Path, signum: int, code: int) -> None:
    process = started(here, "torchrun", "--local", "-n", "2")
    process.send_signal(signum)
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert ("told" in out) == (signum == signal.SIGTERM)
    assert alive(here) == []
    assert files(here.parent / "tmp") == []


def test_a_closed_terminal_ends_the_run_and_is_its_reason(here: Path) -> None:
    process = started(here, "torchrun", "--local", "-n", "2", "-l", "kept")
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 129, err
    assert "stopped by SIGHUP" in err
    assert alive(here) == []
    status = hpc_hydra("status", "kept", cwd=here).stdout
    assert "1 cancelled" in status
    assert "stopped by SIGHUP: its terminal was closed" in status
    assert hpc_hydra("logs", "0", "kept", cwd=here).stdout.startswith("==> out.log <==\nup\nup\n==> err.log <==\n")


def test_a_failed_run_says_how_to_keep_its_output_and_is_listed_if_it_is_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    failing = ("--", "sh", "-c", "echo shown; exit 3")
    done = hpc_hydra(*LOCAL, "launch.launch_dir=kept", *failing, cwd=here)
    assert done.returncode == 3
    assert "launch.launch_dir=DIR" not in done.stderr
    done = hpc_hydra(*LOCAL, *failing, cwd=here)
    assert done.returncode == 3
    assert "launch.launch_dir=DIR" in done.stderr
    shown = hpc_hydra("logs", cwd=here)
    assert "shown\n" in shown.stdout
    assert shown.stderr.startswith(f"sweep: {here / 'kept'}\n")
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["sweep"], listed["states"]) == (str(here / "kept"), {"failed": 1})


def test_a_killed_launcher_leaves_no_rank(here: Path) -> None:
    process = started(here, "torchrun", "--local", "-n", "2")
    process.kill()
    process.communicate(timeout=200)
    end = time.monotonic() + 200
    while alive(here):
        assert time.monotonic() < end, "ranks are still there"
        time.sleep(0.05)


def test_a_terminal_is_the_commands_own(here: Path) -> None:
    """What is typed reaches the command, and an interrupt from the keyboard ends it."""
    (here / "ask.py").write_text("print('you said', input('name? '), flush=True)\ninput('again? ')\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(here)
        os.execvpe(sys.executable, argv("torchrun", "--local", "ask.py"), environment())
    seen = b""

    def until(text: bytes, *, again: bytes = b"") -> None:
        """Read until ``text`` comes; ``again`` is typed where nothing comes for a while."""
        nonlocal seen
        end = time.monotonic() + 200
        while text not in seen:
            assert time.monotonic() < end, seen
            if not select.select([terminal], [], [], 2)[0]:
                os.write(terminal, again)
                continue
            try:
                seen += os.read(terminal, 4096)
            except OSError:
                break
        assert text in seen, seen

    until(b"name? ")
    os.write(terminal, b"Ada\n")
    until(b"you said Ada")
    until(b"again? ")
    os.write(terminal, b"\x03")
    until(b"KeyboardInterrupt", again=b"\x03")  # Python may miss one that comes just before it begins to read
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    os.close(terminal)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (["logging.out=b.out", "logging.err='a-{job_id}.err'"], ["b.out", "a-*.err"]),
        (["logging.out='[1]/{host}.out'", "logging.err='{host}-{rank}.err'"], ["[[]1]/*.out", "*.err"]),
    ],
)
def test_output_goes_to_the_console_and_to_files_in_this_directory(
    here: Path, typed: list[str], names: list[str]
) -> None:
    """`logging.console=all` begins each line with its rank, as shared files of one's own do."""
    said = 'echo "out $RANK" | tee -a own; echo "err $RANK" >&2'
    for again in (1, 2):  # files of an earlier run are not shown
        done = hpc_hydra(*LOCAL, "resources.procs_per_node=2", *typed, "--", "sh", "-c", said, cwd=here)
        assert done.returncode == 0, done.stderr
        shown = [re.sub(r"^\[\d\] ", "", line) for line in (done.stdout + done.stderr).splitlines()]
        assert sorted(shown) == ["err 0", "err 1", "out 0", "out 1"], again
    done = hpc_hydra(*LOCAL, "resources.procs_per_node=2", "logging.console=all", "--", "sh", "-c", said, cwd=here)
    assert sorted(done.stdout.splitlines()) == ["[0] out 0", "[1] out 1"], done.stderr
    kept = "".join(path.read_text() for name in names for path in here.glob(name))
    assert {"err 0", "err 1", "out 0", "out 1"} == set(kept.splitlines())
