"""What was probably meant: the nearest valid word, and the cure where a name clashes with one of our groups."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """The members of ``valid`` that ``word`` may have meant, best first; empty where none is near."""
    import difflib  # only where something is wrong

    names = {name.lower(): name for name in valid}
    return [names[name] for name in difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.72)]


def quoted(override: str) -> str:
    """An override with Hydra's quotes in it as a word of the shell, easy to read where that is possible."""
    import re
    import shlex

    return shlex.quote(override) if re.search(r"[$`!\\\"]", override) else f'"{override}"'


def clash_cure(group: str) -> str:
    """What to type where a configuration of the user's own has the name of one of our groups."""
    own = {"scheduler": "scheduler@lr_scheduler: cosine"}.get(group, f"{group}@my_{group}: ...")
    name = own.partition("@")[2].partition(":")[0]
    return (
        f"if `{group}` holds a configuration of your own, keep it apart: `- {own}` in the defaults list "
        f"(your code then reads cfg.{name}), or rename it"
    )
