"""Text of job scripts: quoting of values, and all that the scripts of different schedulers share.

Scripts are plain bash without here-documents. Every value is on one line, so that no scheduler reads a part of it as a
directive. Must not know: any scheduler's options.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_hydra import envvars
from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.planning.types import EnvVar
from hpc_hydra.processes import IGNORED_SIGNALS
from hpc_hydra.records.files import write_bytes
from hpc_hydra.records.layout import ATTEMPT_TIME, SweepPaths
from hpc_hydra.schedulers import container, registry
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.environment import RANK_VARIABLES
from hpc_hydra.schedulers.job import CHOSEN, ChosenNodes

_UNSET = " ".join(("unset", *RANK_VARIABLES, "${!TORCHELASTIC_@}", f"${{!{envvars.PREFIX}@}}"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_WIDTH = 100  # columns after which a command is continued on the next line
_DEAF = f"trap '' {' '.join(IGNORED_SIGNALS)}  # for all from here on: the end is noted, whatever comes"
_ATTACHED = (
    "trap : QUIT TERM  # the ranks are signalled too: wait for them, then report how they ended",
    f"trap 'export {envvars.INTERRUPTED}=INT' INT  # Ctrl-C",
    f"trap 'export {envvars.INTERRUPTED}=HUP' HUP  # the terminal was closed",
)
_OURS = re.compile(rb"\A#!/bin/bash\n(?:#.*\n)*# (?:note: )?\S+ of the sweep ")  # as `job_script`, `pack_script` begin
_MODULES = re.compile(r"(^|[\s;&|(])(module|ml)\s")


def quote(value: str) -> str:
    """Quote ``value`` as one word of bash, byte for byte, without a line break.

    Raises:
        ConfigError: ``value`` contains a NUL character.
    """
    if "\0" in value:
        raise ConfigError(f"{value!r} contains a NUL character, which arguments and variables cannot")
    if value.isprintable():
        return shlex.quote(value)
    return "$'" + "".join(_escape(char) for char in value) + "'"


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(char))


def command(argv: Sequence[str]) -> str:
    """Format ``argv`` as one bash command."""
    return " ".join(quote(arg) for arg in argv)


def comment(text: str) -> str:
    """Format ``text`` as a one-line comment that no scheduler reads as a directive."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    marks = tuple(mark.lower() for mark in registry.constants("DIRECTIVE"))
    is_directive = re.sub(r"^\W*", "", line).lower().startswith(marks)
    return f"# note: {line}" if is_directive else f"# {line}"


@dataclass(frozen=True)
class SchedulerLines:
    """Lines that a scheduler adds to the scripts of its jobs, in bash unless noted.

    Attributes:
        scheduler: name of the adapter that identifies the ranks.
        job_id: bash word for the scheduler's id of this job or array element.
        directives: lines for the scheduler, verbatim.
        head: run before everything else.
        before: run before the setup lines; in the script of a step, before the variables are set.
        launching: run just before the ranks are started.
        restarted: bash word for how often the scheduler has started this job again; empty if it never does.
        other_nodes: argv that starts one process on each node that the script does not run on, for the setup lines;
            empty if there is no such node.
        on_submit_host: the script runs on the submit host, and so do the setup lines before they run on the nodes.
    """

    scheduler: str
    job_id: str
    directives: Sequence[str] = ()
    head: Sequence[str] = ()
    before: Sequence[str] = ()
    launching: Sequence[str] = ()
    restarted: str = ""
    other_nodes: Sequence[str] = ()
    on_submit_host: bool = False


