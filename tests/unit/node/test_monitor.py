"""What is measured on a node, and what the logs say besides the program's own words."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_hydra.node import monitor
from hpc_hydra.node.rank import gpus
from hpc_hydra.node.rank.context import read_context
from hpc_hydra.node.rank.line_prefixer import Lines
from hpc_hydra.node.rank.logs import stamps_of
from hpc_hydra.planning.types import Logging, Monitor, RankInfo, Rendezvous
from tests.fakes import amdsmi

from .conftest import ATTEMPT, Frozen, alive, await_true

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:?\d\d"


def samplers(frozen: Frozen) -> list[int]:
    found = []
    for pid in frozen.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"monitor" in words:
            found.append(pid)
    return found


def file(frozen: Frozen, ending: str) -> Path | None:
    return next(iter(frozen.paths.attempt(ATTEMPT).glob(f"*{ending}")), None)


def rows(frozen: Frozen) -> list[dict[str, str]]:
    path = file(frozen, ".gutil.csv")
    return list(csv.DictReader(path.open())) if path else []


@pytest.mark.parametrize("mode", ["tcp", pytest.param("torchrun", marks=pytest.mark.torch)])
def test_one_sampler_a_node_starts_with_the_ranks_and_ends_with_them(freeze: Callable[..., Frozen], mode: str) -> None:
    frozen = freeze(
        "while not Path('go').exists(): time.sleep(0.05)", procs=2, plan={"monitor": Monitor(1)},
        rendezvous=Rendezvous(mode, timeout=200),
    )  # fmt: skip
    with frozen.spawn() as process:
        enough = await_true(lambda: len(rows(frozen)) > 1, 200)
        number = len(samplers(frozen))
        (frozen.root.parent / "go").touch()
        assert process.wait(200) == 0 and enough and number == 1
    first, second = rows(frozen)[:2]
    assert re.fullmatch(STAMP, first["time"]) and first["time"] < second["time"]
    assert 0 <= float(second["cpu_percent"]) <= 100 and float(second["ram_used_mib"]) > 0
    assert float(second["net_rx_mib_s"]) >= 0 and first["gpu"] == ""
    path = file(frozen, ".gutil.csv")
    assert path and re.fullmatch(r"[\w.]+\.[\w-]+\.gutil\.csv", path.name)  # that none is left is the fixture's check


def test_the_sampler_goes_with_a_supervisor_that_is_killed(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze("time.sleep(60)", plan={"monitor": Monitor(1)})
    process = frozen.rank(0, 1)
    (sampler,) = await_true(lambda: rows(frozen) and samplers(frozen), 200)
    process.kill()
    process.communicate()
    assert await_true(lambda: not alive(sampler), 200)


def test_a_warning_or_a_stop_signal_is_not_for_the_sampler(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze(
        "while not Path('go').exists(): time.sleep(0.05)", procs=1, plan={"monitor": Monitor(1)}
    )  # fmt: skip
    with frozen.spawn() as process:
        (sampler,) = await_true(lambda: rows(frozen) and samplers(frozen), 200)
        for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(sampler, signum)
        before = len(rows(frozen))
        goes_on = await_true(lambda: len(rows(frozen)) > before, 200)
        (frozen.root.parent / "go").touch()
        process.communicate(timeout=200)
    assert goes_on


def test_a_sample_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5 % of a core at 15 s are 75 ms; eight GPUs."""
    node = monitor.node_reader()
    readings = [gpus.Reading(str(n), 350.0, 99, 40, 60_000.0, 81_559.0, 60, 1_980, 2_619) for n in range(8)]
    begin = time.process_time()
    for _ in range(20):
        monitor.sample(0.0, lambda: readings, node)
    assert (time.process_time() - begin) / 20 < 0.075


def test_dmon_text_and_table_of_the_same_moment() -> None:
    reading = gpus.Reading("1", 71.4, 98, None, 4096.0, 81_559.0, 34, 1_980, 2_619)
    table, text = monitor.sample(0.0, lambda: [reading], lambda: (12.5, 1.0, 2.0, 0.0, 0.25, 0.0, 0.0))
    assert table.split(",")[1:] == [
        "1", "71.4", "98", "", "4096", "81559", "34", "1980", "2619", "12.5", "1", "2", "0", "0.2", "0", "0\n",
    ]  # fmt: skip
    assert text.split()[2:] == ["1", "71", "34", "98", "-", "4096", "2619", "1980"]
    assert len(monitor.DMON_HEAD.splitlines()[0]) == len(text.rstrip())


