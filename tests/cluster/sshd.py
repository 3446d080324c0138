"""The fixture `ssh_hosts`: real sshd on the four nodes of the test cluster, with keys and configuration of their own.

They listen at a port of their own and take one key, made for the session; nothing of the user's is read or written.
Debian: ``apt-get install openssh-server openssh-client``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fixtures import NODES, SCRIPTS, Cluster, run, wait_for

SSHD = "/usr/sbin/sshd"
LIFE = 3600  # seconds after which they end by themselves, should nobody stop them
BELOW = 22000  # first port that is tried


@dataclass(frozen=True)
class SshHosts:
    """Hosts that ``ssh -F config`` reaches."""

    config: Path
    folder: Path
    port: int
    names: tuple[str, ...] = NODES

    @property
    def options(self) -> tuple[tuple[str, str | None], ...]:
        """For `Request.launch_args`."""
        return (("F", str(self.config)),)

    @property
    def fields(self) -> dict[str, Any]:
        """Of a `Request` for two of the hosts."""
        return {"hosts": self.names[:2], "launch_args": self.options}

    @property
    def overrides(self) -> list[str]:
        """For a Hydra application."""
        return ["scheduler=ssh", f"scheduler.launch_extra.F={self.config}"]

    def processes(self, node: str, pattern: str) -> list[str]:
        """Command lines on a node that hold ``pattern``."""
        done = run(SCRIPTS / "node", "exec", node, "pgrep", "-a", "-f", pattern)
        return [line for line in done.stdout.splitlines() if "pgrep" not in line]


def is_here() -> bool:
    """Whether sshd and ssh are installed."""
    return Path(SSHD).exists() and shutil.which("ssh") is not None


def unavailable() -> str | None:
    """Why there can be none here; None where there can."""
    if is_here() or (os.geteuid() == 0 and shutil.which("apt-get")):
        return None
    return "no sshd, and only root can install it (apt-get install openssh-server openssh-client)"


def install() -> None:
    """Debian's packages. Raises `RuntimeError` where they are not to be had; starts no service."""
    done = run("bash", "-c", "RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
               "openssh-server openssh-client", timeout=600)  # fmt: skip
    if not is_here():
        raise RuntimeError(f"sshd cannot be installed\n{done.stdout}{done.stderr}")


@pytest.fixture(scope="session")
def ssh_daemons(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Keys and configuration, made once; what was started is stopped at the end."""
    if not is_here():
        install()
    folder = tmp_path_factory.mktemp("sshd")
    port = BELOW + os.getpid() % 10_000
    for name in ("host", "user"):
        done = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
        assert done.returncode == 0, done.stderr
    (folder / "authorized_keys").write_text((folder / "user.pub").read_text())
    key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known_hosts").write_text("".join(f"[{name}]:{port} {' '.join(key)}\n" for name in NODES))
    (folder / "sshd_config").write_text(
        f"Port {port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\n"
        "UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"MaxStartups 200\nPidFile none\nPrintMotd no\nSetEnv HOME={folder}\n"  # no start-up files of the user's shell
    )
    config = folder / "config"
    config.write_text(
        f"Host node0*\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
    )
    yield SshHosts(config, folder, port)
    for node in NODES:
        run(SCRIPTS / "node", "exec", node, "bash", "-c", f'kill "$(cat "{folder}/{node}.pid")"')  # if it was started


@pytest.fixture
def ssh_hosts(ssh_daemons: SshHosts) -> SshHosts:
    """Started where they do not run: a node may have been started again by another test."""
    for node in NODES:
        if not _listens(node, ssh_daemons.port):
            _start(node, ssh_daemons.folder)
    for node in NODES:
        log = f"{ssh_daemons.folder}/{node}.log"
        wait_for(partial(_listens, node, ssh_daemons.port), 200, f"sshd of {node}: {log}")
    return ssh_daemons


def _start(node: str, folder: Path) -> None:
    log = (folder / f"{node}.log").open("ab")
    inside = f'mkdir -p /run/sshd; echo $$ > "{folder}/{node}.pid"; exec timeout {LIFE} {SSHD} -D -e -f "$0"'
    subprocess.Popen(
        [SCRIPTS / "node", "exec", node, "bash", "-c", inside, folder / "sshd_config"],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
    )  # fmt: skip


def _listens(node: str, port: int) -> bool:
    try:
        socket.create_connection((node, port), timeout=1).close()
    except OSError:
        return False
    return True
