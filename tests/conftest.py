"""What every test shares: the cluster's fixture, and a report that names what was left out."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.version import VersionBase
from omegaconf.basecontainer import BaseContainer

from hpc_hydra.system.probe import here
from tests import needs
from tests.cluster import fixtures, sshd
from tests.cluster.fixtures import _share_the_cluster, slurm_cluster
from tests.cluster.sshd import ssh_daemons, ssh_hosts
from tests.fakes.flux_fixtures import fake_flux
from tests.fakes.libnvml import fake_nvml
from tests.fakes.lsf_fixtures import fake_csm, fake_lsf
from tests.fakes.pbs_fixtures import fake_pbs

__all__ = [
    "_share_the_cluster",
    "fake_csm",
    "fake_flux",
    "fake_lsf",
    "fake_nvml",
    "fake_pbs",
    "slurm_cluster",
    "ssh_daemons",
    "ssh_hosts",
]

Plugins.instance()  # before hydra's own fixtures save and restore its state, which must know the plugins
hypothesis.settings.register_profile("usual", max_examples=25, deadline=None)
hypothesis.settings.register_profile("long", max_examples=1000, deadline=None)  # make test-long
hypothesis.settings.load_profile("usual")
# Tests begin in this order: those of minutes and those that mostly wait come first. Tests that only compute follow, and
# keep all workers busy to the end.
ORDER = (
    "tests/chaos/",
    "tests/packaging/",
    "tests/unit/test_docs.py::test_the_",
    "tests/scenarios/",
    "tests/cluster/",
    "tests/examples/",
    "tests/conformance/",
    "tests/unit/node/",
    "tests/unit/launcher/",
    "tests/unit/cli/",
)
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts commands in the background with these ignored, and children inherit that: tests send them."""
    if config.getoption("numprocesses", None) and needs.SHARED not in os.environ:  # workers inherit it
        os.environ[needs.SHARED] = folder = tempfile.mkdtemp()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scheduler", metavar="NAME", help="conformance tests of this scheduler only")
    parser.addoption("--driver", metavar="MODULE:OBJECT", help="conformance tests of the scheduler of this driver only")
    parser.addoption("--half", choices=("slurm", "other"), help="only the tests of the real SLURM, or only the others")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, with a reason that the report gives, the tests that this machine cannot run."""
    for item in items:
        if "slurm_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
    left_out = config.stash.setdefault(LEFT_OUT, {})

    def leave_out(these: list[pytest.Item], why: str) -> None:
        left_out[why] = left_out.get(why, 0) + len(these)
        config.hook.pytest_deselected(items=these)
        items[:] = [item for item in items if item not in set(these)]

    long = [item for item in items if item.get_closest_marker("long")]
    if long and config.getoption("--hypothesis-profile") != "long":
        leave_out(long, "tests of `make test-long`")
    if half := config.getoption("half"):
        theirs = [item for item in items if bool(item.get_closest_marker("cluster")) != (half == "slurm")]
        config.hook.pytest_deselected(items=theirs)  # the other process runs them
        items[:] = [item for item in items if item not in set(theirs)]
    items.sort(key=_turn)
    cluster = [item for item in items if item.get_closest_marker("cluster")]
    if cluster and (why := fixtures.unavailable()):
        leave_out(cluster, f"tests of the real SLURM: {why}")
    over_ssh = [item for item in items if _needs_sshd(item)]
    if over_ssh and (why := sshd.unavailable()):
        leave_out(over_ssh, f"tests over ssh: {why}")
    for name, those in _needing(items).items():
        left = set(items)
        these = [item for item in those if item in left]
        if these and (why := needs.missing(name)):
            leave_out(these, why)


def _needing(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The tests that need something this machine may lack, by its name, in the order of `needs.WAYS`."""
    found: dict[str, list[pytest.Item]] = {name: [] for name in needs.WAYS}
    for item in items:
        for name in {word for mark in item.iter_markers("needs") for word in mark.args}:
            found[name].append(item)
    return found


def _turn(item: pytest.Item) -> int:
    return next((i for i, start in enumerate(ORDER) if item.nodeid.startswith(start)), len(ORDER))


def _needs_sshd(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "ssh_hosts" in getattr(item, "fixturenames", ()) or str(parameters.get("driver")) == "ssh"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist tells what it left out, which is the same in all."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker left out into the report."""
    if told := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each thing that was left out, before the tests began or by one of them."""
    left_out = config.stash.get(LEFT_OUT, {}).copy()
    for skipped in terminalreporter.stats.get("skipped", []):
        reason = skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else str(skipped.longrepr)
        why = f"tests: {reason.removeprefix('Skipped: ')}"
        left_out[why] = left_out.get(why, 0) + 1
    for why, number in left_out.items():
        terminalreporter.write_line(f"left out: {number} {why}", yellow=True)
    if config.option.markexpr and terminalreporter.stats.get("deselected"):
        terminalreporter.write_line(f"left out: what -m {config.option.markexpr!r} does not choose", yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed launch explains itself: outcomes and the ends of logs that it left are part of the report."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "call" and report.failed and folder is not None and (text := _left_behind(folder)):
        report.sections.append(("left behind", text))
    return report


def _left_behind(folder: Path) -> str:
    """The newest lines of what tells how jobs and runs below a directory went."""
    names = ("outcome.json", "*.end.json", "rounds.json", "jobs/*.log", "rank_0.log", "launcher.log")
    files = sorted({path for name in names for path in folder.rglob(name) if path.is_file()})
    parts = []
    for path in files[:40]:
        lines = path.read_text(errors="replace").splitlines()[-12:]
        parts.append("\n".join([f"== {path.relative_to(folder)}", *(line[:300] for line in lines)]))
    return "\n".join(parts)


@pytest.fixture(scope="session", autouse=True)
def _no_home_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches and settings of this session are its own: another that runs beside it, and the user's, are not touched."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        # unbuffered, print writes a line in pieces; COLUMNS is that of pytest-xdist
        for name in ("HPC_HYDRA_DEFAULTS", "PYTHONUNBUFFERED", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_hydra_left_over() -> Iterator[None]:
    """Hydra runs once in a process; what a test leaves of it, its resolvers too, is not the next one's."""
    GlobalHydra.instance().clear()
    Singleton._instances.pop(VersionBase, None)  # what a `version_base=` has set
    resolvers = dict(BaseContainer._resolvers)
    yield
    BaseContainer._resolvers.clear()
    BaseContainer._resolvers.update(resolvers)


@pytest.fixture(autouse=True)
def _no_bad_nodes_left_over() -> Iterator[None]:
    """Nodes that failed a run of one test are not left out by the launches of the next."""
    yield
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"], "hpc_hydra", "bad_nodes"), ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_scheduler_of_this_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SLURM that happens to be up answers only the tests that ask for it, and what it has answered them is forgotten:
    the others are alike on every machine.
    """
    here.cache_clear()
    if not request.node.get_closest_marker("cluster"):
        monkeypatch.setenv("SLURM_CONF", os.devnull)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout that is tested."""
    return Path(__file__).parents[1]


def pytest_report_header() -> str:
    """Which Hydra, and whether a SLURM is at hand."""
    import hydra
    import omegaconf

    slurm = "SLURM found" if shutil.which("sinfo") else "no SLURM"
    return f"hydra {hydra.__version__}, omegaconf {omegaconf.__version__}, {slurm}"
