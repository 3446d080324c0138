"""Translates Hydra's errors about our groups into ours, which say what to type instead.

Covered: a choice that does not exist, an unknown key, a plain value in place of a group, a file with a wrong package or
defaults list; an unknown key or choice of the user's own. Other errors about the user's own groups stay Hydra's.
Must not know: planning, schedulers. Imported only after an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, get_origin

from hpc_hydra import suggest
from hpc_hydra.config import load, values
from hpc_hydra.config.schema import GROUPS
from hpc_hydra.config.secrets import masked
from hpc_hydra.config.store import shipped
from hpc_hydra.errors import ConfigError
from hpc_hydra.hydra_compat import tracebacks

_FILE = r"In '(?P<file>[^']+)': "
_MISSING = re.compile(r"Could not (?:find|load) '(?P<group>\w+)/(?P<choice>[^']*)'")
_OVERRIDE = re.compile(
    _FILE + r"(?:Could not override|Invalid Defaults List override '[^']*'\.\nNo earlier Group Default for) "
    r"'(?P<path>(?:[^'@]*/)?)(?P<group>\w+)@(?P<package>[^']*)'"
)
_TWICE = re.compile(r"Multiple values for (?P<group>\w+)\. ")
_OTHER_TYPE = re.compile(
    r"Merge error: \w+ is not a subclass of (?P<kind>\w+?)(?:Config|Schema)\. value: (?P<value>.*)"
)
_VALUE = re.compile(r"Value '(?P<value>[^']*)'")
_NOT_THERE = re.compile(
    r"Could not override '(?P<group>\w+)'\. No match in the defaults list\.\s.*\+\w+=(?P<choice>\S+)", re.S
)
_SUBMITIT = re.compile(r"Could not (?:find|load) 'hydra/launcher/(?P<choice>submitit_\w+)'")
_BUNDLE = re.compile(r"Could not (?:find|load) '/?(?P<name>(?:hpc[-_]hydra|hpc)(?:/hpc(?:[-_]hydra)?)?)'")
_SEVERAL = re.compile(r"Ambiguous value for argument '(?P<key>[^=']+)=(?P<value>[^\n]*)'")
_MERGED = re.compile(r"Error merging override (?P<key>[^=\s]+)=(?P<value>[^\n]*)")
_THERE = re.compile(r"Could not append to config\. An item is already at '(?P<key>[^']+)'")
_NUMBER = "Config group override must be"
_OWN_KEY = re.compile(r"Could not override '(?P<key>[^'@/]+)'\.\nTo append to your config use \+[^=\n]+=(?P<value>.*)")
_OWN_CHOICE = re.compile(r"Could not (?:find|load) '(?P<group>[^']+)/(?P<choice>[^'/]*)'")
_ADD = "`- hpc` before `_self_` in the defaults list of the primary configuration: `defaults: [hpc, _self_]`"
_WORDS = 12  # number of options to list if none is similar


def explain(error: BaseException) -> ConfigError | None:
    """Return our error in place of one of Hydra, OmegaConf or the YAML reader; None if it is not about our groups."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException

    if isinstance(error, RecursionError):
        return _endless(error.__traceback__)
    if isinstance(error, MissingConfigException):
        return _missing(error)
    if isinstance(error, OverrideParseException):
        return unparsed(str(error.override), str(error)) if _is_ours(str(error.override)) else None
    if isinstance(error, HydraException):
        return _composition(str(error), error.__cause__ or error.__context__)
    if isinstance(error, ValueError) and str(error).startswith(_NUMBER):
        return _number(error.__traceback__)
    return _unreadable(error)


def explain_own(error: BaseException) -> ConfigError | None:
    """Return our error about an unknown key or choice of the user's own configuration; None if it is about neither."""
    text, cause = str(error), error.__cause__ or error.__context__
    if isinstance(error, ValueError) and text.startswith(_NUMBER):
        return ConfigError("a number is not an option of a config group", where="overrides", fix="GROUP=NAME_OF_OPTION")
    if found := _OWN_CHOICE.search(text):
        parent = re.match(_FILE, text)
        return no_choice(found["group"], found["choice"], getattr(error, "options", None) or (),
                         parent["file"] if parent else "")  # fmt: skip
    if found := _OWN_KEY.match(text):
        key, stem = found["key"], found["key"].rpartition(".")[0]
        there = getattr(cause, "parent_node", None)
        names = [str(name) for name in there] if there is not None and hasattr(there, "keys") else []
        near = [f"{stem}.{name}".lstrip(".") for name in suggest.nearest(key.rpartition(".")[2], names)]
        fix = " or ".join([*near, f"+{key}={found['value']} to add it"])
        return ConfigError("not a key of the configuration", where=key, fix=fix)
    return None