def job_script(
    spec: JobSpec,
    own: SchedulerLines,
    *,
    launch: Sequence[str],
    select: str,
    setup: bool = True,
    notes: Iterable[str] = (),
    replica: Sequence[str] | None = None,
    preflight: Sequence[str] = (),
    chosen: ChosenNodes | None = None,
) -> str:
    """Return the script of a job.

    Args:
        launch: argv that starts one process per rank, without the ranks' argv.
        select: bash word for the number of the run, from the array ``runs``.
        setup: the script runs the setup lines; else the launch command does.
        notes: comments at the top of the script.
        replica: `ReplicaLaunch.replica_command`, for a plan with replica groups.
        preflight: argv that starts one process per node, without the process's argv.
        chosen: how the ranks start on the nodes that pass the preflight, for a request with spare nodes.
    """
    about = (f"{spec.key} of the sweep {spec.sweep}", "runs " + " ".join(map(str, spec.runs)), spec.comment, *notes)
    lines = [*_prologue(spec, own, about, _ATTACHED if spec.attached else ())]
    lines += ["", *_run(spec, own, select), *own.before]
    if setup:
        lines += _setup(spec, own)
    lines += [*_exports(spec), *container.exports(spec)]
    if own.restarted:
        done = command([*spec.finish_command[:-1], "superseded"])
        lines += ["", f"[ {own.restarted} = 0 ] || ! {done} || exit 0"]
    options, enter = container.around(spec)
    if spec.plan.preflight is not None:
        lines += _preflight(spec, [*preflight, *options, *enter])
    rank = command(spec.rank_command)
    if chosen is None:
        lines += ["", *own.launching, *_wrapped(_starter(spec, launch, replica, [*options, *enter]), rank)]
    else:
        words = " ".join(filter(None, (chosen.last, command(enter), rank)))
        lines += ["", *own.launching, *chosen.lines, *_wrapped([*chosen.launch, *options], words)]
    lines += ["code=$?", *_finish(spec, "$code"), "exit $?", ""]
    return "\n".join(lines)


def _preflight(spec: JobSpec, starter: Sequence[str]) -> Iterator[str]:
    """Check all nodes, and end the job if too few are good."""
    if not starter:
        name = spec.plan.request.scheduler
        raise PlanError(f"scheduler={name} has no preflight", where="launch.preflight", fix="launch.preflight=false")
    begin = command([*spec.finish_command[:-1], "preflight", "--"])
    yield from (
        "",
        "# every node is checked before the ranks start; standard output: the good nodes (launch.preflight)",
    )
    first, *more = _wrapped(starter, f'{command([*spec.rank_command[:-1], "preflight_node"])})"')
    yield from (f'{CHOSEN}="$({begin} \\', f"  {first}", *more)
    yield from ("code=$?", 'if [ "$code" != 0 ]; then')
    yield from (f"  {line}" for line in (*_finish(spec, "$code"), "exit $?"))
    yield "fi"


def may_replace(path: Path) -> bool:
    """Whether an existing file is an earlier job script, or empty. Raises `OSError`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return not head or _OURS.search(head) is not None


def named_run(spec: JobSpec) -> str:
    """Return the bash word for the run named by the script's first argument, which is optional for a single run."""
    return f'"${{1-{spec.runs[0]}}}"' if len(spec.runs) == 1 else '"${1-}"'


def step_script(spec: JobSpec, own: SchedulerLines, *, launch: Sequence[str], last: str = "") -> str:
    """Return the script of one run in a part of an allocation; ``last`` is shell text after the launch command.

    Its arguments are the run's number, its hosts, the name of its attempt, and its part of each host. Without an
    attempt (started by hand) the script writes the outcome itself; otherwise its starter does.
    """
    about = (f"one run of {spec.key} of the sweep {spec.sweep}, in a part of an allocation", spec.comment)
    lines = [
        *_prologue(spec, own, about, ["trap : INT QUIT TERM USR1 USR2  # the ranks are signalled too: wait for them"])
    ]
    lines += ["", *_run(spec, own, '"${1-}"'), f'[ -z "${{3-}}" ] || {envvars.ATTEMPT}="$3"', *own.before]
    lines += [*_exports(spec), *container.exports(spec)]
    options, enter = container.around(spec)
    lines += ["", *_wrapped([*launch, *options], f"{last} {command([*enter, *spec.rank_command])}".lstrip())]
    lines += ["code=$?", '[ -z "${3-}" ] || exit "$code"', *_finish(spec, "$code"), "exit $?", ""]
    return "\n".join(lines)


