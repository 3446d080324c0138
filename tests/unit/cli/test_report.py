"""`hpc-hydra report`: one file, without a network, whose table sorts and whose plots are drawn in a real browser."""

from __future__ import annotations

import json
import os
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import Plan, Request, to_json
from hpc_hydra.records.files import write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths, attempt_name
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.sweep import history
from tests.browser import Browser

HEAD = "time,gpu,power_w,util_percent,mem_util_percent,mem_used_mib,mem_total_mib,temp_c,sm_mhz,mem_mhz,cpu_percent\n"
EVIL = "</script><script>console.error('run')</script> <b>x"


def sweep(root: Path, runs: int, *, samples: int = 30) -> Path:
    """A sweep that has ended: every seventh run failed, every fifth was requeued; two GPUs of two nodes were
    measured in each."""
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
        names = [attempt_name(f"job0.{num}", start + 300 * n) for n in range(2)]
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
            for host in ("node01", "node02"):
                (paths.attempt(name) / f"job0.{num}.{host}.gutil.csv").write_text(HEAD + rows + "2026-")
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


def test_attempts_of_a_run_that_is_on_again_are_queued_requeued_queued_and_running(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    names = [attempt_name("1", start) for start in (1_000_010, 1_000_500)]
    for name in names:
        paths.attempt(name).mkdir(parents=True)
    os.utime(paths.attempt(names[0]), (1_000_400, 1_000_400))
    view = types.SimpleNamespace(paths=paths, word="running", outcome=None)
    found = history.attempts(view, [1_000_000], 1_000_900.0)  # type: ignore[arg-type]
    assert [(part["what"], part["from"], part["to"]) for part in found] == [
        ("queued", 1_000_000, 1_000_010), ("requeued", 1_000_010, 1_000_400), ("queued", 1_000_400, 1_000_500),
        ("running", 1_000_500, 1_000_900),
    ]  # fmt: skip


ROWS = "[...document.querySelectorAll('#runs tbody tr')]"
RUNS = f"{ROWS}.map(r => Number(r.dataset.run))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that has loaded the report of twelve runs."""
    folder = tmp_path_factory.mktemp("page")
    assert main(["report", str(sweep(folder / "s", 12))]) == 0
    with Browser(folder / "profile") as page:
        page.load(folder / "s" / "report.html")
        page.await_true("document.documentElement?.dataset?.ready")
        assert page.ask("document.documentElement.dataset.ready") == "1"
        yield page


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The page, wide, light and as it was loaded; nothing may have been complained of in its console."""
    browser.size(1280, 900)
    browser.dark(False)
    browser.ask("chosen = null; $('filter').value = ''; order = [0, 1]; table(); detail(false)")
    yield browser
    assert browser.errors == []


def click(page: Browser, column: str) -> None:
    page.ask(f"[...document.querySelectorAll('#runs th')].find(h => h.textContent === '{column}').click()")


def choose(page: Browser, run: int) -> str:
    """Open a run; the text of what is shown of it."""
    page.ask(f"{ROWS}.find(r => r.dataset.run === '{run}').click()")
    return str(page.ask("document.getElementById('detail').textContent"))


@pytest.mark.needs("browser")
def test_table_sorts_by_numbers_and_by_words(page: Browser) -> None:
    assert page.ask(RUNS) == list(range(12))
    click(page, "acc")
    assert page.ask(RUNS) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 6]
    click(page, "acc")
    assert page.ask(RUNS) == [11, 10, 9, 8, 7, 5, 4, 3, 2, 1, 0, 6]  # what has no number stays last
    assert page.ask("document.querySelectorAll('th[aria-sort]').length") == 1
    click(page, "state")
    assert page.ask(f"{RUNS}.slice(-2)") == [11, 6]
    click(page, "lr")
    assert page.ask(f"{RUNS}.slice(0, 3)") == [3, 7, 11]


@pytest.mark.needs("browser")
def test_table_is_filtered_by_words(page: Browser) -> None:
    page.ask("$('filter').value = 'opt=a failed'; $('filter').dispatchEvent(new Event('input'))")
    assert page.ask(RUNS) == [6] and page.ask("$('number').textContent").startswith("1 of 12")


@pytest.mark.needs("browser")
def test_overrides_are_drawn_against_returned_values(page: Browser) -> None:
    assert page.ask("document.querySelectorAll('#scatter .scatterlayer .point').length") == 11
    assert page.ask("[$('x').value, $('y').value].map(v => names[v])") == ["lr", "acc"]
    assert page.ask("$('scatter')._fullLayout.xaxis.type") == "log"
    axes = "[...document.querySelectorAll('#parallel .xaxislayer-above text')].map(t => t.textContent)"
    assert page.ask(axes) == ["lr", "opt", "acc"]
    assert page.ask("document.querySelectorAll('#parallel .scatterlayer .trace').length") == 11
    page.ask("$('x').value = 'seconds'; $('x').onchange()")
    assert page.ask("document.querySelector('#scatter .xtitle').textContent") == "seconds"
    page.ask("$('x').value = '0'; $('x').onchange()")


@pytest.mark.needs("browser")
def test_attempts_are_drawn_in_time(page: Browser) -> None:
    legend = "[...document.querySelectorAll('#timeline .legendtext')].map(t => t.textContent)"
    assert set(page.ask(legend)) == {"queued", "requeued", "completed", "failed"}
    bars = "document.querySelectorAll('#timeline .barlayer .point').length"
    assert page.ask(bars) == 12 + 12 + 2 * 3  # queued, ended; and once more for each that was requeued


@pytest.mark.needs("browser")
def test_a_run_shows_its_hardware_by_node_its_plan_its_script_and_its_log(page: Browser) -> None:
    text = choose(page, 6)
    page.await_true("document.querySelectorAll('.hardware svg.main-svg').length >= 6")
    titles = "[...document.querySelectorAll('.hardware .gtitle')].map(t => t.textContent)"
    assert {"GPU utilisation, %", "GPU power, W", "CPU, %"} <= set(page.ask(titles))
    legend = "[...document.querySelector('.hardware').querySelectorAll('.legendtext')].map(t => t.textContent)"
    assert page.ask(legend) == [f"{node} GPU {gpu}" for node in ("node01", "node02") for gpu in (0, 1)]
    for part in ("Run 6: failed, boom", "lr=0.001", '"nodes": 1', "#!/bin/bash", "/w/train.py", EVIL):
        assert part in text + page.ask("$('launched').textContent"), part

    log = "document.querySelector('#detail details[open] + details[open] pre')"
    assert page.ask(f"(pre => pre.scrollHeight - pre.scrollTop - pre.clientHeight)({log})") < 2, "shown from its end"


@pytest.mark.needs("browser")
def test_failures_come_with_the_ends_of_their_logs_and_launches_with_commit_and_packages(page: Browser) -> None:
    failures = page.ask("[...document.querySelectorAll('#failed details')].map(d => d.textContent)")
    assert len(failures) == 1 and failures[0].startswith("run 6 failed: boom") and failures[0].endswith(EVIL)
    launched = page.ask("$('launched').textContent")
    for part in ("train.py -m", "on login", "f00baa", '"torch": "2.13.0"', "script /w/train.py"):
        assert part in launched


@pytest.mark.needs("browser")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)])
def test_it_is_good_in_windows_large_and_small_light_and_dark(
    page: Browser, width: int, dark: bool, tmp_path: Path
) -> None:
    choose(page, 6)
    page.dark(dark)
    page.size(width, 900)
    page.await_true(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
    page.await_true("document.documentElement.scrollWidth <= innerWidth")
    page.await_true("document.querySelectorAll('.hardware svg.main-svg').length >= 6")
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) / 765"
    assert page.ask(f"{light} > 0.5") is not dark
    inside = """[...document.querySelectorAll('.plot, #timeline')].every(box => { const b = box.getBoundingClientRect();
      return [...box.querySelectorAll('svg.main-svg')].every(svg => { const s = svg.getBoundingClientRect();
        return s.bottom <= b.bottom + 1 && s.right <= b.right + 1; }); })"""
    page.await_true(inside, 30)  # no plot covers what is below or beside it
    page.picture(tmp_path / "page.png", whole=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.needs("browser")
def test_a_button_turns_light_to_dark(page: Browser) -> None:
    theme = "document.documentElement.dataset.theme"
    seen = page.ask(f"[{theme}, ($('theme').click(), {theme}), ($('theme').click(), {theme})]")  # at one moment
    assert seen in (["light", "dark", "light"], ["dark", "light", "dark"])
