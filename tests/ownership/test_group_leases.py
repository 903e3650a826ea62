"""The coordinator as one of several workers, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from examples.join_group.app import create_app
from examples.join_group.client import code_of
from examples.join_group.settings import Settings
from purgatory import Purgatory
from purgatory.ownership import Ownership
from purgatory.ownership.lease import LeaseStep
from purgatory.testing import AutojumpEventLoop
from tests.cases import cases
from tests.ownership.lease_model import LeaseModel, LossyStore
from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture

JOIN: dict[str, Any] = {"protocols": {"range": ""}}


class _Bench:
    """Two workers, `a` and `b`, and their store."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AutojumpEventLoop)
        self.model = LeaseModel(lambda: 1_000_000 + loop.clock.now_ns() // 1_000)
        self.stores: dict[str, LossyStore] = {}
        self.apps = {name: self._worker(name, loop) for name in "ab"}
        self.http = httpx.AsyncClient(
            mounts={f"all://{name}": httpx.ASGITransport(app) for name, app in self.apps.items()},
            timeout=None,
        )

    def _worker(self, name: str, loop: AutojumpEventLoop) -> FastAPI:
        settings = Settings(address=f"http://{name}", empty_group_retention_ms=60_000)
        self.stores[name] = LossyStore(self.model)
        return create_app(
            settings,
            purgatory=Purgatory(name, clock=loop.clock),
            lease_store=self.stores[name],
        )

    def ownership(self, worker: str) -> Ownership:
        ownership = self.apps[worker].state.ownership
        assert isinstance(ownership, Ownership)
        return ownership

    async def post(self, worker: str, action: str, group: str = "g", **body: Any) -> httpx.Response:
        return await self.http.post(f"http://{worker}/groups/{group}/{action}", json=body)

    async def joined(self, worker: str, group: str = "g", **body: Any) -> dict[str, Any]:
        answer = await self.post(worker, "join", group, **JOIN, **body)
        assert answer.status_code == 200, answer.text
        joined: dict[str, Any] = answer.json()
        return joined


@pytest.fixture
async def bench() -> AsyncIterator[_Bench]:
    """Both workers run during the test."""
    bench = _Bench()
    a, b = bench.apps.values()
    async with bench.http, a.router.lifespan_context(a), b.router.lifespan_context(b):
        yield bench


async def test_others_redirect_to_the_owner(bench: _Bench) -> None:
    """Every request, with its method and body; the owner is in the description."""
    joined = await bench.joined("a")
    assert joined["generation"] == joined["epoch"] > 0
    heartbeat = {"member_id": joined["member_id"], "generation": joined["generation"]}
    for action, body in (("join", JOIN), ("heartbeat", heartbeat), ("sync", heartbeat)):
        answer = await bench.post("b", action, **body)
        assert (answer.status_code, answer.headers["location"]) == (
            307,
            f"http://a/groups/g/{action}",
        )
    described = await bench.http.get("http://b/groups/g", follow_redirects=True)
    assert (described.url.host, described.json()["epoch"]) == ("a", joined["epoch"])


async def test_made_up_ids_acquire_nothing(bench: _Bench) -> None:
    """Neither a read, nor a heartbeat, nor a join that is refused leaves anything in the store."""
    stranger: dict[str, Any] = {"member_id": "x", "generation": 1}
    assert code_of(await bench.post("a", "heartbeat", **stranger)) == "UNKNOWN_MEMBER_ID"
    assert code_of(await bench.post("a", "leave", member_id="x")) == "UNKNOWN_MEMBER_ID"
    assert (await bench.http.get("http://a/groups/g")).status_code == 404
    assert bench.model._records == {}
    refused = await bench.post("a", "join", **JOIN, session_timeout_ms=100)
    assert code_of(refused) == "INVALID_SESSION_TIMEOUT"
    assert bench.ownership("a")._leases == {}


async def test_two_workers_with_one_address(bench: _Bench) -> None:
    """A redirect would come back: it is an error that says so."""
    step = LeaseStep(
        "acquire", name="g", token="t", instance="i", address="http://a", lease_ms=10_000
    )
    bench.model.apply(step)
    answer = await bench.post("a", "join", **JOIN)
    assert code_of(answer) == "COORDINATOR_NOT_AVAILABLE"
    assert "two workers have the address http://a" in answer.json()["detail"]


@cases(
    "options, sentence",
    [
        ({"address": ""}, "give the address of this worker"),
        ({"address": "http://a/"}, "address"),
        ({"lease_ms": 3_100}, "at most half of min_session_timeout_ms"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"max_group_size": 601}, "equal to 600"),
    ],
)
def test_settings_of_several_workers(options: dict[str, Any], sentence: str) -> None:
    """What cannot work is refused at start, with the way out."""
    good: dict[str, Any] = {"redis_url": "redis://localhost", "address": "http://a"}
    Settings(**good)
    with pytest.raises(ValueError, match=sentence):
        Settings(**{**good, **options})


async def test_the_next_owner_lets_members_join_again(bench: _Bench) -> None:
    """With their ids, for a generation under a higher epoch; who does not come is removed."""
    first, second = await asyncio.gather(bench.joined("a"), bench.joined("a"))
    await bench.ownership("a").close()
    heartbeat = {"member_id": first["member_id"], "generation": first["generation"]}
    answer = await bench.post("b", "heartbeat", **heartbeat)
    assert code_of(answer) == "REBALANCE_IN_PROGRESS"
    began = asyncio.get_running_loop().time()
    again = await bench.joined("b", member_id=first["member_id"])
    took = asyncio.get_running_loop().time() - began
    assert took == pytest.approx(10, abs=0.1), "the session of the other one begins anew"
    assert again["generation"] == again["epoch"] > first["epoch"]
    assert [member_id for member_id, _, _ in again["members"]] == [first["member_id"]]
    answer = await bench.post("b", "join", **JOIN, member_id=second["member_id"])
    assert code_of(answer) == "UNKNOWN_MEMBER_ID"
    await bench.ownership("a").open()


async def test_an_owner_that_is_cut_off_ends_what_is_parked(bench: _Bench) -> None:
    """With an error that lets the member join again anywhere, before another can be the owner."""
    joining = asyncio.create_task(bench.post("a", "join", **JOIN))
    await asyncio.sleep(1)
    bench.stores["a"].is_cut = True
    answer = await joining
    assert (answer.status_code, code_of(answer)) == (503, "NOT_COORDINATOR")
    assert answer.headers["retry-after"] == "1"
    answer = await bench.post("a", "join", **JOIN)
    assert answer.status_code == 503 and "retry-after" in answer.headers
    await bench.joined("b")
    bench.stores["a"].is_cut = False
    assert (await bench.post("a", "join", **JOIN)).status_code == 307
