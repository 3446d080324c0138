"""qsub as a stand-in: takes what OpenPBS 23.06 takes, refuses what it refuses, in its words and with its exit codes."""

from __future__ import annotations

import getopt
import os
import re
import shlex
import sys
import time
from pathlib import Path

from scheduler_state import ENDED, TICK, Cluster, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SERVER = "pbshead"
QUEUES = ["workq", "debug", "prod"]
LETTERS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
CHUNK = {"ncpus", "ngpus", "mem", "mpiprocs", "ompthreads", "host", "vnode", "arch", "system", "model"}
JOB_WIDE = {"walltime", "cput", "filesystems", "storage", "jobfs", "software", "place", "select", "nodes", "nodect"}
ATTRIBUTES = {"depend", "block", "umask", "group_list", "sandbox", "stagein", "stageout", "run_count"}
DEPEND = {"after", "afterok", "afternotok", "afterany", "before", "beforeok", "on"}
USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval]\n\t... [script | -- command [arg1 ...]]"
# The login shell that has the script as its child; like the host's daemon, it waits for the script after a SIGTERM.
SHELL = (
    'trap "told=1" TERM; trap : USR1 USR2; /bin/bash "$0" & pid=$!; wait $pid; code=$?; '
    "while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done; "
    '[ -z "$told" ] || { trap - TERM; kill -TERM $$; }; exit $code'
)


class Refused(Exception):
    """What qsub says on stderr, and its exit code."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.code = code


def qsub(cluster: Cluster, argv: list[str]) -> int:
    try:
        return _qsub(cluster, argv)
    except Refused as error:
        print(f"qsub: {error}", file=sys.stderr)
        return error.code


def _qsub(cluster: Cluster, argv: list[str]) -> int:
    own, words = _parsed(argv)
    if len(words) > 1:
        raise Refused(f"\n{USAGE}", 2)
    if words and words[0] != "-":
        if not Path(words[0]).is_file():
            raise Refused("script file:: No such file or directory", 1)
        script, name = Path(words[0]).read_text(), Path(words[0]).name
    else:
        script, name = sys.stdin.read(), "STDIN"
    prefix = dict(own).get("C", "#PBS")
    options = [*(_directives(script) if prefix else []), *own]
    given: dict[str, str] = {}
    listed: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for letter, value in options:
        if letter == "l":
            listed |= _pairs(value)
        elif letter == "W":
            attributes |= _pairs(value)
        else:
            given[letter] = value
    if wrong := attributes.keys() - ATTRIBUTES:
        raise Refused(f"illegal -W value: {min(wrong)}", 2)
    if "I" in given:
        raise Refused("\tstandard input and output must be a terminal for\n\tinteractive job submission", 1)
    name = given.get("N", name)
    if not re.fullmatch(r"[A-Za-z0-9+._-]+", name):
        raise Refused(f"illegal -N value\n{USAGE}", 2)
    if len(name) > 230:
        raise Refused("Job name is too long", 2)
    size = _size(listed)
    queue = given.get("q", "workq")
    if queue not in cluster.note("queues", QUEUES):
        raise Refused("Unknown queue", 170)
    indices, at_once = _array(cluster, given)
    _check_dependency(attributes.get("depend", ""))
    variables = _variables(given.get("v", ""))
    number = cluster.next_number()
    spool = cluster.root / "spool"
    spool.mkdir(exist_ok=True)
    copied = spool / f"{number}.SC"
    copied.write_text(script)
    copied.chmod(0o700)
    environment = cluster.keep_env(_environment(cluster, queue, variables))
    limit = _seconds(listed["walltime"]) * cluster.minute / 60 if "walltime" in listed else None
    jobs = []
    for index in indices:
        id_ = f"{number}[{index}].{SERVER}" if index is not None else f"{number}.{SERVER}"
        data = {
            "number": number, "index": index, "name": name, "queue": queue, "depend": attributes.get("depend", ""),
            "at_once": at_once, "listed": listed, "variables": variables, "join": given.get("j", "n"),
            "hosts": size["hosts"], "account": given.get("A", ""), "rerun": given.get("r", "y"),
            "out": given.get("o", ""), "last": max(filter(None, indices), default=0),
        }  # fmt: skip
        jobs.append(
            Job(
                id=id_, argv=["/bin/bash", "-c", SHELL, str(copied)], env=environment, cwd=os.environ.get("HOME", "/"),
                out=str(spool / f"{id_}.OU"), nodes=size["nodes"], slots=size["ncpus"], gpus=size["ngpus"],
                exclusive=size["exclusive"], limit=limit, held="h" in given, data=data,
            )
        )  # fmt: skip
    cluster.add(*jobs)
    cluster.start_daemon(Path(__file__).with_name("pbs.py"))
    if "z" not in given:
        print(f"{number}[].{SERVER}" if len(jobs) > 1 else jobs[0].id, flush=True)
    if attributes.get("block") == "true":
        while (now := cluster.job(jobs[0].id)) is not None and now.state != ENDED:
            time.sleep(TICK)
        return 0 if now is None or now.code is None else now.code if now.code >= 0 else 256 + now.code
    return 0


def _parsed(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        options, rest = getopt.getopt(words, LETTERS)
    except getopt.GetoptError as error:
        raise Refused(f"invalid option -- '{error.opt}'\n{USAGE}", 2) from None
    return [(name[1:], value) for name, value in options], rest


def _directives(script: str) -> list[tuple[str, str]]:
    """Lines #PBS before the first command; a comment behind an option is an error."""
    found = []
    for line in script.splitlines():
        text = line.lstrip()
        if text.startswith("#PBS"):
            words = shlex.shlex(text[4:], posix=True, punctuation_chars=False)
            words.whitespace_split, words.escape, words.commenters = True, "", ""
            try:
                options, rest = _parsed(list(words))
            except ValueError:
                raise Refused(f"directive error: {text[4:].strip()}", 1) from None
            if rest:
                raise Refused(f"directive error: {text[4:].strip()}", 1)
            found += options
        elif text and not text.startswith(("#", ":")):
            break
    return found


