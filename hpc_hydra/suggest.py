"""Suggestions for error messages: the nearest valid names, quoting, and name clashes with our config groups."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return the members of ``valid`` that are similar to ``word``, best first."""
    import difflib  # imported here: only errors need it

    names = {name.lower(): name for name in valid}
    return [names[name] for name in difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.72)]


def quoted(override: str) -> str:
    """Quote an override that contains Hydra's quotes for the shell, in double quotes if possible."""
    import re
    import shlex

    return shlex.quote(override) if re.search(r"[$`!\\\"]", override) else f'"{override}"'


def clash_cure(group: str) -> str:
    """Return advice for a user's config group that has the name of one of ours."""
    own = {"scheduler": "scheduler@lr_scheduler: cosine"}.get(group, f"{group}@my_{group}: ...")
    name = own.partition("@")[2].partition(":")[0]
    return (
        f"if `{group}` is a config group of your own, put it into another package: `- {own}` in the defaults list "
        f"(your code then reads cfg.{name}), or rename it"
    )
