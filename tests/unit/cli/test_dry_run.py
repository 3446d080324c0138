"""Every published command line of torchrun-hpc, in dry run on any computer: no scheduler, nothing touched."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.config.store import shipped
from tests.unit.cli.test_torchrun import EXAMPLES

SYSTEM = "frontier"  # SLURM, 8 GPUs a node


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and a PATH without any scheduler."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")


def dry_run(line: str, capsys: pytest.CaptureFixture[str], *system: str) -> tuple[int, str, str]:
    code = main(["torchrun", "--dry-run", *system, *shlex.split(line)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_published_example_dry_runs(line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = line.removeprefix("torchrun-hpc ")
    code, out, err = dry_run(line, capsys, "--system", SYSTEM)
    assert list(tmp_path.iterdir()) == []
    if re.search(r"-r mpi|--rdv mpi", line) and "mpi" not in shipped("rendezvous"):
        assert code == 2
        assert "Could not find 'rendezvous/mpi'" in err
        return
    assert code == 0, err
    assert "#!/bin/bash" in out
    if "--local" in line:
        assert "hpc_hydra.node spawn" in out
    else:
        assert "#SBATCH --nodes=" in out
        assert re.search(r"^  (salloc|sbatch) ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "directives"),
    [
        ("-N 2 -n 8 t.py", ["nodes=2", "ntasks-per-node=8"]),
        ("-N 2 t.py", ["nodes=2", "ntasks-per-node=8"]),
        ("-g 32 t.py", ["nodes=4", "ntasks-per-node=8"]),
        ("-g 6 t.py", ["nodes=1", "ntasks-per-node=6"]),
        ("--gpumem-at-least 80 -n 8 t.py", ["nodes=1", "ntasks-per-node=8"]),
        ("-N 2 -n 2 --gpus-per-proc 4 t.py", ["ntasks-per-node=2"]),
        ("-t 90 t.py", ["time=01:30:00"]),
        ("-q gpu_queue t.py", ["partition=gpu_queue"]),
        ("--account a -J 'b c' --reservation r --dependency afterok:1 t.py",
         ["account=a", "job-name='b c'", "reservation=r", "dependency=afterok:1"]),
        ("--exclusive t.py", ["exclusive"]),
        ("-x nice=5 t.py", ["nice=5"]),
        ("-x--nice=5 t.py", ["nice=5"]),
        ("-N 1 -x time=10 t.py", ["time=00:10:00"]),
    ],
)  # fmt: skip
def test_options_become_directives(line: str, directives: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dry_run(line, capsys, "--system", SYSTEM)
    assert code == 0, err
    for directive in directives:
        assert re.search(rf"^#SBATCH --{re.escape(directive)}$", out.replace('"', "'"), re.MULTILINE), directive


def test_a_tilde_leaves_a_directive_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert "#SBATCH --cpus-per-task" in dry_run("-N 1 t.py", capsys, "--system", SYSTEM)[1]
    assert "--cpus-per-task" not in dry_run("-N 1 -x ~cpus-per-task -- t.py", capsys, "--system", SYSTEM)[1]


def test_gpus_cannot_be_counted_without_a_system(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = dry_run("--scheduler slurm -g 32 distributed_train.py", capsys)
    assert code == 2
    assert "gpus_per_node" in err
    assert "resources.gpus_at_least" in err


def test_facts_of_a_machine_answer_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dry_run("--scheduler slurm -p gpus_per_node=4 gpu_arch=sm_90 -g 8 t.py", capsys)
    assert code == 0, err
    assert "#SBATCH --nodes=2" in out


@pytest.mark.parametrize("queue", ["-q mi300a", "-q elsewhere", ""])
def test_facts_of_a_machine_win_over_those_of_a_queue(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dry_run(f"{queue} -p gpus_per_node=5 -N 1 t.py", capsys, "--system", "tioga")
    assert code == 0, err
    assert "--nslots=5" in out


def test_a_newline_in_an_argument_stays_a_comment(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dry_run("-N 1 t.py 'a\ntouch pwned\n$(touch pwned)'", capsys, "--system", SYSTEM)
    assert code == 0, err
    assert not [line for line in out.splitlines() if "pwned" in line and not line.startswith(("#", "  run 0: python"))]


def test_a_dry_run_is_light() -> None:
    code = (
        "import resource, sys; from hpc_hydra.cli.main import main;"
        f"code = main(['torchrun', '--dry-run', '--system', '{SYSTEM}', '-N', '2', 't.py']);"
        "heavy = {'torch', 'submitit', 'rich', 'psutil', 'numpy'} & set(sys.modules);"
        "print(heavy, file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Other:
    """How a job for another scheduler is seen to be one, and what its scheduler has no word for."""

    words: tuple[str, ...]
    run_by: str
    directives: dict[str, str]  # by the option that asks for it
    refused: dict[str, str] = field(default_factory=dict)


OTHERS = {  # their nodes have four GPUs
    "lassen": Other(
        ("#BSUB -nnodes ", "jsrun --nrs="),
        r"^  bsub( -I .* bash \S+\.sh| < \S+\.sh)$",
        {
            "-t 480": "#BSUB -W 8:00",
            "--reservation dat_2024": "#BSUB -U dat_2024",
            "--account ml_research": "#BSUB -G ml_research",
            "-q gpu_queue": "#BSUB -q gpu_queue",
            "--dependency afterok:12345": '#BSUB -w "done(12345)"',
        },
    ),
    "tuolumne": Other(
        ("#flux: --nodes=", "#flux: --exclusive"),
        r"^  flux (run .* flux broker bash \S+\.sh|batch .*\.sh 0)$",
        {
            "-t 480": "#flux: --time-limit=28800s",
            "-q gpu_queue": "#flux: --queue=gpu_queue",
            "--account ml_research": "#flux: --setattr=system.bank=ml_research",
            "--dependency afterok:12345": "#flux: --dependency=afterok:12345",
        },
        {"--reservation": "scheduler.reservation: scheduler=flux does not support scheduler.reservation=dat_2024"},
    ),
}


HEEDED = ("-t ", "-q ", "-g ", "--reservation", "--account", "--dependency", "--bg", "--gpus-per-proc", "--scheduler")


@pytest.mark.parametrize("line", [line for line in EXAMPLES if any(option in line for option in HEEDED)])
@pytest.mark.parametrize("system", OTHERS)
def test_published_examples_of_what_schedulers_heed_dry_run_elsewhere_or_say_what_cannot_be(
    system: str, line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = OTHERS[system]
    line = line.removeprefix("torchrun-hpc ").replace("-n 8", "-n 4")
    code, out, err = dry_run(line, capsys, "--system", system)
    assert list(tmp_path.iterdir()) == []
    refused = {
        "--gpus-per-proc 4": "resources.procs_per_node: 8 GPUs are needed (2 ranks with 4 each)",
        **other.refused,
    }
    why = next((said for option, said in refused.items() if option in line), None)
    if why is not None:
        assert code == 2 and why in err
        return
    assert code == 0, err
    if "--scheduler slurm" in line:
        assert "#SBATCH --nodes=" in out
        return
    assert all(word in out for word in other.words) and re.search(other.run_by, out, re.MULTILINE)
    for option, directive in other.directives.items():
        assert option not in line or f"{directive}\n" in out


@pytest.mark.hydra
@pytest.mark.parametrize(
    "words",
    [
        ["run", "launch.dry_run=true", "system=fronteer", "--", "t.py"],
        ["torchrun", "--dry-run", "--system", "fronteer", "-N", "1", "t.py"],
        ["doctor", "launch.dry_run=true", "system=fronteer"],
        ["shell", "launch.dry_run=true", "system=fronteer"],
    ],
)
def test_a_machine_that_is_not_there_is_one_error_everywhere(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(
        f"hpc-hydra {words[0]}: system: there is no 'fronteer'\n  Try: system=front"
    )


@pytest.mark.parametrize(
    ("system", "queue", "shown"), [("perlmutter", "debug", " debug "), ("frontier", "debug", "batch (qos debug)")]
)
def test_a_queue_that_is_a_quality_of_service_is_shown(
    system: str, queue: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = dry_run(f"-q {queue} -N 1 -n 1 t.py", capsys, "--system", system)
    row = next(line for line in out.splitlines() if line.startswith("0 "))
    assert shown in row, out
    assert out.count("\nrun  system") + out.startswith("run  system") == 1  # that of several runs is also at the end