def _pairs(text: str) -> dict[str, str]:
    """``a=1,b=2``; a colon or a plus does not end a value."""
    found = {}
    for part in re.split(r",(?=[\w.-]+=)", text):
        name, _, value = part.partition("=")
        found[name] = value
    return found


def _size(listed: dict[str, str]) -> dict[str, Any]:
    for name in listed:
        if name not in CHUNK | JOB_WIDE:
            raise Refused(f"Unknown resource Resource_List.{name}", 187)
    for name in listed.keys() & CHUNK:
        if "select" in listed or "place" in listed:
            raise Refused(f'"-lresource=" cannot be used with "select" or "place", resource is: {name}', 5)
    if "walltime" in listed:
        _seconds(listed["walltime"])
    place = listed.get("place", "free")
    if not re.fullmatch(r"(free|pack|scatter|vscatter)?(:?(excl|exclhost|shared))?", place):
        raise Refused("Illegal attribute or resource value Resource_List.place", 166)
    if "select" not in listed:
        whole = {name: _number(name, listed.get(name, default)) for name, default in (("ncpus", "1"), ("ngpus", "0"))}
        return {"nodes": 1, "hosts": [], "exclusive": "excl" in place, **whole}
    nodes, hosts, ncpus, ngpus = 0, [], 1, 0
    for part in listed["select"].split("+"):
        count, *resources = part.split(":")
        if not count.isdigit():
            resources, count = [count, *resources], "1"
        nodes += int(count)
        has = dict(pair.partition("=")[::2] for pair in resources)
        for name, value in has.items():
            if name not in CHUNK:
                raise Refused(f"Unknown resource: {name}", 187)
            if name in ("ncpus", "ngpus", "mpiprocs", "ompthreads"):
                _number(name, value)
            if name == "mem" and not re.fullmatch(r"\d+([kmgt]?[bw])?", value):
                raise Refused("Illegal attribute or resource value select.mem", 166)
        hosts += [has["host"]] if "host" in has else []
        ncpus, ngpus = int(has.get("ncpus", 1)), int(has.get("ngpus", 0))
    return {"nodes": nodes, "hosts": hosts, "exclusive": "excl" in place, "ncpus": ncpus, "ngpus": ngpus}


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise Refused(f"Illegal attribute or resource value select.{name}", 166)
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"(?:(?:\d+:)?\d+:)?\d+(\.\d+)?", text):
        raise Refused("Illegal attribute or resource value Resource_List.walltime", 166)
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def _array(cluster: Cluster, given: dict[str, str]) -> tuple[list[int | None], int | None]:
    if "J" not in given:
        return [None], None
    match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?", given["J"])
    if not match or int(match[1]) >= int(match[2]):
        raise Refused(f"illegal -J value\n{USAGE}", 2)
    if given.get("r") == "n":
        raise Refused("cannot submit non-rerunable Array Job", 2)
    indices = list(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))
    if len(indices) > cluster.note("array_limit", 10000):
        raise Refused("Array job exceeds server or queue size limit", 3)
    return [*indices], int(match[4]) if match[4] else None


def _check_dependency(text: str) -> None:
    for part in filter(None, text.split(",")):
        kind, *ids = part.split(":")
        if kind not in DEPEND or not ids or not all(re.fullmatch(r"\d+(\[\])?(\.\w+)?", id_) for id_ in ids):
            raise Refused(f"illegal -W value\n{USAGE}", 2)


def _variables(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, re.split(r"(?<!\\),", text)):
        name, equals, value = part.partition("=")
        if not equals and name not in os.environ:
            raise Refused("cannot send environment with the job", 1)
        found[name] = value if equals else os.environ[name]
    return found


def _environment(cluster: Cluster, queue: str, variables: dict[str, str]) -> dict[str, str]:
    """Nothing of the caller's but what its login shell has; the XDG variables keep tests out of the user's folders."""
    own = {name: value for name, value in os.environ.items() if name.startswith("XDG_") and name.endswith("_HOME")}
    home, user = os.environ.get("HOME", "/"), os.environ.get("USER", "user")
    return {
        "PATH": f"{cluster.root.parent / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": home, "USER": user,
        "LOGNAME": user, "SHELL": "/bin/bash", "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PBS_O_HOME": home, "PBS_O_LANG": "C.UTF-8", "PBS_O_LOGNAME": user, "PBS_O_PATH": "/usr/bin:/bin",
        "PBS_O_SHELL": "/bin/bash", "PBS_O_WORKDIR": str(Path.cwd()), "PBS_O_SYSTEM": "Linux", "PBS_O_QUEUE": queue,
        "PBS_O_HOST": SERVER, **own, **variables,
    }  # fmt: skip
