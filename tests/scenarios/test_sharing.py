"""Two launchers never share a sweep directory: each value is trained once, by whom it was asked of."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.awaiting import await_true

from .conftest import Probe


def test_of_two_launchers_started_together_one_is_refused_and_the_other_is_right(local_probe: Probe) -> None:
    with ThreadPoolExecutor() as threads:
        done = dict(zip("ab", threads.map(lambda who: local_probe.run(f"note={who}1,{who}2"), "ab"), strict=True))
    assert sorted(launcher.code for launcher in done.values()) == [0, 2], done
    winner, loser = sorted(done, key=lambda who: done[who].code)
    assert "another launcher" in done[loser].text
    assert [local_probe.saw()[(num, 0)]["note"] for num in (0, 1)] == [f"{winner}1", f"{winner}2"]


def test_a_directory_whose_local_launcher_lives_is_not_taken_over(local_probe: Probe) -> None:
    gate = local_probe.tmp / "gate"
    with local_probe.started("note=a,b", f"gate={gate}", "resources.procs_per_node=1") as first:
        assert await_true(lambda: local_probe.saw() or first.poll() is not None) and first.poll() is None
        second = local_probe.run("note=z")
        assert second.code == 2 and "another launcher" in second.err and "Traceback" not in second.err
        gate.touch()
        out, _ = first.communicate(timeout=120)
    assert first.returncode == 0, out
    assert [local_probe.saw()[(num, 0)]["note"] for num in range(2)] == ["a", "b"]
    assert json.loads((local_probe.sweep / "0" / "outcome.json").read_text())["status"] == "completed"
