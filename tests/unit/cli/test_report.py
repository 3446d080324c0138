"""`hpc-hydra report`: one file, without a network, whose table sorts and whose plots are drawn in a real browser."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.launcher import history
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.sweep.files import write_json
from hpc_hydra.sweep.frozen import Freezer, Program
from hpc_hydra.sweep.layout import RunPaths, SweepPaths
from hpc_hydra.sweep.manifest import Manifest
from hpc_hydra.sweep.types import Job, Outcome
from tests.browser import Browser

HEAD = "time,gpu,power_w,util_percent,mem_util_percent,mem_used_mib,mem_total_mib,temp_c,sm_mhz,mem_mhz,cpu_percent\n"
EVIL = "</script><script>console.error('run')</script> <b>x"


def sweep(root: Path, runs: int, *, samples: int = 30) -> Path:
    """A sweep that has ended: every seventh run failed, every fifth was requeued; two GPUs were measured in each."""
    from omegaconf import OmegaConf

    freezer = Freezer(root, Program("script", "/w/train.py", cwd="/w"))
    base = freezer.add_base(OmegaConf.create({"hydra": {}}), ())
    plan = Plan("local", Request("local", 1, 1))
    for num in range(runs):
        freezer.add_run(
            num, [f"lr={10 ** -(num % 4 + 1)}", f"opt={'ab'[num % 2]}"], plan="plan0", base=base, seed=1,
            dir=root / str(num),
        )  # fmt: skip
    freezer.write_plans({"plan0": plan})
    freezer.flush()
    freezer.close()
    SweepPaths(root).jobs.mkdir()
    SweepPaths(root).script("job0").write_text(f"#!/bin/bash\n# {EVIL}\n")
    write_json(SweepPaths(root).meta / "code.json", {"commit": "f00baa", "packages": {"torch": "2.13.0"}})
    manifest = Manifest(root)
    manifest.started(argv=["train.py", "-m"], host="login", pid=os.getpid(), runs=runs)
    job = Job("job0", "plan0", tuple(range(runs)), "tag", tuple(f"job0.{num}" for num in range(runs)))
    manifest.submitting(job, "local")
    manifest.submitted(job)
    manifest.finished(failed=0)
    begin = time.time() + 2
    for num in range(runs):
        paths, start = RunPaths(root / str(num)), begin + num
        names = [time.strftime("%Y%m%d-%H%M%S-", time.localtime(start + 300 * n)) + f"job0.{num}" for n in range(2)]
        names = names if num % 5 == 0 else names[:1]
        for name in names:
            paths.attempt(name).mkdir(parents=True)
            paths.rank_log(name, 0).write_text("first\n" * 50 + f"{EVIL}\n")
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(start))
            rows = "".join(
                f"{stamp[:17]}{second % 60:02}{stamp[19:]},{gpu},{300 + gpu},9{gpu},4,4000,80000,60,1980,,{second}\n"
                for second in range(samples)
                for gpu in range(2)
            )
            (paths.attempt(name) / f"job0.{num}.node01.gutil.csv").write_text(HEAD + rows + "2026-")
        failed = num % 7 == 6
        outcome = Outcome(
            num, "failed" if failed else "completed", int(failed), names[-1], f"job0.{num}", started=start,
            ended=start + 500, result=None if failed else {"acc": num / runs, "note": EVIL},
            result_kind="none" if failed else "json", reason="boom" if failed else None,
            log=str(paths.rank_log(names[-1], 0)) if failed else None,
        )  # fmt: skip
        write_json(paths.outcome, to_json(outcome))
    return root


def made(root: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["report", str(root)]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == root / "report.html"
    return file


def shown(file: Path) -> dict:
    text = file.read_text().partition('id="data">')[2].partition("</script>")[0]
    return json.loads(text)


def test_the_page_says_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(made(sweep(tmp_path / "s", 8), capsys))
    assert found["keys"] == ["lr", "opt"] and found["values"] == ["acc", "note"]
    assert [run["state"] for run in found["runs"]].count("failed") == 1
    assert [a["what"] for a in found["runs"][5]["attempts"]] == ["queued", "requeued", "queued", "completed"]
    assert found["runs"][6]["tail"]["lines"][-1] == EVIL
    gpus = found["runs"][0]["measured"][0]["gpus"]
    assert set(gpus) == {"0", "1"} and set(gpus["1"]["util_percent"]) == {91}
    assert found["runs"][0]["measured"][0]["host"] == "node01"
    assert found["launched"]["code"]["commit"] == "f00baa"
    assert found["launched"]["launches"][0]["command"] == "train.py -m"
    assert found["plans"]["plan0"]["request"]["nodes"] == 1 and "#!/bin/bash" in found["scripts"]["job0"]


def test_many_runs_make_a_small_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sweep(tmp_path / "s", 200, samples=60)
    begin = time.process_time()
    file = made(root, capsys)
    assert file.stat().st_size < 5_000_000
    assert time.process_time() - begin < 10


def test_without_plotly_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    assert main(["report", str(tmp_path)]) == 2
    assert "hpc-hydra[report]" in capsys.readouterr().err


def test_curves_are_thinned_to_means() -> None:
    assert history.thinned([1.0, None, 3.0], 5) == [1.0, None, 3.0]
    assert history.thinned([float(n) for n in range(100)], 4) == [12, 37, 62, 87]
    assert history.thinned([None] * 50, 5) == [None] * 5


@pytest.mark.needs("browser")
def test_it_works_in_a_browser(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made(sweep(tmp_path / "s", 12), capsys)
    with Browser(tmp_path / "profile") as page:
        page.load(file)
        page.await_true("document.documentElement?.dataset?.ready")
        assert page.ask("document.documentElement.dataset.ready") == "1"
        rows = "[...document.querySelectorAll('#runs tbody tr')]"
        assert page.ask(f"{rows}.map(r => r.dataset.run)") == [str(n) for n in range(12)]
        page.ask("[...document.querySelectorAll('#runs th')].find(h => h.textContent === 'acc').click()")
        page.ask("[...document.querySelectorAll('#runs th')].find(h => h.textContent.startsWith('acc')).click()")
        assert page.ask(f"{rows}.map(r => r.dataset.run)") == [
            "11",
            "10",
            "9",
            "8",
            "7",
            "5",
            "4",
            "3",
            "2",
            "1",
            "0",
            "6",
        ]
        page.ask(
            "const f = document.getElementById('filter'); f.value = 'opt=a failed'; f.dispatchEvent(new Event('input'))"
        )
        assert page.ask(f"{rows}.length") == 1
        page.ask(f"{rows}[0].click()")
        page.await_true("document.querySelectorAll('.hardware svg.main-svg').length >= 6")
        widths = "[...document.querySelectorAll('.hardware')].map(b => [b, b.querySelector('svg.main-svg')]"
        page.await_true(f"{widths}).every(([b, s]) => s.getBoundingClientRect().width <= b.clientWidth + 1)")
        assert "GPU utilisation" in page.ask("document.getElementById('detail').innerHTML")
        for width, dark in ((1280, False), (400, True)):
            page.dark(dark)
            page.size(width, 1000)
            page.await_true(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
            page.await_true("document.documentElement.scrollWidth <= innerWidth")
            page.picture(tmp_path / f"{width}.png", whole=True)
            assert (tmp_path / f"{width}.png").stat().st_size > 10_000
        assert page.ask("document.querySelectorAll('#timeline .barlayer .point').length") > 12
        assert page.errors == []
