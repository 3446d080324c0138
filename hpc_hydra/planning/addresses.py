"""Parse and format network addresses, and tell who can reach them. Pure: no name resolution."""

from __future__ import annotations

import ipaddress


def endpoint(host: str, port: int | str) -> str:
    """Format ``host:port``, with an IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Split ``host``, ``host:port``, ``[address]`` or ``[address]:port`` into host and port.

    An IPv6 address without brackets has no port. Raises `ValueError` for what is none of these.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not is_ipv6(host) or (rest and rest[0] != ":"):
            raise ValueError(f"{text!r} is no [address]:port")
        port = rest[1:] if rest else None
    elif is_ipv6(text):
        return text, None
    else:
        host, colon, rest = text.partition(":")
        port = rest if colon else None
    if not host or (port is not None and not (port.isascii() and port.isdigit() and int(port) < 65536)):
        raise ValueError(f"{text!r} is no host:port")
    return host, None if port is None else int(port)


def is_ipv6(address: str) -> bool:
    """Whether it is an IPv6 address, with or without a zone (``%eth0``)."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).version == 6
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether it is an address of this host only, as 127.0.1.1 and ::1. A name is not."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_link_local(address: str) -> bool:
    """Whether it is an IPv6 address that needs a zone (RFC 4007), which each host names by itself."""
    return is_ipv6(address) and ipaddress.ip_address(address.partition("%")[0]).is_link_local


def not_for_others(address: str) -> str | None:
    """Return why other nodes cannot use an address, or None."""
    if is_loopback(address):
        return "other nodes cannot reach that"
    if is_link_local(address):
        return "a link-local address needs a zone (%INTERFACE), which other nodes cannot use"
    return None
