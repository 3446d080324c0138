"""``launch.snapshot``: a copy of the code, uncommitted changes included, from which the jobs of a sweep import.

Also records, for every sweep, commit, uncommitted changes, packages and command line. Must not know: schedulers.
"""

from __future__ import annotations

import io
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_hydra.config.secrets import masked_words
from hpc_hydra.errors import ConfigError
from hpc_hydra.processes import user_name
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Program
from hpc_hydra.records.layout import META, SweepPaths

KEY = "launch.snapshot"
LIMIT = 2**30  # bytes of a copy: more is data, not code
DIFF_LIMIT = 10 * 2**20  # bytes
PATIENCE = 60.0  # seconds until a git command times out
_OUTPUT = ("multirun", "outputs")  # where Hydra writes
_SKIPPED = ("__pycache__", "node_modules")


@dataclass(frozen=True)
class Snapshot:
    """Files below ``top``, by relative path, to copy into a folder of the sweep."""

    mode: str  # copy, git
    top: Path
    files: tuple[str, ...]
    target: Path

    def program(self, program: Program) -> Program:
        """Return the program with script, modules and search path in the snapshot."""
        moved = [entry for entry in map(self._moved, map(os.path.abspath, filter(None, sys.path))) if entry]
        first = self._moved(program.sys_path0) if program.sys_path0 else None
        pythonpath = [self._moved(entry) or entry for entry in program.pythonpath]
        target, argv = program.target, program.argv
        typed = program.typed
        if program.kind == "script":
            target = self._moved(target) or target
            typed = (target, *typed[1:]) if typed and target != program.target else typed
        if program.kind == "command" and argv:
            path = Path(program.cwd, argv[0])
            argv = (self._moved(str(path)) or argv[0], *argv[1:]) if path.is_file() else argv
        return replace(
            program,
            target=target,
            argv=argv,
            typed=typed,
            sys_path0=first or program.sys_path0,
            pythonpath=tuple(dict.fromkeys([*(entry for entry in moved if entry != first), *pythonpath])),
        )

    def _moved(self, path: str) -> str | None:
        """Return the path in the snapshot that corresponds to a path; None if it is not in the snapshot."""
        normal = Path(os.path.normpath(path))
        if not normal.is_relative_to(self.top):
            return None
        inside = normal.relative_to(self.top).as_posix()
        if inside != "." and not any(f == inside or f.startswith(f"{inside}/") for f in self.files):
            return None
        return str(self.target / inside)

    def write(self) -> str | None:
        """Copy the files. In mode "git", return the id of a commit that contains them."""
        self.target.mkdir(parents=True, exist_ok=True)
        if self.mode == "git":
            return self._commit()
        for name in self.files:
            source, target = self.top / name, self.target / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # deleted meanwhile
                shutil.copy2(source, target, follow_symlinks=False)
        return None

    def _commit(self) -> str:
        """Create a commit under ``refs/hpc_hydra/…``, without changing the user's branches or index."""
        index = self.target.parent / "snapshot.index"
        author = {"NAME": user_name(), "EMAIL": f"{user_name()}@{socket.gethostname()}"}
        env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in author.items()}
        env["GIT_INDEX_FILE"] = str(index)
        try:
            names = "\0".join(self.files).encode("utf-8", "surrogateescape")
            _git(self.top, "update-index", "--add", "-z", "--stdin", env=env, stdin=names)
            tree = _git(self.top, "write-tree", env=env).decode().strip()
            head = _head(self.top)
            parents = ["-p", head] if head else []
            message = f"hpc_hydra: {self.target.parents[1]}"
            commit = _git(self.top, "commit-tree", tree, *parents, "-m", message, env=env).decode().strip()
            _git(self.top, "update-ref", f"refs/hpc_hydra/{commit[:12]}", commit)
            data = _git(self.top, "archive", "--format=tar", commit)
        finally:
            index.unlink(missing_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(self.target, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))  # type: ignore[arg-type]
        return commit


