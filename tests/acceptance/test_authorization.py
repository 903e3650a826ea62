"""Who may do what: with tokens, with a dependency of one's own, and the service that asks for them.

Over real connections, on each kind of server.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Header, HTTPException
from pydantic import ValidationError

from app.__main__ import main
from app.main import create_app as create_service
from app.settings import Settings
from purgatory import Limits, Purgatory
from purgatory.fastapi import AccessesDep, BearerTokens, create_health_router, install
from tests.acceptance.client import Connection, Reply
from tests.acceptance.process_server import serve_service
from tests.acceptance.thread_server import ServerKind, ThreadServer, serve, serve_endpoints

EVERYTHING = "token-that-may-do-everything"
SHOP = "token-of-the-shop-which-fires"
BUYER = "token-of-a-buyer-who-waits"
OPERATOR = "token-of-an-operator"
OTHER_BUYER = "token-of-another-buyer"
TOKENS = (EVERYTHING, SHOP, BUYER, OPERATOR, OTHER_BUYER)
SCOPES = f"""
{EVERYTHING} *
{SHOP} fire:order:*
{BUYER} wait:order:42 wait:news:*
{OTHER_BUYER} wait:order:42
{OPERATOR} operate
"""

# Requests that ask of order:42, or of all keys. tests/security has every operation and scope.
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/watch/order:42?wait=0", None),
    ("POST", "/watch", {"keys": {"order:42": None}, "wait": 0.0}),
    ("GET", "/keys/order:42", None),
    ("DELETE", "/waits/0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c", None),
    ("POST", "/keys/order:42", {"value": 1}),
    ("POST", "/keys", [{"key": "order:42"}]),
    ("DELETE", "/keys/order:42", None),
    ("GET", "/keys", None),
    ("GET", "/statistics", None),
]


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def _ask(
    server: ThreadServer, method: str, path: str, body: Any = None, token: str | None = None
) -> Reply:
    async with await Connection.open(server.address) as connection:
        headers = {} if token is None else _bearer(token)
        return await connection.request(method, f"/purgatory{path}", body, headers)


def _is_problem(reply: Reply, status: int, slug: str) -> bool:
    document = reply.json()
    return (
        (reply.status, document["status"]) == (status, status)
        and document["type"] == f"/purgatory/problems/{slug}"
        and reply.headers["content-type"] == "application/problem+json"
        and not any(token in str((reply.headers, document)) for token in TOKENS)
    )


@pytest.fixture
def server(kind: ServerKind) -> Iterator[ThreadServer]:
    """A server that wants tokens, and keeps no more than two signals of a key."""
    purgatory, app = Purgatory(limits=Limits(max_signals_per_key=2)), FastAPI()
    app.include_router(create_health_router(purgatory))
    install(app, purgatory, authorize=BearerTokens.from_text(SCOPES))
    with serve(app, purgatory, kind) as running:
        yield running


async def test_a_wait_belongs_to_the_token_that_named_it(server: ThreadServer) -> None:
    """Another one that knows the id can neither end it nor take it over."""
    wait_id = "0b1d6c5e-7d0c-4a53-9b0e-2d1c9f0a1b2c"
    parked = []
    for token in (BUYER, OTHER_BUYER):
        connection = await Connection.open(server.address)
        headers = {**_bearer(token), "Wait-Id": wait_id}
        connection.send("GET", "/purgatory/watch/order:42?wait=50", headers=headers)
        parked.append(connection)
    await server.until_waiting("order:42", 2)
    unknown = await _ask(server, "DELETE", f"/waits/{wait_id}", token=EVERYTHING)
    assert unknown.status == 404 and "/token" not in unknown.json()["detail"]
    assert (await _ask(server, "DELETE", f"/waits/{wait_id}", token=BUYER)).status == 204
    assert (await parked[0].reply()).json()["reason"] == "cancelled"
    await server.until_waiting("order:42", 1)
    await _ask(server, "POST", "/keys/order:42", token=SHOP)
    assert (await parked[1].reply()).json()["reason"] == "fired"
    for connection in parked:
        await connection.close()


async def test_health_and_the_descriptions_of_problems_are_open(server: ThreadServer) -> None:
    """Load balancers have no token; and who is refused may read why."""
    refused = await _ask(server, "GET", "/statistics")
    async with await Connection.open(server.address) as connection:
        for path in ("/healthz", "/readyz", refused.json()["type"]):
            assert (await connection.get(path)).status == 200
        assert (await connection.get("/purgatory/nothing")).status == 404
        assert (await connection.request("PUT", "/purgatory/keys/order:42")).status == 405


async def test_no_token_is_in_a_log_or_in_the_statistics(
    server: ThreadServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Right or wrong, in whatever is asked."""
    caplog.set_level(logging.DEBUG)
    answers = []
    for token in (*TOKENS, "token-that-nobody-knows"):
        for method, path, body in ROUTES:
            answers.append(await _ask(server, method, path, body, token))
    statistics = await _ask(server, "GET", "/statistics", token=OPERATOR)
    said = caplog.text + "".join(f"{reply.headers}{reply.body!r}" for reply in answers)
    said += statistics.body.decode()
    assert not any(token in said for token in (*TOKENS, "token-that-nobody-knows"))