def pack_script(spec: JobSpec, own: SchedulerLines, *, index: str, wait: bool = False) -> str:
    """Return the script of an allocation for several runs.

    Args:
        index: bash word for the index of the pack.
        wait: run the packer as a child process; else exec it.
    """
    about = (f"{spec.key} of the sweep {spec.sweep}", f"{len(spec.runs)} runs in {len(spec.packs)} allocations")
    lines = [*_prologue(spec, own, (*about, spec.comment)), "", *_variables(spec, own)]
    lines += [f'export {envvars.PACK}="{index}"', f'export {envvars.PACK_JOB}="{own.job_id}"', *own.before]
    lines += [*_setup(spec, own), *_exports(spec), ""]
    if wait:
        lines += [
            "trap : INT TERM  # the packed runs are signalled too: wait for them",
            command(spec.rank_command),
            "exit $?",
        ]
    else:
        lines.append(f"exec {command(spec.rank_command)}")
    return "\n".join([*lines, ""])


def takes_over(spec: JobSpec, predecessor: str, own: str, *then: str) -> list[str]:
    """Return lines that end a successor unless the records name it as the next job, as `manifest.took_over` does.

    Args:
        predecessor: bash variable with the id of the job before; unset or empty in a job that is no successor.
        own: bash variable with the id of this job.
        then: further lines for a successor.
    """
    old, new = f"${predecessor}", f"${own}"
    return [
        f'if [ -n "${{{predecessor}-}}" ]; then  # successor of that job, unless the records say that it has none',
        f'  next={quote(f"{spec.log}/{spec.key}.")}{old}.next mine="$next.{new}"',
        f"""  printf '{{"job": "%s", "id": "%s", "next": "%s"}}\\n' {quote(spec.key)} "{old}" "{new}" >"$mine\"""",
        '  ln "$mine" "$next" 2>/dev/null; rm -f "$mine"  # the first to create the link decides',
        f'  [ ! -e "$next" ] || grep -qF "\\"next\\": \\"{new}\\"" "$next" || exit 0',
        *(f"  {line}" for line in then),
        "fi",
    ]


def interactive_script(spec: JobSpec) -> str:
    """Return the script of an interactive shell with the directory, setup lines and environment of the ranks."""
    lines = [*_prologue(spec, SchedulerLines("", ""), (f"an interactive shell of {spec.plan.system}",))]
    for line in spec.plan.request.setup_lines:
        lines += ["", f"eval {quote(line)} || exit"]
    lines += [*_exports(spec), *container.exports(spec)]
    _, enter = container.around(spec)
    shell = [*enter, "bash"] if spec.plan.container else ["bash", "-i"]
    return "\n".join([*lines, "", f"exec {command(shell)}", ""])


def _prologue(spec: JobSpec, own: SchedulerLines, about: Iterable[str], traps: Sequence[str] = ()) -> Iterator[str]:
    """The beginning of each script, up to its working directory."""
    directives = own.directives if spec.allocation is None else ()  # nothing is requested for a step
    yield from ("#!/bin/bash", *directives, *(comment(text) for text in about if text))
    if spec.plan.logging.trace:
        yield from ("", "PS4='+ line $LINENO: '", "set -x")
    yield from ("", _UNSET, *own.head, *traps)
    yield f"cd -- {quote(str(spec.workdir))} || exit 1"


def _finish(spec: JobSpec, code: str) -> Iterator[str]:
    yield from (_DEAF, f'{command(spec.finish_command)} "{code}"')


def _starter(
    spec: JobSpec, launch: Sequence[str], replica: Sequence[str] | None, around: Sequence[str]
) -> Sequence[str]:
    """Return the command that starts the ranks: the scheduler's, mpiexec, or the supervisor of replica groups.

    Args:
        around: words that start a rank in its container.
    """
    plan = spec.plan
    if plan.rendezvous.has_replicas:
        if replica is None:
            raise PlanError(
                f"scheduler={plan.request.scheduler} cannot start and restart a part of a job",
                where="rendezvous",
                fix="rendezvous=torchrun rendezvous.max_restarts=3 starts all ranks again",
            )
        words = ["--words", str(len(replica) + len(around)), *(["--contained"] if around else [])]
        return [spec.finish_command[0], "-m", "hpc_hydra.node", "replicas", *words, "--", *replica, *around]
    if plan.rendezvous.launcher == "scheduler":
        return [*launch, *around]
    request = plan.request
    argv = [spec.finish_command[0], "-m", "hpc_hydra.node", "mpiexec", "--nodes", str(request.nodes)]
    argv += ["--procs-per-node", str(request.procs_per_node)]
    if request.cpus_per_proc is not None:
        argv += ["--cpus-per-proc", str(request.cpus_per_proc)]
    return [*argv, "--", *around]


