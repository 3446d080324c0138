"""Functions as jobs, for users of submitit: submit, map_array, batch, results, cancel, checkpoints."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.helpers import Checkpointable

from hpc_hydra.errors import ConfigError, PlanError
from hpc_hydra.schedulers import functions
from hpc_hydra.schedulers.executor import Executor, InfoWatcher, executor_for
from hpc_hydra.schedulers.functions import FluxExecutor, LsfExecutor, LsfJob, SlurmExecutor
from hpc_hydra.schedulers.registry import adapter_for
from tests.awaiting import await_true
from tests.conformance.driver import Driver
from tests.conformance.jobs import PATIENCE, ROOT
from tests.fakes.commands import Fakes
from tests.fakes.scheduler_state import ENDED, Cluster

STAND_INS = {"standard": "fake_lsf", "csm": "fake_csm", "flux": "fake_flux"}
OF_QUEUES = ("standard", "flux")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 60)
    monkeypatch.chdir(tmp_path)  # jobs work there, and a killed one may leave the file that its hosts read
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep))
    return tmp_path / "it's a folder"


@pytest.fixture
def executor(driver: Driver, place: Path, request: pytest.FixtureRequest) -> Executor:
    """Of a scheduler under test."""
    cluster = request.getfixturevalue(driver.fixture) if driver.fixture else None
    fields = {**getattr(cluster, "fields", {}), **driver.fields}
    watcher = InfoWatcher(driver.adapter)  # ids begin anew on each stand-in
    made = executor_for(driver.scheduler)(place, watcher=watcher)
    made.update_parameters(**{name: value for name, value in fields.items() if name in functions.DEFAULTS})
    return made


@pytest.fixture(params=OF_QUEUES)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(flavour: str, request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(STAND_INS[flavour])
    return found


@pytest.fixture
def stand_in(flavour: str, cluster: Cluster, place: Path) -> Executor:
    """Of a scheduler whose commands are the test's."""
    kind = FluxExecutor if flavour == "flux" else LsfExecutor
    made: Executor = kind(place, watcher=InfoWatcher(adapter_for(kind.scheduler)))
    if flavour != "flux":
        made.update_parameters(flavour=flavour)
    return made


def add(a: int, b: int) -> int:
    print(f"{a} + {b}")
    return a + b


def fail() -> None:
    raise ValueError("as it should")


def who() -> tuple[int, int, int]:
    env = submitit.JobEnvironment()
    return env.global_rank, env.num_tasks, env.node


@pytest.mark.queue
def test_functions_run_and_the_results_of_all_their_tasks_come_back(executor: Executor) -> None:
    several = executor.map_array(add, [1, 2], [10, 20])
    with executor.batch():
        batch = [executor.submit(add, 5, b=6), executor.submit(fail)]
    executor.update_parameters(tasks_per_node=2)
    assert executor.submit(who).results() == [(0, 2, 0), (1, 2, 0)]
    assert [job.result() for job in several] == [11, 22]
    assert batch[0].result() == 11
    assert "as it should" in str(batch[1].exception())
    assert batch[0].stdout() == "5 + 6\n"
    assert batch[0].done()
    assert batch[0].submission().args == (5,)


class Unpicklable:
    """Fails after a part of it is written."""

    def __getstate__(self) -> dict[str, Any]:
        return {"large": bytes(1 << 20), "lock": threading.Lock()}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (threading.Lock, "cannot pickle '_thread.lock'"),
        (Unpicklable, "cannot pickle '_thread.lock'"),
    ],
    ids=["lock", "within"],
)
def test_a_result_that_cannot_be_pickled_is_the_error_of_the_job(
    fake_flux: Cluster, place: Path, make: Callable[[], Any], why: str
) -> None:
    job = FluxExecutor(place, watcher=InfoWatcher(adapter_for("flux"))).submit(make)
    with pytest.raises(submitit.core.utils.FailedJobError, match=why):
        job.result()
    assert why in job.stderr()
    assert [path.name for path in place.iterdir() if job.job_id in path.name and "result" in path.name] == [
        job.paths.result_pickle.name
    ]


