"""``run``: ``subprocess.run`` for Python programs at a fraction of the CPU time: they are forked from a server that has
imported Hydra and hpc_hydra, or torch too (``torch=True``), composed once, and done nothing else.

Each is a process of its own: arguments, environment, directory, streams, signals and exit code are those of a new
interpreter. Its parent and its command line in ``/proc`` are not. Where a fork would differ, ``run`` starts an
interpreter; tests of start-up, imports and signals do that themselves.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVER = "import sys; from tests.forking import serve; serve(*map(int, sys.argv[1:]))"
HYDRA = ("hydra.main", "hydra._internal.hydra", "hydra._internal.callbacks")
TORCH = (  # the second is imported by every optimizer
    "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.nn.parallel",
)  # fmt: skip
OF_SUBMITIT = {f"hpc_hydra.schedulers.{name}" for name in ("executor", "functions", "watcher")}
READ_AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "TZ",
    "OMP_",
    "MKL_",
    "TORCH_",
    "TORCHINDUCTOR_",
)  # by an interpreter, or by what is imported
FOLLOWED = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}  # by a fork too
_STARTING = threading.Lock()
BEGAN_WITH = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def run(
    argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: str | Path | None = None, timeout: float = 240,
    torch: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run ``[sys.executable, FILE | "-m" | "-c", …]`` to its end, without standard input; ``timeout`` is in seconds."""
    words, folder = [str(word) for word in argv], Path(cwd or Path.cwd())
    if not _forkable(words, env, folder, torch):
        return subprocess.run(
            words, cwd=folder, env=env, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    os.umask(mask := os.umask(0))
    request = json.dumps({"argv": words, "cwd": str(folder), "env": dict(env), "umask": mask})
    with ExitStack() as opened:
        pipes = [os.pipe() for _ in range(3)]
        *streams, told = (opened.enter_context(open(reading, "rb", buffering=0)) for reading, _ in pipes)
        given = [os.open(os.devnull, os.O_RDONLY), *(writing for _, writing in pipes)]
        try:
            socket.send_fds(_server(torch), [request.encode()], given)
        finally:
            for number in given:
                os.close(number)
        pid = int(told.readline())
        try:
            text = _read([stream.fileno() for stream in streams], time.monotonic() + timeout)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout) from None
        return subprocess.CompletedProcess(words, int(told.readline()), *text)


def _read(pipes: list[int], end: float) -> list[str]:
    """What comes through each pipe until the last of its writers has closed it."""
    poll, found = select.poll(), dict.fromkeys(pipes, b"")
    left = set(pipes)
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    while left:
        if not (ready := poll.poll(max(0, end - time.monotonic()) * 1000)):
            raise TimeoutError
        for pipe, _ in ready:
            found[pipe] += (part := os.read(pipe, 1 << 16))
            if not part:
                poll.unregister(pipe)
                left.remove(pipe)
    return [found[pipe].decode().replace("\r\n", "\n") for pipe in pipes]


def ranks(
    argv: Sequence[str | Path], number: int, *, env: Mapping[str, str], cwd: Path, timeout: float = 240
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program as ``torchrun --standalone --nproc-per-node=NUMBER`` does, its ranks forked."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "GROUP_RANK": 0, "MASTER_PORT": port}

    def rank(num: int) -> subprocess.CompletedProcess[str]:
        mine = {name: str(value) for name, value in {**world, "RANK": num, "LOCAL_RANK": num}.items()}
        return run(argv, env={**env, **mine, "MASTER_ADDR": "127.0.0.1"}, cwd=cwd, timeout=timeout, torch=True)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(rank, range(number)))


