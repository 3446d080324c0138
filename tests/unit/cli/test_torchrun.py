"""torchrun-hpc's command lines: read by the table, translated to overrides, documented by the same table."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hpc_hydra.cli import torchrun
from hpc_hydra.cli.scan import UsageError
from hpc_hydra.cli.torchrun import OPTIONS, parse, translate

pytestmark = pytest.mark.hydra

EXAMPLES = (
    (Path(__file__).parent / "torchrun_hpc_examples.txt")
    .read_text()
    .replace(
        "$(date +%Y%m%d_%H%M%S)",
        "20261128_120000",  # what the shell does
    )
    .splitlines()
)
DOCS = Path(__file__).parents[3] / "docs" / "torchrun-hpc.md"
GROUPS = ("system", "scheduler", "rendezvous", "resources", "logging", "launch")


def settings(line: str) -> dict[str, Any]:
    """The configuration that a torchrun-hpc command line asks for; a group's choice stands at ``<group>``."""
    parser = OverridesParser.create()
    config = OmegaConf.create({})
    choices = {}
    for parsed in parser.parse_overrides(translate(parse(shlex.split(line)))):
        if parsed.key_or_group in GROUPS:
            choices[parsed.key_or_group] = parsed.value()
        else:
            OmegaConf.update(config, parsed.key_or_group, parsed.value(), merge=True, force_add=True)
    flat: dict[str, Any] = {}
    for group, keys in OmegaConf.to_container(config).items():  # type: ignore[union-attr]
        flat |= {f"{group}.{key}": value for key, value in keys.items()}
    return flat | choices


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_published_example_is_understood(line: str) -> None:
    args = parse(shlex.split(line)[1:])
    assert args.command[0].endswith(".py")
    OverridesParser.create().parse_overrides(translate(args))


def test_the_production_example_says_all_it_says() -> None:
    line = next(line for line in EXAMPLES if "train_gpt.py" in line).removeprefix("torchrun-hpc ")
    assert parse(shlex.split(line)).command == tuple(shlex.split(line.split("gpt_err.log ")[1]))
    assert settings(line) == {
        "rendezvous": "mpi",
        "rendezvous.backend": "nccl",
        "rendezvous.fraction_max_gpu_mem": 0.9,
        "resources.nodes": 16,
        "resources.procs_per_node": 8,
        "resources.gpus_per_proc": 1,
        "resources.time_limit": 1440,
        "resources.exclusive": True,
        "scheduler.queue": "production",
        "scheduler.account": "ai_training",
        "scheduler.job_name": "GPT_Training",
        "system.gpu_arch": "a100",
        "system.mem_per_gpu": 80,
        "system.queues": {"production": {"gpu_arch": "a100", "mem_per_gpu": 80}},
        "launch.bg": True,
        "launch.launch_dir": "production_run_20261128_120000",
        "logging.verbose": True,
        "logging.save_hostlist": True,
        "logging.out": "logs/gpt_out.log",
        "logging.err": "logs/gpt_err.log",
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-N2 -n=4 t.py", {"resources.nodes": 2, "resources.procs_per_node": 4}),
        ("--nodes=2 --procs-per-node 4 t.py", {"resources.nodes": 2, "resources.procs_per_node": 4}),
        ("-N 1 -N 2 t.py", {"resources.nodes": 2}),
        ("-g 32 t.py", {"resources.gpus_at_least": 32}),
        ("--gpumem-at-least 79.5 -n 8 t.py", {"resources.gpumem_at_least": 79.5, "resources.procs_per_node": 8}),
        ("--gpus-per-proc 0 t.py", {"resources.gpus_per_proc": 0}),
        (
            "-vu t.py",
            {"logging.verbose": True, "logging.save_hostlist": True, "rendezvous.unswap_rocr_hip_vis_dev": True},
        ),
        ("--local t.py", {"scheduler": "local", "resources.procs_per_node": 1}),
        ("--local -n 2 t.py", {"scheduler": "local", "resources.procs_per_node": 2}),
        ("--local --scheduler LocalScheduler -n 2 t.py", {"scheduler": "local", "resources.procs_per_node": 2}),
        ("-r tcp t.py", {"rendezvous": "tcp"}),
        ("-r mpi t.py", {"rendezvous": "mpi"}),
        (
            "--local -r mpi -n 2 t.py",
            {
                "scheduler": "local",
                "rendezvous": "mpi",
                "rendezvous.launcher": "mpiexec",
                "resources.procs_per_node": 2,
            },
        ),
        ("--comm-backend rccl t.py", {"rendezvous.backend": "nccl"}),
        ("--comm-backend '*CCL' t.py", {"rendezvous.backend": "nccl"}),
        ("--comm-backend MPI t.py", {"rendezvous.backend": "mpi"}),
        ("-t 480 t.py", {"resources.time_limit": 480}),
        ("-t 1:30:00 t.py", {"resources.time_limit": "1:30:00"}),
        ("-l t -N 1 t.py", {"launch.launch_dir": "t", "resources.nodes": 1}),
        ("-l -N 1 t.py", {"launch.launch_dir": torchrun.TIMESTAMPED, "resources.nodes": 1}),
        ("-l -- t.py", {"launch.launch_dir": torchrun.TIMESTAMPED}),
        ("-l. t.py", {"launch.launch_dir": "."}),
        ("--launch-dir=a/b t.py", {"launch.launch_dir": "a/b"}),
        ("-o job.sh --setup-only t.py", {"launch.output_script": "job.sh", "launch.setup_only": True}),
        ("-o - --dry-run t.py", {"launch.output_script": "-", "launch.dry_run": True}),
        ("--system frontier t.py", {"system": "frontier"}),
        ("-p cores_per_node=96 mem_per_gpu=79.6 t.py", {"system.cores_per_node": 96, "system.mem_per_gpu": 79.6}),
        ("-p gpu_arch=90 -p numa_domains=4 t.py", {"system.gpu_arch": "90", "system.numa_domains": 4}),
        ("-p scheduler=FluxScheduler t.py", {"scheduler": "flux", "system.scheduler": "flux"}),
        ("-p scheduler=flux --scheduler slurm t.py", {"scheduler": "slurm", "system.scheduler": "flux"}),
        ("-p fraction_max_gpu_mem=0.5 t.py", {"rendezvous.fraction_max_gpu_mem": 0.5}),
        (
            "-q q-1.x -p gpus_per_node=4 fraction_max_gpu_mem=0.5 t.py",
            {
                "scheduler.queue": "q-1.x",
                "system.gpus_per_node": 4,
                "system.queues": {"q-1.x": {"gpus_per_node": 4}},
                "rendezvous.fraction_max_gpu_mem": 0.5,
            },
        ),
        ("--batch-script job.sh -N 2", {"launch.batch_script": "job.sh", "resources.nodes": 2}),
        ("-c 7 t.py", {"resources.cpus_per_proc": 7}),
        ("-J 'a,b ${x} it'\"'\"'s' t.py", {"scheduler.job_name": "a,b \\${x} it's"}),  # OmegaConf's spelling of ${
    ],
)
def test_options_and_their_keys(line: str, expected: dict[str, Any]) -> None:
    assert settings(line) == expected