class Counts(Checkpointable):  # type: ignore[misc]
    """Goes on where it was: the first time it waits for the signal, or sends it to itself."""

    def __init__(self, *, waits: bool = True) -> None:
        self.times, self.waits = 0, waits

    def __call__(self, folder: str) -> tuple[int, str]:
        self.times += 1
        if self.times == 1:
            Path(folder, "on").write_text("on")
            if not self.waits:
                signal.raise_signal(signal.SIGUSR2)
            time.sleep(600)
        return self.times, submitit.JobEnvironment().job_id


@pytest.mark.queue
def test_a_checkpointable_function_goes_on_in_a_further_job(executor: Executor, tmp_path: Path) -> None:
    job = executor.submit(Counts(waits=False), str(tmp_path))
    assert job.result() == (2, job.job_id)
    assert executor.watcher.succession(job.job_id).current() != job.job_id


@pytest.mark.queue
def test_a_function_is_cancelled(executor: Executor) -> None:
    job = executor.submit(time.sleep, 600)
    job.cancel()
    assert await_true(lambda: job.done(force_check=True))
    with pytest.raises(submitit.core.utils.UncompletedJobError):
        job._results_timeout_s = 0
        job.result()


@pytest.mark.parametrize("flavour", STAND_INS, indirect=True)
def test_the_tasks_of_several_nodes_have_their_results(stand_in: Executor) -> None:
    stand_in.update_parameters(nodes=2, tasks_per_node=2)
    assert stand_in.submit(who).results() == [(0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1)]


def test_many_functions_are_as_few_arrays_as_the_limit_allows(fake_lsf: Cluster, place: Path) -> None:
    fake_lsf.set_note("array_limit", 2)
    executor = LsfExecutor(place, watcher=InfoWatcher(adapter_for("lsf")))
    jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
    assert len(fake_lsf.calls("bsub")) == 2
    assert [job.result() for job in jobs] == [11, 22, 33]


