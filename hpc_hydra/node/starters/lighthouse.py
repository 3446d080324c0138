"""torchft's lighthouse on the first node of a job, at one address and port for the whole job.

    python -m hpc_hydra.node lighthouse [--port N]

This process reserves the port and publishes it in the attempt's directory. The lighthouse is its child, restarted on
the same port if it dies. It listens on the published address only: whoever reaches it may end replicas. Must not
know: torch; replicas.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.errors import RendezvousError
from hpc_hydra.node.rank import rendezvous
from hpc_hydra.node.rank.context import read_context, record_startup_error
from hpc_hydra.node.rank.logs import open_log
from hpc_hydra.planning import addresses
from hpc_hydra.planning.types import RankInfo, Rendezvous
from hpc_hydra.processes import STOP, Signals, die_with_parent, exit_code, kill_children, name_of
from hpc_hydra.records.files import write_json

TICK_MS = 100  # interval of the lighthouse's quorum checks
_PAUSE = 0.5  # seconds before a dead lighthouse is restarted
_OFTEN = re.compile(r"\[INFO\].* - (Quorum status|Received quorum request)")
_MEMBER = re.compile(r'QuorumMember \{ replica_id: "([^"]*)".*?store_address: "([^"]*)", step: (\d+)')
_HOPELESS = 5  # quick deaths in a row before this gives up


def lighthouse(argv: Sequence[str]) -> int:
    """Keep a lighthouse running until a stop signal. Raises `RendezvousError` if it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m hpc_hydra.node lighthouse", allow_abbrev=False)
    parser.add_argument("--port", type=int, default=None, help="where it was before")
    options = parser.parse_args(argv)
    signals = Signals()
    parent = os.getppid()
    die_with_parent(parent, signal.SIGTERM)
    host = socket.gethostname()
    context = read_context(os.environ, host)
    with record_startup_error(context):
        check_installed()
        settings = context.plan.rendezvous
        hosts = tuple(os.environ.get(envvars.JOB_HOSTS, host).split(","))
        info = RankInfo(0, 0, 1, 1, 0, len(hosts), hosts[0], hosts)
        fixed = Rendezvous(port=options.port) if options.port else settings
        with rendezvous.reserve_port(fixed) as reserved:
            endpoint = rendezvous.Endpoint(
                host=host,
                address=rendezvous.address_of(settings, info),
                port=reserved.getsockname()[1],
                token=context.attempt.name,
                job_id=context.attempt.job_id,
                world_size=context.plan.replicas,
                published=time.time(),
            )
            folder = context.paths.attempt(context.attempt.name)
            rendezvous.publish(context.paths.rendezvous(context.attempt.name), endpoint)
            try:
                return _keep(endpoint, settings, folder, reserved, signals, parent)
            finally:
                kill_children()


def _keep(
    endpoint: rendezvous.Endpoint,
    settings: Rendezvous,
    folder: Path,
    reserved: socket.socket,
    signals: Signals,
    parent: int,
) -> int:
    short, log = 0, folder / "lighthouse.log"
    while True:
        begun = time.monotonic()
        child, reader = _start(endpoint, settings, reserved, signals)
        log_filter = LogFilter(reader, log, folder / "quorum.json")
        log_filter.start()
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if signals.wait(None) in STOP or os.getppid() != parent:
                return 0
        log_filter.join()
        code, killed = exit_code(ended[1])
        short = short + 1 if time.monotonic() - begun < 10 * _PAUSE else 0
        how = f"killed by {name_of(killed)}" if killed else f"exit code {code}"
        print(f"hpc_hydra: the lighthouse ended: {how}; see {log}", file=sys.stderr, flush=True)
        if short >= _HOPELESS:
            raise RendezvousError(f"the lighthouse ends again and again: {how}", where=str(log))
        end = time.monotonic() + _PAUSE
        while (left := end - time.monotonic()) > 0:
            if signals.wait(left) in STOP:
                return 0


