"""Whole job scripts, as a person reads them."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_hydra.planning.types import EnvVar
from hpc_hydra.processes import IGNORED_SIGNALS
from hpc_hydra.records.layout import attempt_began, attempt_name
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.local.adapter import Local
from hpc_hydra.schedulers.registry import adapter_for
from hpc_hydra.schedulers.slurm.adapter import Slurm
from tests.fakes.commands import Fakes
from tests.unit.schedulers.specs import request, spec

DEAF = "trap '' HUP INT QUIT TERM ALRM USR1 USR2 XCPU URG  # for all from here on: the end is noted, whatever comes"
UNSET = (
    "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT ${!TORCHELASTIC_@} ${!HPC_HYDRA_@}"
)

JOB_ID = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"

ONE_RUN = f"""\
#!/bin/bash
#SBATCH --output=/sweep/.hpc_hydra/jobs/job0.%j.log
#SBATCH --comment=hpc_hydra-7f3a-job0
#SBATCH --job-name=hpc_hydra
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --no-requeue
# job0 of the sweep /sweep
# runs 0

{UNSET}
cd -- /work || exit 1

export HPC_HYDRA_PLAN=plan0
export HPC_HYDRA_SWEEP=/sweep
export HPC_HYDRA_JOB=job0
export HPC_HYDRA_SCHEDULER=slurm
runs=(0)
export HPC_HYDRA_RUN="${{1:-${{runs[${{SLURM_ARRAY_TASK_ID:-0}}]}}}}"
case " ${{runs[*]}} " in
  *" ${{HPC_HYDRA_RUN//[!0-9]/x}} "*) ;;
  *) echo "hpc_hydra: no run '$HPC_HYDRA_RUN' in this job; it has: ${{runs[*]}}" >&2; exit 2 ;;
esac
export HPC_HYDRA_ATTEMPT="$(date -u +%Y%m%d-%H%M%S)-{JOB_ID}"

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=0 --export=ALL \\
  /venv/bin/python -m hpc_hydra.node rank
code=$?
{DEAF}
/venv/bin/python -m hpc_hydra.node finish "$code"
exit $?
"""

ARRAY = request(
    nodes=2,
    procs_per_node=8,
    gpus_per_proc=1,
    cpus_per_proc=7,
    mem_per_node=0,
    time_limit=5401,
    exclusive=True,
    job_name="it's 100% mine",
    queue="batch",
    account="abc123",
    array_parallelism=4,
    mpi="none",
    gpu_bind="closest",
    submit_args=(("network", "disable_rdzv_get"),),
    setup_lines=("module load rocm/6.4", "export A='b c'"),
)

ARRAY_TEXT = f"""\
#!/bin/bash
#SBATCH --array=0-2%4
#SBATCH --output="/scratch/a b/%%x/.hpc_hydra/jobs/job0.%A_%a.log"
#SBATCH --comment=hpc_hydra-7f3a-job0
#SBATCH --job-name="it's 100% mine"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=01:31:00
#SBATCH --exclusive
#SBATCH --partition=batch
#SBATCH --account=abc123
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --network=disable_rdzv_get
# job0 of the sweep /scratch/a b/%x
# runs 3 5 7
# train.py -m lr=1,2,3

{UNSET}
cd -- '/home/u/my project' || exit 1

export HPC_HYDRA_PLAN=plan0
export HPC_HYDRA_SWEEP='/scratch/a b/%x'
export HPC_HYDRA_JOB=job0
export HPC_HYDRA_SCHEDULER=slurm
runs=(3 5 7)
export HPC_HYDRA_RUN="${{1:-${{runs[${{SLURM_ARRAY_TASK_ID:-0}}]}}}}"
case " ${{runs[*]}} " in
  *" ${{HPC_HYDRA_RUN//[!0-9]/x}} "*) ;;
  *) echo "hpc_hydra: no run '$HPC_HYDRA_RUN' in this job; it has: ${{runs[*]}}" >&2; exit 2 ;;
esac
export HPC_HYDRA_ATTEMPT="$(date -u +%Y%m%d-%H%M%S)-{JOB_ID}"
trap : TERM  # SLURM signals the ranks too: wait for them, then report how they ended

# once on each node, in order; a line that fails stops the job (`|| true` makes a line optional)
hpc_hydra_setup=(
  'module load rocm/6.4'
  'export A='"'"'b c'"'"''
)
hpc_hydra_each='set --; hpc_hydra_num=0
type module >/dev/null 2>&1 || {{ [ ! -r /etc/profile ] || . /etc/profile; }}
type module >/dev/null 2>&1 || for hpc_hydra_profile in ~/.bash_profile ~/.bash_login ~/.profile; do
  [ ! -r "$hpc_hydra_profile" ] || {{ . "$hpc_hydra_profile"; break; }}
