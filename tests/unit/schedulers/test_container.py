"""Container runtimes: what each key becomes, what is refused by name, and that pyxis takes what we write."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_hydra.config.load import from_mapping
from hpc_hydra.errors import ConfigError, HpcHydraError, PlanError
from hpc_hydra.launcher import scripts
from hpc_hydra.planning.types import Plan, from_json, to_json
from hpc_hydra.schedulers import container
from hpc_hydra.schedulers.base import JobSpec
from hpc_hydra.schedulers.planner import plan
from hpc_hydra.schedulers.slurm.adapter import Slurm

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FAKE_SRUN = Path(__file__).parents[2] / "fakes" / "srun_with_pyxis.py"
ALL = ("pyxis", "apptainer", "singularity", "podman_hpc", "shifter", "edf")


def planned(name: str, scheduler: str = "slurm", **keys: Any) -> Plan:
    system = {"name": "x", "cores_per_node": 8, "gpus_per_node": 4, "gpu_vendor": keys.pop("vendor", "nvidia")}
    box = {"name": name, "image": "/images/py.sqsh", **keys}
    return plan(from_mapping({"system": system, "scheduler": {"name": scheduler}, "container": box}))


def spec(made: Plan, needs: tuple[str, ...] = ()) -> JobSpec:
    return JobSpec(
        key="job0", plan=made, runs=(0,), sweep=Path("/scratch/sweep"), workdir=Path("/scratch/code"), tag="t",
        log=Path("/scratch/sweep/.hpc_hydra/jobs"), rank_command=("python3", "-m", "hpc_hydra.node", "rank"),
        finish_command=("true",), needs=needs, home="/home/me",
    )  # fmt: skip


def words(name: str, **keys: Any) -> list[str]:
    scheduler = "slurm" if name in ("pyxis", "edf") else "local"
    options, enter = container.around(spec(planned(name, scheduler, **keys)))
    return [*options, *enter]


def test_without_a_container_nothing_changes() -> None:
    made = spec(plan(from_mapping({"system": {"name": "x"}, "scheduler": {"name": "local"}})))
    assert container.around(made) == ([], []) and list(container.exports(made)) == [] and container.files(made) == {}


@pytest.mark.parametrize(
    ("name", "keys", "want"),
    [
        ("pyxis", {"workdir": "/w"}, "--container-workdir=/w"),
        ("pyxis", {"mount_home": False}, "--no-container-mount-home"),
        ("pyxis", {"mount_home": True}, "--container-mount-home"),
        ("pyxis", {"remap_root": True}, "--container-remap-root"),
        ("pyxis", {"writable": False}, "--container-readonly"),
        ("pyxis", {"gpu": False}, "--container-env=NVIDIA_VISIBLE_DEVICES"),
        ("pyxis", {"extra": {"container-name": "pt"}}, "--container-name=pt"),
        ("apptainer", {"workdir": "/w"}, "--pwd=/w"),
        ("apptainer", {"mount_home": False}, "--no-home"),
        ("apptainer", {"remap_root": True}, "--fakeroot"),
        ("apptainer", {"writable": True}, "--writable-tmpfs"),
        ("apptainer", {}, "--nv"),
        ("apptainer", {"vendor": "amd"}, "--rocm"),
        ("apptainer", {"extra": {"cleanenv": None}}, "--cleanenv"),
        ("apptainer", {"extra": {"env": ["A=1", "B=2"]}}, "--env=B=2"),
        ("apptainer", {"mounts": ["/a b:/in:ro"]}, "--bind=/a b:/in:ro"),
        ("apptainer", {"mounts": ["/p:q:/in"]}, "--mount=type=bind,source=/p:q,destination=/in"),
        ("apptainer", {"mounts": ["/x,y:/in:ro"]}, '--mount=type=bind,"source=/x,y",destination=/in,ro'),
        ("singularity", {}, "singularity"),
        ("podman_hpc", {"mount_home": True}, "--volume=/home/me:/home/me"),
        ("podman_hpc", {"remap_root": False}, "--userns=keep-id"),
        ("podman_hpc", {"writable": False}, "--read-only"),
        ("podman_hpc", {"workdir": "/w"}, "--workdir=/w"),
        ("podman_hpc", {}, "--gpu"),
        ("podman_hpc", {"mounts": ["/p:q:/in"]}, "--mount=type=bind,source=/p:q,destination=/in"),
        ("shifter", {}, "--module=gpu"),
        ("shifter", {"workdir": "/w"}, "--workdir=/w"),
        ("shifter", {"extra": {"module": "gpu,nccl-plugin"}}, "--module=gpu,nccl-plugin"),
        ("shifter", {"mounts": ["/a:/b:ro"]}, "--volume=/a:/b:ro"),
    ],
)
def test_a_key_is_an_option_of_the_runtime(name: str, keys: dict[str, Any], want: str) -> None:
    assert want in words(name, **keys)


def test_edf_is_a_file_beside_the_script() -> None:
    made = spec(
        planned(
            "edf", mounts=["/data:/in:ro"], workdir="/w", writable=False, gpu=False, mount_home=True,
            image="/images/$x.sqsh",
            extra={"entrypoint": False, "annotations": {"com.hooks.aws_ofi_nccl.enabled": "true"}},
        )
    )  # fmt: skip
    made = replace(made, plan=from_json(Plan, json.loads(json.dumps(to_json(made.plan)))))  # as the sweep keeps it
    (path, text), = container.files(made).items()  # fmt: skip
    found = tomllib.loads(text)
    assert container.around(made)[0] == [f"--environment={path}"]
    assert found["image"] == "/images/$$x.sqsh"  # a single one would be expanded
    assert found["mounts"] == [
        "/data:/in:ro", "/scratch/code:/scratch/code", "/scratch/sweep:/scratch/sweep", "/home/me:/home/me",
    ]  # fmt: skip
    assert (found["workdir"], found["writable"], found["entrypoint"]) == ("/w", False, False)
    assert found["annotations"]["com"]["hooks"]["aws_ofi_nccl"]["enabled"] == "true"
    assert found["env"] == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_packed_runs_of_several_containers_have_a_description_each() -> None:
    one, two = (replace(spec(planned("edf")), environ={"HPC_HYDRA_PLAN": plan}) for plan in ("plan1", "plan2"))
    assert [path.name for made in (one, two) for path in container.files(made)] == [
        "job0.plan1.toml",
        "job0.plan2.toml",
    ]


@pytest.mark.parametrize("name", ALL)
def test_the_sweep_the_program_and_the_directory_of_the_command_are_mounted(name: str) -> None:
    made = spec(planned(name), needs=("/proj/app", "/scratch/code/sub", "/scratch/sweep"))
    assert [m.source for m in container.all_mounts(made, made.plan.container)] == [
        "/proj/app", "/scratch/code", "/scratch/sweep"
    ]  # fmt: skip


def test_what_a_mount_of_the_users_shows_is_not_mounted_again() -> None:
    made = spec(planned("pyxis", mounts=["/scratch:/scratch"]))
    assert [m.source for m in container.all_mounts(made, made.plan.container)] == ["/scratch"]
    made = spec(planned("pyxis", mounts=["/scratch:/scratch:ro"]))
    assert len(container.all_mounts(made, made.plan.container)) == 3


@pytest.mark.parametrize(
    ("name", "keys", "where"),
    [
        ("pyxis", {"mounts": ["/data/a b:/in"]}, "container.mounts[0]"),
        ("pyxis", {"mounts": ["/ok:/ok", "/data/x,y:/in2"]}, "container.mounts[1]"),
        ("pyxis", {"mounts": ["/data/p:q:/in3"]}, "container.mounts[0]"),
        ("edf", {"mounts": ["/data/p:q:/in3"]}, "container.mounts[0]"),
        ("podman_hpc", {"mounts": ["/data/x,y:/in2"]}, "container.mounts[0]"),
        ("shifter", {"mounts": ["/data/p;q:/in2"]}, "container.mounts[0]"),
        ("shifter", {"mount_home": False}, "container.mount_home"),
        ("shifter", {"remap_root": True}, "container.remap_root"),
        ("shifter", {"writable": True}, "container.writable"),
        ("edf", {"remap_root": True}, "container.remap_root"),
        ("apptainer", {"mount_home": True}, "container.mount_home"),
        ("pyxis", {"scheduler": "local"}, "container.name"),
        ("edf", {"scheduler": "flux"}, "container.name"),
        ("pyxis", {"extra": {"partition": "gpu"}}, "container.extra.partition"),
        ("apptainer", {"extra": {"nv": False}}, "container.extra.nv"),
        ("apptainer", {"image": None}, "container.image"),
        ("apptainer", {"workdir": "here"}, "container.workdir"),
        ("apptainer", {"mounts": ["here:/there"]}, "container.mounts[0]"),
        ("apptainer", {"mounts": ["/a:/b:/c"]}, "container.mounts[0]"),
        ("apptainer", {"mounts": [{"source": "/a", "destination": "/b"}]}, "container.mounts[0]"),
        ("none", {}, "container.image"),
        ("aptainer", {}, "container.name"),
        ("apptainer", {"env": {"A-B": "1"}}, "container.env.A-B"),
        ("apptainer", {"env": {"A": 1.1}}, "container.env.A"),
    ],
)
def test_what_a_runtime_cannot_say_is_refused_by_name(name: str, keys: dict[str, Any], where: str) -> None:
    with pytest.raises(HpcHydraError) as error:
        planned(name, **keys)
    assert error.value.where == where and error.value.fix


def test_a_mount_that_could_be_read_in_two_ways_can_be_spelled_out() -> None:
    made = planned("apptainer", mounts=[{"source": "/a:/b", "target": "/c", "read_only": True}])
    assert made.container.mounts[0] == container.Mount("/a:/b", "/c", True)


def test_a_sweep_directory_that_cannot_be_mounted_is_named() -> None:
    made = replace(spec(planned("pyxis")), sweep=Path("/scratch/my sweep"))
    with pytest.raises(PlanError, match="my sweep") as error:
        container.around(made)
    assert error.value.where == "hydra.sweep.dir"


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"mounts": ["/data:/in:ro", "/out"], "workdir": "/w", "mount_home": False, "remap_root": True},
        {"mount_home": True, "remap_root": False, "writable": True, "gpu": False, "image": "nvcr.io#nvidia/pytorch:25"},
    ],
)
def test_pyxis_takes_our_options(keys: dict[str, Any], tmp_path: Path) -> None:
    made = spec(planned("pyxis", **keys))
    made = replace(made, workdir=tmp_path, sweep=tmp_path)
    script = tmp_path / "job.sh"
    script.write_text(Slurm().script(made))
    (tmp_path / "srun").write_text(f'#!/bin/bash\nexec {sys.executable} {shlex.quote(str(FAKE_SRUN))} "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    done = subprocess.run(
        ["bash", str(script)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert seen["image"] == keys.get("image", "/images/py.sqsh")
    assert [str(tmp_path), str(tmp_path)] in seen["mounts"]
    assert seen["command"][-4:] == ["python3", "-m", "hpc_hydra.node", "rank"]
    for key, name in (("mount_home", "mount-home"), ("remap_root", "remap-root")):
        assert seen.get(name) == keys.get(key)
    if keys.get("mounts"):
        assert ["/data", "/in", "ro"] in seen["mounts"] and ["/out", "/out"] in seen["mounts"]


def test_images_and_mounts_that_are_not_there_are_refused_on_submission(tmp_path: Path) -> None:
    for name in ("docker://python:3.11", "nvcr.io#nvidia/pytorch:25"):
        scripts.check_container(spec(planned("apptainer", image=name)))
    with pytest.raises(ConfigError, match="no such image"):
        scripts.check_container(spec(planned("apptainer", image=f"{tmp_path}/no.sif")))
    with pytest.raises(ConfigError, match="no /not/there"):
        scripts.check_container(spec(planned("apptainer", image=str(tmp_path), mounts=["/not/there:/in"])))


def test_an_image_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert "/home/me/x.sif" in words("apptainer", image="~/x.sif")
    with pytest.raises(ConfigError, match="no such image"):
        scripts.check_container(spec(planned("apptainer", image="~nobody-of-this-name/x.sif")))


def test_the_library_for_containers_is_the_package_itself(tmp_path: Path) -> None:
    scripts.write_library(tmp_path / "lib")
    done = subprocess.run(
        ["sh", tmp_path / "lib" / container.ENTER, sys.executable, "-c",
         "import hpc_hydra.node.__main__ as m, os; print(m.__file__, os.environ.get('LD_PRELOAD'))"],
        env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": "", "HPC_HYDRA_HOST_LD_PRELOAD": ""},
        cwd="/", capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"{tmp_path}/lib/hpc_hydra/node/"), done.stderr
    log = [sys.executable, "-S", "-m", "hpc_hydra.cli", "log", "loss=1"]  # without the packages of the host
    env = {"PYTHONPATH": f"{tmp_path}/lib", "HPC_HYDRA_RUN": "0", "HPC_HYDRA_OUTPUT_DIR": str(tmp_path)}
    subprocess.run(log, env=env, cwd="/", check=True)
    assert (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "before", "behind"),
    [
        ("pyxis", "--container-image=", "--nodelist="),
        ("apptainer", "--nodelist=", "apptainer exec"),
        ("podman_hpc", "--nodelist=", "podman-hpc run"),
        ("shifter", "--nodelist=", "shifter --image="),
    ],
)
def test_a_packed_run_enters_its_container_in_its_part_of_the_allocation(name: str, before: str, behind: str) -> None:
    text = Slurm().step_script(spec(planned(name))).replace(" \\\n", " ")
    [line] = [line for line in text.splitlines() if line.lstrip().startswith("srun ")]
    assert line.index("--exact") < line.index(before) < line.index(behind) < line.index("/lib/enter.sh")
    assert "HPC_HYDRA_HOST_" in text