@pytest.mark.parametrize("name", list(torchrun.SCHEDULERS))
def test_class_names_of_schedulers_are_understood(name: str) -> None:
    expected = torchrun.SCHEDULERS[name]
    assert settings(f"--scheduler {name} t.py") == ({"scheduler": expected} if expected else {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-x a=b c=d t.py", {"a": "b", "c": "d"}),
        ("-x a=b -x c=d t.py", {"a": "b", "c": "d"}),
        ("--xargs a=b --xargs c=d -- t.py", {"a": "b", "c": "d"}),
        ("--xargs=a=b=c t.py", {"a": "b=c"}),
        ("-x-N=4 t.py", {"N": "4"}),
        ("-x--mem-per-gpu=8G t.py", {"mem-per-gpu": "8G"}),
        ("-x overcommit= t.py", {"overcommit": None}),
        ("-x a=1 a=2 t.py", {"a": ["1", "2"]}),
        ("-x a=1 a=1 t.py", {"a": "1"}),
        ("-x a=1 ~a a=2 t.py", {"a": "2"}),
        ("-x ~a a=2 t.py", {"a": "2"}),
        ("-x -- t.py", None),
        ("-x t.py", None),
        ("-x 'a=x y, \"z\"' t.py", {"a": 'x y, "z"'}),
        ("-x system.cwd=/a t.py", {"system.cwd": "/a"}),
    ],
)
def test_scheduler_options_do_not_swallow_the_command(line: str, expected: dict[str, Any] | None) -> None:
    if expected is None:
        with pytest.raises(UsageError, match=r"-x.*(KEY=VALUE|expects a value)"):
            parse(shlex.split(line))
        return
    assert parse(shlex.split(line)).command == ("t.py",)
    assert settings(line) == {"scheduler.extra": expected}


def test_a_tilde_takes_an_option_away() -> None:
    assert settings("-x mem=1 ~mem ~--gres t.py") == {"scheduler.remove": ["mem", "gres"]}


def test_a_path_is_never_taken_for_a_pair() -> None:
    assert parse(["-x", "a=b", "./dir/x=1.py"]).command == ("./dir/x=1.py",)
    assert parse(["-x", "a=b", "~/train.py"]).command == ("~/train.py",)