def no_choice(group: str, choice: str, choices: Iterable[str], parent: str = "") -> ConfigError:
    """Return the error for an option that a group does not have, named in the defaults list of ``parent``."""
    known = sorted(set(choices))
    near = suggest.nearest(choice, known) or difflib.get_close_matches(choice.lower(), known, n=3, cutoff=0.6)
    words = " or ".join(f"{group}={name}" for name in near)
    if not near:
        words = f"{group}= one of {', '.join(known[:_WORDS])}" + (" …" if len(known) > _WORDS else "")
    if group == "system":
        words += " (`hpc-hydra systems` lists them)"
    where = group if parent in ("", "hpc") else f"{group}, in the defaults list of {parent}.yaml"
    return ConfigError(f"there is no {choice!r}", where=where, fix=words)


def other_launcher(name: str) -> ConfigError:
    """Return the error for submitit's launcher in place of ours."""
    scheduler = name.removeprefix("submitit_")
    return ConfigError(
        "submitit's launcher ignores scheduler, resources and the other groups of hpc_hydra",
        where=f"hydra/launcher={name}",
        fix=f"leave it out, and set scheduler={scheduler}; docs/from-submitit-launcher.md lists the equivalent keys",
    )


def _missing(error: Any) -> ConfigError | None:
    if bundle := _BUNDLE.search(str(error)):
        parent = re.match(_FILE, str(error))
        where = f"defaults list of {parent['file']}.yaml" if parent else "defaults list"
        return ConfigError(f"there is no {bundle['name']!r}: the bundle is called hpc", where=where, fix="- hpc")
    if (submitit := _SUBMITIT.search(str(error))) and "hpc" in (error.options or ()):
        return other_launcher(submitit["choice"])
    found = _MISSING.search(str(error))
    if found is None or found["group"] not in GROUPS:
        return None
    parent = re.match(_FILE, str(error))
    choices: Sequence[str] = error.options or shipped(found["group"])
    return no_choice(found["group"], found["choice"], choices, parent["file"] if parent else "")


def _composition(text: str, cause: BaseException | None) -> ConfigError | None:
    if (found := _OVERRIDE.match(text)) and found["group"] in GROUPS:
        return _wrong_package(found["file"], found["path"], found["group"], found["package"])
    if (found := _TWICE.match(text)) and found["group"] in GROUPS:
        group = found["group"]
        return ConfigError(
            "is in the defaults list twice: the bundle already contains it",
            where=group,
            fix=f"{group}=CHOICE on the command line, `- override /{group}: CHOICE` in a defaults list; "
            + suggest.clash_cure(group),
        )
    if (found := _NOT_THERE.search(text)) and found["group"] in GROUPS:
        return _no_bundle(found["group"]) if found["choice"] in shipped(found["group"]) else None
    if found := _SEVERAL.match(text) or _MERGED.match(text):
        collection_error = _collection(found["key"].lstrip("+"), found["value"])
        if collection_error is not None:
            return collection_error
    if (found := _THERE.match(text)) and found["key"].partition(".")[0] in GROUPS:
        key = found["key"]
        value = re.search(r"Either remove \+ prefix: '[^=]+=([^\n]*)'", text)
        fix = f"{key}={value[1] if value else 'VALUE'}, without the +"
        return _collection(key, value[1] if value else "") or ConfigError("exists already", where=key, fix=fix)
    where = re.match(_FILE, text)
    file = where["file"] if where else ""
    if launcher_error := _of_launcher(text, cause, file):
        return launcher_error
    below = f"{cause or ''}\n{text}"
    if (found := _OTHER_TYPE.search(below)) and found["kind"].lower() in GROUPS:
        return _plain(found["kind"].lower(), found["value"].strip(), file)
    key = _key(text, cause)
    if key is None:
        return None
    at = f"{key} (in {file}.yaml)" if file else key
    if (found := _VALUE.search(below)) and key.count(".") == 1:
        try:
            values.check_value(key, found["value"])
        except ConfigError as error:
            return ConfigError(error.what, where=at, fix=error.fix)
        except KeyError:
            return None
    if " not in " in below:
        return _unknown(key, file, at, cause)
    return None


