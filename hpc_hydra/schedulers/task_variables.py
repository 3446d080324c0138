"""Reads numbers from the environment variables by which a launcher identifies a process. Imported by every rank."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra.errors import RendezvousError


def number(env: Mapping[str, str], name: str, *, fix: str | None = None) -> int:
    """The non-negative integer in a variable. Raises `RendezvousError` naming it if it is unset or malformed."""
    value = env.get(name)
    if value is None or not (value.isascii() and value.isdigit()):
        raise RendezvousError("is not set" if value is None else f"{value!r} is not a number", where=name, fix=fix)
    return int(value)
