"""The agent on each host of ``scheduler=ssh``: starts the ranks of the host, and ends with them or the connection.

    ssh HOST python -m hpc_hydra.node host

Its standard input is the connection: a line of JSON with the command (`Order`), then lines such as ``signal 15``. When
the connection closes or is silent for too long, the launcher is gone, and all processes are stopped. Reports go to
standard error, in lines that begin with a secret word.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.processes import (
    GRACE,
    STOP,
    Children,
    Signals,
    adopt_orphans,
    exit_code,
    kill_children,
    no_input,
    signal_group,
    start_program,
)

MARK = b"\x1e"  # first byte of a report, before the word of the order
SILENCE = 120.0  # seconds without input after which the launcher's machine counts as lost


@dataclass(frozen=True)
class Order:
    """What to start on a host."""

    word: str
    command: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    needed: list[str] = field(default_factory=list)  # directories of the launcher's machine that must exist
    umask: int = 0o022

    def line(self) -> bytes:
        """Encode for the connection."""
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
    children = Children([child], signals, signal_group)
    while not (ended := children.wait()):
        if children.received in STOP and not children.are_stopping:
            children.kill_in(GRACE + 4)  # spawn kills its ranks before
    status = ended[0][1]
    signal_group(child, signal.SIGKILL)
    kill_children()  # what ranks left behind, too
    code, _ = exit_code(status)
    return code, _failed_setup(reader, code)


def _start(order: Order, signals: Signals, writer: int) -> int:
    def prepare() -> None:
        no_input()
        os.set_inheritable(writer, True)

    os.chdir(order.cwd)
    env = {**os.environ, **order.env, envvars.SETUP_FD: str(writer)}
    return start_program(order.command, signals, env=env, prepare=prepare)


def _listen(data: bytes) -> None:
    """In a thread: execute the commands from the connection; stop when it closes."""
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
    """Return the failed setup line because of which no rank was started, if any."""
    os.set_blocking(reader, False)
    try:
        line = os.read(reader, 1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        line = ""
    return f"a setup line failed with exit code {code}: {line}" if line else None