@pytest.fixture
def waiting(stand_in: Executor, flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """A function that waits for the signal; the test says what the command does that submits its successor."""
    return Waiting(stand_in, "batch" if flavour == "flux" else "", tmp_path, monkeypatch)


class Waiting:
    """The submit command of the successor, in bash: `$PPID` is the function, `late` what submits it later."""

    def __init__(self, executor: Executor, word: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.executor, self.word, self.folder, self.patch = executor, word, folder, monkeypatch

    def start(self, cluster: Cluster, script: str) -> Any:
        """Submit the function and warn it, as before a time limit."""
        armed = self.folder / "armed"
        begins = f"""cd {self.folder}; [ -e armed ] && [ "$1" = batch -o -z "{self.word}" ] || exec "$REAL" "$@" """
        late = """{ printf 'cd %q; ' "$OLDPWD"; printf '%q ' "$REAL" "$@"; echo "<$PWD/given"; } >late; """
        name = "flux" if self.word else "bsub"
        Fakes(self.folder / "wrapped", self.patch).put(name, f"{begins}\ncat >given\n{late}\n{script}")
        job = self.executor.submit(Counts(), str(self.folder))
        assert await_true((self.folder / "on").exists)
        armed.touch()
        cluster.signal(job.job_id, signal.SIGUSR2)
        return job

    def submit_late(self) -> None:
        """The queue takes the successor only now."""
        subprocess.run(["bash", self.folder / "late"], check=True, capture_output=True, timeout=PATIENCE)


KILL = "kill -KILL $PPID"


def test_a_function_killed_after_it_asked_for_its_successor_goes_on_in_that(waiting: Waiting, cluster: Cluster) -> None:
    job = waiting.start(cluster, f". late; {KILL}")
    assert job.result() == (2, job.job_id)
    assert len(cluster.jobs()) == 2


@pytest.mark.parametrize("flavour", ["flux"], indirect=True)
def test_a_function_killed_before_its_successor_is_queued_is_told_and_a_late_one_does_nothing(
    waiting: Waiting, cluster: Cluster
) -> None:
    job = waiting.start(cluster, KILL)
    with pytest.raises(submitit.core.utils.UncompletedJobError):
        job._results_timeout_s = 0
        job.result()
    waiting.submit_late()
    assert await_true(lambda: [each.state for each in cluster.jobs()] == [ENDED, ENDED])
    assert not job.paths.result_pickle.exists()


@pytest.mark.parametrize(
    ("flavour", "queued"),
    [("standard", True), ("flux", True), ("flux", False)],
    ids=["standard-queued", "flux-queued", "flux-on its way"],
    indirect=["flavour"],
)
def test_a_function_cancelled_while_it_asks_for_its_successor_does_not_go_on(
    waiting: Waiting, cluster: Cluster, queued: bool
) -> None:
    job = waiting.start(cluster, f"{'. late' if queued else ''}\ntouch asking; exec sleep 600")
    assert await_true((waiting.folder / "asking").exists)
    job.cancel()
    if not queued:
        waiting.submit_late()
    assert await_true(lambda: [each.state for each in cluster.jobs()] == [ENDED, ENDED])
    assert not job.paths.result_pickle.exists()
    assert job.done(force_check=True)


def script_of(executor: Executor) -> str:
    asked = functions.request(executor.adapter, executor.parameters, "USR2")
    return executor.adapter.script(functions.spec(asked, {}, executor.folder, "key", 1, None))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"timeout_min": 90, "name": "train"}, ["-J train", "-W 1:30", "-wa USR2", "-wt 2"]),
        ({"timeout_min": 1}, ["-W 0:01"]),
        ({"nodes": 2, "tasks_per_node": 2, "cpus_per_task": 3}, ["-n 12", '-R "span[ptile=6]"']),
        ({"gpus_per_node": 4, "tasks_per_node": 2}, ['-gpu "num=4:mode=shared:j_exclusive=yes"']),
        ({"gpus_per_node": 1, "tasks_per_node": 4}, ['-gpu "num=1:mode=shared:j_exclusive=yes"']),
        ({"mem_gb": 2.5, "queue": "q", "project": "p"}, ["-q q", "-P p", '-R "rusage[mem=2560MB/host] span[ptile=1]"']),
        ({"submit_args": {"sla": "gold"}}, ["-sla gold"]),
    ],
)
def test_parameters_are_options_of_bsub(given: dict[str, Any], options: list[str], tmp_path: Path) -> None:
    executor = LsfExecutor(tmp_path)
    executor.update_parameters(**given)
    script = script_of(executor)
    assert [option for option in options if f"#BSUB {option}\n" not in script] == []
    assert ("-wa" in script) == (given.get("timeout_min") != 1)