def _no_bundle(where: str) -> ConfigError:
    return ConfigError("hpc_hydra's groups are not in the configuration", where=where, fix=_ADD)


def _collection(key: str, value: str) -> ConfigError | None:
    """Return the error for a plain value of a key that takes a list or a mapping; None if it takes none."""
    group, _, name = key.partition(".")
    kind = get_origin(values.fields(GROUPS[group]).get(name)) if group in GROUPS else None
    return values.not_a_collection(value, key, kind) if kind in (list, dict) else None


def _is_ours(override: str) -> bool:
    return re.split(r"[.@=]", override.lstrip("+~"))[0] in GROUPS


def unparsed(override: str, text: str) -> ConfigError:
    """Return the error for a value with characters of Hydra's override grammar, such as braces.

    Args:
        text: Hydra's message.
    """
    key, equals, value = override.partition("=")
    if (error := _collection(key.lstrip("+"), value)) and re.fullmatch(r"\w+=[^{}]*", value):
        return error
    why = (text.splitlines() or [""])[0].rstrip(".")
    why = "" if why.startswith(("Error parsing override", "no viable alternative")) else f": {why}"
    if not _is_ours(override) and re.search(r"(^|,)(,|$)", value) and not re.search(r"[\[\](){}]", value):
        items = ",".join(item or "''" for item in value.split(","))
        fix = f"an empty value is '': {suggest.quoted(f'{key}={items}')}"
        return ConfigError("cannot be parsed as a value: it has an empty item", where=masked(override), fix=fix)
    shown = (_in_quotes(key, value) if equals and value else None) or "key='value'"
    fix = f"Hydra's quotes around the value, inside the shell's quotes: {suggest.quoted(shown)}"
    if (hidden := masked(override)) != override:
        return ConfigError("cannot be parsed as a value", where=hidden, fix=f"Hydra's quotes around it: {key}='...'")
    return ConfigError(f"cannot be parsed as a value{why}", where=override, fix=fix)


def _in_quotes(key: str, value: str) -> str | None:
    """Return the override with Hydra's quotes around its value, or around the items of one; None if that is no cure."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    group, _, name = key.lstrip("+").partition(".")
    kind = get_origin(values.fields(GROUPS[group]).get(name)) if group in GROUPS else None
    meant: object = value
    text = suggest.in_quotes(value)
    if kind is list:
        inner = value[1:-1] if value[:1] + value[-1:] == "[]" else value
        items = [item.strip() for item in re.findall(r"""(?:"[^"]*"|'[^']*'|[^,])+""", inner)]
        meant = [item[1:-1] if item[0] == item[-1] and item[0] in "'\"" else item for item in items if item]
        text = f"[{','.join(map(suggest.in_quotes, meant))}]"
    elif kind is dict:
        return None
    try:
        read = OverridesParser.create().parse_override(f"{key}={text}").value()
    except Exception:
        return None
    return f"{key}={text}" if read == meant else None


def _key(text: str, cause: BaseException | None) -> str | None:
    """Return the full key that an error is about if it is one of ours, or a near miss of one."""
    full = getattr(cause, "full_key", None)
    written = re.match(r"(?:Could not override|Error merging override) '?(?P<key>[^'=\n]+)", text)
    key = written["key"].lstrip("+~").rstrip(".") if written else full
    if not isinstance(key, str) or not key:
        return None
    first, dot, _ = key.partition(".")
    if first in GROUPS:
        return key if dot else None
    root = getattr(cause, "parent_node", None)
    names = [str(name) for name in root] if root is not None and hasattr(root, "keys") else []
    near = suggest.nearest(first, names)
    return key if near and near[0] in GROUPS and full == first else None


def _of_launcher(text: str, cause: BaseException | None, file: str) -> ConfigError | None:
    """Return the error for a key of another launcher in ``hydra.launcher``."""
    full = str(getattr(cause, "full_key", ""))
    if not full.startswith("hydra.launcher.") or "HpcLauncherConf" not in f"{cause}\n{text}":
        return None
    return left_over(full.split(".")[2], file)


