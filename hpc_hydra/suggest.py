"""Suggestions for error messages: the nearest valid names, quoting, and name clashes with our config groups."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str], count: int = 3) -> list[str]:
    """Return the members of ``valid`` that are similar to ``word``, best first, then those that begin with it."""
    import difflib  # imported here: only errors need it

    names = {name.lower(): name for name in valid}
    near = difflib.get_close_matches(word.lower(), names, n=count, cutoff=0.72)
    longer = [name for name in names if len(word) > 2 and name.startswith(word.lower()) and name not in near]
    return [names[name] for name in [*near, *longer][:count]]


def quoted(override: str) -> str:
    """Quote an override that contains Hydra's quotes for the shell, in double quotes if possible."""
    import re
    import shlex

    if "!" in override or ("'" not in override and re.search(r"[$`\\\"]", override)):
        return shlex.quote(override)
    return '"' + re.sub(r"([$`\\\"])", r"\\\1", override) + '"'


def in_quotes(value: str) -> str:
    """Put a value into Hydra's quotes, in single ones if possible."""
    import re

    if "'" not in value and not value.endswith("\\"):
        return f"'{value}'"
    return '"' + re.sub(r'(\\*)(?="|\Z)', r"\1\1", value).replace('"', '\\"') + '"'


def clash_cure(group: str) -> str:
    """Return advice for a user's config group that has the name of one of ours."""
    own = {"scheduler": "scheduler@lr_scheduler: cosine"}.get(group, f"{group}@my_{group}: ...")
    name = own.partition("@")[2].partition(":")[0]
    return (
        f"if `{group}` is a config group of your own, put it into another package: `- {own}` in the defaults list "
        f"(your code then reads cfg.{name}; {group}@{name}=CHOICE on the command line), or rename it"
    )


def group_replaced(group: str, value: object, choices: Iterable[str]) -> tuple[str, str]:
    """Return an error's words, what is wrong and what to type, for a value in the place of one of our groups."""
    names, word = tuple(choices), str(value)
    near = [word] if word in names else nearest(word, names)
    if near:
        what = f"`{group}: {word}` puts a value in the place of the group"
        choice = f"`- override /{group}: {near[0]}` in the defaults list, after `- hpc`"
        return what, f"{choice}; {group}={near[0]} on the command line"
    choice = f"`- override /{group}: CHOICE` in the defaults list, or `{group}: {{key: value}}`"
    return f"{value!r} is in the place of hpc_hydra's group", f"{choice}; {clash_cure(group)}"
