"""A host and its port in one text, IPv6 in brackets; an address that other nodes cannot use is refused early."""

from __future__ import annotations

import pytest

from hpc_hydra.config.schema import RendezvousConfig, SystemConfig
from hpc_hydra.errors import ConfigError
from hpc_hydra.planning.addresses import endpoint, not_for_others, split_endpoint
from hpc_hydra.planning.rendezvous import rendezvous


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("n01", 29500, "n01:29500"),
        ("10.0.0.1", 1, "10.0.0.1:1"),
        ("fd00:77::1", 29500, "[fd00:77::1]:29500"),
        ("fe80::1%e0", 80, "[fe80::1%e0]:80"),
        ("n01", None, "n01"),
        ("::1", None, "::1"),
        ("fd00::1", None, "[fd00::1]"),
    ],
)
def test_a_host_and_its_port_are_written_and_read(host: str, port: int | None, text: str) -> None:
    assert split_endpoint(text) == (host, port)
    if port is not None:
        assert endpoint(host, port) == text


@pytest.mark.parametrize("text", ["", ":1", "n01:", "n01:x", "n01:1:2", "n01:70000", "[fd00::1", "[n01]:1", "[::1]1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        split_endpoint(text)


@pytest.mark.parametrize(
    ("address", "fits"),
    [
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("2001:db8::1", True),
        ("n01", True),
        ("127.0.1.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%e0", False),
    ],
)
def test_an_address_that_means_one_host_only_is_not_for_others(address: str, fits: bool) -> None:
    assert (not_for_others(address) is None) == fits


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("fe80::1", "needs a zone"),
        ("fe80::1%eth0", "needs a zone"),
        ("[fe80::1]", "needs a zone"),
        ("n01:29500", r"rendezvous.master_addr=n01 rendezvous.port=29500"),
        ("[fd00::1]:29500", r"rendezvous.master_addr=fd00::1 rendezvous.port=29500"),
        ("[fd00::1", "no name of a host"),
    ],
)
def test_a_master_address_that_cannot_work_is_refused_before_submission(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)rendezvous.master_addr.*{said}"):
        rendezvous(RendezvousConfig(master_addr=value), SystemConfig())


def test_an_ipv6_master_address_may_stand_in_brackets() -> None:
    assert rendezvous(RendezvousConfig(master_addr="[fd00::1]"), SystemConfig()).master_addr == "fd00::1"
