"""`hpc-hydra report`: one file, without a network, whose table sorts and whose plots are drawn in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_hydra.cli.main import main
from hpc_hydra.planning.types import EnvVar, Plan, Request, to_json
from hpc_hydra.records.files import write_bytes, write_json
from hpc_hydra.records.frozen_config import Freezer, Program
from hpc_hydra.records.layout import RunPaths, SweepPaths, attempt_name
from hpc_hydra.records.manifest import Manifest
from hpc_hydra.records.types import Job, Outcome
from hpc_hydra.sweep import history
from hpc_hydra.sweep.curves import MetricsFile
from tests.awaiting import PATIENCE, changed
from tests.browser import Browser

HEAD = "time,gpu,power_w,util_percent,mem_util_percent,mem_used_mib,mem_total_mib,temp_c,sm_mhz,mem_mhz,cpu_percent\n"
SECRET = "hunter 2"
OPT = ("a", "'<b>b</b>'")
EVIL = "</script><script>console.error('run')</script> <b>x"


def sweep(root: Path, runs: int, *, samples: int = 30, ended: int | None = None, nodes: int = 1) -> Path:
    """A sweep whose first runs have ended, by default all: every seventh run failed, every fifth was requeued; two GPUs
    of two nodes were measured in each, and its loss was logged. The others wait for this process to start them."""
    from omegaconf import OmegaConf

    freezer = Freezer(root, Program("script", "/w/train.py", cwd="/w"))
    base = freezer.add_base(OmegaConf.create({"hydra": {}}), ())
    plan = Plan(
        "s",
        Request("local" if nodes == 1 else "ssh", nodes, 1, time_limit=3600),
        env=(EnvVar("A_TOKEN", SECRET, "force"),),
    )
    for num in range(runs):
        freezer.add_run(
            num, [f"lr={10 ** -(num % 4 + 1)}", f"opt={OPT[num % 2]}"], plan="plan0", base=base, seed=1,
            dir=root / str(num),
        )  # fmt: skip
    freezer.write_plans({"plan0": plan})
    freezer.flush()
    freezer.close()
    SweepPaths(root).jobs.mkdir()
    (root / "multirun.yaml").write_text("launch: {best: max acc}\n")
    SweepPaths(root).script("job0").write_text(f"#!/bin/bash\n# {EVIL}\n")
    write_json(SweepPaths(root).launched, {"commit": "f00baa", "packages": {"torch": "2.13.0"}})
    manifest = Manifest(root)
    host = "login" if ended is None else socket.gethostname()
    manifest.started(argv=["train.py", "-m"], host=host, pid=os.getpid(), runs=runs)
    job = Job("job0", "plan0", tuple(range(runs)), "tag", tuple(f"job0.{num}" for num in range(runs)))
    manifest.submitting(job, "local")
    manifest.submitted(job)
    if ended is None:
        manifest.finished(failed=0)
    begin = time.time() + 2
    for num in range(runs if ended is None else ended):
        end(root, num, begin + num, num / runs, samples)
    return root


def end(root: Path, num: int, start: float, accuracy: float, samples: int = 30) -> None:
    """What a run leaves behind."""
    paths = RunPaths(root / str(num))
    names = [attempt_name(f"job0.{num}", start + 300 * n) for n in range(2)]
    names = names if num % 5 == 0 else names[:1]
    for name in names:
        paths.attempt(name).mkdir(parents=True)
        paths.rank_log(name, 0).write_text("first\n" * 50 + f"token {SECRET}\n{EVIL}\n")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(start))
        rows = "".join(
            f"{stamp[:17]}{second % 60:02}{stamp[19:]},{gpu},{300 + gpu},9{gpu},4,4000,80000,60,1980,,{second}\n"
            for second in range(samples)
            for gpu in range(2)
        )
        for host in ("node01", "node02"):
            (paths.attempt(name) / f"job0.{num}.{host}.gutil.csv").write_text(HEAD + rows + "2026-")
    lines = [{"time": start + n, "step": n, "values": {"loss": 1 / (n + 1), "bad": "NaN"}} for n in range(20)]
    (paths.root / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"time": 1')
    failed = num % 7 == 6
    outcome = Outcome(
        num, "failed" if failed else "completed", int(failed), names[-1], f"job0.{num}", started=start,
        ended=start + 500, result=None if failed else {"acc": accuracy, "note": EVIL},
        result_kind="none" if failed else "json", reason=f"boom {SECRET}" if failed else None,
        log=str(paths.rank_log(names[-1], 0)) if failed else None,
    )  # fmt: skip
    write_json(paths.outcome, to_json(outcome))


def made(root: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["report", str(root)]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == root / "report.html"
    return file


def embedded(file: Path, name: str) -> str:
    return file.read_text().partition(f'id="{name}">')[2].partition("</script>")[0]


def shown(file: Path) -> dict:
    """The data in the page, strict JSON; each run with its details."""
    data = json.loads(embedded(file, "data"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    details = json.loads(gzip.decompress(base64.b64decode(embedded(file, "details"))), parse_constant=pytest.fail)
    for run in data["runs"]:
        run.update(details[str(run["num"])])
    return data


def test_the_page_says_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(made(sweep(tmp_path / "s", 8), capsys))
    assert found["keys"] == ["lr", "opt"] and found["values"] == ["acc", "note", "loss", "bad"]
    assert found["best"] == {"direction": "max", "name": "acc", "run": 7, "value": 7 / 8}
    assert [run["state"] for run in found["runs"]].count("failed") == 1
    attempts = found["runs"][5]["attempts"]
    assert [a["what"] for a in attempts] == ["queued", "requeued", "queued", "completed"]
    used = 6 * 500 + 2 * 200  # seconds; the first attempts of two runs took no time
    assert found["hours"]["asked"] is None and used <= found["hours"]["used"] * 3600 < used + 8
    for run in (0, 6):  # completed, failed
        assert found["runs"][run]["tail"]["lines"][-2:] == ["token ***", EVIL]
    gpus = found["runs"][0]["measured"][0]["gpus"]
    assert set(gpus) == {"0", "1"} and set(gpus["1"]["util_percent"]) == {91}
    assert found["runs"][0]["measured"][0]["host"] == "node01"
    loss, bad = (found["runs"][3]["curves"][name] for name in ("loss", "bad"))
    assert loss["step"] == list(range(20)) and loss["y"][:2] == [1, 0.5] and set(bad["y"]) == {None}
    assert found["runs"][3]["cells"] == {
        "lr": 0.0001,
        "opt": "<b>b</b>",
        "acc": 3 / 8,
        "note": EVIL,
        "loss": 0.05,
        "bad": "nan",
    }
    assert found["launched"]["launched"]["commit"] == "f00baa"
    assert found["launched"]["launches"][0]["command"] == "train.py -m"
    assert found["plans"]["plan0"]["request"]["nodes"] == 1 and "#!/bin/bash" in found["scripts"]["job0"]
    assert SECRET not in json.dumps(found)


def test_files_of_the_user_alone_are_not_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = SweepPaths(sweep(tmp_path / "s", 1))
    private = [paths.console_input, paths.meta / "other.json", paths.jobs / "other.json", paths.root / "0" / "own.json"]
    for file in private:
        write_bytes(file, json.dumps({"token": "only for me"}).encode(), mode=0o600)
    assert "only for me" not in json.dumps(shown(made(paths.root, capsys)))


def test_node_hours_are_those_of_all_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hours = shown(made(sweep(tmp_path / "s", 3, nodes=4), capsys))["hours"]
    used = 4 * (2 * 500 + 200)  # node-seconds
    assert hours["asked"] == 3 * 4 and used <= hours["used"] * 3600 < used + 4 * 4


def test_node_hours_of_an_attempt_are_those_of_its_own_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of four nodes were submitted again with one node, and may be requeued twice."""
    root = sweep(tmp_path / "s", 1, nodes=4)
    plans = SweepPaths(root).plans
    data = json.loads(plans.read_text())
    data["plan1"] = {**data["plan0"], "request": {**data["plan0"]["request"], "nodes": 1, "max_requeues": 2}}
    plans.write_text(json.dumps(data))
    runs = SweepPaths(root).runs
    runs.write_text(runs.read_text().replace('"plan0"', '"plan1"'))
    job = Job("job1", "plan1", (0,), "tag", ("job1.0",))
    Manifest(root).submitting(job, "ssh")
    Manifest(root).submitted(job)
    paths = RunPaths(root / "0")
    before = json.loads(paths.outcome.read_text())
    write_json(paths.closed(before["attempt"]), {**before, "status": "failed"})
    name = attempt_name("job1.0", before["ended"] + 10)
    paths.attempt(name).mkdir()
    start = before["ended"] + 10
    write_json(paths.outcome, {**before, "attempt": name, "job_id": "job1.0", "started": start, "ended": start + 100})
    hours = shown(made(root, capsys))["hours"]
    assert hours["asked"] == 4 + 3
    used = 4 * 200 + 100
    assert used <= hours["used"] * 3600 < used + 8


