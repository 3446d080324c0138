"""How each container runtime is told what the ranks run in: options of srun, a command before the ranks' own, a file.

Whatever the runtime, a rank inside is the same supervisor as outside: it gets its identity from the scheduler's
variables, and the package itself from the sweep directory (`SweepPaths.lib`), not from the host's Python.

Must not know: whether files exist, how plans are made.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hpc_hydra import envvars
from hpc_hydra.planning.container import check_path
from hpc_hydra.planning.types import Container, Mount
from hpc_hydra.records.layout import SweepPaths
from hpc_hydra.schedulers.base import JobSpec

PYTHON = "python3"  # of the image, from its PATH
ENTER = "enter.sh"
HOST_ONLY = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""What the host's own values of are no use inside. The image's values of them stay."""

ENTER_SCRIPT = f"""\
#!/bin/sh
# Inside the container: values that are the host's go, those of the image stay. Then the command, with hpc_hydra.
for name in {" ".join(HOST_ONLY)}; do
  eval "here=\\${{$name-}} host=\\${{{envvars.HOST}$name-}}"
  if [ -n "$here" ] && [ "$here" = "$host" ]; then unset "$name"; fi
  unset "{envvars.HOST}$name"
done
{envvars.LIB}=$(dirname -- "$0")
PYTHONPATH=${envvars.LIB}${{PYTHONPATH:+:$PYTHONPATH}}
PYTHONDONTWRITEBYTECODE=${{PYTHONDONTWRITEBYTECODE-1}}
export {envvars.LIB} PYTHONPATH PYTHONDONTWRITEBYTECODE
exec "$@"
"""


def around(spec: JobSpec) -> tuple[list[str], list[str]]:
    """Return options of the launch command, and words before the ranks' command; empty without a container.

    Raises `PlanError` naming a path that the runtime cannot mount.
    """
    box = spec.plan.container
    if box is None:
        return [], []
    enter = ["sh", str(SweepPaths(spec.sweep).lib / ENTER)]
    mounts = all_mounts(spec, box)
    if box.runtime == "pyxis":
        return list(_pyxis(spec, box, mounts)), enter
    if box.runtime == "edf":
        return [f"--environment={edf_path(spec)}"], enter
    rendered = {"podman_hpc": _podman_hpc, "shifter": _shifter}.get(box.runtime, _apptainer)
    return [], [*rendered(spec, box, mounts), *enter]


def exports(spec: JobSpec) -> Iterator[str]:
    """Yield the lines of the job script for the container."""
    box = spec.plan.container
    if box is None:
        return
    yield ""
    yield f'for name in {" ".join(HOST_ONLY)}; do export "{envvars.HOST}$name=${{!name-}}"; done'
    if box.runtime in ("pyxis", "edf"):  # enroot's hook reads them
        if not box.gpu:
            yield "export NVIDIA_VISIBLE_DEVICES=void"
        elif spec.plan.gpu_vendor in (None, "nvidia"):
            yield '[ -n "${NVIDIA_VISIBLE_DEVICES+x}" ] || export NVIDIA_VISIBLE_DEVICES=all'
            yield '[ -n "${NVIDIA_DRIVER_CAPABILITIES+x}" ] || export NVIDIA_DRIVER_CAPABILITIES=compute,utility'


def files(spec: JobSpec) -> dict[Path, str]:
    """Return the files beside the job script that its commands use."""
    box = spec.plan.container
    if box is None or box.runtime != "edf":
        return {}
    return {edf_path(spec): "".join(f"{line}\n" for line in _edf(spec, box, all_mounts(spec, box)))}


def edf_path(spec: JobSpec) -> Path:
    plan = spec.environ.get(envvars.PLAN, "")  # runs of several plans may share a job
    return SweepPaths(spec.sweep).jobs / f"{spec.key}{f'.{plan}' if plan else ''}.toml"


def all_mounts(spec: JobSpec, box: Container) -> list[Mount]:
    """Return the user's mounts and those for the run's other directories. Raises `PlanError`."""
    mounts = list(box.mounts)
    for path in sorted({str(spec.sweep), str(spec.workdir), *spec.needs}, key=lambda path: (path.count("/"), path)):
        if path == "/" or any(_shows(mount, path) for mount in mounts):
            continue
        check_path(box.runtime, path, "hydra.sweep.dir" if path == str(spec.sweep) else "the directory of the command")
        mounts.append(Mount(path, path))
    return mounts


def _shows(mount: Mount, path: str) -> bool:
    """Whether this mount makes ``path`` visible at the same path, and writable."""
    inside = PurePosixPath(path).is_relative_to(mount.source)
    return inside and mount.source == mount.target and not mount.read_only


