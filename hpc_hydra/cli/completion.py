"""``hpc-hydra completion bash|zsh|fish``: completion of commands, options, keys and their values, machines and sweeps.

The scripts ask ``hpc-hydra completion --line LINE`` for the words that can follow, one a line, with a description after
a tab. Options come from the help of each command. (argcomplete and shtab need one argparse parser for all commands, and
shtab completes no values that are known only at run time.) Must not know: Hydra, schedulers.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from hpc_hydra.cli.scan import UsageError

SHELLS = ("bash", "zsh", "fish")
USAGE = """usage: hpc-hydra completion bash|zsh|fish

Print a script that completes commands, options, keys, machines and sweeps of hpc-hydra:

  bash    eval "$(hpc-hydra completion bash)"              in ~/.bashrc
  zsh     eval "$(hpc-hydra completion zsh)"               in ~/.zshrc, after compinit
  fish    hpc-hydra completion fish | source               in ~/.config/fish/config.fish

options:
  -h, --help                      show this help

Programs with @hydra.main have Hydra's own completion: eval "$(python train.py -sc install=bash)"
"""
WITH_OVERRIDES = ("run", "doctor", "shell")
OF_SWEEPS = ("status", "logs", "stacks", "wait", "cancel", "checkpoint", "resume", "results", "report", "list")
SWEEPS = 20  # sweeps that are offered

_BASH = r"""_hpc_hydra() {
    local cur="${COMP_WORDS[COMP_CWORD]}" word line="${COMP_LINE:0:COMP_POINT}"
    [[ $cur == [=:] ]] && cur=
    COMPREPLY=()
    while IFS= read -r word; do
        word="${word%%$'\t'*}"
        [[ $word == *[=./] ]] && compopt -o nospace
        COMPREPLY+=("$word")
    done < <(hpc-hydra completion --line "$line" 2>/dev/null)
    word="${line##*[[:space:]]}"
    [[ $word == *"$cur" ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"$cur"}"}")
}
complete -o default -o nosort -F _hpc_hydra hpc-hydra 2>/dev/null || complete -o default -F _hpc_hydra hpc-hydra
"""
_ZSH = r"""_hpc_hydra() {
    local -a found open
    local word
    for word in "${(@f)$(hpc-hydra completion --line "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}"; do
        word="${word%%$'\t'*}"
        [[ -z $word ]] && continue
        [[ $word == *[=./] ]] && open+=("$word") || found+=("$word")
    done
    (( ${#found} )) && compadd -Q -V words -a found
    (( ${#open} )) && compadd -Q -V open -S '' -a open
    (( ${#found} + ${#open} )) || _files
}
compdef _hpc_hydra hpc-hydra
"""
_FISH = r"""function __hpc_hydra
    set -l found (hpc-hydra completion --fish (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c hpc-hydra -f -k -a '(__hpc_hydra)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_OPTION = re.compile(r"^ {2,6}(-[^ ].*?)(?: {2,}(.*))?$")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra completion``; returns the exit code. Raises `UsageError`."""
    words = list(argv)
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
    elif words[:1] in (["--line"], ["--fish"]):  # fish quotes words itself
        for word, about in complete(" ".join(words[1:]), quoted=words[0] == "--line"):
            print(f"{word}\t{about}" if about else word)
    elif len(words) == 1 and words[0] in SHELLS:
        print(_SCRIPTS[words[0]], end="")
    else:
        raise UsageError(f"expects the name of a shell, got {shlex.join(words) or 'none'}", fix=" or ".join(SHELLS))
    return 0


def complete(line: str, *, quoted: bool = True) -> list[tuple[str, str]]:
    """Return the words that the last word of a command line can become, with descriptions.

    Empty if files should be completed instead. ``quoted``: escape what a shell would split or replace, also within open
    quotes.
    """
    words, quote = _words(line)
    last = words[-1]
    if len(words) < 2 or "--" in words[:-1]:
        return []
    with contextlib.suppress(Exception):  # completion never disturbs what is typed
        found = [(word, about) for word, about in _candidates(words[1:-1], last) if word.startswith(last)]
        return [(_escaped(word, quote), about) for word, about in found] if quoted else found
    return []


def _escaped(word: str, quote: str) -> str:
    if quote == "'":
        return word.replace("'", "'\\''")
    return re.sub(r'["$`\\]' if quote else r"[^\w~@%+=:,./-]", r"\\\g<0>", word)


def _words(line: str) -> tuple[list[str], str]:
    """Split a line as a shell does; the last word, which may be empty or quoted in part, is the one to complete.

    Returns the words, and the quote that is open.
    """
    for quote in ("", "'", '"'):
        with contextlib.suppress(ValueError):
            words = shlex.split(line + quote)
            is_new = not quote and (not line or line[-1].isspace()) and not line.endswith("\\ ")
            return [*words, ""] if is_new else words, quote
    return [""], ""


def _candidates(before: Sequence[str], last: str) -> Iterable[tuple[str, str]]:
    from hpc_hydra.cli.main import COMMANDS

    if not before:
        return [(name, about) for name, (_, about) in COMMANDS.items()]
    command = before[0]
    if command not in COMMANDS:
        return []
    target = COMMANDS[command][0]
    if before[-1].startswith("-") and any(takes and flag == before[-1] for flag, _, takes in _options(target)):
        return []
    if last.startswith("-"):
        return [(flag, about) for flag, about, _ in _options(target)]
    if command == "completion":
        return [(shell, "") for shell in SHELLS]
    if command in WITH_OVERRIDES:
        return _overrides(last, _config_dirs(before))
    if command == "keys":
        return [(word.rstrip("="), about) for word, about in _keys()]
    if command == "systems":
        return [(name, "") for name in _names("system", _config_dirs(before))]
    if command == "nodes":
        return _bad_nodes() if "--forget" in before else []
    if command in OF_SWEEPS:
        return [*_sweeps(last), *(_states() if command != "list" else ())]
    return []


def _options(target: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the options in a command's help, with what they mean and whether they take a value."""
    module, _, function = target.partition(":")
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        getattr(import_module(module), function or "main")(["--help"])
    yield "--help", "show the help of this command", False
    for line in text.getvalue().splitlines():
        if found := _OPTION.match(line):
            takes_value = bool(_FLAG.sub("", found[1]).strip(" ,"))
            yield from ((flag, found[2] or "", takes_value) for flag in _FLAG.findall(found[1]) if flag != "--help")


def _overrides(last: str, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield overrides: groups with their options, keys, and the values of keys that have few."""
    from hpc_hydra.config import reference
    from hpc_hydra.config.schema import GROUPS

    prefix = last[: len(last) - len(last.lstrip("+~"))]
    name, equals, _ = last[len(prefix) :].partition("=")
    if not equals:
        for group in GROUPS:
            if _names(group, folders):
                yield f"{prefix}{group}=", f"options of {group}"
            yield f"{prefix}{group}.", f"keys of {group}"
        if "." in name:
            yield from ((f"{prefix}{key}", about) for key, about in _keys())
        return
    if name in GROUPS:
        yield from ((f"{prefix}{name}={option}", "") for option in _names(name, folders))
    group = name.partition(".")[0]
    for key in reference.keys(group) if group in GROUPS else ():
        if key.name == name:
            values = key.choices or (("true", "false") if isinstance(key.default, bool) else ())
            yield from ((f"{prefix}{name}={value}", "") for value in values)


def _keys() -> Iterator[tuple[str, str]]:
    """Yield all keys with their meanings."""
    from hpc_hydra.config import reference
    from hpc_hydra.config.schema import GROUPS

    for group in GROUPS:
        for key in reference.keys(group):
            if "*" not in key.name:
                yield f"{key.name}=", " ".join(key.meaning.split())


def _config_dirs(before: Sequence[str]) -> list[Path]:
    """Return the directories with config files: our own, this user's, and the one of --config-dir."""
    from hpc_hydra.config.store import conf_dir, own_dir

    given = [Path(word) for flag, word in pairwise(before) if flag in ("-cd", "--config-dir")]
    return [conf_dir(), own_dir(os.environ), *given]


def _names(group: str, folders: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def _states() -> list[tuple[str, str]]:
    from hpc_hydra.sweep.status import FAILED, WORDS

    of_failed = f"runs in state {', '.join(FAILED)}"
    return [(word, of_failed if word == "failed" else "runs in this state") for word in WORDS]


def _bad_nodes() -> Iterator[tuple[str, str]]:
    """Yield the nodes that can be forgotten, and ``all``."""
    from hpc_hydra.records.bad_nodes import remembered

    yield from ((one.node.host, one.node.reason) for one in remembered())
    yield "all", "all of them"


def _sweeps(last: str) -> Iterator[tuple[str, str]]:
    """Yield the newest sweeps, below the current directory as relative paths."""
    from hpc_hydra.sweep import known

    here = Path.cwd()
    found = (each.root for each in known.remembered() if known.is_sweep(each.root))
    paths = [str(root.relative_to(here)) if here in root.parents else str(root) for root in found]
    yield from [(path, "sweep") for path in paths if path.startswith(last)][:SWEEPS]