def _variables(spec: JobSpec, lines: SchedulerLines) -> Iterator[str]:
    own = {
        envvars.SWEEP: str(spec.sweep),
        envvars.JOB: spec.key,
        envvars.SCHEDULER: lines.scheduler,
    }
    for name, value in {**spec.environ, **own}.items():
        yield f"export {_checked(name)}={quote(value)}"


def _run(spec: JobSpec, lines: SchedulerLines, select: str) -> Iterator[str]:
    yield from _variables(spec, lines)
    yield f"runs=({' '.join(map(str, spec.runs))})"
    yield f"export {envvars.RUN}={select}"
    yield 'case " ${runs[*]} " in'
    yield f'  *" ${{{envvars.RUN}//[!0-9]/x}} "*) ;;'
    yield f"  *) echo \"hpc_hydra: no run '${envvars.RUN}' in this job; it has: ${{runs[*]}}\" >&2; exit 2 ;;"
    yield "esac"
    yield f'export {envvars.ATTEMPT}="$(date -u +{ATTEMPT_TIME})-{lines.job_id}"'


_EACH_LINE = """\
for hpc_hydra_line in "${hpc_hydra_setup[@]}"; do
  hpc_hydra_num=$((hpc_hydra_num + 1))
  echo "hpc_hydra: setup line $hpc_hydra_num on $HOSTNAME: $hpc_hydra_line" >&2
  eval "$hpc_hydra_line" && hpc_hydra_code=0 || hpc_hydra_code=$?
  [ "$hpc_hydra_code" = 0 ] || {
    echo "hpc_hydra: setup line $hpc_hydra_num failed with exit code $hpc_hydra_code" >&2; break; }
done"""
_LOGIN = """\
type module >/dev/null 2>&1 || { [ ! -r /etc/profile ] || . /etc/profile; }
type module >/dev/null 2>&1 || for hpc_hydra_profile in ~/.bash_profile ~/.bash_login ~/.profile; do
  [ ! -r "$hpc_hydra_profile" ] || { . "$hpc_hydra_profile"; break; }
done
"""
SETUP_THEN = (
    'HOSTNAME=$(uname -n); hpc_hydra_setup=("${@:2:$1}"); hpc_hydra_command=("${@:$(($1 + 2))}"); '
    "hpc_hydra_num=0; hpc_hydra_code=0; set --\n"
    f"{_LOGIN}{_EACH_LINE}\n"
    'set +eu; [ "$hpc_hydra_code" = 0 ] || '
    f'{{ echo "$hpc_hydra_line" >&"${envvars.SETUP_FD}"; exit "$hpc_hydra_code"; }}\n'
    'exec "${hpc_hydra_command[@]}"'
)
"""For ``bash -c``: run setup lines, then a command. Arguments: the number of lines, the lines, the command."""
_ELSEWHERE = (
    """bash -c 'HOSTNAME=$(uname -n); hpc_hydra_setup=("$@"); '"$hpc_hydra_each"'; exit $hpc_hydra_code' setup """
    """"${hpc_hydra_setup[@]}" || { hpc_hydra_code=$?; hpc_hydra_line="on another node"; }"""
)
_ON_SUBMIT_HOST = """\
hpc_hydra: this is the submit host of an attached run, where its setup lines run before they run on the nodes
  Try: `|| true` after the line, or launch.bg=true, which runs them on the nodes only"""


