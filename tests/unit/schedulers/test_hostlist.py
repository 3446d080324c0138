"""Compressed lists are read whole or refused."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hpc_hydra.schedulers.hostlist import counts, expand, fold

HOSTS = {
    "n01": "n01",
    "alpha,beta,gamma": "alpha beta gamma",
    "linux[1,2]": "linux1 linux2",
    "n[001-003,007]": "n001 n002 n003 n007",
    "a,b[001,003],c": "a b001 b003 c",
    "nodeA,nodeB[001,003],nodeC": "nodeA nodeB001 nodeB003 nodeC",
    "b04-[09-10]": "b04-09 b04-10",
    "n[8-11]": "n8 n9 n10 n11",
    "n[098-102]": "n098 n099 n100 n101 n102",
    "n[01-3]": "n01 n02 n03",
    "foo003,foo0[10-12],foo[103-104],foo-m11-16": "foo003 foo010 foo011 foo012 foo103 foo104 foo-m11-16",
    "r[1-2]n[1-2]": "r1n1 r1n2 r2n1 r2n2",
    "n[1][2]": "n12",
    "n03,n01": "n03 n01",
    "n[3,1]": "n3 n1",
    "a,a": "a a",
    " n1, n2": "n1 n2",
    "n1,,n2": "n1 n2",
    "": "",
}
BEYOND_SCONTROL = {  # it refuses a text after a bracket
    "gpu-a[1-2].site.org": "gpu-a1.site.org gpu-a2.site.org",
    "n[1-4]-ib": "n1-ib n2-ib n3-ib n4-ib",
    "n[1-2]3": "n13 n23",
}


@pytest.mark.parametrize(("text", "hosts"), [*HOSTS.items(), *BEYOND_SCONTROL.items()])
def test_hosts_come_in_the_order_of_the_list(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


def test_thousands_of_hosts() -> None:
    assert expand("n[0001-4096]")[::4095] == ("n0001", "n4096")


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[", "n[]", "n[a]", "n[1-2,a]", "n[3-1]", "n[[1]]", "a b", "n[1-99999999999]"]
)
def test_a_malformed_list_gives_no_hosts(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


@pytest.mark.cluster
@pytest.mark.parametrize(("text", "hosts"), HOSTS.items())
def test_hosts_are_those_of_scontrol(text: str, hosts: str, slurm_cluster: object) -> None:
    scontrol = shutil.which("scontrol")
    assert scontrol
    said = subprocess.run([scontrol, "show", "hostnames", text], capture_output=True, text=True, check=True).stdout
    assert said.split() == hosts.split() == list(expand(text))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", (4,)),
        ("4(x2)", (4, 4)),
        ("4(x2),3", (4, 4, 3)),
        ("2(x3),1", (2, 2, 2, 1)),
        ("1(x2),8,1(x3)", (1, 1, 8, 1, 1, 1)),
    ],
)
def test_counts_are_run_length_encoded(text: str, numbers: tuple[int, ...]) -> None:
    assert counts(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "4(x)", "4(x0)", "4(2)", "-1", "4,,3", "4(x9999999999)"])
def test_malformed_counts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        counts(text)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("n001 n002 n003 n007", "n[001-003,007]"),
        ("n7 login n8 n12", "n[7-8],login,n12"),
        ("b04-09 b04-10 b05-09", "b04-[09-10],b05-09"),
        ("a1.site2.org a2.site2.org", "a[1-2].site2.org"),
        ("n1-ib n2-ib", "n[1-2]-ib"),
        ("10.0.0.1 10.0.0.2", "10.0.0.1,10.0.0.2"),
        ("", ""),
    ],
)
def test_hosts_are_folded_into_a_list_that_is_read_again(hosts: str, text: str) -> None:
    assert fold(hosts.split()) == text
    assert sorted(expand(text)) == sorted(hosts.split())
