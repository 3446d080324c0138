"""What stops the test cluster from coming up is named in one line. `up --check` changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.fixtures import CONF, SCRIPTS, Cluster

ALONE = """
import socket, subprocess, sys
subprocess.run("mkdir -p /etc/slurm && mount -t tmpfs none /etc/slurm && ip link set lo up", shell=True, check=True)
with socket.create_server(("127.0.0.1", 33306)):
    sys.exit(subprocess.run(["bash", sys.argv[1], "--check"]).returncode)
"""
"""In a network of its own, where no cluster is configured, something else has the port of the database."""


def check(*argv: str | Path, state: Path) -> tuple[int, list[str]]:
    env = {**os.environ, "TEST_SLURM_DIR": str(state)}
    done = subprocess.run([*argv], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert not done.stdout
    return done.returncode, done.stderr.splitlines()


@pytest.mark.needs("networks")
def test_a_port_that_is_taken_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mariadbd.pid").write_text(f"{os.getpid()} 1\n")  # stale: this process began at another time
    code, lines = check("unshare", "-n", "-m", sys.executable, "-c", ALONE, SCRIPTS / "up", state=tmp_path)
    assert code != 0
    [line] = [line for line in lines if "33306" in line]
    assert line.startswith("port 33306, which mariadbd needs, is taken")
    assert line.endswith("Try: TEST_SLURM_DBPORT=33307")


def test_a_cluster_of_another_directory_is_named_with_what_stops_it(slurm_cluster: Cluster, tmp_path: Path) -> None:
    state = CONF.readlink().parents[1]
    line = f"another test cluster runs here, from {state}. Try: TEST_SLURM_DIR={state} bash {SCRIPTS / 'down'}"
    assert check("bash", SCRIPTS / "up", "--check", state=tmp_path) == (1, [line])
    assert not list(tmp_path.iterdir())


def test_a_cluster_is_not_in_its_own_way(slurm_cluster: Cluster) -> None:
    assert check("bash", SCRIPTS / "up", "--check", state=CONF.readlink().parents[1]) == (0, [])
