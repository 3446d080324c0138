"""What Hydra's errors leave out, read from the frames of their tracebacks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any


def defaults_lists(trace: TracebackType | None) -> list[str]:
    """The files whose defaults lists Hydra was reading, outermost first."""
    names: list[str] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_create_defaults_tree_impl":
            path = trace.tb_frame.f_locals.get("path")
            if isinstance(path, str):
                names.append(path.strip("/"))
        trace = trace.tb_next
    return names


def overrides(trace: TracebackType | None) -> Sequence[Any]:
    """The parsed overrides that Hydra was working on."""
    found: Sequence[Any] = ()
    while trace is not None:
        found = trace.tb_frame.f_locals.get("overrides_list", found)
        trace = trace.tb_next
    return found or ()