def _start(
    endpoint: rendezvous.Endpoint, settings: Rendezvous, reserved: socket.socket, signals: Signals
) -> tuple[int, int]:
    """Start the lighthouse; returns its pid and a pipe with its output."""
    keeper = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        die_with_parent(keeper)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        reserved.close()
        signals.restore()
        server = _serve(endpoint, settings)
        while server is not None:
            signal.pause()
    except BaseException as error:
        os.write(2, f"hpc_hydra: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _serve(endpoint: rendezvous.Endpoint, settings: Rendezvous) -> Any:
    """Start the server, which runs as long as the returned object exists. Raises what torchft raises."""
    places = [*bind_addresses(endpoint), "::" if socket.has_ipv6 else "0.0.0.0"]
    for place in places:
        try:
            return extension().LighthouseServer(
                bind=addresses.endpoint(place, endpoint.port),
                min_replicas=settings.min_replicas,
                join_timeout_ms=1000 * settings.join_timeout,
                quorum_tick_ms=TICK_MS,
                heartbeat_timeout_ms=1000 * settings.heartbeat_timeout,
            )
        except Exception:
            if place == places[-1]:
                raise
    return None


class LogFilter(threading.Thread):
    """Filters the lighthouse's log, ten lines a step: keeps only what is new.

    Each change of the quorum is a line of its log, and replaces ``quorum.json``.
    """

    def __init__(self, reader: int, log: Path, quorum: Path) -> None:
        super().__init__(daemon=True)
        self._reader, self._log, self._quorum = reader, open_log(log), quorum
        self._members: list[dict[str, object]] = []

    def run(self) -> None:
        with os.fdopen(self._reader, errors="replace") as lines:
            for line in lines:
                members = members_of(line)
                if members is not None and {each["id"] for each in members} != {each["id"] for each in self._members}:
                    self._members = members
                    with contextlib.suppress(OSError):
                        write_json(self._quorum, {"time": time.time(), "members": members})
                elif members is not None or _OFTEN.search(line):
                    continue
                os.write(self._log, line.encode())
        os.close(self._log)


def members_of(line: str) -> list[dict[str, object]] | None:
    """Return the members of a quorum in a log line; None for other lines."""
    if "Quorum! " not in line:
        return None
    return [{"id": m[1], "store": m[2], "step": int(m[3])} for m in _MEMBER.finditer(line)]


def bind_addresses(endpoint: rendezvous.Endpoint) -> list[str]:
    """Return the address to listen on, that of the replicas; empty if this host cannot resolve it."""
    try:
        found = socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = [str(entry[4][0]) for entry in found]
    if any(":" in host for host in hosts) and len(set(hosts)) > 1:
        return []  # replicas may try either family
    return hosts[:1]


def url(endpoint: rendezvous.Endpoint) -> str:
    """``TORCHFT_LIGHTHOUSE``."""
    return f"http://{addresses.endpoint(endpoint.address, endpoint.port)}"


def check_installed() -> None:
    """Raise `RendezvousError` unless torchft is installed."""
    if importlib.util.find_spec("torchft") is None:
        raise RendezvousError(
            f"{sys.executable} on {socket.gethostname()} has no package torchft",
            where="rendezvous",
            fix="pip install torchft (or torchft-nightly), or rendezvous=torchrun",
        )


def extension() -> ModuleType:
    """Import torchft's extension module alone: the package imports torch, which takes seconds."""
    package = importlib.util.find_spec("torchft")
    for folder in (package.submodule_search_locations or []) if package else []:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = Path(folder, f"_torchft{suffix}")
            if file.exists():
                loader = importlib.machinery.ExtensionFileLoader("torchft._torchft", str(file))
                spec = importlib.util.spec_from_file_location("torchft._torchft", file, loader=loader)
                assert spec is not None
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
                return module
    return importlib.import_module("torchft._torchft")
