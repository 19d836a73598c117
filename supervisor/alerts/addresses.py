"""Which addresses an alert may be sent to: a name in the configuration is no way into the machine's own network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Resolve: TypeAlias = Callable[..., Sequence[tuple[Any, ...]]]

METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Where clouds hand out the machine's own credentials: AWS, Google, Alibaba, Azure, Oracle."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")


class RefusedAddressError(Exception):
    """No address of the receiver may be connected to."""


def refusal(address: Address, *, allow_private: bool) -> str | None:
    """Return why an address must not be connected to, None where it may."""
    inner = _unwrap_ipv4(address)
    if inner in METADATA or inner.is_link_local:
        return "a link-local or cloud metadata address, which is never sent to"
    # ::1 lies in a range that is reserved as a whole.
    if inner.is_unspecified or inner.is_multicast or (inner.is_reserved and not inner.is_loopback):
        return "not the address of a single machine"
    if not inner.is_global and not allow_private:
        return "a private address; allow_private = true permits it"
    return None


def permitted(host: str, port: int, *, allow_private: bool, resolve: Resolve = socket.getaddrinfo) -> tuple[str, ...]:
    """Return the addresses of a host that may be connected to, in the resolver's order.

    The caller connects to one of these and to no other: asking the resolver again could give another answer. Raises
    RefusedAddressError where there is none, and OSError where the name does not resolve.
    """
    found = dict.fromkeys(str(entry[4][0]) for entry in resolve(host, port, type=socket.SOCK_STREAM))
    refused = {}
    for text in found:
        refused[text] = refusal(ipaddress.ip_address(text), allow_private=allow_private)
    allowed = tuple(text for text, why in refused.items() if why is None)
    if not allowed:
        raise RefusedAddressError("; ".join(f"{text} is {why}" for text, why in refused.items()) or "no address")
    return allowed


def _unwrap_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return ipaddress.IPv4Address((int(address) >> 80) & 0xFFFFFFFF)
    return address