def _forkable(words: list[str], env: Mapping[str, str], folder: Path, torch: bool) -> bool:
    """Whether a new interpreter would do nothing at its start that a fork leaves out."""
    if sys.platform != "linux" or words[0] != sys.executable or not folder.is_dir():
        return False
    if words[1] in ("-m", "-c") if words[1].startswith("-") else _is_source(folder / words[1]):
        path = [Path(part) for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
        ours = [part for part in (folder, *path) if (part / "hpc_hydra").is_dir()]
        changed = any((part / "sitecustomize.py").exists() for part in path)
        return ours[:1] == [ROOT] and not changed and _at_start(env) == _at_start(_environ(torch))
    return False


def _is_source(file: Path) -> bool:
    return file.is_file() and file.suffix != ".pyz"


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads, less what a fork follows too."""
    followed = FOLLOWED | ({"PYTHONWARNINGS"} if env.get("PYTHONWARNINGS") in (None, "ignore") else set())
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START) and name not in followed}


def _environ(torch: bool) -> dict[str, str]:
    """The server's environment."""
    threads = {"OMP_NUM_THREADS": "1"} if torch else {}
    return {**BEGAN_WITH, **threads, "PYTHONPATH": str(ROOT)}


def _server(torch: bool) -> socket.socket:
    with _STARTING:
        return _started(torch)


@cache
def _started(torch: bool) -> socket.socket:
    """The way to the server, which the workers of pytest-xdist share. It ends with the process that started them."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    kind, address = (socket.AF_UNIX, socket.SOCK_SEQPACKET), f"\0hpc_hydra-forking-{owner}-{int(torch)}"
    with socket.socket(*kind) as its:
        try:
            its.bind(address)
        except OSError:  # another worker's
            pass
        else:
            its.listen(64)
            subprocess.Popen(
                [sys.executable, "-c", SERVER, str(its.fileno()), str(owner), str(int(torch))], pass_fds=[its.fileno()],
                env=_environ(torch), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
    ours = socket.socket(*kind)
    while True:
        try:
            ours.connect(address)
        except ConnectionRefusedError:  # not yet listening
            time.sleep(0.01)
        else:
            return ours


def serve(number: int, owner: int, torch: int) -> None:
    """The server: forks for each request that comes through a connection to this socket, until its owner ends."""
    _import_all()
    _compose()
    for name in TORCH if torch else ():
        importlib.import_module(name)
    listening, gone = socket.socket(fileno=number), os.pidfd_open(owner)
    clients: list[socket.socket] = []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}  # process → where its end is told
    gc.collect()
    gc.freeze()
    while True:
        ready = select.select([listening, gone, woken, *clients], [], [])[0]
        if gone in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
        for pid in list(running):
            if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                _tell(where := running.pop(pid), os.waitstatus_to_exitcode(ended[1]))
                os.close(where)
        if listening in ready:
            clients.append(listening.accept()[0])
        for client in [each for each in clients if each in ready]:
            request, fds, *_ = socket.recv_fds(client, 1 << 20, 4)
            if not request:
                clients.remove(client)
                client.close()
                continue
            *streams, told = fds
            if pid := os.fork():
                _tell(told, pid)
                running[pid] = told
                for stream in streams:
                    os.close(stream)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for connection in (listening, *clients):
                connection.close()
            for stream, its in zip(streams, range(3), strict=True):
                os.dup2(stream, its)
            for unwanted in (*fds, *running.values(), woken, wake, gone):
                os.close(unwanted)
            code: int | None = 0
            try:
                _become(**json.loads(request))
            except SystemExit as end:
                if not isinstance(end.code, int | None):
                    raise
                code = end.code
            _end(code or 0)  # nothing holds the program's frames any more


def _end(code: int) -> None:
    """As an interpreter ends, which would also free all that was imported, and for that copy page after page."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()  # files that are still open are written
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):  # the interpreter has an exit code for it
        sys.exit(code)
    os._exit(code & 0xFF)


def _tell(where: int, number: int) -> None:
    try:
        os.write(where, b"%d\n" % number)
    except BrokenPipeError:  # nobody waits any more
        return


def _import_all() -> None:
    """What a command or a launch imports."""
    import hpc_hydra

    for name in HYDRA:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(hpc_hydra.__path__, "hpc_hydra."):
        if module.name.rpartition(".")[2] != "__main__" and module.name not in OF_SUBMITIT:
            importlib.import_module(module.name)
    assert "torch" not in sys.modules and "submitit" not in sys.modules


def _compose() -> None:
    """Compose once, for what Hydra, OmegaConf and hpc_hydra keep of it, and leave Hydra as it begins."""
    import hydra
    from hydra.core.singleton import Singleton
    from omegaconf.basecontainer import BaseContainer

    singletons, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
    with warnings.catch_warnings(), hydra.initialize(config_path=None, version_base=None):
        warnings.simplefilter("ignore")
        hydra.compose("hpc", ["scheduler=slurm", "+x=1"], return_hydra_config=True)
    Singleton._instances.clear()
    Singleton._instances.update(singletons)
    BaseContainer._resolvers.clear()
    BaseContainer._resolvers.update(resolvers)


def _become(argv: list[str], cwd: str, env: dict[str, str], umask: int) -> None:
    """Run a program as the interpreter does. Whatever it raises ends this process as it would end that one."""
    os.chdir(cwd)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(env)
    if env.get("PYTHONWARNINGS"):
        warnings.simplefilter("ignore")
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    mine = sys.path.index(str(ROOT))
    sys.path[: mine + 1] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.orig_argv[:] = argv
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if argv[1] == "-c":
        sys.argv = ["-c", *argv[3:]]
        exec(compile(argv[2], "<string>", "exec"), vars(main))
        return
    if argv[1] == "-m":
        sys.path[0], sys.argv = cwd, ["-m", *argv[3:]]
        runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]  # what python -m calls
        return
    sys.argv = argv[1:]
    file = os.path.join(cwd, argv[1])  # noqa: PTH118 - "./" stays, as in Python
    sys.path[0] = str(Path(file).resolve().parent)
    vars(main).update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    exec(compile(Path(file).read_bytes(), file, "exec"), vars(main))