class _Checker:
    """Who may do what, as an application decides it; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(
        self, accesses: AccessesDep, user: Annotated[str | None, Header(alias="X-User")] = None
    ) -> None:
        if user is None:
            raise HTTPException(401, "who are you?", {"WWW-Authenticate": "Custom"})
        for access in accesses:
            self.asked.append(f"{access.action}:{access.key}")
            if access.key is not None and not access.key.startswith(user):
                raise HTTPException(403, "that is somebody else's")


async def test_a_dependency_of_ones_own(kind: ServerKind) -> None:
    """It is asked with each action and key; the endpoint reads the body that it has read."""
    checker = _Checker()
    user = {"X-User": "ann"}
    routes: list[tuple[str, str, Any, list[str]]] = [
        ("GET", "/watch/ann:1?wait=0", None, ["wait:ann:1"]),
        ("POST", "/watch", {"keys": {"ann:1": None, "ann:2": None}, "wait": "0"}, 2 * ["wait"]),
        ("POST", "/keys/ann:1", {"value": [1]}, ["fire:ann:1"]),
        ("POST", "/keys", [{"key": "ann:1"}, {"key": "ann:2"}], 2 * ["fire"]),
        ("GET", "/keys/ann:1", None, ["wait:ann:1"]),
        ("DELETE", "/keys/ann:1", None, ["operate:ann:1"]),
        ("GET", "/keys", None, ["operate:None"]),
        ("GET", "/statistics", None, ["operate:None"]),
    ]
    # Its method: an older FastAPI does not resolve the annotations of an object that is called.
    with serve_endpoints(kind, authorize=checker.__call__) as server:
        for method, path, body, expected in routes:
            async with await Connection.open(server.address) as connection:
                refused = await connection.request(method, f"/purgatory{path}", body)
                assert (refused.status, refused.headers["www-authenticate"]) == (401, "Custom")
                assert refused.headers["content-type"] == "application/problem+json"
                checker.asked.clear()
                answer = await connection.request(method, f"/purgatory{path}", body, user)
                assert answer.status in (200, 201), answer.body
                assert len(checker.asked) == len(expected)
                for asked, begin in zip(checker.asked, expected, strict=True):
                    assert asked.startswith(begin)
        async with await Connection.open(server.address) as connection:
            body = {"keys": {"ann:1": None, "bob:1": None}, "wait": "0"}
            assert (await connection.request("POST", "/purgatory/watch", body, user)).status == 403
            batch = [{"key": "ann:1"}, {"key": "bob:1"}]
            assert (await connection.request("POST", "/purgatory/keys", batch, user)).status == 403
            answer = await connection.request("POST", "/purgatory/keys", {"no": "list"}, user)
            assert _is_problem(answer, 422, "bad-parameter")
            # Unlike Request.body(), it reads no more than the endpoint would.
            answer = await connection.request("POST", "/purgatory/keys", "x" * 1_100_000)
            assert _is_problem(answer, 413, "body-too-large")


def test_the_service_refuses_to_listen_beyond_loopback_without_a_token(
    start_refused: Callable[[dict[str, str]], str],
) -> None:
    """In a sentence that names the address and the ways out."""
    for host in ("0.0.0.0", "::"):
        said = start_refused({"HOST": host})
        assert said.count("\n") == 1
        for words in (host, "PURGATORY_TOKENS_FILE", "PURGATORY_ALLOW_ANONYMOUS=1"):
            assert words in said


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PURGATORY_TOKENS": EVERYTHING}, "token 1 has no scope"),
        ({"PURGATORY_TOKENS": f"{EVERYTHING} {EVERYTHING}"}, "token 1 has an invalid scope"),
        ({"PURGATORY_TOKENS": f"* {EVERYTHING}"}, "token 1 has a length of 1, less"),
        ({"PURGATORY_TOKENS": ""}, "there are 0 tokens"),
        ({"PURGATORY_TOKENS_FILE": "/nowhere/tokens"}, "No such file"),
        (
            {"PURGATORY_TOKENS": f"{EVERYTHING} *", "PURGATORY_TOKENS_FILE": "/nowhere/tokens"},
            "not both",
        ),
        ({"PURGATORY_TOKENS": f"{EVERYTHING} *", "PORT": "x"}, "PORT is 'x'"),
        ({"PURGATORY_TOKENS": f"{EVERYTHING} *", "PURGATORY_DEFAULT_WAIT": "60"}, "max_wait"),
        ({"PURGATORY_JOB_HANDLERS": "a\tb"}, "'a\\tb' is not a name"),
        ({"PURGATORY_JOURNAL_SAMPLE": "x"}, "PURGATORY_JOURNAL_SAMPLE is 'x': give JSON"),
        (
            {"PURGATORY_JOURNAL_SAMPLE": "0.1"},
            "PURGATORY_JOURNAL_SAMPLE is '0.1': give JSON with a fraction for each kind, such as {",
        ),
        ({"PURGATORY_JOURNAL_SAMPLE": '{"watch":2}'}, "PURGATORY_JOURNAL_SAMPLE, 'watch', is 2"),
    ],
    ids=[
        *("no scope", "swapped", "star first", "empty", "no file", "both", "other", "together"),
        *("handlers", "no JSON", "no object", "no share"),
    ],
)
def test_settings_that_are_no_good_are_said_without_the_secret(
    start_refused: Callable[[dict[str, str]], str], variables: dict[str, str], words: str
) -> None:
    """Exit status 2, and a sentence that names a variable which is to blame."""
    said = start_refused(variables)
    assert words in said and EVERYTHING not in said
    assert any(name in said.partition(" is ")[0] for name in variables), said


def test_the_settings_show_no_secret_wherever_they_are_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another server's traceback of them, too."""
    monkeypatch.setenv("PURGATORY_TOKENS", f"{EVERYTHING} *")
    made = repr(Settings())
    monkeypatch.setenv("PURGATORY_DEFAULT_WAIT", "60")
    with pytest.raises(ValidationError) as failed:
        create_service()
    printed = "".join(traceback.format_exception(failed.value))
    assert "SecretStr" in made and "DEFAULT_WAIT" in printed
    assert EVERYTHING not in made + printed


