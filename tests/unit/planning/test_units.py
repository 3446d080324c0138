"""Times and memory: what is accepted means what SLURM says; all else is refused with the accepted forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.units import clock, mebibytes, seconds, size_text

M, H, D = 60, 3600, 86400


@pytest.mark.parametrize(
    ("written", "want"),
    [
        (None, None),
        (30, 30 * M),
        ("30", 30 * M),
        ("4:00", 4 * M),
        ("0:30", 30),
        ("90:00", 90 * M),
        ("1:30:00", 90 * M),
        ("08:00:00", 8 * H),
        ("100:00:00", 100 * H),
        ("2-12", 2 * D + 12 * H),
        ("1-06", D + 6 * H),
        ("1-06:30", D + 6 * H + 30 * M),
        ("1-00:00:00", D),
        ("0-00:00:01", 1),
        ("90s", 90),
        ("45m", 45 * M),
        ("2h", 2 * H),
        ("2H", 2 * H),
        ("1h30m", 90 * M),
        ("2d", 2 * D),
        ("1d2h3m4s", D + 2 * H + 3 * M + 4),
        (" 2h ", 2 * H),
    ],
)
def test_times(written: Any, want: int | None) -> None:
    assert seconds(written, "resources.time_limit") == want


@pytest.mark.parametrize(
    "written",
    [
        0, "0", "0:00", "0s", "00:00:00", "0-00", -5, "-5", "-1:00", 1.5, "1.5", "1.5h", True, "soon", "", "h", "1:90",
        "1:60:00", "1-24", "1-", "2 days, 0:00:00", "m30", "30m1h", "UNLIMITED", "infinite", "1:2:3:4", [1], "1h 30m",
    ],
)  # fmt: skip
def test_impossible_times_are_refused(written: Any) -> None:
    with pytest.raises(ConfigError) as error:
        seconds(written, "resources.time_limit")
    assert error.value.where == "resources.time_limit"
    assert '"HH:MM:SS"' in str(error.value.fix) and "1h30m" in str(error.value.fix)


@pytest.mark.parametrize("written", [600, "600", "-3"])
def test_a_number_without_a_unit_is_refused_where_minutes_are_not_plain(written: Any) -> None:
    with pytest.raises(ConfigError, match="no unit"):
        seconds(written, "rendezvous.timeout", bare=False)
    assert seconds("600s", "rendezvous.timeout", bare=False) == 600
    for bare in (True, False):  # only what is accepted is listed
        with pytest.raises(ConfigError) as error:
            seconds("soon", "launch.hang_after", bare=bare)
        assert ("30 (minutes)" in str(error.value)) == bare


@pytest.mark.parametrize(
    ("written", "want"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        ("all", 0),
        ("ALL", 0),
        ("0.5G", 512),
        ("1.5GB", 1536),
        ("2500MB", 2500),
        ("1GiB", 1024),
        ("1T", 1024**2),
        ("1k", 1),
        ("1025K", 2),
        ("0.1M", 1),
        ("480 G", 480 * 1024),
        ("120.0g", 120 * 1024),
        ("0.3G", 308),
    ],
)
def test_memory(written: Any, want: int | None) -> None:
    assert mebibytes(written, "resources.mem_per_node") == want


@pytest.mark.parametrize("written", [1024, "1024", 0.25, "0.25"])
def test_memory_without_a_unit_is_refused(written: Any) -> None:
    with pytest.raises(ConfigError) as error:
        mebibytes(written, "resources.mem_per_node")
    assert "no unit" in error.value.what and f"resources.mem_per_node={written}G" in str(error.value.fix)


@pytest.mark.parametrize("written", ["-1", -1, "-1G", "lots", "", "0G", "0.0M", "1P", "1e3G", "G", True, "1,5G", [1]])
def test_memory_without_sense_is_refused(written: Any) -> None:
    with pytest.raises(ConfigError) as error:
        mebibytes(written, "resources.mem_per_node")
    assert error.value.where == "resources.mem_per_node" and error.value.fix


@given(st.integers(1, 10**7))
def test_what_is_printed_is_read_back(number: int) -> None:
    assert seconds(clock(number), "k") == number
    assert mebibytes(size_text(number), "k") == number


@given(st.integers(1, 4000), st.sampled_from("KMGT"))
def test_memory_is_never_rounded_down_nor_to_the_whole_node(number: int, unit: str) -> None:
    got = mebibytes(f"{number}{unit}", "k")
    size = number * 1024 ** "KMGT".index(unit)
    assert got is not None and got >= 1 and size <= got * 1024 < size + 1024


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("written", [0, "0", "0s", "0:00"])
def test_null_is_advised_for_no_time(written: Any, bare: bool) -> None:
    with pytest.raises(ConfigError) as error:
        seconds(written, "launch.signal_before_end", bare=bare)
    assert str(error.value.fix).startswith("launch.signal_before_end=null")
