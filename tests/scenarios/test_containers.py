"""Ranks in a container whose root is another one: bubblewrap in the place of Apptainer, same command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from .conftest import APP, Probe

STAND_IN = Path(__file__).parents[1] / "fakes" / "apptainer"


pytestmark = pytest.mark.needs("bubblewrap")


@pytest.fixture
def box(tmp_path: Path):
    """An image, the stand-in on PATH, and what to type: `box.args`."""

    class Box:
        image = tmp_path / "image"
        bin = tmp_path / "bin"
        env = {  # noqa: RUF012
            "STAND_IN_PYTHON": sys.prefix, "STAND_IN_BASE": sys.base_prefix, "VIRTUAL_ENV": "/host/venv",
            "LD_LIBRARY_PATH": "/host/lib",
        }  # fmt: skip
        args = ("container=apptainer", f"container.image={tmp_path / 'image'}")

    (Box.image / "etc").mkdir(parents=True)
    (Box.image / "etc" / "image-name").write_text("the image")
    Box.bin.mkdir()
    (Box.bin / "apptainer").symlink_to(STAND_IN)
    return Box


def test_ranks_run_with_the_python_of_the_image_and_see_what_is_mounted(local_probe: Probe, box, tmp_path: Path):
    odd = [tmp_path / name for name in ("a b", "x,y", "p:q", "only read")]
    for folder in odd:
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    looks = tmp_path / "look.py"
    looks.write_text(
        (APP / "probe.py").read_text().replace(
            '        "umask": old,',
            '        "umask": old, "image": open("/etc/image-name").read(), "host_python": Path(cfg.note).exists(),\n'
            '        "in": [(Path(f"/in{n}/file").read_text(), os.access(f"/in{n}/file", os.W_OK)) for n in range(4)],',
        )
    )  # fmt: skip
    (tmp_path / "conf").symlink_to(APP / "conf")
    mounts = [f'"{folder}:/in{n}{":ro" if n == 3 else ""}"' for n, folder in enumerate(odd)]
    values = {"A": "1,2", "B": "x y", "C": "k=v;z", "D": "two\nlines", "E": "é $(date)"}
    result = local_probe.run(
        *box.args, "resources.procs_per_node=2", f"note={sys.executable}", f"container.mounts=[{','.join(mounts)}]",
        f"out={tmp_path}/sweep/saw", "+container.env.IMAGE_SAYS=we say", "+launch.env.E='é $(date)'",
        *(f"+launch.env.{name}='{value}'" for name, value in values.items() if name != "E"),
        env=box.env, path=box.bin, app=looks,
    )  # fmt: skip
    local_probe.out = tmp_path / "sweep" / "saw"
    assert result.code == 0, result.text
    found = local_probe.saw()
    assert set(found) == {(0, 0), (0, 1)}
    for (_, rank), saw in found.items():
        assert saw["executable"].startswith("/opt/conda/bin/python") and saw["image"] == "the image"
        assert saw["host_python"] is (sys.prefix == sys.base_prefix)
        assert saw["in"] == [[folder.name, n != 3] for n, folder in enumerate(odd)]
        env = saw["env"]
        assert {name: env[name] for name in values} == values
        assert (env["RANK"], env["WORLD_SIZE"], env["IMAGE_SAYS"]) == (str(rank), "2", "we say")
        assert "VIRTUAL_ENV" not in env and "LD_LIBRARY_PATH" not in env
        assert any(path.endswith(".hpc_hydra/lib") for path in saw["path"])
    assert result.outcome(0)["status"] == "completed"


def test_what_the_image_is_not_is_said_before_anything_starts(local_probe: Probe, box):
    result = local_probe.run("container=apptainer", "container.image=/no/such.sif", env=box.env, path=box.bin)
    assert result.code == 2 and "there is no such image" in result.text and "/no/such.sif" in result.text
    result = local_probe.run(*box.args, "container.mounts=['/not/here:/in']", env=box.env, path=box.bin)
    assert result.code == 2 and "container.mounts[0]" in result.text


@pytest.mark.torch
def test_agents_and_their_ranks_are_in_the_container(local_probe: Probe, box, tmp_path: Path):
    local_probe.out = tmp_path / "sweep" / "saw"
    result = local_probe.run(
        *box.args, "rendezvous=torchrun", "resources.procs_per_node=2", f"out={tmp_path}/sweep/saw",
        env=box.env, path=box.bin,
    )  # fmt: skip
    assert result.code == 0, result.text
    assert {saw["env"]["WORLD_SIZE"] for saw in result.probes.values()} == {"2"} and len(result.probes) == 2
    assert all(saw["executable"].startswith("/opt/conda/") for saw in result.probes.values())


def test_over_two_nodes_of_slurm(slurm_probe: Probe, box, tmp_path: Path):
    slurm_probe.out = tmp_path / "sweep" / "saw"
    result = slurm_probe.run(
        *box.args, "resources.nodes=2", "resources.procs_per_node=2", "resources.cpus_per_proc=1",
        f"out={tmp_path}/sweep/saw", env=box.env, path=box.bin,
    )  # fmt: skip
    assert result.code == 0, result.text
    assert {saw["env"]["NODE_RANK"] for saw in result.probes.values()} == {"0", "1"}
    assert {saw["env"]["RANK"] for saw in result.probes.values()} == {"0", "1", "2", "3"}
    assert all(saw["executable"].startswith("/opt/conda/") for saw in result.probes.values())


def test_packed_runs_are_in_their_containers(slurm_probe: Probe, box, tmp_path: Path):
    """Two of four runs at a time in one allocation, of two images; what cares for them is on the node."""
    other = tmp_path / "other image"
    shutil.copytree(box.image, other)
    given = ("resources.procs_per_node=1", "resources.cpus_per_proc=1", "launch.pack=2", "launch.allocations=1")
    result = slurm_probe.run(
        "container=apptainer", f"container.image='{box.image}','{other}'", "note=1,2", *given,
        f"out={tmp_path}/sweep/saw", env=box.env, path=box.bin,
    )  # fmt: skip
    slurm_probe.out = tmp_path / "sweep" / "saw"
    assert result.code == 0 and "4 runs in 1 allocation" in result.text, result.text
    saw = slurm_probe.saw()
    assert all(saw[num, 0]["executable"].startswith("/opt/conda/") for num in range(4))
    assert len({saw[num, 0]["env"]["SLURM_JOB_ID"] for num in range(4)}) == 1
    steps = {path.name: path.read_text() for path in (slurm_probe.sweep / ".hpc_hydra" / "jobs").glob("job0.*.sh")}
    assert sorted(str(other) in text for text in steps.values()) == [False, True]