def plan(mode: str, program: Program, root: Path) -> Snapshot | None:
    """Decide which files to copy, without writing anything. None if there is no snapshot.

    Raises:
        ConfigError: no git repository in mode "git", or more than `LIMIT` bytes.
    """
    if mode == "none":
        return None
    folder = Path(program.target).parent if program.kind == "script" else Path(program.cwd)
    top = _top(folder)
    if top is None and mode == "git":
        raise ConfigError(f"{folder} is not in a git repository", where=KEY, fix=f"{KEY}=copy")
    if top is not None and mode == "git" and (top / ".gitmodules").exists():
        raise ConfigError(f"{top} has submodules, which a commit does not contain", where=KEY, fix=f"{KEY}=copy")
    if top is not None and Path(program.cwd).is_relative_to(top) is False and program.kind != "script":
        top = folder
    names = tuple(_of_git(top, root) if top is not None else _of_folder(folder, root))
    base = top if top is not None else folder
    size = 0
    for name in names:
        with suppress(OSError):
            size += (base / name).lstat().st_size
    if size > LIMIT:
        raise ConfigError(
            f"the files in {base} are too large for a snapshot of code: {size / 2**30:.1f} GiB",
            where=KEY,
            fix="add the data to .gitignore" if top is not None else "a git repository with the data in .gitignore",
        )
    return Snapshot(mode, base, names, SweepPaths(root).code)


def _of_git(top: Path, root: Path) -> Iterator[str]:
    """Yield tracked files and new files that are not ignored, without the output of sweeps."""
    tracked = _names(_git(top, "ls-files", "-z", "--cached", "--recurse-submodules"))
    for name in tracked:
        if os.path.lexists(top / name):
            yield name
    new = [n for n in _names(_git(top, "ls-files", "-z", "--others", "--exclude-standard")) if not n.endswith("/")]
    sweeps = {n.partition(f"{META}/")[0] for n in new if f"{META}/" in n}
    if root.is_relative_to(top):
        sweeps.add(f"{root.relative_to(top).as_posix()}/")
    for name in new:
        if name.split("/")[0] not in _OUTPUT and not any(name.startswith(sweep) for sweep in sweeps if sweep):
            yield name


def _of_folder(folder: Path, root: Path) -> Iterator[str]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in (*_SKIPPED, *_OUTPUT)
            and Path(here, name) != root
            and not Path(here, name, META).exists()
            and not Path(here, name, "pyvenv.cfg").exists()
        )
        yield from (Path(here, name).relative_to(folder).as_posix() for name in sorted(files))


def record(root: Path, program: Program, *, mode: str, commit: str | None, secrets: Sequence[str] = ()) -> None:
    """Record what was launched, as far as it can be determined."""
    paths = SweepPaths(root)
    folder = Path(program.target).parent if program.kind == "script" and mode == "none" else Path(program.cwd)
    data: dict[str, object] = {
        "argv": masked_words(sys.orig_argv, secrets),
        "cwd": program.cwd,
        "user": user_name(),
        "host": socket.gethostname(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": f"{platform.python_version()} {sys.executable}",
        "snapshot": mode,
        "snapshot_commit": commit,
        "packages": _packages(),
    }
    top = _top(folder)
    if top is not None:
        with suppress(ConfigError):
            diff = _git(top, "diff", "--binary", "HEAD") if _head(top) else b""
            data |= {
                "repository": str(top),
                "commit": _head(top),
                "branch": _git(top, "branch", "--show-current").decode().strip() or None,
                "changed": bool(diff),
                "new_files": _names(_git(top, "ls-files", "-z", "--others", "--exclude-standard"))[:1000],
            }
            if 0 < len(diff) <= DIFF_LIMIT:
                paths.diff.write_bytes(diff)
    write_json(paths.launched, data)


def _packages() -> list[str]:
    """Return installed distributions from directory names: reading their metadata takes seconds on Lustre."""
    packages = set()
    for entry in sys.path:
        with suppress(OSError):
            for path in Path(entry or ".").iterdir():
                if match := re.fullmatch(r"([\w.]+)-([\w.+!]+)\.(?:dist|egg)-info", path.name):
                    packages.add(f"{match[1]}=={match[2]}")
    return sorted(packages, key=str.lower)


def _top(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        if (parent / ".git").exists():
            return parent
    return None


def _head(top: Path) -> str | None:
    try:
        return _git(top, "rev-parse", "--verify", "-q", "HEAD").decode().strip() or None
    except ConfigError:
        return None


def _git(top: Path, *words: str, env: dict[str, str] | None = None, stdin: bytes = b"") -> bytes:
    """Return the output of a git command. Raises `ConfigError` if it fails."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *words], cwd=top, env={**os.environ, **(env or {})}, input=stdin,
            capture_output=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise ConfigError(f"git {words[0]}: {message or error.returncode}", where=KEY, fix=f"{KEY}=copy") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git {words[0]}: {error}", where=KEY, fix=f"{KEY}=copy") from error
    return done.stdout


def _names(listed: bytes) -> Sequence[str]:
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]