def test_a_variable_among_scheduler_options_is_set_for_the_ranks_and_said_so() -> None:
    args = parse(["-x", "NCCL_DEBUG=INFO", "-N", "2", "train.py"])
    assert "launch.env.NCCL_DEBUG=INFO" in translate(args)
    assert any("NCCL_DEBUG" in note and "environment variable" in note for note in torchrun.notes(args))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("t.py -N 2", ["t.py", "-N", "2"]),
        ("t.py -- -x", ["t.py", "--", "-x"]),
        ("-- t.py -- -x", ["t.py", "--", "-x"]),
        ("-- -weird", ["-weird"]),
        ("t.py '' 'a b' '$(id)'", ["t.py", "", "a b", "$(id)"]),
        ("-N 2 -- a=b.py", ["a=b.py"]),
    ],
)
def test_the_command_arrives_as_typed(line: str, words: list[str]) -> None:
    assert list(parse(shlex.split(line)).command) == words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-g 4 -N 2 t.py", r"--gpus-at-least.*--nodes"),
        ("-g 4 -n 2 t.py", r"--gpus-at-least.*--procs-per-node"),
        ("--gpumem-at-least 80 -N 2 t.py", r"--gpumem-at-least.*--nodes"),
        ("--local --bg t.py", r"--local.*--bg"),
        ("--local --scheduler slurm t.py", r"--local.*--scheduler slurm"),
        ("--out x --err x t.py", r"--out.*same file"),
        ("-N 0 t.py", r"-N: expects a whole number, 1 or more, got '0'"),
        ("-N two t.py", r"got 'two'"),
        ("-N -2 t.py", r"-N: expects a value, got '-2'"),
        ("--fraction-max-gpu-mem 1.5 t.py", r"up to 1, got '1.5'"),
        ("--scheduler oar t.py", r"expects one of None, local.*got 'oar'"),
        ("-r gloo t.py", r"expects one of mpi, tcp"),
        ("-p gpus=8 t.py", r"unknown system parameter 'gpus'.*gpus_per_node"),
        ("-p gpus_per_node=many t.py", r"gpus_per_node expects a whole number"),
        ("--node 2 --proc 1 --gpu 3 t.py", r"--gpu: could be --gpus-per-proc, --gpus-at-least"),
        ("--nodez 2 t.py", r"--nodez: unknown option\n  Try: --nodes"),
        ("-Z t.py", r"-Z: unknown option"),
        ("--bg=yes t.py", r"--bg: takes no value"),
        ("-N 2", r"no command given"),
        ("-l train.py", r"no command given.*'train.py' was read as the value.*\n  Try: --launch-dir -- train.py"),
    ],
)
def test_mistakes_name_the_option(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.compile(message, re.DOTALL)):
        parse(shlex.split(line))


def test_a_variable_with_two_values_is_refused() -> None:
    assert settings("-x NAME=1 NAME=1 t.py") == {"launch.env": {"NAME": "1"}}
    with pytest.raises(UsageError, match=r"-x NAME: is given twice"):
        settings("-x NAME=1 -x NAME=2 t.py")


def test_every_option_is_documented_with_its_key() -> None:
    documented = {}
    for row in re.findall(r"^\| (`--.+?)\|(.+?)\|(.+?)\|$", DOCS.read_text(), re.MULTILINE):
        flags = tuple(re.findall(r"`(-[^` ]+)", row[0]))
        documented[flags] = re.findall(r"`([^`]+)`", row[1])
    assert documented == {
        option.flags: [key for key in option.key.split(", ") if key]
        for option in OPTIONS
        if option.flags[0] != "--help"
    }


def test_show_overrides_prints_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert torchrun.main(["--show-overrides", "-N", "2", "-J", "my job", "-m", "pkg.train", "--lr", "1 2"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words == [
        "hpc-hydra", "run", "resources.nodes=2", 'scheduler.job_name="my job"', "--", "-m", "pkg.train", "--lr", "1 2",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], ["torchrun", "--help"], ["torchrun", "--show-overrides", "t.py"]])
def test_help_loads_neither_hydra_nor_torch(words: list[str]) -> None:
    code = (
        "import sys; from hpc_hydra.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'hydra', 'omegaconf', 'torch', 'submitit', 'rich', 'yaml'} & set(sys.modules);"
        "print(heavy, file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--nnodes=2", "-N NODES"),
        ("--nproc-per-node", "-n PROCS"),
        ("--nproc_per_node=4", "-n PROCS"),
        ("--standalone", "--local"),
        ("--rdzv-endpoint=a:1", "omit it"),
        ("--master_port=1", "omit it"),
    ],
)
def test_options_of_torchrun_itself_are_told_as_ours(option: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([option, "2", "train.py"])
    assert (caught.value.fix or "").startswith(fix) and "torchrun" in caught.value.what
    assert parse(["train.py", option]).command == ("train.py", option)
