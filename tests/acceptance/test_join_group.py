"""The group coordinator on a real socket: demonstration, disconnects, errors, drain."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from examples.join_group.app import PREFIX
from examples.join_group.client import GroupMember, MemberOptions, RequestFailed
from examples.join_group.demonstration import OPTIONS, SETTINGS, run_demonstration
from examples.join_group.schemas import KINDS as KINDS_BY_CODE
from examples.join_group.server import CoordinatorServer
from examples.join_group.settings import CoordinatorSettings
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import KINDS as SERVER_KINDS
from tests.cases import cases
from tests.needs import BODY_LIMIT
from tests.patience import PATIENCE_S

UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)
KINDS = {kind.slug: kind for kind in KINDS_BY_CODE.values()}
# A single member, driven by hand.
SLOW = MemberOptions(group_id="g", partitions=4, session_timeout=30.0, rebalance_timeout=60.0)


@pytest.fixture
def coordinator() -> Iterator[CoordinatorServer]:
    """A coordinator whose groups do not wait long for their first members."""
    settings = CoordinatorSettings(initial_rebalance_delay=0.05, min_session_timeout=1.0)
    with CoordinatorServer(settings) as server:
        yield server


@pytest.fixture
async def http(coordinator: CoordinatorServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with httpx.AsyncClient(
        base_url=coordinator.url, limits=UNLIMITED, timeout=PATIENCE_S
    ) as client:
        yield client


def _member(http: httpx.AsyncClient, name: str) -> GroupMember:
    return GroupMember(http, name, SLOW, on_generation=lambda member, generation: None)


async def _until(http: httpx.AsyncClient, **expected: Any) -> dict[str, Any]:
    """Ask for the group until it is as expected, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await http.get("/groups/g")
            group: dict[str, Any] = answer.json()
            group["waiting"] = [member["is_waiting"] for member in group.get("members", [])]
            if expected.items() <= group.items():
                return group
            await asyncio.sleep(0.01)


async def test_the_demonstration_meets_its_expectations(capsys: pytest.CaptureFixture[str]) -> None:
    """Five join, one leaves, one dies, one is late, the server stops: all as it tells it."""
    # More patient than it is told to people: the machine may be busy with something else.
    settings = replace(SETTINGS, initial_rebalance_delay=2.0)
    with CoordinatorServer(settings) as server:
        demonstration = await run_demonstration(server, replace(OPTIONS, session_timeout=5.0))
    printed = capsys.readouterr().out
    assert (demonstration.failures, demonstration.expectations) == ([], 11), printed
    assert max(len(line) for line in printed.splitlines()) <= 100
    rows = [line.split() for line in printed.splitlines()]
    assert [row[-8:-6] for row in rows if row[-8:-7] != [] and row[-8].isdigit()] == [
        ["1", "5"],
        ["2", "4"],
        ["3", "3"],
        ["4", "4"],
    ]


async def test_a_new_member_that_vanishes_leaves_no_trace(http: httpx.AsyncClient) -> None:
    """A client that disconnects while its first join is parked is no member any more."""
    leader = _member(http, "ada")
    await leader.sync(await leader.join())
    joining = asyncio.create_task(_member(http, "bob").join())
    await _until(http, waiting=[False, True])
    joining.cancel()
    await _until(http, state="PreparingRebalance", waiting=[False])
    joined = await leader.join()
    assert (joined["generation"], len(joined["members"])) == (2, 1)


async def test_sigterm_answers_every_parked_join() -> None:
    """All get a 503 problem with Retry-After, at once, and the process ends."""
    app = "examples.join_group.app:create_app"
    with serve_in_process(app, SERVER_KINDS[0], "--factory") as process:
        host, port = process.address
        url = f"http://{host}:{port}"
        async with httpx.AsyncClient(base_url=url, limits=UNLIMITED, timeout=PATIENCE_S) as http:
            joining = [
                asyncio.create_task(_member(http, f"m{number}").join()) for number in range(20)
            ]
            await _until(http, waiting=[True] * 20)
            process.terminate()
            failures = await asyncio.gather(*joining, return_exceptions=True)
        await asyncio.to_thread(process.wait)
    assert process.process.returncode == -signal.SIGTERM
    for failure in failures:
        assert isinstance(failure, RequestFailed)
        assert (failure.kind, failure.status) == ("coordinator-draining", 503)
        assert 1 <= int(failure.retry_after or 0) <= 5
    log = "".join(process.log)
    assert "Traceback" not in log and "ERROR" not in log, log


JOIN: dict[str, Any] = {"protocols": [{"name": "range"}]}


@pytest.mark.parametrize(
    ("action", "body", "status", "kind"),
    [
        ("join", {**JOIN, "member_id": "x"}, 404, "unknown-member-id"),
        ("join", {**JOIN, "session_timeout": 0.5}, 422, "invalid-session-timeout"),
        ("join", {"protocols": [{"name": "o"}]}, 409, "inconsistent-group-protocol"),
        ("heartbeat", {"member_id": "ID", "generation": 9}, 409, "illegal-generation"),
        ("leave", {"member_id": "x"}, 404, "unknown-member-id"),
    ],
)
async def test_a_refusal_is_a_problem_of_its_own_kind(
    http: httpx.AsyncClient, action: str, body: dict[str, Any], status: int, kind: str
) -> None:
    """Each has its own type and a sentence, and its type can be looked up."""
    leader = _member(http, "ada")
    await leader.join()
    if body.get("member_id") == "ID":
        body = {**body, "member_id": leader.member_id}
    answer = await http.post(f"/groups/g/{action}", json=body)
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["status"], problem["type"]) == (
        status,
        status,
        f"{PREFIX}/{kind}",
    )
    assert (problem["title"], problem["instance"]) == (KINDS[kind].title, f"/groups/g/{action}")
    assert len(problem["detail"]) > 30
    described = (await http.get(problem["type"])).json()
    assert (described["title"], described["remedy"]) == (problem["title"], KINDS[kind].remedy)


@cases(
    "body",
    [
        {},
        {"protocols": []},
        {"protocols": [{"name": "range"}, {"name": "range"}]},
        {"protocols": [{"name": "a b"}]},
        {"protocols": [{"name": "range", "metadata": "x" * 4097}]},
        {**JOIN, "session_timeout": "NaN"},
        {**JOIN, "rebalance_timeout": 0},
        {**JOIN, "client_id": "a:b"},
        {**JOIN, "unknown": 1},
    ],
)
async def test_a_body_that_is_not_allowed(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """What is missing, too much, unknown or out of bounds is named, and nobody is admitted."""
    answer = await http.post("/groups/g/join", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["errors"][0]["pointer"].startswith("/body/")
    assert (await http.get("/groups/g")).json()["type"] == f"{PREFIX}/unknown-group"


@BODY_LIMIT
async def test_what_is_nowhere_or_too_large(http: httpx.AsyncClient) -> None:
    """Unknown groups, kinds and addresses, bad ids and large bodies: all are problem details."""
    for answer, status in [
        (await http.get("/groups/g"), 404),
        (await http.get("/groups/a:b"), 422),
        (await http.get(f"{PREFIX}/nonsense"), 404),
        (await http.get("/nowhere"), 404),
    ]:
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
    # Starlette words this one itself.
    answer = await http.post("/groups/g/join", content=b" " * 1_100_000)
    assert answer.status_code == 413


async def test_openapi_shows_every_refusal(http: httpx.AsyncClient) -> None:
    """Whoever reads the API's description finds each kind of problem in it."""
    text = (await http.get("/openapi.json")).text
    assert [slug for slug in KINDS if f"`{slug}`" not in text] == []
