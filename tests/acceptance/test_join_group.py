"""The group coordinator on a real socket: demonstration, disconnects, errors, drain."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from examples.join_group.__main__ import SETTINGS, demonstrate
from examples.join_group.app import create_app
from examples.join_group.client import GroupMember
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import KINDS, ThreadServer
from tests.cases import cases
from tests.needs import BODY_LIMIT
from tests.patience import PATIENCE_S


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a coordinator whose groups do not wait long for their first members."""
    app = create_app(replace(SETTINGS, initial_rebalance_delay_ms=50))
    server = ThreadServer(app, app.state.purgatory)
    server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        yield client
    server.stop()


def _member(http: httpx.AsyncClient, name: str) -> GroupMember:
    """Return a member that is driven by hand."""
    options: dict[str, Any] = {"group_id": "g", "workers": [str(http.base_url).rstrip("/")]}
    return GroupMember(http=http, name=name, session_timeout=30.0, **options)


async def _until(http: httpx.AsyncClient, state: str, *waiting: bool) -> None:
    """Ask for the group until it has this state, and members that wait, or do not."""
    async with asyncio.timeout(PATIENCE_S):
        found: tuple[Any, ...] = ()
        while found != (state, *waiting):
            group = (await http.get("/groups/g")).json()
            members = group.get("members", {}).values()
            found = group.get("state"), *(member["is_waiting"] for member in members)
            await asyncio.sleep(0.01)


async def test_the_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    """One joins, leaves or crashes: one generation more, in which each partition has one member."""
    # More patient than it is told to people: the machine may be busy with something else.
    await demonstrate(5.0, replace(SETTINGS, initial_rebalance_delay_ms=2_000))
    printed = capsys.readouterr().out
    found = re.findall(r"generation (\d): (.*)", printed)
    assert [number for number, _ in found] == list("1234"), printed
    for _, shares in found:
        partitions = [int(each) for each in re.findall(r"\d+", shares)]
        assert (sorted(partitions), shares.count("*")) == (list(range(12)), 1), printed
    assert [shares.count("[") for _, shares in found] == [4, 3, 2, 3]
    assert "503, Retry-After" in printed.splitlines()[-1]


async def test_a_new_member_that_vanishes_leaves_no_trace(http: httpx.AsyncClient) -> None:
    """A client that disconnects while its first join is parked is no member any more."""
    leader = _member(http, "ada")
    await leader.sync(await leader.join())
    joining = asyncio.create_task(_member(http, "bob").join())
    await _until(http, "PreparingRebalance", False, True)
    joining.cancel()
    await _until(http, "PreparingRebalance", False)
    joined = await leader.join()
    assert (joined["generation"], len(joined["members"])) == (2, 1)


async def test_sigterm_answers_every_parked_join() -> None:
    """All get a 503 problem with Retry-After, at once, and the process ends."""
    app = "examples.join_group.app:create_app"
    with serve_in_process(app, KINDS[0], "--factory") as process:
        url = "http://{}:{}".format(*process.address)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            joining = [asyncio.create_task(_member(http, f"m{at}").join()) for at in range(20)]
            await _until(http, "PreparingRebalance", *[True] * 20)
            process.terminate()
            failures = await asyncio.gather(*joining, return_exceptions=True)
        await asyncio.to_thread(process.wait)
    assert process.process.returncode == -signal.SIGTERM
    for failure in failures:
        assert isinstance(failure, httpx.HTTPStatusError)
        assert failure.response.status_code == 503
        assert 1 <= int(failure.response.headers["retry-after"]) <= 5
    log = "".join(process.log)
    assert "Traceback" not in log and "ERROR" not in log, log


JOIN: dict[str, Any] = {"protocols": {"roundrobin": ""}}


@cases(
    "action, body, status, code",
    [
        ("join", {**JOIN, "member_id": "x"}, 404, "UNKNOWN_MEMBER_ID"),
        ("join", {**JOIN, "session_timeout_ms": 500}, 422, "INVALID_SESSION_TIMEOUT"),
        ("join", {"protocols": {"o": ""}}, 409, "INCONSISTENT_GROUP_PROTOCOL"),
        ("heartbeat", {"member_id": "ID", "generation": 9}, 409, "ILLEGAL_GENERATION"),
        ("leave", {"member_id": "x"}, 404, "UNKNOWN_MEMBER_ID"),
        ("join", {}, 422, None),
        ("join", {"protocols": {}}, 422, None),
        ("join", {"protocols": {"a b": ""}}, 422, None),
        ("join", {"protocols": {"range": "x" * 4097}}, 422, None),
        ("join", {**JOIN, "session_timeout_ms": "NaN"}, 422, None),
        ("join", {**JOIN, "rebalance_timeout_ms": 0}, 422, None),
        ("join", {**JOIN, "client_id": "a:b"}, 422, None),
        ("join", {**JOIN, "unknown": 1}, 422, None),
    ],
)
async def test_errors(
    http: httpx.AsyncClient, action: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    """Each is a problem with Kafka's name and what to do, or with what is wrong in the body."""
    leader = _member(http, "ada")
    await leader.join()
    if body.get("member_id") == "ID":
        body = {**body, "member_id": leader.member_id}
    answer = await http.post(f"/groups/g/{action}", json=body)
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["status"]) == (status, status)
    if code is None:
        assert problem["errors"][0]["pointer"].startswith("/body/")
    else:
        assert re.fullmatch(f"{code}: .{{10,}}", problem["detail"])
    assert len((await http.get("/groups/g")).json()["members"]) == 1
    await leader.post("leave")


@BODY_LIMIT
async def test_what_is_nowhere_or_too_large(http: httpx.AsyncClient) -> None:
    """Unknown groups and addresses, bad ids and large bodies."""
    for path, status in [("/groups/g", 404), ("/groups/a:b", 422), ("/nowhere", 404)]:
        answer = await http.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
    answer = await http.post("/groups/g/join", content=b" " * 1_100_000)
    assert answer.status_code == 413
