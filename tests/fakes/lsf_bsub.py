"""bsub as a stand-in: takes what LSF takes, refuses what it refuses, in LSF's words."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

from scheduler_state import ENDED, TICK, Cluster, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FLAGS = {"x", "r", "rn", "H", "N", "Ne", "B", "K", "I", "Is", "Ip", "ti", "hl", "UF"}
VALUED = {
    "J", "Jd", "q", "P", "G", "U", "W", "We", "w", "m", "n", "R", "gpu", "o", "oo", "e", "eo", "u", "cwd", "M", "wa",
    "wt", "sla", "app", "g", "sp", "b", "E", "Ep", "L", "env", "Q", "i", "notify",
}  # fmt: skip
CSM = {"nnodes", "alloc_flags", "csm", "jsm", "core_isolation", "ln_slots", "ln_mem", "cn_cu", "smt", "step_cgroup"}
SECTION = re.compile(r"\s*(select|order|rusage|span|same|cu|affinity)\[((?:[^\[\]]|\[[^\]]*\])*)\]")


class Refused(Exception):
    """What bsub says on stderr."""


def bsub(cluster: Cluster, argv: list[str]) -> int:
    try:
        return _bsub(cluster, argv)
    except Refused as error:
        print(f"{error} Job not submitted.", file=sys.stderr)
        return 255


def _bsub(cluster: Cluster, argv: list[str]) -> int:
    csm = cluster.note("flavour", "standard") == "csm"
    given, command = _options(argv, csm)
    script = None if command else sys.stdin.read()
    asked = {**(_directives(script, csm) if script else {}), **given}
    asked["R"] = [*(_directives(script, csm).get("R", []) if script else []), *given.get("R", [])]
    size = _size(cluster, asked, csm)
    name, indices, at_once = _name(asked.get("J", ""), cluster.note("array_limit", 1000))
    queue = asked.get("q", cluster.note("queue", "normal"))
    if queue not in cluster.note("queues", ["normal", "pbatch", "pdebug", "standby"]):
        raise Refused(f"{queue}: No such queue.")
    limit = _limit(asked["W"], cluster.minute) if "W" in asked else None
    warning = None
    if ("wa" in asked) != ("wt" in asked):
        raise Refused("Both -wa and -wt options must be specified.")
    if "wa" in asked:
        warning = [int(getattr(signal, "SIG" + asked["wa"].removeprefix("SIG"))), _limit(asked["wt"], cluster.minute)]
    _check_dependency(cluster, asked.get("w", ""))
    for option in ("o", "oo", "e", "eo"):
        if option in asked and not Path(asked[option]).absolute().parent.is_dir():
            raise Refused(f"{asked[option]}: No such directory.")
    number = cluster.next_number()
    argv = _program(cluster, number, script, command)
    data = {
        "number": number, "name": name, "queue": queue, "description": asked.get("Jd", ""), "asked": asked,
        "at_once": at_once, "after": asked.get("w", ""), "warning": warning, "first_warning": warning,
        "report": asked.get("oo", asked.get("o")), "command": " ".join(command) or "script",
    }  # fmt: skip
    environment = cluster.keep_env(os.environ)
    foreground = any(option in asked for option in ("I", "Is", "Ip"))
    spool = cluster.root / "lsbatch"
    jobs = [
        Job(
            id=f"{number}[{index}]" if index else str(number), argv=argv, env=environment, cwd=str(Path.cwd()),
            out=str(spool / f"{number}.{index}.out"), limit=limit, held="H" in asked, foreground=foreground,
            data={**data, "index": index, "name": f"{name}[{index}]" if index else name}, **size,
        )
        for index in indices
    ]  # fmt: skip
    cluster.add(*jobs)
    cluster.start_daemon(Path(__file__).with_name("lsf.py"))
    if "BSUB_QUIET" not in os.environ:
        default = "" if "q" in asked or "LSB_DEFAULTQUEUE" in os.environ else "default "
        stream = sys.stderr if "BSUB_STDERR" in os.environ else sys.stdout
        print(f"Job <{number}> is submitted to {default}queue <{queue}>.", file=stream, flush=True)
    if foreground:
        from lsf import environment as of_job

        print("<<Waiting for dispatch ...>>", file=sys.stderr, flush=True)
        return cluster.run_here(jobs[0], of_job)
    if "K" in asked:
        print("<<Waiting for dispatch ...>>", file=sys.stderr, flush=True)
        while (now := cluster.job(jobs[0].id)) is not None and now.state != ENDED:
            time.sleep(TICK)
        print("<<Job is finished>>", file=sys.stderr)
        return 0 if now is None or now.code is None else now.code if now.code >= 0 else 128 - now.code
    return 0


def words(line: str) -> list[str]:
    """Words of a line of directives: either kind of quotes, no escapes."""
    found, word, quote = [], None, ""
    for char in line:
        if quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "\"'":
            quote, word = char, word or ""
        elif char.isspace():
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + char
    if quote:
        raise Refused("Unmatched quotes.")
    return found if word is None else [*found, word]


def _directives(script: str, csm: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for line in script.splitlines():  # wherever they stand
        if match := re.match(r"\s*#\s*BSUB\s+(.*)", line):
            options, rest = _options(words(match[1]), csm)
            if rest:
                raise Refused(f"{rest[0]}: Bad #BSUB line.")
            asked = {**asked, **options, "R": [*asked.get("R", []), *options.get("R", [])]}
    return asked


def _options(argv: list[str], csm: bool) -> tuple[dict[str, Any], list[str]]:
    asked: dict[str, Any] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)[1:]
        if name in FLAGS:
            asked[name] = True
        elif name in VALUED or (csm and name in CSM):
            if not rest:
                raise Refused(f"bsub: option requires an argument -- {name}.")
            value = rest.pop(0)
            if name == "R":
                asked.setdefault("R", []).append(value)
            elif name == "alloc_flags" and name in asked:
                raise Refused("-alloc_flags is given twice.")
            else:
                asked[name] = value
        elif name in CSM:
            raise Refused("Bad argument for option -n." if name == "nnodes" else f"bsub: illegal option -- {name}.")
        else:
            raise Refused(f"bsub: illegal option -- {name}.")
    return asked, rest


def _size(cluster: Cluster, asked: dict[str, Any], csm: bool) -> dict[str, Any]:
    hosts = cluster.hosts
    biggest = max(host["slots"] for host in hosts.values())
    if csm:
        if "n" in asked or asked["R"]:
            raise Refused("-n and -R cannot be used in CSM easy mode.")
        nodes = _number(asked.get("nnodes", "1"), "nnodes")
        if nodes > len(hosts):
            raise Refused("Too many nodes requested.")
        return {"nodes": nodes, "slots": biggest, "exclusive": True}
    total = _number(asked.get("n", "1").split(",")[0], "n")
    sections = _sections(asked["R"])
    per_host = min(total, biggest)
    if span := sections.get("span"):
        match = re.fullmatch(r"(ptile|hosts)=(\d+)", span)
        if not match:
            raise Refused("Bad resource requirement syntax.")
        per_host = int(match[2]) if match[1] == "ptile" else total
    nodes = -(-total // per_host)
    if nodes > len(hosts) or per_host > biggest:
        raise Refused("Too many processors requested.")
    gpus = 0
    if "gpu" in asked:
        terms = dict(term.partition("=")[::2] for term in asked["gpu"].split(":"))
        known = {"num", "mode", "mps", "j_exclusive", "gmodel", "gmem", "aff", "block"}
        if terms.keys() - known or not re.fullmatch(r"\d+(/task|/host)?", terms.get("num", "1")):
            raise Refused(f"{asked['gpu']}: Bad GPU requirement syntax.")
        if terms.get("mode", "shared") not in ("shared", "exclusive_process"):
            raise Refused(f"{asked['gpu']}: Bad GPU mode.")
        gpus = int(terms.get("num", "1").partition("/")[0])
    for host in str(asked.get("m", "")).split():
        if host not in hosts:
            raise Refused(f"{host}: Bad host name, host group name or cluster name.")
    return {"nodes": nodes, "slots": per_host, "gpus": gpus, "exclusive": "x" in asked}


def _sections(requirements: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in requirements:
        at = 0
        while at < len(text.rstrip()):
            match = SECTION.match(text, at)
            if not match or (match[1] == "span" and "span" in found):
                raise Refused("Bad resource requirement syntax.")
            found[match[1]] = match[2]
            at = match.end()
        if "rusage" in found:
            for term in re.split(r"[,:]", found["rusage"]):
                if not re.fullmatch(r"\w+=\d+([KMGT]B?)?(/(host|task|job))?", term):
                    raise Refused(f"{term}: Bad resource requirement syntax.")
    return found


def _number(text: str, option: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise Refused(f"Bad argument for option -{option}.")
    return int(text)


def _limit(text: str, minute: float) -> float:
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(/\w+)?", text)
    if not match or int(match[1] or 0) * 60 + int(match[2]) == 0:
        raise Refused("Bad RUNLIMIT specification.")
    return (int(match[1] or 0) * 60 + int(match[2])) * minute


def _name(text: str, largest: int) -> tuple[str, list[int], int | None]:
    if "[" not in text and "]" not in text:
        return text, [0], None
    match = re.fullmatch(r"([A-Za-z0-9._-]*)\[(\d+)-(\d+)\](?:%(\d+))?", text)
    if not match or int(match[2]) < 1 or int(match[3]) < int(match[2]) or match[4] == "0":
        raise Refused(f"{text}: Bad job name.")
    if int(match[3]) > largest:
        raise Refused("Job array index too large.")
    return match[1], list(range(int(match[2]), int(match[3]) + 1)), int(match[4]) if match[4] else None


TERM = re.compile(r"\b(done|ended|exit|started)\(\s*\"?([^()\"]+?)\"?\s*\)")


def _check_dependency(cluster: Cluster, text: str) -> None:
    if re.sub(TERM, "", text).replace("&&", "").replace("||", "").replace("!", "").strip(" ()"):
        raise Refused("Bad dependency condition syntax.")
    for _, job in TERM.findall(text):
        if not jobs_named(cluster.jobs(), job):
            raise Refused(f"{job}: No matching job found.")


def jobs_named(jobs: list[Job], text: str) -> list[Job]:
    """Those of an id, of an element's id, or of a name."""
    return [job for job in jobs if text in (job.id, str(job.data["number"]), job.data["name"].partition("[")[0])]


def _program(cluster: Cluster, number: int, script: str | None, command: list[str]) -> list[str]:
    spool = cluster.root / "lsbatch"
    spool.mkdir(exist_ok=True)
    path = spool / f"{number}.shell"
    if script is None:  # words of the command are escaped where they hold spaces or quotes, and read by a shell
        script = "#!/bin/sh\n" + " ".join(re.sub(r"([\s\"'\\])", r"\\\1", word) for word in command) + "\n"
    elif not script.startswith("#!"):
        script = "#!/bin/sh\n" + script
    path.write_text(script)
    path.chmod(0o700)
    return [str(path)]
