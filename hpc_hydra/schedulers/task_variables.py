"""Reads numbers from the environment variables by which a launcher identifies a process. Imported by every rank."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_hydra.errors import RendezvousError


def number(env: Mapping[str, str], name: str, *, fix: str | None = None, beside: str = "") -> int:
    """The non-negative integer in a variable. Raises `RendezvousError` naming it if it is unset or malformed.

    Args:
        beside: a variable that is set, for the message.
    """
    value = env.get(name, "")
    if not (value.isascii() and value.isdigit()):
        unset = f"is not set{f', although {beside} is' if beside else ''}"
        raise RendezvousError(f"{value!r} is not a number" if name in env else unset, where=name, fix=fix)
    return int(value)
