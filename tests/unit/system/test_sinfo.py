"""What SLURM says of its nodes."""

from __future__ import annotations

import pytest

from hpc_hydra.schedulers.slurm import sinfo


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:h100", 1),
        ("gpu:h100:4", 4),
        ("gpu:h100:4(S:0-1)", 4),
        ("gpu:a100:2(S:0,3),gpu:h100:2(S:1,2)", 4),
        ("nvme:1,gpu:mi250x:8,craynetwork:4", 8),
        ("gpu:a100_3g.20gb:8(S:0-7)", 8),
        ("shard:gpu:4", 0),
        ("gputest:3", 0),
    ],
)
def test_gpus_of_a_gres_text(gres: str, gpus: int) -> None:
    assert sinfo.gpus(gres) == gpus


def test_lines_that_make_no_sense_are_left_out() -> None:
    text = "gpu*|8|32000|gpu:4\n\nCLUSTER: other\nbad|8+|32000|gpu:4\nx|y\n"
    assert sinfo.parse(text) == (sinfo.NodeKind("gpu", True, 8, 32000, 4),)


def test_without_a_default_partition_the_only_one_is_meant() -> None:
    assert sinfo.facts(sinfo.parse("gpu|8|32000|gpu:4"), None)["gpus_per_node"] == 4
    assert sinfo.facts(sinfo.parse("gpu|8|32000|gpu:4\ncpu|8|32000|"), None) == {}