def test_a_run_that_never_started_shows_the_log_of_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sweep(tmp_path / "s", 2, ended=1)
    (root / "1").mkdir()
    write_json(
        root / "1" / "outcome.json", to_json(Outcome(1, "failed", 1, job_id="job0.1", reason="no rank has started"))
    )
    (SweepPaths(root).jobs / "job0.1.log").write_text("srun: error: no such GPU\n")
    assert shown(made(root, capsys))["runs"][1]["tail"]["lines"] == ["srun: error: no such GPU"]


def test_the_file_is_replaced_at_once_keeping_links_and_permissions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sweep(tmp_path / "s", 1)
    (tmp_path / "shown.html").write_text("the report before")
    (tmp_path / "shown.html").chmod(0o600)
    (root / "report.html").symlink_to(tmp_path / "shown.html")
    with (tmp_path / "shown.html").open() as reader:
        made(root, capsys)
        assert reader.read() == "the report before"
    assert (root / "report.html").is_symlink() and shown(root / "report.html")["runs"]
    assert stat.S_IMODE((tmp_path / "shown.html").stat().st_mode) == 0o600
    assert main(["report", str(root), "-o", "/dev/stdout"]) == 0
    assert main(["report", str(root), "-o", str(tmp_path / "new" / "of_s" / "s.html")]) == 0
    assert shown(tmp_path / "new" / "of_s" / "s.html")["runs"]
    capsys.readouterr()
    assert main(["report", str(root), "-o", str(tmp_path / "shown.html" / "s.html")]) == 2
    assert "a directory that you may write to" in capsys.readouterr().err