def left_over(name: str, file: str = "") -> ConfigError:
    """Return the error for a key ``hydra.launcher.NAME`` of another launcher."""
    where = f"hydra.launcher.{name} (in {file}.yaml)" if file else f"hydra.launcher.{name}"
    fix = load.OF_SUBMITIT.get(name) or f"leave it out, and use keys of {', '.join(GROUPS)}"
    return ConfigError("hpc_hydra's launcher does not have this key", where=where, fix=fix)


def _unknown(key: str, file: str, at: str, cause: BaseException | None) -> ConfigError | None:
    group, _, rest = key.partition(".")
    if group not in GROUPS:
        root = getattr(cause, "parent_node", None) or ()
        near = [f"{name}.{rest}" if rest else name for name in suggest.nearest(group, map(str, root))]
        return ConfigError("not a key of the configuration", where=key, fix=" or ".join(near))
    name = rest.partition(".")[0]
    if getattr(cause, "full_key", None) == group and not file and name in values.fields(GROUPS[group]):
        return _no_bundle(key)
    if name == group and file.startswith(f"{group}/"):
        return _wrong_package(file, "", group, group)
    if rest != name or name in values.fields(GROUPS[group]):  # a nested key, of a queue or a variable
        parent = getattr(cause, "parent_node", None)
        valid = [str(name) for name in parent] if parent is not None and hasattr(parent, "keys") else []
        stem, _, last = key.rpartition(".")
        words = [f"{stem}.{near}" for near in suggest.nearest(last, valid) or valid]
        return ConfigError(f"unknown key {last!r}", where=at, fix=" or ".join(words) or None)
    error = load.unknown_keys(group, {name: "VALUE"}, list(values.fields(GROUPS[group])), False, () if file else (key,))
    return ConfigError(error.what, where=at, fix=error.fix)


def _wrong_package(file: str, path: str, group: str, package: str) -> ConfigError:
    if package in (group, "") and path:
        return ConfigError(
            f"overrides `{group}` without a slash, so Hydra looks for it in the folder of the file ({path}{group})",
            where=f"defaults list of {file}.yaml",
            fix=f"- override /{group}: CHOICE",
        )
    return ConfigError(
        f"its content goes into `{package.partition('.')[0]}` alone, "
        f"because the file does not begin with `{load.GLOBAL_PACKAGE}`",
        where=f"{file}.yaml",
        fix=f"`{load.GLOBAL_PACKAGE}` as its first line, and its own keys below `{file.partition('/')[0]}:`",
    )


def _plain(group: str, value: str, file: str) -> ConfigError:
    what, fix = suggest.group_replaced(group, value, shipped(group))
    return ConfigError(what, where=f"{group} (in {file}.yaml)" if file else group, fix=fix)


def _endless(trace: TracebackType | None) -> ConfigError | None:
    """Return the error for files whose defaults lists include each other."""
    names = tracebacks.defaults_lists(trace)
    circle = next((names[at : at + names[at + 1 :].index(name) + 2] for at, name in enumerate(names)
                   if name in names[at + 1 :]), [])  # fmt: skip
    if not circle or not any(name.partition("/")[0] in GROUPS for name in circle):
        return None
    ways = " → ".join(circle)
    return ConfigError(
        f"its defaults list includes itself ({ways})",
        where=f"{circle[0]}.yaml",
        fix="a name for your system that differs from the one it is based on: "
        "my_frontier.yaml with `defaults: [frontier, _self_]`",
    )


def _number(trace: TracebackType | None) -> ConfigError | None:
    """Return the error for a number as the choice of a group, as in ``resources=2``."""
    for one in tracebacks.overrides(trace):
        key, value = str(one.key_or_group), one.value()
        if key in GROUPS and not isinstance(value, (str, list)):
            fix = f"{key}.{next(iter(values.fields(GROUPS[key])))}={value}" if key == "resources" else f"{key}=CHOICE"
            return ConfigError(f"{value!r} is not one of its options", where=key, fix=fix)
    return None


def _unreadable(error: BaseException) -> ConfigError | None:
    """Return the error for a file of one of our groups that is not valid YAML."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:
        return None
    parts = str(mark.name).replace("\\", "/").split("/")
    if len(parts) < 2 or parts[-2] not in GROUPS:
        return None
    return ConfigError(f"is not valid YAML: {problem}", where=f"{mark.name}, line {mark.line + 1}", fix="see that line")
