"""What runs on each host of ``scheduler=ssh``: starts the host's ranks, and outlives neither them nor the connection.

    ssh HOST python -m hpc_hydra.node host

Its standard input is the connection: first a line of JSON that says what to start (`Order`), then words such as
``signal 15``. When it ends, or is silent for too long, the launcher has gone, and everything here is stopped. How it
goes is told on standard error, in lines that begin with a word nobody else knows.
Must not know: what the command does, how ssh was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.processes import (
    GRACE,
    STOP,
    WARN,
    Signals,
    adopt_orphans,
    die_with_parent,
    exit_code,
    kill_children,
    no_input,
    signal_group,
)

MARK = b"\x1e"  # begins what is told, followed by the order's word
SILENCE = 120.0  # seconds without a word, after which the launcher's machine is taken for gone


@dataclass(frozen=True)
class Order:
    """What is to be started on a host."""

    word: str
    command: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    needed: list[str] = field(default_factory=list)  # directories that must be there, as on the launcher's machine
    umask: int = 0o022

    def line(self) -> bytes:
        """As it goes through the connection."""
        return json.dumps(asdict(self)).encode() + b"\n"


def host(_: Sequence[str] = ()) -> int:
    """Returns the exit code of the command: 128+n for signal n."""
    signals = Signals()
    signals.start_with_none_blocked()
    first, rest = _first_line()
    try:
        order = Order(**json.loads(first))
    except (ValueError, TypeError):
        print("hpc_hydra: no order came: this is started by the launch command of scheduler=ssh", file=sys.stderr)
        return 2
    word = order.word.encode()
    _tell(word, started=os.getpid(), host=socket.gethostname())
    code, reason = _carry_out(order, rest, signals)
    _tell(word, ended=code, reason=reason)
    return code


def _first_line() -> tuple[bytes, bytes]:
    data = b""
    while b"\n" not in data:
        block = os.read(0, 1 << 16)
        if not block:
            break
        data += block
    line, _, rest = data.partition(b"\n")
    return line, rest


def _tell(word: bytes, **what: object) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        os.write(2, MARK + word + b" " + json.dumps(what).encode() + b"\n")


def _carry_out(order: Order, rest: bytes, signals: Signals) -> tuple[int, str | None]:
    """Start the command and see to its end: exit code, and why it failed where its ranks cannot say."""
    here = socket.gethostname()
    for path in order.needed:
        if not Path(path).is_dir():
            return 2, f"the directory {path} is not there: all hosts must share it with the launcher's machine"
    adopt_orphans()
    os.umask(order.umask)
    reader, writer = os.pipe()
    try:
        child = _start(order, signals, writer)
    except OSError as error:
        return 126, f"{order.command[0]} cannot be started on {here}: {error.strerror}"
    os.close(writer)
    threading.Thread(target=_listen, args=(rest,), daemon=True).start()
    kill_at: float | None = None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        signum = signals.wait(None if kill_at is None else kill_at - time.monotonic())
        if signum in STOP or signum in WARN:
            signal_group(child, signum)
        if signum in STOP and kill_at is None:
            kill_at = time.monotonic() + GRACE + 2  # spawn kills its ranks before
        if kill_at is not None and time.monotonic() >= kill_at:
            signal_group(child, signal.SIGKILL)
            kill_at = time.monotonic() + GRACE
    signal_group(child, signal.SIGKILL)
    kill_children()  # what ranks left behind, too
    code, _ = exit_code(status)
    return code, _failed_setup(reader, code)


def _start(order: Order, signals: Signals, writer: int) -> int:
    parent = os.getpid()
    env = {**os.environ, **order.env, envvars.SETUP_FD: str(writer)}
    os.chdir(order.cwd)
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        die_with_parent(parent, signal.SIGTERM)
        signals.restore()
        no_input()
        os.set_inheritable(writer, True)
        os.execvpe(order.command[0], order.command, env)
    except OSError as error:
        print(f"hpc_hydra: {order.command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _listen(data: bytes) -> None:
    """In a thread: obey what comes through the connection; its end is the launcher's."""
    while True:
        *lines, data = data.split(b"\n")
        for line in lines:
            words = line.split()
            if words[:1] == [b"signal"] and len(words) == 2 and words[1].isdigit():
                os.kill(os.getpid(), int(words[1]))
        if not select.select([0], [], [], SILENCE)[0]:
            break
        block = os.read(0, 1 << 16)
        if not block:
            break
        data += block
    os.kill(os.getpid(), signal.SIGTERM)


def _failed_setup(reader: int, code: int) -> str | None:
    """Why no rank was started, where a setup line failed."""
    os.set_blocking(reader, False)
    try:
        line = os.read(reader, 1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        line = ""
    return f"a setup line failed with exit code {code}: {line}" if line else None