done
for hpc_hydra_line in "${{hpc_hydra_setup[@]}}"; do
  hpc_hydra_num=$((hpc_hydra_num + 1))
  echo "hpc_hydra: setup line $hpc_hydra_num on $HOSTNAME: $hpc_hydra_line" >&2
  eval "$hpc_hydra_line" && hpc_hydra_code=0 || hpc_hydra_code=$?
  [ "$hpc_hydra_code" = 0 ] || {{
    echo "hpc_hydra: setup line $hpc_hydra_num failed with exit code $hpc_hydra_code" >&2; break; }}
done'
eval "$hpc_hydra_each"
set +eu
if [ "$hpc_hydra_code" = 0 ]; then
  srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --relative=1 --overlap --input=none --export=ALL \\
    bash -c 'HOSTNAME=$(uname -n); hpc_hydra_setup=("$@"); '"$hpc_hydra_each"'; exit $hpc_hydra_code' setup \
"${{hpc_hydra_setup[@]}}" || {{ hpc_hydra_code=$?; hpc_hydra_line="on another node"; }}
fi
if [ "$hpc_hydra_code" != 0 ]; then
  echo "hpc_hydra: the run is not started" >&2
  export HPC_HYDRA_REASON="a setup line failed with exit code $hpc_hydra_code: $hpc_hydra_line"
  {DEAF}
  /venv/bin/python -m hpc_hydra.node finish "$hpc_hydra_code"
  exit "$hpc_hydra_code"
fi

# the plugin needs it (system frontier; docs.olcf.ornl.gov; checked 2026-09-01)
[ -n "${{FI_MR_CACHE_MONITOR+x}}" ] || export FI_MR_CACHE_MONITOR=kdreg2

# more than one node
# set on the node, when plugin librccl-net.so: NCCL_NET=AWS Libfabric

# launch.env
export NOTE=$'two\\nlines $(id)'

# launch.env
export LD_LIBRARY_PATH=/opt/lib"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"

export PYTHONPATH=/src/hpc_hydra"${{PYTHONPATH:+:$PYTHONPATH}}"

srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=7 --kill-on-bad-exit=1 --wait=0 \\
  --export=ALL --mpi=none --gpu-bind=closest \\
  /venv/bin/python -m hpc_hydra.node rank
code=$?
{DEAF}
/venv/bin/python -m hpc_hydra.node finish "$code"
exit $?
"""

LOCAL = f"""\
#!/bin/bash
# job0 of the sweep /sweep
# runs 0 1
# a try

{UNSET}
cd -- /work || exit 1

export HPC_HYDRA_PLAN=plan0
export HPC_HYDRA_SWEEP=/sweep
export HPC_HYDRA_JOB=job0
export HPC_HYDRA_SCHEDULER=local
runs=(0 1)
export HPC_HYDRA_RUN="${{1-}}"
case " ${{runs[*]}} " in
  *" ${{HPC_HYDRA_RUN//[!0-9]/x}} "*) ;;
  *) echo "hpc_hydra: no run '$HPC_HYDRA_RUN' in this job; it has: ${{runs[*]}}" >&2; exit 2 ;;
esac
export HPC_HYDRA_ATTEMPT="$(date -u +%Y%m%d-%H%M%S)-$$"

trap : TERM  # the ranks are signalled too: wait for them, then report how they ended
/venv/bin/python -m hpc_hydra.node spawn --procs 2 --gpus-per-proc 1 --cpus-per-proc 3 -- \\
  /venv/bin/python -m hpc_hydra.node rank
