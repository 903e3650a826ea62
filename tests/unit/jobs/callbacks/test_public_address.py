"""Addresses on the public internet."""

from __future__ import annotations

from ipaddress import ip_address

from purgatory.jobs.callbacks.addresses import is_private_host, is_public
from tests.cases import cases


@cases("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_public_addresses(text: str) -> None:
    assert is_public(ip_address(text))


@cases(
    "text",
    [
        # Metadata of a virtual machine at Azure.
        *("168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "192.0.0.8", "ff02::1"),
        # IPv4 addresses embedded in IPv6 addresses.
        *("2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "::7f00:1", "::ffff:7f00:1"),
        # Site-local, and not assigned yet.
        *("fec0::1", "4000::1", "5f00::1"),
    ],
)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@cases(
    "host, expected",
    [
        *((host, True) for host in ("localhost", "a.localhost", "127.0.0.1", "10.0.0.1", "::1")),
        *((host, True) for host in ("fe80::1%eth0", "::ffff:7f00:1", "169.254.169.254")),
        # Names are looked up for each call, and so are other notations.
        *((host, False) for host in ("8.8.8.8", "shop.example", "notlocalhost", "127.1", "")),
    ],
)
def test_hosts_that_are_private_by_what_they_say(host: str, expected: bool) -> None:
    assert is_private_host(host) is expected