def fake_nvml() -> types.SimpleNamespace:
    class NVMLError(Exception):
        pass

    def handle(n: int) -> str:
        return f"GPU-{n}"

    def unknown(_: object, *__: object) -> None:
        raise NVMLError

    return types.SimpleNamespace(
        NVMLError=NVMLError, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 4, nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetPowerUsage=lambda _: 71_400, nvmlDeviceGetTemperature=lambda *_: 34,
        nvmlDeviceGetUtilizationRates=lambda _: types.SimpleNamespace(gpu=98, memory=40),
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(used=2**32, total=2**36),
        nvmlDeviceGetClockInfo=unknown,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "want"),
    [(None, "0123"), (["2", "3"], "23"), (["7"], "0123"), (["GPU-1"], ["GPU-1"])],
)
def test_the_gpus_of_the_run_are_read(monkeypatch: pytest.MonkeyPatch, wanted: list[str] | None, want: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())  # type: ignore[arg-type]
    read, note = gpus.open_gpus(wanted)
    assert [reading.gpu for reading in read()] == list(want) and note == f"{len(want)} GPUs"
    assert read()[0] == gpus.Reading(read()[0].gpu, 71.4, 98, 40, 4096.0, 65_536.0, 34, None, None)


MI300X = {
    "power": {"socket_power": 742, "current_socket_power": 742, "power_limit": 750_000_000},
    "activity": {"gfx_activity": 97, "umc_activity": 31},
    "vram": {"vram_total": 196_592, "vram_used": 150_123},
    "clocks": {amdsmi.AmdSmiClkType.GFX: 2_100, amdsmi.AmdSmiClkType.MEM: 1_300},
    "temperatures": {amdsmi.AmdSmiTemperatureType.HOTSPOT: 68},
}  # fmt: skip
MI250X = {  # no HBM clock, and an edge alone
    "power": {"average_socket_power": 501, "socket_power": 501},
    "activity": {"gfx_activity": 3, "umc_activity": 0},
    "vram": {"vram_total": 65_520, "vram_used": 11},
    "clocks": {amdsmi.AmdSmiClkType.GFX: 800},
    "temperatures": {amdsmi.AmdSmiTemperatureType.EDGE: 41_000},  # in thousandths, as old libraries say it
}  # fmt: skip


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """GPUs of AMD, and no NVIDIA library."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi)
    monkeypatch.setattr(amdsmi, "GPUS", [MI300X, MI250X, {}])
    monkeypatch.setattr(amdsmi, "_initialised", False)
    return amdsmi.GPUS


def test_gpus_of_amd_are_read_in_watts_percent_mebibytes_degrees_and_megahertz(amd: list[dict]) -> None:
    read, note = gpus.open_gpus(None)
    assert note == "3 GPUs"
    new, old, silent = read()
    assert new == gpus.Reading("0", 742.0, 97.0, 31.0, 150_123.0, 196_592.0, 68.0, 2_100.0, 1_300.0)
    assert old == gpus.Reading("1", 501.0, 3.0, 0.0, 11.0, 65_520.0, 41.0, 800.0, None)
    assert silent == gpus.Reading("2")
    table, text = monitor.sample(0.0, read, lambda: (None,) * len(monitor.NODE))
    lines = [line.split(",")[1:9] for line in table.splitlines()]
    assert lines[0] == ["0", "742", "97", "31", "150123", "196592", "68", "2100"]
    assert text.splitlines()[1].split()[2:] == ["1", "501", "41", "3", "0", "11", "-", "800"]


@pytest.mark.parametrize(("wanted", "want"), [(["1"], "1"), (["7"], "012"), (["GPU-64ff74b5"], "012")])
def test_the_gpus_of_the_run_are_read_of_amd_too(amd: list[dict], wanted: list[str], want: str) -> None:
    assert [reading.gpu for reading in gpus.open_gpus(wanted)[0]()] == list(want)


def test_values_that_amds_library_lacks_are_empty_and_never_large_numbers(amd: list[dict]) -> None:
    amd[0] = {**MI300X, "power": {"current_socket_power": 2**32 - 1}, "clocks": {amdsmi.AmdSmiClkType.GFX: 2**32 - 1}}
    reading = gpus.open_gpus(["0"])[0]()[0]
    assert (reading.power_w, reading.sm_mhz) == (None, None) and reading.util_percent == 97


def test_no_driver_of_amd_is_no_gpu_and_a_library_that_does_not_load_is_reported(
    amd: list[dict], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    amd.clear()
    assert gpus.open_gpus(None, tmp_path)[0]() == []

    class Broken:  # `import amdsmi` without libamd_smi.so
        def find_spec(self, name: str, *_: object) -> None:
            if name == "amdsmi":
                raise KeyError("libamd_smi.so")

    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties"
    node.parent.mkdir(parents=True)
    node.write_text("simd_count 440\n")
    read, note = gpus.open_gpus(None, tmp_path)
    assert read() == [] and "1 × AMD GPU" in note and "libamd_smi.so" in note


def test_gpus_that_cannot_be_read_are_reported_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    about = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    about.parent.mkdir(parents=True)
    about.write_text("Model: NVIDIA H100\n")
    read, note = gpus.open_gpus(None, tmp_path)
    assert read() == [] and "NVIDIA H100" in note and "nvidia-ml-py" in note


def test_lines_of_ranks_have_their_number_also_in_one_file(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze(
        "print('a\\nb'); print('no end', end='', file=sys.stderr)", procs=2,
        logging=Logging(out="all.log", rank_prefix=True),
    )  # fmt: skip
    assert frozen.run()[0] == 0
    lines = (frozen.paths.root / "all.log").read_text().splitlines()
    assert sorted(lines) == ["[0] a", "[0] b", "[0] no end", "[1] a", "[1] b", "[1] no end"]


def test_prefixed_lines_are_whole_and_in_order(tmp_path: Path) -> None:
    target = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    lines = Lines(target, b"[3] ")
    writer = os.dup(lines.writer)
    lines.begin()
    text = b"".join(b"%d %s\n" % (n, b"x" * (n % 300)) for n in range(20_000))
    for at in range(0, len(text), 7_001):
        os.write(writer, text[at : at + 7_001])
    os.close(writer)
    lines.join(200)
    assert (tmp_path / "out").read_bytes() == b"".join(b"[3] " + line + b"\n" for line in text.splitlines())


def test_the_time_stands_in_the_log_of_a_long_run(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze("while not Path('go').exists(): time.sleep(0.05)", logging=Logging(timestamps=1))
    with frozen.spawn() as process:
        log = frozen.paths.rank_log(ATTEMPT, 0)
        found = await_true(lambda: log.exists() and len(re.findall(rf"(?m)^{STAMP}$", log.read_text())) > 1, 200)
        (frozen.root.parent / "go").touch()
        assert process.wait(200) == 0 and found


@pytest.mark.parametrize(
    ("pattern", "stamping"),  # ranks of two nodes with two each
    [
        (None, [0, 1, 2, 3]),
        ("{rank}.log", [0, 1, 2, 3]),
        ("{host}.log", [0, 2]),
        ("{job_id}.log", [0]),
        ("all.log", [0]),
    ],
)
def test_one_rank_stamps_each_log_file(freeze: Callable[..., Frozen], pattern: str | None, stamping: list[int]) -> None:
    frozen = freeze(logging=Logging(timestamps=1, out=pattern))
    found = []
    for rank in range(4):
        info = RankInfo(rank, rank % 2, 4, 2, rank // 2, 2, "a", ("a", "b"), "7")
        context = read_context(frozen.environ(), f"h{rank // 2}")
        found += [rank] if stamps_of(context.identified(info, {})) else []
    assert found == stamping


def test_samples_go_where_a_pattern_says_and_the_report_finds_them(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze(
        "while not Path('go').exists(): time.sleep(0.05)", plan={"monitor": Monitor(1, file="out/s-{num}.{host}.gutil")}
    )  # fmt: skip
    with frozen.spawn() as process:
        enough = await_true(lambda: rows(frozen), 200)
        (frozen.root.parent / "go").touch()
        assert process.wait(200) == 0 and enough
    host = socket.gethostname()
    assert {path.name for path in (frozen.paths.root / "out").iterdir()} >= {f"s-0.{host}.gutil.csv"}


def test_nothing_is_measured_or_stamped_at_a_console(freeze: Callable[..., Frozen]) -> None:
    frozen = freeze("time.sleep(1.5); print('x')", plan={"monitor": Monitor(1)}, logging=Logging(timestamps=1))
    with frozen.spawn(HPC_HYDRA_ATTACHED="1") as process:
        out, _ = process.communicate(timeout=200)
    assert not rows(frozen) and not re.search(STAMP, out)