def test_many_runs_make_a_small_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made(sweep(tmp_path / "s", 100, samples=60), capsys)
    assert file.stat().st_size < 2_500_000  # of which plotly.js takes 1.9 MB


def test_without_plotly_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    assert main(["report", str(tmp_path)]) == 2
    assert "pip install plotly" in capsys.readouterr().err


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
    found = history.periods(view, [1_000_000], [paths.attempt(name) for name in names])  # type: ignore[arg-type]
    assert [(part["what"], part["from"], part["to"]) for part in found] == [
        ("queued", 1_000_000, 1_000_010), ("requeued", 1_000_010, 1_000_400), ("queued", 1_000_400, 1_000_500),
        ("running", 1_000_500, None),
    ]  # fmt: skip
    for reason, word in (("warned that its time is up; exit code 75", "requeued"), ("ValueError", "failed")):
        write_json(paths.closed(names[0]), to_json(Outcome(0, "failed", 75, names[0], reason=reason)))
        again = history.periods(view, [1_000_000], [paths.attempt(name) for name in names])  # type: ignore[arg-type]
        assert again[1]["what"] == word


def test_metrics_are_read_as_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsFile(path, limit=100_000)
    assert not reader.update()

    def log(first: int, last: int, rest: str = "") -> None:
        with path.open("a") as file:
            file.writelines(
                f'{{"time": {step}.5, "step": {step}, "values": {{"loss": {step}}}}}\n' for step in range(first, last)
            )
            file.write(rest)

    log(0, 5, '{"time": 5.5, "st')
    assert reader.update() and reader.curves["loss"].steps == [0, 1, 2, 3, 4]
    assert not reader.update()
    log(0, 0, 'ep": 5, "values": {"loss": 5}}\nnot JSON\n')
    assert reader.update() and reader.last == {"loss": 5}
    log(3, 5)  # a requeued run repeats what followed its checkpoint
    assert reader.update() and reader.curves["loss"].steps == [0, 1, 2, 3, 4]
    log(5, 10_000)  # too much at once: parts of it, with its end
    assert reader.update() and reader.last == {"loss": 9999} and 1000 < len(reader.curves["loss"].steps) < 5000
    curve = reader.thinned(100)["loss"]
    assert len(curve["y"]) == 100 and curve["step"][-1] == 9999 and curve["y"] == sorted(curve["y"])


