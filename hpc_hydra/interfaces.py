"""Addresses of this host's network interfaces.

Must not know: who connects to them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct


def addresses() -> dict[str, str]:
    """The addresses of this host's network interfaces, by name."""
    found = {name: address_of(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address}


def address_of(name: str) -> str | None:
    """The address of an interface: IPv4, else a global IPv6 one."""
    return ipv4_of(name) or ipv6_of(name)


def ipv4_of(name: str) -> str | None:
    """Its IPv4 address."""
    import fcntl

    siocgifaddr = 0x8915  # linux/sockios.h
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def ipv6_of(name: str, wanted: str = "00") -> str | None:
    """Its first address of this scope, as the kernel numbers them: 00 global, 20 link-local."""
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as lines:
        for line in lines:
            number, _, _, scope, _, interface = line.split()
            if interface == name and scope == wanted:
                return str(ipaddress.IPv6Address(bytes.fromhex(number)))
    return None
