"""The container of a plan, and which runtime does not support which key.

Must not know: how a runtime's command line is written (`scheduler.container` does), whether files exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.types import Container, Mount

if TYPE_CHECKING:  # ranks import this module to check paths only
    from hpc_hydra.config.schema import ContainerConfig

KEYS = ("image", "mounts", "workdir", "mount_home", "remap_root", "writable", "env", "extra", "gpu")


@dataclass(frozen=True)
class Abilities:
    """What a runtime supports. ``paths``: characters that mounted paths cannot contain, and why."""

    by_scheduler: bool = False  # the scheduler's launch command creates the container
    cannot: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # key → (value, what to write instead)
    paths: str = ""


_SITE_DECIDES = "leave it null: the site's configuration of Shifter decides"
ABILITIES: dict[str, Abilities] = {
    # github.com/NVIDIA/pyxis/wiki/Usage; enroot's fstab splits at blanks, pyxis at the others (pyxis#133)
    "pyxis": Abilities(by_scheduler=True, paths=":, \t\n$"),
    # apptainer.org/docs/user/latest/cli/apptainer_exec.html: --mount takes all that --bind cannot
    "apptainer": Abilities(cannot={"mount_home": (True, "leave it null: home is mounted where the site allows it")}),
    "singularity": Abilities(cannot={"mount_home": (True, "leave it null: home is mounted where the site allows it")}),
    # docs.podman.io/en/latest/markdown/podman-run.1.html: --mount splits at commas
    "podman_hpc": Abilities(paths=",\n"),
    # github.com/NERSC/shifter
    "shifter": Abilities(
        cannot={
            "mount_home": (False, _SITE_DECIDES),
            "remap_root": (True, "container=podman_hpc, where one is root inside"),
            "writable": (True, "container=podman_hpc, or write to a mounted directory"),
        },
        paths=":;,\n",
    ),
    # docs.cscs.ch/software/container-engine/edf
    "edf": Abilities(
        by_scheduler=True, cannot={"remap_root": (True, "leave it null: one is oneself inside")}, paths=":, \t\n"
    ),
}
_FLAGS = {"ro": True, "rw": False}


def container(asked: ContainerConfig, launcher: str, gpus_per_proc: int) -> Container | None:
    """Return the container of the ranks, or None. `schedulers.planner` checks the scheduler's support.

    Args:
        launcher: who starts the ranks, ``scheduler`` or ``mpiexec``.

    Raises:
        ConfigError: a value that means nothing.
        PlanError: what the runtime cannot say, naming the key.
    """
    if asked.name == "none":
        _nothing_else(asked)
        return None
    if not asked.image:
        raise ConfigError("needs an image", where="container.image", fix="container.image=/path/to/image, or a name")
    can = ABILITIES[asked.name]
    if can.by_scheduler and launcher == "mpiexec":
        raise PlanError(
            f"container={asked.name} is made by the scheduler's launch command, but mpiexec starts the ranks",
            where="container.name",
            fix="rendezvous.launcher=scheduler",
        )
    for key, (value, instead) in can.cannot.items():
        if getattr(asked, key) is value:
            raise PlanError(f"{asked.name} cannot do that", where=f"container.{key}", fix=instead)
    mounts = tuple(_mount(item, f"container.mounts[{n}]") for n, item in enumerate(asked.mounts))
    for number, mount in enumerate(mounts):
        for path in (mount.source, mount.target):
            check_path(asked.name, path, f"container.mounts[{number}]")
    if asked.workdir is not None and not asked.workdir.startswith("/"):
        raise ConfigError(f"{asked.workdir!r} is no absolute path", where="container.workdir", fix="/path/in/container")
    return Container(
        runtime=asked.name,
        image=asked.image,
        mounts=mounts,
        workdir=asked.workdir,
        mount_home=asked.mount_home,
        remap_root=asked.remap_root,
        writable=asked.writable,
        env=tuple(asked.env.items()),
        extra=_extra(asked),
        gpu=gpus_per_proc > 0 if asked.gpu is None else asked.gpu,
    )


def check_path(runtime: str, path: str, key: str) -> None:
    """Refuse a path that the runtime cannot mount. Raises `PlanError` naming the key and the path."""
    bad = next((char for char in ABILITIES[runtime].paths if char in path), None)
    if bad is not None:
        raise PlanError(
            f"{path!r} holds {bad!r}, which {runtime} takes apart", where=key, fix="a link to it without that character"
        )


def _nothing_else(asked: ContainerConfig) -> None:
    nothing = type(asked)()
    given = [key for key in KEYS if getattr(asked, key) != getattr(nothing, key)]
    if given:
        raise ConfigError(
            "there is no container (container=none)",
            where=f"container.{given[0]}",
            fix=f"container={' or '.join(ABILITIES)}",
        )


def _mount(item: Any, key: str) -> Mount:
    """From ``SOURCE[:TARGET][:ro|rw]`` or a mapping; both paths absolute. Raises `ConfigError`."""
    if isinstance(item, Mapping):
        unknown = [str(name) for name in item if name not in ("source", "target", "read_only")]
        source, target, read_only = item.get("source"), item.get("target"), item.get("read_only", False)
        if unknown or not isinstance(source, str) or not isinstance(read_only, bool):
            raise ConfigError(f"{dict(item)!r} is no mount", where=key, fix="{source: /a, target: /b, read_only: true}")
        target = source if target is None else str(target)
    elif isinstance(item, str):
        rest, _, flag = item.rpartition(":")
        read_only = _FLAGS.get(flag, False) if rest else False
        paths = rest if rest and flag in _FLAGS else item
        splits = [found.start() for found in re.finditer(":(?=/)", paths)]
        if len(splits) > 1:
            raise ConfigError(
                f"{item!r} can be read in several ways", where=key, fix="{source: /a, target: /b, read_only: false}"
            )
        source, target = (paths[: splits[0]], paths[splits[0] + 1 :]) if splits else (paths, paths)
    else:
        raise ConfigError(f"{item!r} is no mount", where=key, fix='"/source:/target:ro"')
    for path in (source, target):
        if not path.startswith("/") or "\0" in path:
            raise ConfigError(f"{path!r} is no absolute path", where=key, fix='"/source:/target:ro"')
    return Mount(source, target, read_only)


def _extra(asked: ContainerConfig) -> tuple[tuple[str, str | None], ...]:
    done: list[tuple[str, str | None]] = []
    for name, value in asked.extra.items():
        key, bare = f"container.extra.{name}", name.lstrip("-")
        if not bare or re.search(r"[\s=]", bare):
            raise ConfigError(f"{name!r} is no option's name", where=key, fix="container.extra: {name: value}")
        if asked.name == "pyxis" and not re.match(r"(no-)?container-", bare):
            raise ConfigError(f"pyxis has no option --{bare}", where=key, fix=f"scheduler.launch_extra.{bare}")
        if asked.name == "edf":
            done.append((bare, json.dumps(value)))
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is False or isinstance(one, (float, Mapping)):
                raise ConfigError(f"{one!r} is no value of an option", where=key, fix="a text, or null for none")
            done.append((bare, None if one is None or one is True else str(one)))
    return tuple(done)