code=$?
{DEAF}
/venv/bin/python -m hpc_hydra.node finish "$code"
exit $?
"""

ENV = (
    EnvVar(
        "FI_MR_CACHE_MONITOR", "kdreg2", "default", "system frontier", "the plugin needs it", "docs.olcf.ornl.gov",
        "2026-09-01",
    ),
    EnvVar("NCCL_NET", "AWS Libfabric", why="more than one node", when=(("plugin", "librccl-net.so"),)),
    EnvVar("NOTE", "two\nlines $(id)", "force", "launch.env"),
    EnvVar("LD_LIBRARY_PATH", "/opt/lib", "prepend", "launch.env"),
)  # fmt: skip


def array() -> JobSpec:
    return spec(
        ARRAY,
        runs=(3, 5, 7),
        root=Path("/scratch/a b/%x"),
        workdir=Path("/home/u/my project"),
        env=ENV,
        pythonpath=("/src/hpc_hydra",),
        comment="train.py -m lr=1,2,3",
    )


def local() -> JobSpec:
    asked = request(scheduler="local", procs_per_node=2, gpus_per_proc=1, cpus_per_proc=3, comment="a try")
    return spec(asked, runs=(0, 1))


def test_the_script_of_one_run_on_slurm() -> None:
    assert Slurm().script(spec()) == ONE_RUN


def test_the_script_of_an_array_on_slurm() -> None:
    assert Slurm().script(array()) == ARRAY_TEXT


def test_the_script_on_this_machine() -> None:
    assert Local().script(local()) == LOCAL


@pytest.mark.parametrize("name", ["slurm", "local"])
@pytest.mark.parametrize("made", [spec, array, local])
def test_scripts_are_valid_bash_and_every_value_is_on_one_line(name: str, made: object, tmp_path: Path) -> None:
    wanted = made()  # type: ignore[operator]
    text = adapter_for(name).script(wanted)
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    assert "<<" not in text
    values = [wanted.workdir, wanted.sweep, *(var.value for var in wanted.plan.env)]
    assert all("\n" not in str(value) or str(value) not in text for value in values)


def run(script: str, *args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "job0.sh", *args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **(env or {})},
        capture_output=True,
        text=True,
        timeout=200,
    )


class HereAdapter(Local):
    """Starts the one rank as it is."""

    def launch_command(self, request: object, python: str = "") -> list[str]:
        return ["env", "LAUNCHED=1"]


def here(tmp_path: Path, rank: str, *, setup: tuple[str, ...] = (), env: tuple[EnvVar, ...] = ()) -> str:
    finish = 'echo "finish $1 ${HPC_HYDRA_REASON-}"; exit "$1"'
    return HereAdapter().script(
        spec(
            request(setup_lines=setup),
            runs=(4, 6),
            workdir=tmp_path,
            env=env,
            rank_command=("bash", "-c", rank),
            finish_command=("bash", "-c", finish, "finish"),
        )
    )


@pytest.mark.parametrize("code", [0, 1, 7, 120, 255])
def test_the_exit_code_goes_through_finish_and_out(code: int, tmp_path: Path) -> None:
    done = run(here(tmp_path, f"exit {code}"), "4", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, f"finish {code} \n")


@pytest.mark.parametrize("args", [[], ["5"], [""], ["4 6"]])
def test_a_run_that_the_job_has_not_is_refused(args: list[str], tmp_path: Path) -> None:
    done = run(here(tmp_path, "echo started"), *args, cwd=tmp_path)
    assert done.returncode == 2
    assert "it has: 4 6" in done.stderr
    assert done.stdout == ""


def test_what_another_job_left_does_not_reach_the_ranks(tmp_path: Path) -> None:
    left = {"RANK": "5", "MASTER_ADDR": "10.9.9.9", "TORCHELASTIC_RUN_ID": "x", "HPC_HYDRA_SPAWN_RANK": "3"}
    rank = "env | grep -E '^(RANK|MASTER_|TORCHELASTIC|HPC_HYDRA_SPAWN)|^HPC_HYDRA_(RUN|ATTEMPT)='"
    done = run(here(tmp_path, rank), "6", cwd=tmp_path, env=left)
    lines = sorted(done.stdout.splitlines())
    assert [line.partition("=")[0] for line in lines] == ["HPC_HYDRA_ATTEMPT", "HPC_HYDRA_RUN", "finish 0 "]
    assert "HPC_HYDRA_RUN=6" in lines


def test_setup_lines_run_in_one_shell_in_order(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text('export FROM_FILE="$NOT_SET$#"; false\n')
    setup = (
        'export A="b c"',
        "source x.sh || true",
        "f() { export G=1; }",
        "f",
        "cd /",
        "if true; then\n  B=2\nfi",
        "export B",
    )
    done = run(here(tmp_path, 'echo "$A|$FROM_FILE|$G|$PWD|$B"', setup=setup), "4", cwd=tmp_path)
    assert "b c|0|1|/|2\n" in done.stdout
    assert "setup line 2" in done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("false", 1),
        ("(exit 7)", 7),
        ("no-such-command-here", 127),
        ("echo \"it's", 1),
        ("set -e; (exit 3)", 3),
        ("source x.sh", 1),
    ],
)
def test_a_setup_line_that_fails_stops_the_job_visibly(line: str, code: int, tmp_path: Path) -> None:
    done = run(here(tmp_path, "echo started", setup=("true", line, "echo third")), "4", cwd=tmp_path)
    assert done.returncode == code or (line.startswith("echo") and done.returncode != 0)
    assert "started" not in done.stdout
    assert "third" not in done.stdout
    assert "setup line 2 on " in done.stderr
    assert line in done.stdout
    assert "setup line 2 failed" in done.stderr
    assert f"finish {done.returncode} a setup line failed" in done.stdout


@pytest.mark.parametrize(("attached", "told"), [(True, True), (False, False)])
def test_a_setup_line_that_fails_on_the_submit_host_of_an_attached_run_says_so(
    attached: bool, told: bool, tmp_path: Path
) -> None:
    asked = spec(request(setup_lines=("false",)), attached=attached, workdir=tmp_path, finish_command=("exit",))
    done = run(Slurm().script(asked), cwd=tmp_path)
    assert done.returncode == 1 and "setup line 1 failed with exit code 1" in done.stderr
    assert ("submit host" in done.stderr and "`|| true`" in done.stderr and "launch.bg=true" in done.stderr) is told


def test_an_exit_in_a_setup_line_stops_the_job_with_its_code(tmp_path: Path) -> None:
    done = run(here(tmp_path, "echo started", setup=("exit 9",)), "4", cwd=tmp_path)
    assert done.returncode == 9
    assert "setup line 1" in done.stderr
    assert "started" not in done.stdout


def test_options_of_the_shell_that_setup_lines_set_do_not_spoil_the_end(tmp_path: Path) -> None:
    done = run(here(tmp_path, "exit 5", setup=("set -euo pipefail",)), "4", cwd=tmp_path)
    assert done.returncode == 5
    assert "finish 5" in done.stdout


def test_module_of_a_login_shell_is_there_for_setup_lines(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text('module() { export LOADED="$2"; }\n')
    done = run(
        here(tmp_path, 'echo "$LOADED"', setup=("module load rocm",)), "4", cwd=tmp_path, env={"HOME": str(tmp_path)}
    )
    assert "rocm\nfinish 0" in done.stdout


def test_a_preset_does_not_win_over_a_setup_line(tmp_path: Path) -> None:
    script = here(tmp_path, 'echo "$A"', setup=("export A=mine",), env=(EnvVar("A", "preset"),))
    assert run(script, "4", cwd=tmp_path).stdout.startswith("mine\n")


def test_a_missing_working_directory_stops_the_job(tmp_path: Path) -> None:
    script = here(tmp_path / "gone", "echo started")
    done = run(script, "4", cwd=tmp_path)
    assert done.returncode == 1
    assert "gone" in done.stderr
    assert "started" not in done.stdout


ZONES = ("Pacific/Kiritimati", "Asia/Tokyo", "UTC", "America/Los_Angeles", "Pacific/Pago_Pago")


@pytest.mark.parametrize("name", ["slurm", "flux", "lsf", "local", "ssh"])
def test_attempts_are_named_by_one_clock_wherever_a_job_runs(name: str) -> None:
    """Else a resume from the west is older than what it repeats, and the hour when a clock is set back comes twice."""
    script = adapter_for(name).script(spec(request()))
    (line,) = [line for line in script.splitlines() if "date " in line]
    clock = line.partition("$(")[2].partition(")")[0]
    begin = int(time.time())
    for zone in ZONES:
        said = subprocess.run(["bash", "-c", clock], env={"TZ": zone, "PATH": "/bin:/usr/bin"}, capture_output=True)
        began = attempt_began(f"{said.stdout.decode().strip()}-7")
        assert began is not None and begin <= began < time.time() + 1


@pytest.mark.parametrize("zone", ZONES)
def test_the_time_in_the_name_of_an_attempt_is_read_as_it_was_written(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert attempt_name("7_3-a", 1_000_000_000.9) == "20010909-014640-7_3-a"
        assert attempt_began("20010909-014640-7_3-a") == 1_000_000_000
        assert [attempt_began(name) for name in ("", "7", "20010909-7", "20019909-014640-7")] == [None] * 4
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("scheduler", "launch"), [("slurm", "srun"), ("flux", "flux"), ("lsf", "jsrun")])
def test_no_signal_to_the_whole_job_keeps_its_end_from_being_noted(
    scheduler: str, launch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedulers warn, and end, all processes of a job: the script, and what it starts once its ranks have ended."""
    fakes = Fakes(tmp_path / "bin", monkeypatch)
    fakes.put(launch, '[ "$1" = getattr ] || [ "$1" = hostlist ] || exit 75')
    node = tmp_path / "python"  # LSF's guard hands the command's exit code on
    node.write_text('#!/bin/bash\nshift 4; exec "$@"\n')
    node.chmod(0o755)
    send = f"for name in {' '.join(IGNORED_SIGNALS)}; do kill -$name 0; done"
    finish = f'{send}; sh -c "kill -TERM \\$\\$"; echo $0 >{tmp_path}/end'
    asked = request(scheduler=scheduler, flavour="csm" if scheduler == "lsf" else None)
    made = spec(asked, workdir=tmp_path, log=tmp_path, rank_command=("true",), finish_command=("bash", "-c", finish))
    made = replace(made, plan=replace(made.plan, python=str(node)))
    script = tmp_path / "job.sh"
    script.write_text(adapter_for(scheduler).script(made))
    subprocess.run(["bash", str(script)], start_new_session=True, timeout=200, check=False)
    assert (tmp_path / "end").read_text() == "75\n"