def test_an_unknown_parameter_lists_the_known_ones(tmp_path: Path) -> None:
    executor = LsfExecutor(tmp_path)
    with pytest.raises(ValueError, match=r"\['nodez'\](?s:.)*timeout_min \(default: 5\)(?s:.)*user_group"):
        executor.update_parameters(nodez=2)
    with pytest.raises(PlanError, match=r"scheduler\.qos"):
        executor.update_parameters(qos="high")
    assert executor.parameters["qos"] is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [LsfExecutor, FluxExecutor, SlurmExecutor])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("nodes", "tasks_per_node", "cpus_per_task", "array_parallelism")
          for value in (0, -1, 1.7, "x", True, [1], math.nan)),
        *(("gpus_per_node", value) for value in (-1, 1.5, "x", True)),
        *((name, value) for name in ("timeout_min", "mem_gb")
          for value in (0, -1, "x", True, math.nan, math.inf, [1])),
        *(("signal_delay_s", value) for value in (-5, 1.5, "x", math.nan)),
        *(("exclusive", value) for value in ("no", "user", 1, [])),
        *(("setup", value) for value in ("module load x", 5, [None], {"a": "b"})),
        *((name, value) for name in ("name", "queue", "account", "constraint", "nodelist", "dependency", "comment")
          for value in ("", " ", 1.5, True, ["a"], "a\0b")),
        *((name, value) for name in ("submit_args", "launch_args")
          for value in ("licenses=a", ["a"], {"licenses": ["a", "b"]}, {"licenses": {"a": 1}}, {"a": 1.5},
                        {"a": False}, {5: "a"}, {"": "a"}, {"--a": "b"}, {"a b": "c"}, {"a": "b\0"})),
        *(("env", value) for value in (
            "A=b", ["A"], {"A": None}, {"A": True}, {"A": 1.5}, {"A": ["b"]}, {"A": "b\0"}, {"a b": "c"}, {5: "c"},
            *({name: "1"} for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_JOB_ID", "LSB_JOBID",
                                       "FLUX_JOB_ID", "HPC_HYDRA_RUN", "SUBMITIT_EXECUTOR")))),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(
    kind: type[Executor], name: str, value: Any, tmp_path: Path
) -> None:
    executor = kind(tmp_path)
    before = dict(executor.parameters)
    with pytest.raises(ConfigError) as error:
        executor.update_parameters(**{name: value})
    assert str(error.value.where).partition(".")[0] == name and error.value.what and error.value.fix
    assert executor.parameters == before


@pytest.mark.parametrize(
    ("kind", "argument", "option", "fix"),
    [
        (SlurmExecutor, "submit_args", "partition", "queue=VALUE"),
        (SlurmExecutor, "submit_args", "t", "timeout_min=VALUE"),
        (SlurmExecutor, "submit_args", "array", "leave it out"),
        (SlurmExecutor, "launch_args", "cpus_per_task", "cpus_per_task=VALUE"),
        (FluxExecutor, "submit_args", "cc", "leave it out"),
        (LsfExecutor, "submit_args", "W", "timeout_min=VALUE"),
        (LsfExecutor, "submit_args", "o", "leave it out"),
    ],
)
def test_options_with_a_parameter_and_options_of_the_executor_are_refused(
    kind: type[Executor], argument: str, option: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        kind(tmp_path).update_parameters(**{argument: {option: "1"}})
    assert (error.value.where, error.value.fix) == (f"{argument}.{option}", fix)


def test_a_secret_that_is_no_string_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env\.X_TOKEN") as error:
        LsfExecutor(tmp_path).update_parameters(env={"X_TOKEN": [2.5]})
    assert "2.5" not in str(error.value)


def test_values_that_are_right_in_another_type_and_none_for_the_default(tmp_path: Path) -> None:
    executor = SlurmExecutor(tmp_path)
    executor.update_parameters(
        nodes="2", timeout_min="1.5", mem_gb=0.0001, account=12, submit_args={"nice": 5, "hold": None}
    )
    asked = functions.request(executor.adapter, executor.parameters, "USR2")
    assert (asked.nodes, asked.time_limit, asked.mem_per_node, asked.account) == (2, 90, 1, "12")
    assert asked.submit_args == (("nice", "5"), ("hold", None))
    executor.update_parameters(**dict.fromkeys(functions.DEFAULTS))
    assert executor.parameters == functions.DEFAULTS


def test_a_handle_is_pickled_and_knows_its_job_in_another_process(tmp_path: Path) -> None:
    job = LsfJob(tmp_path, "12[3]", tasks=(0, 1))
    again = pickle.loads(pickle.dumps(job))
    assert (type(again), again.job_id, again.num_tasks) == (LsfJob, "12[3]", 2)
    assert again.task(1).paths.stdout == job.task(1).paths.stdout


def test_names_that_no_scheduler_has_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pbss"):
        functions.PbssExecutor  # noqa: B018
    with pytest.raises(ConfigError, match="local has no queue"):
        functions.LocalExecutor  # noqa: B018
    with pytest.raises(AttributeError):
        functions.nothing  # noqa: B018
