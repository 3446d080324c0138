"""scheduler=ssh over real sshd on the nodes of the test cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.awaiting import await_true
from tests.cluster.fixtures import SCRIPTS, wait_for
from tests.cluster.sshd import SshHosts
from tests.scenarios.test_packing_on_lsf import STEP, check_apart, told
from tests.scenarios.test_preflight import BROKEN, WHY, gpus

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
TWO = "scheduler.hosts=[node01,node02]"


class Shell:
    """Starts `hpc-hydra` and applications in a directory of the test's own."""

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        self.hosts, self.folder, self.mark = hosts, folder, f"9{uuid.uuid4().int % 10**8}"
        self.env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def hydra(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hpc_hydra.cli", *words]

    def launch(self, *words: str) -> list[str]:
        return self.hydra("run", *self.hosts.overrides, f"launch.launch_dir={self.folder}/run", *words)

    def run(self, argv: list[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return forking.run(argv, cwd=self.folder, env=self.env, timeout=timeout)

    @contextmanager
    def started(self, argv: list[str]) -> Iterator[subprocess.Popen[str]]:
        with (self.folder / "printed").open("w") as printed:
            process = subprocess.Popen(
                argv, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, text=True
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def running(self, *nodes: str) -> list[str]:
        """What of this test runs on the nodes."""
        return [line for node in nodes for line in self.hosts.processes(node, self.mark)]

    def outcome(self, num: int | None = None) -> dict[str, Any]:
        folder = self.folder / "run" / ("" if num is None else str(num))
        found: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
        return found


@pytest.fixture
def shell(ssh_hosts: SshHosts, tmp_path: Path) -> Shell:
    return Shell(ssh_hosts, tmp_path)


def sleepers(shell: Shell) -> str:
    """A program that leaves a process of its own session behind, and does not listen to SIGTERM."""
    nap = f"sleep {shell.mark}"
    return f"trap '' TERM; setsid {nap} & touch up.$(hostname); {nap} & wait; wait; {nap}"


def await_up(shell: Shell) -> None:
    nodes = ("node01", "node02")
    wait_for(lambda: all((shell.folder / f"up.{node}").exists() for node in nodes), 200, "both hosts run")
    assert await_true(lambda: all(shell.running(node) for node in nodes))


def await_nothing(shell: Shell, *nodes: str) -> None:
    assert await_true(lambda: not shell.running(*nodes)), shell.running(*nodes)


def test_output_comes_with_the_host_s_name_and_the_exit_code_through(shell: Shell) -> None:
    program = 'echo "$RANK of $WORLD_SIZE on $MASTER_ADDR: $A"; [ $RANK = 3 ] && exit 7; sleep 600'
    done = shell.run(
        shell.launch(
            TWO,
            "resources.nodes=2",
            "resources.procs_per_node=2",
            "rendezvous.port=29871",
            'launch.env.A="it\'s $(x)"',
            "--",
            "bash",
            "-c",
            program,
        )
    )
    assert done.returncode == 7, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if " of 4 " in line)
    assert lines[0] == "node01: 0 of 4 on node01: it's $(x)"
    assert lines[-1] == "node02: 3 of 4 on node01: it's $(x)"
    assert "rank 3 ended with exit code 7" in done.stderr
    assert (shell.outcome()["rank"], shell.outcome()["host"]) == (3, "node02")


def test_a_bad_host_is_left_out_for_a_spare_one(shell: Shell) -> None:
    words = ["scheduler.hosts=[node01,node02,node03]", "resources.nodes=2", "resources.procs_per_node=1"]
    words += ["launch.preflight=true", "launch.spare_nodes=1", *gpus(shell.folder, node02=[BROKEN])]
    program = 'echo "$RANK of $WORLD_SIZE on $(uname -n)"'
    done = shell.run(shell.launch(*words, "--", "bash", "-c", program), timeout=240)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if " of 2 " in line)
    assert lines == ["node01: 0 of 2 on node01", "node03: 1 of 2 on node03"]
    assert f"preflight: node02 is left out: {WHY}" in done.stderr


@pytest.mark.parametrize("how", ["kill -9 of the launcher", "Ctrl-C"])
def test_nothing_is_left_on_any_host(shell: Shell, how: str) -> None:
    argv = shell.hydra(
        "run", "-m", *shell.hosts.overrides, TWO, f"hydra.sweep.dir={shell.folder}/run", "launch.on_interrupt=cancel",
        "resources.nodes=2", "--", "bash", "-c", sleepers(shell),
    )  # fmt: skip
    with shell.started(argv) as launcher:
        await_up(shell)
        launcher.send_signal(signal.SIGKILL if "9" in how else signal.SIGINT)
        assert launcher.wait(200) == (-9 if "9" in how else 130)
        await_nothing(shell, "node01", "node02")
    wait_for(lambda: (shell.folder / "run/0/outcome.json").exists(), 200, "its end is written down")
    assert shell.outcome(0)["status"] in ("cancelled", "failed")


def test_a_connection_that_breaks_ends_the_run_on_all_hosts(shell: Shell) -> None:
    with shell.started(shell.launch(TWO, "resources.nodes=2", "--", "bash", "-c", sleepers(shell))) as launcher:
        await_up(shell)
        mine = subprocess.run(["pgrep", "-f", f"^ssh .*{shell.hosts.config} .*node02"], capture_output=True, text=True)
        for pid in mine.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        assert launcher.wait(200) == 255
    await_nothing(shell, "node01", "node02")
    assert "node02: the connection to its ranks was lost" in shell.outcome()["reason"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scheduler.hosts=[node01,nosuchhost]"], "nosuchhost: its name cannot be resolved"),
        (["scheduler.hosts=[node01,node03]", "scheduler.launch_extra.p=1"], "node01: it cannot be reached by ssh"),
        (
            ["scheduler.hosts=[node01]", "scheduler.launch_extra.o='UserKnownHostsFile=/dev/null'"],
            "host key is unknown",
        ),
        (["scheduler.hosts=[node01]", "scheduler.launch_extra.l=nobody"], "without a password"),
    ],
)
def test_a_host_that_cannot_be_reached_is_named_before_anything_is_written(
    shell: Shell, words: list[str], says: str
) -> None:
    argv = shell.hydra("run", "-m", *shell.hosts.overrides, f"hydra.sweep.dir={shell.folder}/run")
    done = shell.run([*argv, *words, "--", "true"])
    assert done.returncode == 2
    assert says in done.stderr
    assert "Try:" in done.stderr
    assert not (shell.folder / "run").exists()


def test_a_python_that_is_not_there_is_named(shell: Shell) -> None:
    done = shell.run(shell.launch(TWO, "resources.nodes=2", "launch.python=/no/such/python", "--", "true"))
    assert done.returncode != 0
    assert "/no/such/python" in done.stdout + done.stderr


def test_a_directory_that_hosts_do_not_share_is_named(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = Path("/dev/shm", f"hpc_hydra-{shell.mark}")  # each node has a file system of its own there
    own.mkdir()
    try:
        shell.folder = own
        done = shell.run(shell.launch(TWO, "--", "true"))
    finally:
        subprocess.run(["rm", "-r", str(own)], check=True)
    assert done.returncode == 2
    assert f"node01: the directory {own} is not there: all hosts must share it" in done.stderr


def test_runs_go_side_by_side_as_far_as_the_hosts_last_and_another_process_cancels_and_resumes_them(
    shell: Shell,
) -> None:
    argv = shell.hydra(
        "run", "-m", *shell.hosts.overrides, TWO, "--fill", "+key=0,1,2", f"hydra.sweep.dir={shell.folder}/run",
        "--", "bash", "-c", f"touch up.$(hostname) at.{{key}}; [ -e go ] || sleep {shell.mark}",
    )  # fmt: skip
    with shell.started(argv) as launcher:
        await_up(shell)
        seen = shell.run(shell.hydra("status", f"{shell.folder}/run"))
        assert len(re.findall(r"\brunning\b", seen.stdout)) >= 2, seen.stdout
        assert "pending" in seen.stdout
        assert sorted(path.name for path in shell.folder.glob("at.*")) == ["at.0", "at.1"]
        assert shell.run(shell.hydra("cancel", f"{shell.folder}/run", "1")).returncode == 0
        assert shell.run(shell.hydra("cancel", f"{shell.folder}/run")).returncode == 0
        assert launcher.wait(200) != 0
    assert not shell.running("node01", "node02")
    (shell.folder / "go").touch()
    done = shell.run(shell.hydra("resume", f"{shell.folder}/run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [shell.outcome(num)["status"] for num in range(3)] == ["completed"] * 3


def packed(shell: Shell, *words: str) -> list[str]:
    """A sweep of packed runs on hosts that have two cores, and two GPUs of odd numbers."""
    return shell.hydra(
        "run", "--fill", "-m", *shell.hosts.overrides, f"hydra.sweep.dir={shell.folder}/run", "launch.allocations=1",
        "resources.procs_per_node=1", "resources.cpus_per_proc=1", "system.cores_per_node=2", "system.gpus_per_node=2",
        "resources.time_limit=1h",
        "scheduler.setup_lines=['export CUDA_VISIBLE_DEVICES=5,7']", *words,
    )  # fmt: skip


def test_packed_runs_of_several_sizes_share_hosts_and_never_a_core_or_a_gpu(shell: Shell) -> None:
    (shell.folder / "step.py").write_text(STEP)
    sizes = ("resources.nodes=1,2", "resources.gpus_per_proc=1,2", "+x=0")
    argv = packed(shell, TWO, "launch.pack=auto", *sizes, "--", sys.executable, "step.py", str(shell.folder), "{x}")
    done = shell.run(argv)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 runs in 1 allocation of 2 nodes" in done.stdout and "a job for each run" in done.stdout
    assert [shell.outcome(num)["status"] for num in range(4)] == ["completed", "failed", "completed", "completed"]
    held = told(shell.folder)
    check_apart(held)
    assert {(what, at) for _, _, mine in held for _, what, at in mine if what == "gpu"} == {("gpu", 5), ("gpu", 7)}
    assert {host for _, _, mine in held for host, *_ in mine} == {"node01", "node02"}


def test_packed_runs_are_cancelled_alone_and_do_not_outlive_their_launcher(shell: Shell) -> None:
    """Two at a time of three on one host: one is cancelled, the next begins; the rest goes back to `resume`."""
    run, one = f"{shell.folder}/run", ("scheduler.hosts=[node01]", "launch.pack=2", "+key=0,1,2")
    argv = packed(shell, *one, "resources.gpus_per_proc=0", "--", "bash", "run.sh", "{key}")
    (shell.folder / "run.sh").write_text(f"[ -e go ] || {{ touch at.$1; sleep {shell.mark}; }}\n")
    with shell.started(argv) as launcher:
        wait_for(lambda: len(list(shell.folder.glob("at.*"))) == 2, 200, "two runs")
        assert "waits in its allocation" in shell.run(shell.hydra("status", run)).stdout
        assert shell.run(shell.hydra("cancel", run, "0")).returncode == 0
        wait_for(lambda: len(list(shell.folder.glob("at.*"))) == 3, 200, "the next one")
        assert shell.outcome(0)["status"] == "cancelled"
        launcher.send_signal(signal.SIGKILL)
        await_nothing(shell, "node01")
        assert await_true(lambda: "running" not in shell.run(shell.hydra("status", run)).stdout)
    (shell.folder / "go").touch()
    done = shell.run(shell.hydra("resume", run, "0-2"))
    assert done.returncode == 0 and "3 of 3 runs are submitted again" in done.stdout, done.stdout + done.stderr
    assert [shell.outcome(num)["status"] for num in range(3)] == ["completed"] * 3


def test_a_host_that_is_lost_gets_no_further_packed_runs(shell: Shell) -> None:
    """The connections to one host break: what needs both is told why, the others go on where there is one."""
    program = f'[ "$(hostname)" = node01 ] || {{ touch at.$1; sleep {shell.mark}; }}'
    (shell.folder / "run.sh").write_text(program + "\n")
    sizes = ("launch.pack=2", "resources.gpus_per_proc=2", "resources.nodes=1", "+x=range(3)")
    with shell.started(packed(shell, TWO, *sizes, "--", "bash", "run.sh", "{x}")) as launcher:
        wait_for(lambda: list(shell.folder.glob("at.*")), 200, "one runs on node02")
        mine = subprocess.run(["pgrep", "-f", f"^ssh .*{shell.hosts.config} .*node02"], capture_output=True, text=True)
        for pid in mine.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        assert launcher.wait(200) == 1
    ended = [shell.outcome(num)["status"] for num in range(3)]
    assert sorted(ended) == ["completed"] * 2 + ["failed"]
    assert len(list(shell.folder.glob("at.*"))) == 1


APP = """\
import os, hydra, hpc_hydra
from pathlib import Path

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    with hpc_hydra.distributed(cfg) as dist:
        import torch
        total = torch.tensor([dist.rank + 1.0])
        torch.distributed.all_reduce(total)
        seen = (total.item(), cfg.note, str(dist.output_dir), os.environ["MASTER_PORT"])
        Path(cfg.out, f"rank{dist.rank}").write_text(repr(seen))

if __name__ == "__main__":
    main()
"""


PLAIN = """\
import os, sys
names = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NOTE")
with open("rank" + os.environ["RANK"], "w") as file:
    file.write(" ".join([*(os.environ[name] for name in names), *sys.argv[1:]]))
"""


def by_hand(printed: str) -> None:
    """Types on each node what a dry run has printed for it, on both at once, to the end."""
    lines = printed[printed.index("by hand, without ssh") :].splitlines()
    processes = []
    for node in ("node01", "node02"):
        at = lines.index(f"  {node}:")
        text = "\n".join(line for line in lines[at + 1 : at + 8] if line.startswith("    ")).split(f"\n  {node}")[0]
        text = text.partition("torchrun")[0] + "torchrun" + text.partition("torchrun")[2].split("\n")[0]
        argv = [str(SCRIPTS / "node"), "exec", node, "bash", "-c", text]
        processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in processes:
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said


def test_the_commands_of_a_dry_run_work_by_hand_on_each_node_without_ssh(shell: Shell) -> None:
    (shell.folder / "app.py").write_text(APP)
    (shell.folder / "config.yaml").write_text("defaults: [hpc, _self_]\nnote: x\nout: ???\n")
    words = ["scheduler=ssh", TWO, "resources.nodes=2", "rendezvous=static", "rendezvous.port=29872"]
    dry = shell.run(
        [sys.executable, "app.py", "-m", *words, f"out={shell.folder}", "note='a b'", "launch.dry_run=true"]
    )
    by_hand(dry.stdout)
    seen = [eval((shell.folder / f"rank{rank}").read_text()) for rank in (0, 1)]
    assert seen[0] == seen[1]
    assert seen[0][0::2][0] == 3.0
    assert (seen[0][1], seen[0][3]) == ("a b", "29872")
    assert (Path(seen[0][2]) / ".hydra/overrides.yaml").exists()


def test_those_of_a_plain_script_work_by_hand_too(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(PLAIN)
    (shell.folder / "train.sh").write_text('exec python3 train.py "$@"\n')
    words = ["scheduler=ssh", TWO, "resources.nodes=2", "rendezvous=static", "rendezvous.port=29873"]
    argv = shell.hydra("run", *words, "launch.env.NOTE='a b'", "launch.dry_run=true", "--", "bash", "train.sh", "it's")
    dry = shell.run(argv)
    assert dry.returncode == 0, dry.stderr
    by_hand(dry.stdout)
    seen = [(shell.folder / f"rank{rank}").read_text() for rank in (0, 1)]
    assert seen == ["2 node01 29873 a b it's"] * 2


def test_agents_start_the_ranks_on_two_hosts(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(PLAIN)
    words = [TWO, "resources.nodes=2", "resources.procs_per_node=1", "rendezvous=static", "launch.env.NOTE='a b'"]
    done = shell.run(shell.launch(*words, "--", "train.py", "it's"))
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [(shell.folder / f"rank{rank}").read_text().split() for rank in (0, 1)]
    assert seen[0] == seen[1] == ["2", "node01", seen[0][2], "a", "b", "it's"]
    assert (shell.outcome()["status"], shell.outcome()["world_size"]) == ("completed", 2)
