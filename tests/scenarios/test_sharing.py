"""Two launchers never share a sweep directory: each value is trained once, by whom it was asked of."""

from __future__ import annotations

import json
import subprocess

from tests.awaiting import await_true

from .conftest import Probe


def test_of_two_launchers_started_together_one_is_refused_and_the_other_is_right(local_probe: Probe) -> None:
    launchers = [
        subprocess.Popen(
            local_probe.argv(f"note={who}1,{who}2", "ret=number"), env=local_probe.env(), cwd=local_probe.tmp,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for who in "ab"
    ]  # fmt: skip
    said = [launcher.communicate(timeout=120)[0] for launcher in launchers]
    assert sorted(launcher.returncode for launcher in launchers) == [0, 2], said
    winner = next(who for who, launcher in zip("ab", launchers, strict=True) if launcher.returncode == 0)
    assert "another launcher" in said["ba".index(winner)]
    assert [local_probe.saw()[(num, 0)]["note"] for num in (0, 1)] == [f"{winner}1", f"{winner}2"]


def test_a_directory_whose_local_launcher_lives_is_not_taken_over(local_probe: Probe) -> None:
    gate = local_probe.tmp / "gate"
    with local_probe.started("note=a,b,c", f"gate={gate}", "resources.procs_per_node=1") as first:
        assert await_true(lambda: local_probe.saw() or first.poll() is not None) and first.poll() is None
        second = subprocess.run(
            local_probe.argv("note=z"), env=local_probe.env(), cwd=local_probe.tmp, capture_output=True, text=True,
            timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert second.returncode == 2 and "another launcher" in second.stderr and "Traceback" not in second.stderr
        gate.touch()
        out, _ = first.communicate(timeout=120)
    assert first.returncode == 0, out
    assert [local_probe.saw()[(num, 0)]["note"] for num in range(3)] == ["a", "b", "c"]
    assert json.loads((local_probe.sweep / "0" / "outcome.json").read_text())["status"] == "completed"