def _options(extra: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    for name, value in extra:
        dashes = "-" if len(name) == 1 else "--"
        yield f"{dashes}{name}" if value is None else f"{dashes}{name}={value}"


def _pyxis(spec: JobSpec, box: Container, mounts: Sequence[Mount]) -> Iterator[str]:
    """github.com/NVIDIA/pyxis/wiki/Usage, 0.20."""
    yield f"--container-image={box.image}"
    yield "--container-mounts=" + ",".join(
        f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts
    )
    if box.workdir:
        yield f"--container-workdir={box.workdir}"
    if box.mount_home is not None:
        yield "--container-mount-home" if box.mount_home else "--no-container-mount-home"
    if box.remap_root is not None:
        yield "--container-remap-root" if box.remap_root else "--no-container-remap-root"
    if box.writable is not None:
        yield "--container-writable" if box.writable else "--container-readonly"
    if not box.gpu:
        yield "--container-env=NVIDIA_VISIBLE_DEVICES"  # else the image's own value would win
    yield from _options(box.extra)


def _apptainer(spec: JobSpec, box: Container, mounts: Sequence[Mount]) -> Iterator[str]:
    """apptainer.org/docs/user/latest/cli/apptainer_exec.html; Singularity has the same options."""
    yield from (box.runtime, "exec")
    for mount in mounts:
        if any(char in mount.source + mount.target for char in ':,"\n'):
            yield f"--mount={_comma_separated(mount, 'source', 'destination')}"
        else:
            yield f"--bind={mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    if box.workdir:
        yield f"--pwd={box.workdir}"
    if box.mount_home is False:
        yield "--no-home"
    if box.remap_root:
        yield "--fakeroot"
    if box.writable:
        yield "--writable-tmpfs"
    if box.gpu:
        yield "--rocm" if spec.plan.gpu_vendor == "amd" else "--nv"
    yield from _options(box.extra)
    yield box.image


def _podman_hpc(spec: JobSpec, box: Container, mounts: Sequence[Mount]) -> Iterator[str]:
    """docs.nersc.gov/development/containers/podman-hpc; docs.podman.io: podman-run(1)."""
    yield from ("podman-hpc", "run", "--rm", "--env-host", "--network=host", "--ipc=host")
    for mount in mounts:
        if ":" in mount.source + mount.target:
            yield f"--mount={_comma_separated(mount, 'source', 'destination')}"
        else:
            yield f"--volume={mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    if box.workdir:
        yield f"--workdir={box.workdir}"
    if box.mount_home:
        yield f"--volume={spec.home}:{spec.home}"
    if box.remap_root is False:
        yield "--userns=keep-id"
    if box.writable is False:
        yield "--read-only"
    if box.gpu:
        yield "--gpu"
    yield from _options(box.extra)
    yield box.image


def _shifter(spec: JobSpec, box: Container, mounts: Sequence[Mount]) -> Iterator[str]:
    """github.com/NERSC/shifter; docs.nersc.gov/development/containers/shifter."""
    yield from ("shifter", f"--image={box.image}")
    for mount in mounts:
        yield f"--volume={mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    if box.workdir:
        yield f"--workdir={box.workdir}"
    if box.gpu and not any(name == "module" for name, _ in box.extra):
        yield "--module=gpu"
    yield from _options(box.extra)


def _edf(spec: JobSpec, box: Container, mounts: Sequence[Mount]) -> Iterator[str]:
    """docs.cscs.ch/software/container-engine/edf. A ``$`` would be expanded; ``$$`` is one."""
    yield f"# {spec.key} of the sweep {json.dumps(str(spec.sweep), ensure_ascii=False)}"
    yield f"image = {_toml(box.image)}"
    shown = [f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in mounts]
    if box.mount_home:
        shown.append(f"{spec.home}:{spec.home}")
    yield f"mounts = {_toml(shown)}"
    if box.workdir:
        yield f"workdir = {_toml(box.workdir)}"
    if box.writable is not None:
        yield f"writable = {_toml(box.writable)}"
    extra = {name: json.loads(value or "null") for name, value in box.extra}
    for name, value in extra.items():
        if not isinstance(value, dict):
            yield f"{_toml_key(name)} = {_toml(value)}"
    env = {} if box.gpu else {"NVIDIA_VISIBLE_DEVICES": "void"}
    tables = {name: value for name, value in extra.items() if isinstance(value, dict)}
    if env:
        tables["env"] = {**env, **tables.get("env", {})}
    for name, table in tables.items():
        yield from ("", f"[{_toml_key(name)}]")
        for key, value in table.items():
            yield f"{_toml_key(key)} = {_toml(value)}"


def _comma_separated(mount: Mount, source: str, target: str) -> str:
    """``type=bind,…`` with the quotes of CSV where a path holds a comma."""
    fields = ["type=bind", f"{source}={mount.source}", f"{target}={mount.target}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*fields, "ro"] if mount.read_only else fields)
    return text.getvalue()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(str(key))} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (int, float)):
        return str(value)
    return json.dumps("" if value is None else str(value).replace("$", "$$"), ensure_ascii=False)


def _toml_key(name: str) -> str:
    """Dots make tables of tables, as in ``com.hooks.cxi.enabled``."""
    parts = name.split(".")
    return ".".join(part if part.replace("-", "").replace("_", "").isalnum() else json.dumps(part) for part in parts)
