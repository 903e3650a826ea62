"""The group coordinator on a real socket: demonstration, large groups, disconnects, drain."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from examples.join_group import __main__ as demonstration
from examples.join_group.client import GroupMember, MemberOptions, RequestFailed
from examples.join_group.demonstration import OPTIONS, SETTINGS, Demonstration, run_demonstration
from examples.join_group.problems import KINDS, PREFIX
from examples.join_group.server import CoordinatorServer
from examples.join_group.settings import CoordinatorSettings
from examples.join_group.simulated_consumers import SimulatedConsumers
from tests.acceptance.process_server import serve_in_process
from tests.acceptance.thread_server import KINDS as SERVER_KINDS
from tests.cases import cases
from tests.needs import BODY_LIMIT
from tests.patience import PATIENCE_S

CROWD = 200
GONE = 20
UNLIMITED = httpx.Limits(max_connections=None, max_keepalive_connections=None)
# Times of the crowd, with room for a machine that is busy with something else.
CROWD_OPTIONS = MemberOptions(
    group_id="crowd",
    partitions=1000,
    session_timeout=50.0,
    rebalance_timeout=120.0,
    heartbeat_interval=4.0,
)
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


def _member(http: httpx.AsyncClient, name: str, options: MemberOptions = SLOW) -> GroupMember:
    return GroupMember(http, name, options, on_generation=lambda member, generation: None)


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


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["bob is back"], 1)])
def test_the_demonstration_fails_when_an_expectation_does(
    failures: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit code is not zero, and the sentence that does not hold is printed."""

    async def run_nothing(server: CoordinatorServer) -> Demonstration:
        demonstration = Demonstration(server, SimulatedConsumers(server.url, OPTIONS))
        demonstration.failures = failures
        return demonstration

    monkeypatch.setattr(demonstration, "run_demonstration", run_nothing)
    assert demonstration.main() == code
    printed = capsys.readouterr().out
    assert all(f"NOT MET: {failure}" in printed for failure in failures)
    assert ("expectations are met" in printed) == (code == 0)


async def test_two_hundred_members_settle_in_one_generation() -> None:
    """200 join and are one generation; 20 leave and 20 die, and one more generation settles."""
    names = [f"m{number}" for number in range(CROWD)]
    leaving, dying = names[:GONE], names[GONE : 2 * GONE]
    settings = CoordinatorSettings(initial_rebalance_delay=3.0)
    with CoordinatorServer(settings) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as http,
            SimulatedConsumers(server.url, CROWD_OPTIONS) as consumers,
        ):
            consumers.start(*names)
            first = await consumers.settled(timeout=2 * PATIENCE_S)
            assert (first.number, len(first.partitions)) == (1, CROWD)
            assert first.covers(CROWD_OPTIONS.partitions)
            assert sorted(consumers.generations) == sorted((name, 1) for name in names)

            await consumers.kill(*dying)
            await consumers.leave(*leaving)
            second = await consumers.settled(after=1, timeout=2 * PATIENCE_S)
            seconds_since_contact = min(consumers.seconds_since_contact(name) for name in dying)
            assert (second.number, set(second.partitions)) == (2, set(names[2 * GONE :]))
            assert second.covers(CROWD_OPTIONS.partitions)
            assert sorted(consumers.generations[CROWD:]) == sorted(
                (name, 2) for name in second.partitions
            )
            assert seconds_since_contact >= CROWD_OPTIONS.session_timeout, "a session ended early"

            group = (await http.get("/groups/crowd")).json()
            counts = (await http.get("/purgatory/statistics")).json()
    assert (group["state"], group["generation"]) == ("stable", 2)
    assert len(group["members"]) == CROWD - 2 * GONE
    # A session each, and nothing of those who are gone.
    assert counts["parked"] == counts["watched"] == counts["timers"] == CROWD - 2 * GONE


async def test_a_new_member_that_vanishes_leaves_no_trace(http: httpx.AsyncClient) -> None:
    """A client that disconnects while its first join is parked is no member any more."""
    leader = _member(http, "ada")
    await leader.sync(await leader.join())
    joining = asyncio.create_task(_member(http, "bob").join())
    await _until(http, waiting=[False, True])
    joining.cancel()
    await _until(http, state="preparing-rebalance", waiting=[False])
    joined = await leader.join()
    assert (joined["generation"], len(joined["members"])) == (2, 1)


async def test_a_known_member_that_vanishes_may_come_back(http: httpx.AsyncClient) -> None:
    """A client that disconnects while it joins again keeps its place for its session."""
    leader, follower = _member(http, "ada"), _member(http, "bob")
    joined = await asyncio.gather(leader.join(), follower.join())
    assert {answer["generation"] for answer in joined} == {1}
    await asyncio.gather(leader.sync(joined[0]), follower.sync(joined[1]))
    # A leader's join is what begins a rebalance, whichever of the two that is.
    if joined[0]["leader"] != leader.member_id:
        leader, follower = follower, leader
    joining = asyncio.create_task(leader.join())
    group = await _until(http, state="preparing-rebalance")
    assert group["waiting"].count(True) == 1
    joining.cancel()
    await _until(http, waiting=[False, False])
    again = await asyncio.gather(leader.join(), follower.join())
    assert [answer["generation"] for answer in again] == [2, 2]
    assert [answer["member_id"] for answer in again] == [leader.member_id, follower.member_id]


async def test_a_repeated_join_takes_over(http: httpx.AsyncClient) -> None:
    """The same member on a second connection: the first is told, the second is answered."""
    leader, follower = _member(http, "ada"), _member(http, "bob")
    joined = await asyncio.gather(leader.join(), follower.join())
    if joined[0]["leader"] != leader.member_id:
        leader, follower = follower, leader
    await leader.sync(next(answer for answer in joined if answer["members"]))
    older = asyncio.create_task(leader.join())
    await _until(http, state="preparing-rebalance")
    newer = asyncio.create_task(leader.join())
    with pytest.raises(RequestFailed, match="superseded"):
        await older
    again = await asyncio.gather(newer, follower.join())
    assert [answer["generation"] for answer in again] == [2, 2]


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
        ("join", {**JOIN, "rebalance_timeout": 1801}, 422, "invalid-rebalance-timeout"),
        ("join", {"protocols": [{"name": "o"}]}, 409, "inconsistent-group-protocol"),
        ("heartbeat", {"member_id": "ID", "generation": 9}, 409, "illegal-generation"),
        ("sync", {"member_id": "ID", "generation": 1}, 422, "invalid-assignment"),
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
    assert (problem["title"], problem["instance"]) == (KINDS[kind].title(), f"/groups/g/{action}")
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