@pytest.mark.parametrize("way", ["tokens", "file", "anonymous"])
async def test_the_service_listens_to_others_when_told_how(way: str, tmp_path: Path) -> None:
    """With tokens, who has none is refused; by name, everyone is let in. No token is logged."""
    path = tmp_path / "tokens"
    path.write_text(f"{EVERYTHING} *  # mine\n")
    variables = {
        "tokens": {"PURGATORY_TOKENS": f"{EVERYTHING} *; {BUYER} wait:a*"},
        "file": {"PURGATORY_TOKENS_FILE": str(path)},
        "anonymous": {"PURGATORY_ALLOW_ANONYMOUS": "1"},
    }[way]
    with serve_service(HOST="0.0.0.0", **variables) as server:
        async with await Connection.open(server.address) as connection:
            target = "/purgatory/watch/a?wait=0"
            status = (await connection.get(target)).status
            assert status == (200 if way == "anonymous" else 401)
            answer = await connection.request("GET", target, headers=_bearer(EVERYTHING))
            assert answer.status == 200
        server.terminate()
        server.wait()
        said = "".join(server.log)
        assert "GET /purgatory/watch/a?wait=0" in said
        assert EVERYTHING not in said and BUYER not in said


def test_a_new_token_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token once, and the line for the file; a scope that is none is refused."""
    monkeypatch.setattr(sys, "argv", ["app", "token", "wait:a*", "operate"])
    assert main() == 0
    made = capsys.readouterr().out
    token, entry = (line.partition(":")[2].strip() for line in made.splitlines())
    assert entry.endswith(" wait:a* operate") and token not in entry
    assert len(BearerTokens.from_text(entry)) == 1
    monkeypatch.setattr(sys, "argv", ["app", "token", "read"])
    assert main() == 2 and "wait:PREFIX*" in capsys.readouterr().err