@contextmanager
def served(root: Path, tmp_path: Path, every: float = 0.0) -> Iterator[str]:
    """The address of a report that is served, by a process that Ctrl-C ends."""
    path = changed(tmp_path / "every", "hpc_hydra.ui.report.live", EVERY=every)
    argv = [sys.executable, "-m", "hpc_hydra.cli", "report", str(root), "--serve"]
    env = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_is_served_with_its_changes_to_those_who_know_the_token(tmp_path: Path) -> None:
    root = sweep(tmp_path / "s", 4, ended=3)
    with served(root, tmp_path) as address:
        match = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/([\w-]{32})/", address)
        assert match, address
        for path in ("/", "", "/x/", f"/{match[2][:-1]}/", f"/{match[2]}x/data", "/../../etc/passwd", "/é/data"):
            assert get(match[1] + urllib.request.quote(path))[0] == 403, path
        for path in ("multirun.yaml", "../multirun.yaml", "%2e%2e/%2e%2e/etc/passwd", "data/", "/etc/passwd"):
            assert get(address + path)[0] == 404, path
        status, page = get(address)
        assert status == 200 and '"live":{' in page and SECRET not in page
        for since in ("9" * 5000, "x", "-1", ""):  # Python reads no integer of 5,000 digits
            status, news = get(f"{address}data?since={since}")
            assert status == 200 and len(json.loads(news)["runs"]) == 4, since
        first = json.loads(get(f"{address}data?since=0")[1])
        assert [run["state"] for run in first["runs"]] == ["completed"] * 3 + ["pending"]
        version = first["version"]
        assert set(json.loads(get(f"{address}data?since={version}")[1])) == {"version", "made"}, "nothing has changed"

        (root / "3").mkdir()
        (root / "3" / "metrics.jsonl").write_text('{"time": 1, "step": 0, "values": {"loss": 9}}\n')
        end(root, 3, time.time(), 0.99)
        news = json.loads(get(f"{address}data?since={version}")[1])
        assert [(run["num"], run["state"]) for run in news["runs"]] == [(3, "completed")]
        assert news["head"]["best"]["run"] == 3 and list(news["details"]) == ["3"] and "plans" not in news["head"]

        freezer = Freezer(root, Program("script", "/w/train.py", cwd="/w"))  # an optimizer's next batch
        freezer.add_run(4, ["lr=1"], plan="plan0", base=0, seed=1, dir=root / "4")
        freezer.flush()
        freezer.close()
        job = Job("job1", "plan0", (4,), "tag1", ("job1.4",))
        Manifest(root).submitting(job, "local")
        Manifest(root).submitted(job)
        news = json.loads(get(f"{address}data?since={news['version']}")[1])
        assert [(run["num"], run["state"]) for run in news["runs"]] == [(4, "pending")] and "plans" in news["head"]


def test_a_served_report_reads_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_hydra.sweep.store import open_sweep
    from hpc_hydra.ui.report import live

    monkeypatch.setattr(live, "EVERY", 0.0)
    root = sweep(tmp_path / "s", 6, ended=5)
    report = live.LiveReport(open_sweep(root), lambda views: views, None)
    version = json.loads(report.news(0))["version"]
    for num in range(5):  # what is not there any more is not missed
        shutil.rmtree(root / str(num))
    assert set(json.loads(report.news(version))) == {"version", "made"}


def test_runs_join_and_leave_the_selection_of_a_served_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc_hydra.sweep.selection import select
    from hpc_hydra.sweep.store import open_sweep
    from hpc_hydra.ui.report import live

    monkeypatch.setattr(live, "EVERY", 0.0)
    root = sweep(tmp_path / "s", 8, ended=5)
    pending, failed = (
        live.LiveReport(open_sweep(root), lambda v, w=word: select(v, [w]), None) for word in ("pending", "failed")
    )
    first, none = json.loads(pending.news(0)), json.loads(failed.news(0))
    assert first["nums"] == [5, 6, 7] and none["nums"] == []
    for num in (5, 6):  # run 6 fails
        (root / str(num)).mkdir()
        end(root, num, time.time(), 0.99)
    news = json.loads(pending.news(first["version"]))
    assert news["nums"] == [7] and news["runs"] == [] and news["details"] == {}
    assert [run["num"] for run in json.loads(pending.news(0))["runs"]] == [7]
    news = json.loads(failed.news(none["version"]))
    assert news["nums"] == [6] and [run["num"] for run in news["runs"]] == [6] and news["head"]["scripts"]


