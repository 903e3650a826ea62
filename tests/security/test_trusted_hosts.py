"""Pages that let their own name point to the service (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.fastapi import TrustedHosts, install
from purgatory.fastapi.access import MAX_REMEMBERED
from purgatory.fastapi.http.requests import RawRequest
from purgatory.fastapi.http.responses import Problem
from tests.acceptance.client import Connection
from tests.acceptance.thread_server import KINDS_BY_DAY, ServerKind, ThreadServer, serve
from tests.cases import cases


@pytest.fixture(params=KINDS_BY_DAY, ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[ThreadServer]:
    kind: ServerKind = request.param
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory, authorize=TrustedHosts(["purgatory.internal"]))
    with serve(app, purgatory, kind) as running:
        yield running


async def test_a_rebound_page_reads_and_changes_nothing(server: ThreadServer) -> None:
    """On each kind of server; a name that operators trust, and addresses, are let in."""
    async with await Connection.open(server.address) as connection:
        for host, status in (("attacker.example:8000", 421), ("PURGATORY.internal:8000", 201)):
            headers = {"Host": host}
            fired = await connection.request("POST", "/purgatory/keys/k", {"value": 1}, headers)
            assert fired.status == status
            seen = await connection.request("GET", "/purgatory/watch/k?cursor=0", None, headers)
            assert seen.status == (421 if status == 421 else 200)
            if status == 421:
                assert fired.json()["type"] == "/purgatory/problems/untrusted-host"
                assert "PURGATORY_ALLOWED_HOSTS" in fired.json()["detail"]
                assert "TrustedHosts([...])" in fired.json()["detail"]


@cases("host", ["", ".", "shop.internal:8000", "*.corp", "http://shop.internal", "a b"])
def test_what_is_no_name_is_refused(host: str) -> None:
    """It would be trusted never, or for requests without a Host."""
    with pytest.raises(ValueError, match="is not the name of a host"):
        TrustedHosts(["shop.internal", host])


def test_one_name_is_given_as_a_list() -> None:
    """A string would be a list of letters."""
    with pytest.raises(TypeError, match=r"give a list, \['shop\.internal'\]"):
        TrustedHosts("shop.internal")


def admits(trusted: TrustedHosts, *hosts: str) -> bool:
    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    try:
        trusted(RawRequest("/", b"/", b"", headers))
    except Problem as problem:
        return problem.status != 421
    return True


@cases(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "a.localhost",
        "127.0.0.1:1",
        "10.0.0.7",
        "[::1]:80",
        "[fe80::1]",
        "localhost.",
        "localhost:",
    ],
)
def test_addresses_and_localhost_are_trusted(host: str) -> None:
    """A browser resolves these by itself, or not at all."""
    trusted = TrustedHosts()
    assert admits(trusted, host) and admits(trusted, host)


@cases(
    "hosts",
    [
        (),
        ("",),
        ("attacker.example",),
        ("localhost.attacker.example",),
        ("notlocalhost",),
        ("127.0.0.1.attacker.example",),
        ("127.0.0.1@attacker.example",),
        ("attacker.example@127.0.0.1",),
        ("attacker.example:80@localhost:8000",),
        ("@localhost",),
        ("localhost/attacker.example",),
        ("localhost?attacker.example",),
        ("localhost#attacker.example",),
        ("localhost\\attacker.example",),
        ("localhost attacker.example",),
        ("localhost,attacker.example",),
        ("attacker.example/.localhost",),
        ("127.0.0.1:80:80",),
        ("127.0.0.1:http",),
        ("127.0.0.1:\xb2",),
        ("localhost..",),
        ("[127.0.0.1]",),
        ("[::1]attacker.example",),
        ("attacker.example[::1]",),
        ("::1",),
        ("[::1",),
        ("localhost", "attacker.example"),
        ("attacker.example", "localhost"),
        ("1.2.3",),
    ],
)
def test_other_names_are_not(hosts: tuple[str, ...]) -> None:
    """Nor two of them, of which a server and a proxy may take either."""
    assert not admits(TrustedHosts(), *hosts)
    assert admits(TrustedHosts(["*"]), *hosts)


@given(st.lists(st.integers(0, 255 * 256), max_size=3 * MAX_REMEMBERED))
def test_what_is_remembered_is_bounded(numbers: list[int]) -> None:
    """And changes no decision; what strangers send is not kept."""
    trusted = TrustedHosts()
    for number in numbers:
        assert admits(trusted, f"10.0.{number // 256}.{number % 256}")
        assert not admits(trusted, f"a{number}.example")
    assert len(trusted._trusted) <= MAX_REMEMBERED
    assert not [each for each in trusted._trusted if each.endswith(".example")]