def _setup(spec: JobSpec, own: SchedulerLines) -> Iterator[str]:
    """Run setup lines in the batch shell, whose exports reach all ranks; then once on each other node."""
    lines = spec.plan.request.setup_lines
    if not lines:
        return
    yield ""
    where = "on the submit host, then " if own.on_submit_host else ""
    yield f"# {where}once on each node, in order; a line that fails stops the job (`|| true` makes a line optional)"
    yield "hpc_hydra_setup=("
    yield from (f"  {quote(line)}" for line in lines)
    yield ")"
    login = (
        _LOGIN if any(_MODULES.search(line) for line in lines) else ""
    )  # `module` may be defined in login shells only
    yield f"hpc_hydra_each='set --; hpc_hydra_num=0\n{login}{_EACH_LINE}'"
    yield 'eval "$hpc_hydra_each"'
    yield "set +eu"
    if own.on_submit_host:
        yield f'[ "$hpc_hydra_code" = 0 ] || echo {quote(_ON_SUBMIT_HOST)} >&2'
    if own.other_nodes:
        yield 'if [ "$hpc_hydra_code" = 0 ]; then'
        yield from (f"  {line}" for line in _wrapped(own.other_nodes, _ELSEWHERE))
        yield "fi"
    yield 'if [ "$hpc_hydra_code" != 0 ]; then'
    yield '  echo "hpc_hydra: the run is not started" >&2'
    yield f'  export {envvars.REASON}="a setup line failed with exit code $hpc_hydra_code: $hpc_hydra_line"'
    yield from (f"  {line}" for line in _finish(spec, "$hpc_hydra_code"))
    yield '  exit "$hpc_hydra_code"'
    yield "fi"


def secrets_file(spec: JobSpec) -> tuple[Path, str] | None:
    """Return path and text of the file that sets the variables with secrets; None if there are none."""
    if not spec.plan.hidden:
        return None
    plan = spec.environ.get(envvars.PLAN, "")  # runs of several plans may share a job
    lines = [line for var in spec.plan.hidden for line in export(var) if not line.startswith("#")]
    name = f"{spec.key}{f'.{plan}' if plan else ''}.secrets"
    return SweepPaths(spec.sweep).jobs / name, "\n".join([*lines, ""])


def write_secrets(spec: JobSpec) -> None:
    """Write the file of secrets that the script of a job reads, with mode 0600."""
    if found := secrets_file(spec):
        path, text = found
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=0o600)


def variables(spec: JobSpec) -> Iterator[str]:
    """Yield the lines of a script that set the plan's variables, without secrets."""
    for var in spec.plan.redacted.env:
        yield ""
        yield from (line for line in export(var) if line.startswith("#") or not spec.plan.hides(var.name))


def _exports(spec: JobSpec) -> Iterator[str]:
    yield from variables(spec)
    if found := secrets_file(spec):
        names = " ".join(dict.fromkeys(var.name for var in spec.plan.hidden))
        yield from ("", comment(f"secrets, in a file that only you can read: {names}"))
        quiet, loud = ("{ set +x; } 2>/dev/null; ", "; set -x") if spec.plan.logging.trace else ("", "")
        yield f"{quiet}. {quote(str(found[0]))} || exit 1{loud}"
    if spec.pythonpath:
        yield ""
        yield from export(EnvVar("PYTHONPATH", ":".join(spec.pythonpath), mode="prepend"))


def export(var: EnvVar) -> Iterator[str]:
    """Return the lines that set a variable, with its origin; variables set on the node are a comment."""
    name = _checked(var.name)
    source = "; ".join(text for text in (var.origin, var.source, var.checked and f"checked {var.checked}") if text)
    about = f"{var.why} ({source})" if var.why and source else var.why or source
    if about:
        yield comment(about)
    if var.when or var.expand:
        when = " and ".join(f"{kind} {argument}" for kind, argument in var.when)
        yield comment(f"set on the node{', when ' + when if when else ''}: {name}={var.value}")
    elif var.mode == "force":
        yield f"export {name}={quote(var.value)}"
    elif var.mode == "prepend":
        yield f'export {name}={quote(var.value)}"${{{name}:+:${name}}}"'
    else:
        yield f'[ -n "${{{name}+x}}" ] || export {name}={quote(var.value)}'


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a variable name: letters, digits and _, not beginning with a digit",
            where="launch.env",
            fix="a name such as NCCL_DEBUG",
        )
    return name


def _wrapped(launch: Sequence[str], rest: str) -> list[str]:
    """Format ``launch`` and the shell text ``rest`` as one command, wrapped for reading."""
    lines = [""]
    for word in map(quote, launch):
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append(" ")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"{line} \\" for line in lines] + [f"  {rest}"]