def test_options_of_a_served_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(sweep(tmp_path / "s", 1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, said in (
            (["--serve", "-o", "x"], "--serve without -o"), (["--port", "1"], "--serve --port"),
            (["--serve", "--port", str(taken.getsockname()[1])], "--port 0"),
        ):  # fmt: skip
            assert main(["report", root, *words]) == 2
            assert said in capsys.readouterr().err


ROWS = "[...document.querySelectorAll('#runs tbody tr')]"
RUNS = f"{ROWS}.map(r => Number(r.dataset.run))"
INSIDE = """[...document.querySelectorAll('.plot, #timeline')].every(box => { const b = box.getBoundingClientRect();
  return [...box.querySelectorAll('svg.main-svg')].every(svg => { const s = svg.getBoundingClientRect();
    return s.bottom <= b.bottom + 1 && s.right <= b.right + 1; }); })"""


def click(page: Browser, column: str) -> None:
    page.ask(f"[...document.querySelectorAll('#runs th')].find(h => h.textContent === '{column}').click()")


@pytest.mark.needs("browser")
def test_the_page_in_a_browser(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page for all: starting a browser and drawing the plots takes seconds."""
    file = made(sweep(tmp_path / "s", 12), capsys)
    with Browser(tmp_path / "profile") as page:
        page.load(file)
        page.await_true("document.documentElement?.dataset?.ready")
        assert page.ask("document.documentElement.dataset.ready") == "1"
        _tiles(page)
        _table(page)
        _plots(page)
        _details(page)
        for width, dark in ((1280, True), (390, True), (390, False), (1280, False)):
            _fits(page, width, dark=dark)
        theme = "document.documentElement.dataset.theme"
        assert page.ask(f"[($('theme').click(), {theme}), ($('theme').click(), {theme})]") == ["dark", "light"]
        assert page.ask("D.live") is None
        _follows(page, tmp_path)
        assert page.errors == []  # nothing was complained of in its console, nothing asked of a network


def _tiles(page: Browser) -> None:
    tiles = page.ask("[...document.querySelectorAll('.tile')].map(t => t.innerText)")
    assert tiles[0].split("\n") == ["best: max acc", "0.91667", "run 11: lr=0.0001 opt=<b>b</b>"]
    assert "11 completed" in tiles[1] and "1 failed" in tiles[1]
    assert tiles[2].startswith("node-hours used\n1.")


def _table(page: Browser) -> None:
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
    page.ask("$('filter').value = 'opt=a failed'; $('filter').oninput()")
    assert page.ask(RUNS) == [6] and page.ask("$('number').textContent").startswith("1 of 12")
    page.ask("$('filter').value = ''; $('filter').oninput()")


def _plots(page: Browser) -> None:
    titles = "[...document.querySelectorAll('#swept .xtitle')].map(t => t.textContent)"
    assert page.ask(titles) == ["lr", "opt"]
    ticks = "[...$('swept').children[1].querySelectorAll('.xtick text')].map(t => t.textContent)"
    assert page.ask(ticks) == ["<b>b</b>", "a"]
    points = "[...document.querySelectorAll('#swept .plot')].map(p => p._fullData.map(t => t.x.length))"
    assert page.ask(points) == [[11, 1, 1], [11, 1, 1]]  # with a result, failed, the best
    assert page.ask("[...document.querySelectorAll('#swept .plot')].map(p => p._fullLayout.xaxis.type)") == [
        "log",
        "linear",
    ]
    for numbers, is_log in (
        ([1, 2, 3, 4], False), ([1, 2, 4, 8], True), ([0.1, 0.01, 0.001], True), ([0.1, 0.2], False), ([0.1, 1], True),
        ([0, 0.1, 0.01], False), ([-1, 10, 100], False), ([0.001, 0.3, 0.5, 0.8, 1], False),
    ):  # fmt: skip
        assert page.ask(f"spaced({numbers})") is is_log, numbers
    axes = "[...document.querySelectorAll('#parallel .xaxislayer-above text')].map(t => t.textContent)"
    assert page.ask(axes) == ["lr", "opt", "acc"]
    assert page.ask("document.querySelectorAll('#parallel .scatterlayer .trace').length") == 11
    page.ask("$('y').value = '=seconds'; $('y').onchange()")
    assert page.ask("document.querySelector('#swept .ytitle').textContent") == "seconds"
    page.ask("$('y').value = '.bad'; $('y').onchange()")  # NaN
    assert page.ask(points) == [[0, 12, 0], [0, 12, 0]]
    page.ask("$('y').value = '.acc'; $('y').onchange()")
    curves = "[...document.querySelectorAll('#curves .gtitle')].map(t => t.textContent)"
    assert page.ask(curves) == ["loss", "bad"]
    legend = "[...document.querySelectorAll('#timeline .legendtext')].map(t => t.textContent)"
    assert set(page.ask(legend)) == {"queued", "requeued", "completed", "failed"}
    bars = "document.querySelectorAll('#timeline .barlayer .point').length"
    assert page.ask(bars) == 12 + 12 + 2 * 3  # queued, ended; and once more for each that was requeued
    assert page.ask("[...document.querySelectorAll('.js-plotly-plot')].every(p => p._context.displayModeBar !== true)")


def _details(page: Browser) -> None:
    page.ask(f"{ROWS}.find(r => r.dataset.run === '6').click()")
    text = str(page.ask("(document.querySelectorAll('details').forEach(d => d.open = true), 1)")) and ""
    page.await_true("document.querySelectorAll('.hardware svg.main-svg').length >= 6")
    titles = "[...document.querySelectorAll('.hardware .gtitle')].map(t => t.textContent)"
    assert {"GPU utilisation, %", "GPU power, W", "CPU, %"} <= set(page.ask(titles))
    page.await_true("[...document.querySelectorAll('details pre')].every(p => p.textContent)")
    text = page.ask("document.getElementById('detail').textContent")
    for part in ("Run 6: failed, boom", "lr=0.001", '"nodes": 1', "#!/bin/bash", EVIL):
        assert part in text, part
    for part in [f"{node} GPU {gpu}" for node in ("node01", "node02") for gpu in (0, 1)]:
        assert part in text, part
    log = "document.querySelector('#detail details:nth-of-type(2) pre')"
    assert page.ask(f"(pre => pre.scrollHeight - pre.scrollTop - pre.clientHeight)({log})") < 2, "shown from its end"
    failures = page.ask("[...document.querySelectorAll('#failed details')].map(d => d.textContent)")
    assert len(failures) == 1 and failures[0].startswith("run 6 failed: boom") and failures[0].endswith(EVIL)
    logs = page.ask("[...document.querySelectorAll('#ended details')].map(d => d.textContent)")
    assert len(logs) == 11 and all(log.endswith(EVIL) for log in logs)
    launched = page.ask("$('launched').textContent")
    for part in ("train.py -m", "on login", "f00baa", '"torch": "2.13.0"', "script /w/train.py"):
        assert part in launched


def _follows(page: Browser, tmp_path: Path) -> None:
    root = sweep(tmp_path / "live", 4, ended=2)
    with served(root, tmp_path, every=0.1) as address:
        page.load(address)
        page.await_true("location.protocol === 'http:' && document.documentElement?.dataset?.ready === '1'")
        assert "2 pending" in page.ask("$('tiles').innerText") and page.ask("$('made').innerText").startswith("live")
        page.ask("$('filter').value = 'opt=a'; $('filter').oninput(); choose(2)")
        end(root, 2, time.time(), 0.99)
        page.await_true("run(2).state === 'completed'")
        assert "3 completed" in page.ask("$('tiles').innerText") and "run 2: lr=" in page.ask("$('tiles').innerText")
        assert page.ask(RUNS) == [0, 2] and "Run 2: completed" in page.ask("$('detail').innerText")
        page.await_true("document.querySelectorAll('.hardware svg.main-svg').length >= 6")
        assert page.ask("$('swept').children[0]._fullData[0].x.length") == 3
        page.ask("merge({head: {}, runs: [], details: {}, nums: [0, 1, 3]})")  # run 2 has left the selection
        assert page.ask(RUNS) == [0] and page.ask("$('detail').hidden") and "2" not in page.ask("Object.keys(more)")


def _fits(page: Browser, width: int, *, dark: bool) -> None:
    page.dark(dark)
    page.size(width, 900)
    page.await_true(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
    page.await_true("document.documentElement.scrollWidth <= innerWidth")
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) / 765"
    assert page.ask(f"{light} > 0.5") is not dark
    page.await_true(INSIDE, 200)  # no plot covers what is below or beside it
