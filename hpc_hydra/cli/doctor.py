"""``hpc-hydra doctor``: launch a small job whose ranks report what they see, and check the reports.

The ranks write into a directory shared by login node and compute nodes. Must not know: how anything is measured.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpc_hydra.cli import run
from hpc_hydra.cli.run import CONFIG
from hpc_hydra.cli.scan import Option, UsageError, format_help, scan_among
from hpc_hydra.cli.torchrun_options import whole
from hpc_hydra.planning.addresses import endpoint, not_for_others
from hpc_hydra.ui import streams

OPTIONS = (
    Option(("--help", "-h"), "flag", help="show this help"),
    Option(("--json",), "flag", help="print the checks and the report of each rank as JSON"),
    *CONFIG,
    Option(
        ("--max-size",), metavar="MB", help="largest all-reduce in MB (default: 16; with GPUs 1000)", parse=whole(1)
    ),
)
USAGE = "hpc-hydra doctor [overrides] [-cd DIR] [-cn NAME] [--json] [--max-size MB]"
ABOUT = """Launch a small job (resources.nodes=2 system=frontier …) and check the identity of ranks, addresses, clocks,
the shared file system, cores, GPUs, NCCL's network plugin, and an all-reduce. The exit code is 1 if a check fails."""
EXAMPLE = "hpc-hydra doctor resources.nodes=2 resources.time_limit=10m"
SKEW = 0.5  # allowed difference of two clocks, seconds
Facts = dict[str, Any]
Word = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    result: Word
    detail: str


def main(argv: Sequence[str]) -> int:
    """Run ``hpc-hydra doctor``; returns the exit code. Raises `HpcHydraError`."""
    from hpc_hydra.launcher.temporary import shared_directory

    overrides, given = _parse(argv)
    if "help" in given:
        sys.stdout.write(format_help(USAGE, ABOUT, OPTIONS, f"example: {EXAMPLE}"))
        return 0
    dry = bool({"launch.dry_run=true", "launch.dry_run=script"} & set(overrides))
    folder = Path("DIRECTORY") if dry else shared_directory("")
    try:
        command = ("-m", "hpc_hydra.node", "doctor", str(folder), str(given.get("max_size") or 0))
        folder_and_name = given.get("config_dir"), given.get("config_name")
        code = run.launch(run.Call(tuple(overrides), command, False, False, *folder_and_name))
        if dry:
            return code
        facts = [json.loads(file.read_text()) for file in sorted(folder.glob("rank_*.json"))]
    finally:
        if not dry:
            shutil.rmtree(folder, ignore_errors=True)
    checks = judge(facts, code)
    if given.get("json"):
        print(json.dumps({"checks": [asdict(check) for check in checks], "ranks": facts}, indent=2))
    else:
        show(checks, facts)
    return int(any(check.result == "fail" for check in checks))


