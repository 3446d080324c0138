"""Stores and an all-reduce of lists of numbers, as in `torch.distributed`: rank 0 serves the store and reduces."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any


class ReduceOp:
    SUM, MAX = sum, max


class Backend:
    backend_list = ("undefined", "gloo")


def is_backend_available(name: str) -> bool:
    return name == "gloo"


class _Values:
    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def add(self, key: str, more: int) -> int:
        with self.changed:
            total = int(self.values.get(key, 0)) + more
            self.values[key] = str(total)
            self.changed.notify_all()
            return total

    def get(self, key: str, seconds: float) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, seconds):
                raise TimeoutError(f"no {key} within {seconds:g} s")
            return self.values[key]

    def has(self, key: str) -> bool:
        with self.changed:
            return key in self.values

    def delete(self, key: str) -> bool:
        with self.changed:
            return self.values.pop(key, None) is not None


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        values: _Values = self.server.values  # type: ignore[attr-defined]
        for line in self.rfile:
            what, *args = json.loads(line)
            try:
                answer: Any = {"is": getattr(values, what)(*args)}
            except TimeoutError as error:
                answer = {"error": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


class Store:
    """What all stores have."""

    seconds = 300.0

    def _ask(self, what: str, *args: Any) -> Any:
        raise NotImplementedError

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value if isinstance(value, str) else value.decode())

    def add(self, key: str, more: int) -> int:
        return int(self._ask("add", key, more))

    def get(self, key: str) -> bytes:
        return str(self._ask("get", key, self.seconds)).encode()

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key))

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._ask("has", key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (self.seconds if timeout is None else timeout.total_seconds())
        for key in keys:
            self._ask("get", key, max(0.0, end - time.monotonic()))


class HashStore(Store):
    def __init__(self) -> None:
        self._values = _Values()

    def _ask(self, what: str, *args: Any) -> Any:
        return getattr(self._values, what)(*args)


class TCPStore(Store):
    def __init__(
        self, host: str, port: int, *, is_master: bool, timeout: timedelta, wait_for_workers: bool, multi_tenant: bool
    ) -> None:
        self.seconds, self._lock = timeout.total_seconds(), threading.Lock()
        if is_master:
            self._server = _Server((host, port), _Handler)
            self._server.values = _Values()  # type: ignore[attr-defined]
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
            port = self._server.server_address[1]
        self.port = port
        self._file = _connect(host, port, self.seconds).makefile("rwb")

    def _ask(self, what: str, *args: Any) -> Any:
        with self._lock:
            self._file.write(json.dumps([what, *args]).encode() + b"\n")
            self._file.flush()
            line = self._file.readline()
        if not line:
            raise ConnectionError("Connection closed by peer")
        answer = json.loads(line)
        if "error" in answer:
            raise TimeoutError(answer["error"])
        return answer["is"]


class PrefixStore(Store):
    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store, self.seconds = prefix, store, store.seconds

    def _ask(self, what: str, *args: Any) -> Any:
        return self._store._ask(what, f"{self._prefix}/{args[0]}", *args[1:])


def _connect(host: str, port: int, seconds: float) -> socket.socket:
    end = time.monotonic() + seconds
    while True:
        try:
            made = socket.create_connection((host, port), timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
            continue
        made.settimeout(None)
        return made


class _Group:
    """Rank 0 has a connection to each other rank, which sends it its values and gets the sums."""

    def __init__(self, backend: str, store: Store, rank: int, world_size: int) -> None:
        self.backend, self.rank, self.world_size = backend, rank, world_size
        self.files: list[Any] = []
        if world_size == 1:
            return
        if rank == 0:
            host = socket.gethostbyname(socket.gethostname())
            with socket.create_server((host, 0)) as server:
                store.set("reduce", f"{host}:{server.getsockname()[1]}")
                server.settimeout(store.seconds)
                for _ in range(world_size - 1):
                    made, _ = server.accept()
                    made.settimeout(None)
                    self.files.append(made.makefile("rwb"))
        else:
            host, _, port = store.get("reduce").decode().rpartition(":")
            self.files.append(_connect(host, int(port), store.seconds).makefile("rwb"))

    def all_reduce(self, values: list[Any], op: Callable[[tuple[Any, ...]], Any]) -> None:
        if self.rank == 0:
            parts = [values, *(self._receive(file) for file in self.files)]
            values[:] = [op(column) for column in zip(*parts, strict=True)]
        for file in self.files:
            file.write(json.dumps(values).encode() + b"\n")
            file.flush()
        if self.rank:
            values[:] = self._receive(self.files[0])

    @staticmethod
    def _receive(file: Any) -> list[Any]:
        if not (line := file.readline()):
            raise ConnectionError("Connection closed by peer")
        found: list[Any] = json.loads(line)
        return found


_group: _Group | None = None


def _the_group() -> _Group:
    assert _group is not None, "init_process_group was not called"
    return _group


def is_initialized() -> bool:
    return _group is not None


def init_process_group(backend: str, *, store: Store, rank: int, world_size: int) -> None:
    global _group
    _group = _Group(backend, store, rank, world_size)


def destroy_process_group() -> None:
    global _group
    _group = None


def get_backend() -> str:
    return _the_group().backend


def get_rank() -> int:
    return _the_group().rank


def get_world_size() -> int:
    return _the_group().world_size


def all_reduce(values: list[Any], op: Callable[[tuple[Any, ...]], Any] = ReduceOp.SUM) -> None:
    _the_group().all_reduce(values, op)


def barrier(device_ids: Any = None) -> None:
    all_reduce([0])
