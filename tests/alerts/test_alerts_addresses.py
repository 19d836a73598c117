"""Which addresses may be sent to."""

from __future__ import annotations

import ipaddress

import pytest

from supervisor.alerts.addresses import RefusedAddressError, permitted, refusal

NEVER = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
]
PRIVATE = ["127.0.0.1", "::1", "10.1.2.3", "192.168.1.9", "172.16.0.1", "100.64.0.1", "fd12::1", "::ffff:10.0.0.1"]
PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "8.8.8.8"]


@pytest.mark.parametrize("text", NEVER)
@pytest.mark.parametrize("allow_private", [True, False])
def test_some_addresses_are_never_sent_to(text: str, allow_private: bool) -> None:
    assert refusal(ipaddress.ip_address(text), allow_private=allow_private) is not None


@pytest.mark.parametrize("text", PRIVATE)
def test_private_ones_only_with_the_owners_word(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert "allow_private" in (refusal(address, allow_private=False) or "")
    assert refusal(address, allow_private=True) is None


@pytest.mark.parametrize("text", PUBLIC)
def test_public_ones_always(text: str) -> None:
    assert refusal(ipaddress.ip_address(text), allow_private=False) is None


def test_an_address_written_in_an_odd_way_is_seen_for_what_it_is() -> None:
    """The system's resolver takes 0x7f000001 and 2130706433 for 127.0.0.1."""
    for text in ("2130706433", "0x7f000001", "127.1"):
        with pytest.raises(RefusedAddressError, match=r"127\.0\.0\.1"):
            permitted(text, 80, allow_private=False)