def _parse(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    overrides, given = scan_among(OPTIONS, argv)
    wrong = [word for word in overrides if "=" not in word and not word.startswith("~")]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is not an override", where="doctor", fix=EXAMPLE)
    for key in ("launch.bg", "launch.setup_only", "launch.batch_script"):
        if any(text.split("=")[0].lstrip("+") == key for text in overrides):
            raise UsageError("doctor waits for its job and reads the reports", where=key, fix="omit it")
    return overrides, given


def judge(facts: Sequence[Facts], code: int) -> list[Check]:
    """Return all checks of the ranks' reports. ``code`` is the exit code of the launch."""
    if not facts:
        why = f"no rank has reported (exit code {code}): none started, or nodes do not share this directory"
        return [Check("ranks", "fail", why)]
    tests: tuple[Callable[[Sequence[Facts]], Check | None], ...] = (
        _identity, _addresses, _meeting, _clock, _files, _cores, _gpus, _plugin, _speed, _links,
    )  # fmt: skip
    checks = [check for test in tests if (check := test(facts)) is not None]
    if code and not any(check.result == "fail" for check in checks):
        checks.append(Check("launch", "fail", f"exit code {code}; its output is above"))
    return checks


def _hosts(facts: Sequence[Facts]) -> dict[str, list[Facts]]:
    found: dict[str, list[Facts]] = {}
    for each in facts:
        found.setdefault(each["host"], []).append(each)
    return found


def _identity(facts: Sequence[Facts]) -> Check:
    said = [each["identity"] for each in facts]
    size = int(said[0]["WORLD_SIZE"] or 0)
    ranks = sorted(int(each["RANK"]) for each in said)
    wrong = []
    if ranks != list(range(size)):
        missing = sorted(set(range(size)) - set(ranks))
        wrong.append(f"world size {size}, ranks {_few(ranks)}" + (f", missing {_few(missing)}" if missing else ""))
    if len({each["WORLD_SIZE"] for each in said}) > 1:
        wrong.append("ranks disagree about the world size")
    for host, mine in _hosts(facts).items():
        local = sorted(int(each["identity"]["LOCAL_RANK"]) for each in mine)
        if local != list(range(len(mine))):
            wrong.append(f"{host} has local ranks {_few(local)}")
        if len({each["identity"]["NODE_RANK"] for each in mine}) > 1:
            wrong.append(f"{host} has several node ranks")
    nodes = len(_hosts(facts))
    good = f"{size} rank{'s' * (size > 1)} on {nodes} node{'s' * (nodes > 1)} ({facts[0]['scheduler']})"
    return Check("ranks", "fail" if wrong else "ok", "; ".join(wrong) or good)


def _addresses(facts: Sequence[Facts]) -> Check:
    masters = {(each["identity"]["MASTER_ADDR"], each["identity"]["MASTER_PORT"]) for each in facts}
    if len(masters) > 1:
        return Check(
            "address", "fail", f"ranks have different addresses: {_few(sorted(endpoint(*m) for m in masters))}"
        )
    address, port = masters.pop()
    several = len(_hosts(facts)) > 1
    for each in facts:
        if not each["resolves"]:
            return Check("address", "fail", f"{address} cannot be resolved on {each['host']}")
        if several and all(not_for_others(found) for found in each["resolves"]):
            found = each["resolves"][0]
            return Check("address", "fail", f"{address} is {found} on {each['host']}: {not_for_others(found)}")
    target = set(facts[0]["resolves"])
    first = next((e for e in facts if e["identity"]["RANK"] == "0"), facts[0])
    interface = next((name for name, own in first["addresses"].items() if own in target), "?")
    return Check("address", "ok", f"{endpoint(address, port)} on interface {interface} of {first['host']}")


def _meeting(facts: Sequence[Facts]) -> Check:
    lacking = sorted({each["host"] for each in facts if "torch" in each and each["torch"] is None})
    if lacking:
        return Check("process group", "warn", f"not tested: no torch on {_few(lacking)}")
    absent = [int(each["identity"]["RANK"]) for each in facts if "all_reduce" not in each]
    if absent:
        return Check("process group", "fail", f"rank {_few(absent)} did not complete it; see the output above")
    versions = sorted({each["torch"] for each in facts})
    if len(versions) > 1:
        return Check("process group", "fail", f"different versions of torch: {', '.join(versions)}")
    return Check("process group", "ok", f"backend {facts[0]['backend']}, torch {versions[0]}")


def _clock(facts: Sequence[Facts]) -> Check | None:
    times = {each["host"]: each["clock"] for each in facts if "clock" in each}
    if len(times) < 2:
        return None
    early, late = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    apart = times[late] - times[early]
    detail = f"{early} and {late} differ by {apart:.3f} s" if apart > 0.001 else "equal within a millisecond"
    return Check("clocks", "warn" if apart > SKEW else "ok", detail)


def _files(facts: Sequence[Facts]) -> Check | None:
    said = [each for each in facts if "shared" in each]
    if not said:
        return None
    blind = sorted({each["host"] for each in said if not each["shared"]["seen"]})
    if blind:
        return Check("shared files", "fail", f"{_few(blind)} did not see what rank 0 wrote")
    slow = max(said, key=lambda each: float(each["shared"]["after"]))
    after = slow["shared"]["after"]
    detail = f"seen everywhere within {after:.2f} s" + (f", last by {slow['host']}" if after > 1 else "")
    return Check("shared files", "warn" if after > 5 else "ok", detail)


def _cores(facts: Sequence[Facts]) -> Check:
    few = [each for each in facts if each["cores"] and _threads(each["omp"]) > len(each["cores"])]
    if few:
        one = few[0]
        rank = one["identity"]["RANK"]
        detail = f"rank {rank} on {one['host']} has {len(one['cores'])} cores and OMP_NUM_THREADS={one['omp']}"
        return Check("cores", "warn", detail)
    counts = sorted({len(each["cores"]) for each in facts})
    return Check("cores", "ok", f"{'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} per rank")


def _threads(omp: str | None) -> int:
    first = (omp or "").split(",")[0]
    return int(first) if first.isdigit() else 0


def _far(each: Facts) -> bool:
    """Whether a rank's cores are on other NUMA nodes than its GPU."""
    gpu = each.get("gpu")
    return bool(gpu and gpu["numa"] is not None and each["numa"] and gpu["numa"] not in each["numa"])


def _gpus(facts: Sequence[Facts]) -> Check | None:
    asked = any(each["gpus_asked"] for each in facts)
    if not asked and not any(each.get("gpu") for each in facts):
        return None
    without = [each for each in facts if "device" in each and not each.get("gpu")]
    if without:
        detail = f"rank {without[0]['identity']['RANK']} on {without[0]['host']} trains on {without[0]['device']}"
        return Check("GPUs", "fail" if asked else "warn", detail)
    for host, mine in _hosts(facts).items():
        ids = [each["gpu"]["id"] for each in mine if each.get("gpu")]
        if len(set(ids)) < len(ids):
            return Check("GPUs", "fail", f"ranks of {host} share a GPU: {_few(ids)}")
    far = [each for each in facts if _far(each)]
    if far:
        one = far[0]
        detail = f"rank {one['identity']['RANK']} on {one['host']}: GPU at NUMA node {one['gpu']['numa']}, "
        return Check("GPUs", "warn", f"{detail}cores at {_few(one['numa'])}; system.gpu_bind or system.cpu_bind")
    names = sorted({each["gpu"]["name"] for each in facts if each.get("gpu")})
    return Check("GPUs", "ok", f"each rank has its own: {', '.join(names)}") if names else None


def _plugin(facts: Sequence[Facts]) -> Check | None:
    if not any(each["gpus_asked"] for each in facts) or len(_hosts(facts)) < 2:
        return None
    lost = sorted({each["host"] for each in facts if each["plugin_asked"] and not each["plugin"]})
    if lost and any(each["plugin"] for each in facts):
        return Check("NCCL plugin", "fail", f"not found on {_few(lost)}")
    found = next((each["plugin"] for each in facts if each["plugin"]), None)
    return Check(
        "NCCL plugin", "ok" if found else "warn", found or "none on LD_LIBRARY_PATH: NCCL uses its own transports"
    )


def _speed(facts: Sequence[Facts]) -> Check | None:
    done = [each["all_reduce"] for each in facts if each.get("all_reduce")]
    if not done or int(facts[0]["identity"]["WORLD_SIZE"]) < 2:
        return None
    shown = [f"{one['mb']:g} MB {one['gb_per_s']:.2f}" for one in done[0]]
    return Check("all-reduce", "ok", f"bus bandwidth in GB/s: {', '.join(shown)}")


def _links(facts: Sequence[Facts]) -> Check | None:
    links = {each["host"]: each["link"]["gb_per_s"] for each in facts if each.get("link")}
    if len(links) < 2:
        return None
    slow = min(links, key=links.__getitem__)
    middle = sorted(links.values())[len(links) // 2]
    detail = f"slowest from {slow}: {links[slow]:.2f} GB/s (median {middle:.2f})"
    return Check("links", "warn" if links[slow] < middle / 2 else "ok", detail)


def _few(values: Sequence[Any]) -> str:
    shown = ", ".join(str(value) for value in values[:8])
    return shown + (f" and {len(values) - 8} more" if len(values) > 8 else "")


def show(checks: Sequence[Check], facts: Sequence[Facts]) -> None:
    """Print the table of checks."""
    from rich.table import Table

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("check", "", "found"):
        table.add_column(title)
    for check in checks:
        table.add_row(check.name, f"[{colours[check.result]}]{check.result}[/]", check.detail)
    streams.show_table(table)
