"""The router: every endpoint, with what OpenAPI says of it."""

# No postponed annotations here: FastAPI reads those of the endpoints, which name local things.
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query
from pydantic import TypeAdapter

from purgatory.fastapi import schemas
from purgatory.fastapi.answer import Answer
from purgatory.fastapi.endpoint import Handler, RawEndpoint, RawRoute
from purgatory.fastapi.key_endpoints import KeyEndpoints
from purgatory.fastapi.lifespan import create_lifespan
from purgatory.fastapi.problems import KINDS, MEDIA_TYPE, Problem
from purgatory.fastapi.raw_request import RawRequest
from purgatory.fastapi.waiting_room import WaitingRoom
from purgatory.fastapi.watch_endpoint import WatchEndpoint
from purgatory.fastapi.watch_request import WaitSettings, parse_watch, parse_watch_many
from purgatory.purgatory import Purgatory, Statistics

DEFAULT_PREFIX = "/purgatory"

MAX_WATCH_BODY = 256 * 1024
MAX_BATCH_BODY = 1024 * 1024
# What stands around a value in its body.
ENVELOPE = 1024

Endpoint = Callable[..., Any]

KeyPath = Annotated[
    str,
    Path(
        min_length=1,
        max_length=256,
        description="The key; a slash in it may be written as it is or percent-encoded.",
    ),
]
WaitId = Annotated[str | None, Header(alias="Wait-Id", description="A UUID that names this wait.")]
Prefer = Annotated[
    str | None,
    Header(description="`wait=25`, and `return=minimal` for 204 in place of an empty 200."),
]


def create_router(
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
) -> APIRouter:
    """Return a router with every endpoint under `prefix`, and the lifespan that opens `purgatory`.

    Include it in the outermost application: a router included in a mounted one gets no lifespan.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError(f"prefix is {prefix!r}: it begins with a slash and does not end with one")
    router = APIRouter(
        prefix=prefix,
        tags=["purgatory"],
        lifespan=create_lifespan(purgatory, allow_separate_workers=allow_separate_workers),
    )
    room = WaitingRoom(purgatory, prefix, settings or WaitSettings())
    _add_watching(router, room)
    _add_keys(router, room)
    _add_operators(router, room)
    return router


def problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI responses for kinds of problems, grouped by status."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in (KINDS[slug] for slug in slugs):
        known = responses.get(kind.status)
        title = f"{known['description']}; or `{kind.slug}`" if known else f"`{kind.slug}`"
        responses[kind.status] = {
            "description": f"{title}: {kind.title}",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}},
        }
    return responses


def _add(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Endpoint,
    raw: Any,
    *,
    answer: Any = None,
    status: int = 200,
    refusals: tuple[str, ...] = (),
    responses: dict[int | str, dict[str, Any]] | None = None,
    body: type | None = None,
) -> None:
    """Add a route that `endpoint` documents and `raw` answers."""
    endpoint.raw = raw  # type: ignore[attr-defined] # an attribute is how RawRoute finds it
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        status_code=status,
        response_model=answer,
        responses={
            **problems(*refusals),
            422: {"model": schemas.ProblemAnswer, "description": "`bad-parameter`"},
            **(responses or {}),
        },
        route_class_override=RawRoute,
    )


def _add_watching(router: APIRouter, room: WaitingRoom) -> None:
    refusals = ("bad-cursor", "superseded", "cursor-expired", "full", "draining", "not-open")

    def watch_key(
        key: KeyPath,
        cursor: Annotated[
            str | None,
            Query(max_length=64, description="From an earlier answer; 0: the earliest kept."),
        ] = None,
        wait: Annotated[
            str,
            Query(
                description="Seconds, or with a unit: 500ms, 25s, 1m. 0 asks and does not park; "
                f"the default is {room.settings.default_wait:g} s, more than "
                f"{room.settings.max_wait:g} s is taken as that.",
            ),
        ] = f"{room.settings.default_wait:g}",
        limit: Annotated[int, Query(ge=1, le=1000, description="Signals in the answer.")] = 100,
        min: Annotated[  # noqa: A002 - the parameter's name in the interface
            int, Query(ge=1, le=1000, description="Park until there are so many signals.")
        ] = 1,
        if_none_match: Annotated[
            str | None, Header(description='`"<cursor>"`: a wait that expires is answered 304.')
        ] = None,
        prefer: Prefer = None,
        wait_id: WaitId = None,
    ) -> None:
        """Park until the key fires, or the wait is over.

        The answer is 200 however the wait ended. It comes within 0.9 to 1 of a wait of 5 s and
        more, and never before a shorter one is over. Go on with the answer's cursor: what fires
        between two requests is in the next answer.
        """

    _add(
        router,
        "GET",
        "/watch/{key:path}",
        watch_key,
        WatchEndpoint(room, parse_watch, tail="key"),
        answer=schemas.WatchAnswer,
        refusals=refusals,
        responses={
            204: {"description": "Nothing fired, with `Prefer: return=minimal`."},
            304: {"description": "Nothing fired, with `If-None-Match`."},
        },
    )

    def watch_keys(body: schemas.WatchBody, prefer: Prefer = None, wait_id: WaitId = None) -> None:
        """Park until any, all or some number of several keys have fired, or the wait is over."""

    _add(
        router,
        "POST",
        "/watch",
        watch_keys,
        WatchEndpoint(room, parse_watch_many, max_body=MAX_WATCH_BODY),
        answer=schemas.WatchManyAnswer,
        refusals=("bad-json", *refusals, "body-too-large"),
        responses={204: {"description": "Nothing fired, with `Prefer: return=minimal`."}},
    )

    def cancel_wait(id: Annotated[str, Path(description="A Wait-Id.")]) -> None:  # noqa: A002
        """End the wait of that id: its request is answered with reason "cancelled"."""

    async def cancel(raw: RawRequest) -> Answer:
        raw.query(frozenset())
        room.cancel(raw.tail.lower())
        return Answer.empty(204)

    _add(
        router,
        "DELETE",
        "/waits/{id}",
        cancel_wait,
        _raw(room, cancel, tail="id"),
        status=204,
        refusals=("unknown-wait",),
    )


def _add_keys(router: APIRouter, room: WaitingRoom) -> None:
    endpoints = KeyEndpoints(room.purgatory)
    max_body = room.purgatory.limits.max_value_bytes + ENVELOPE
    writing = ("bad-json", "body-too-large", "not-open")

    def fire_key(key: KeyPath, body: Annotated[schemas.SignalBody | None, Body()] = None) -> None:
        """Fire a key: keep the signal, and wake whoever waits for it."""

    _add(
        router,
        "POST",
        "/keys/{key:path}",
        fire_key,
        _raw(room, endpoints.fire, tail="key", max_body=max_body),
        answer=schemas.FiredAnswer,
        status=201,
        refusals=writing,
    )

    def fire_keys(body: list[schemas.BatchItem]) -> None:
        """Fire several keys: all of them or, where one is refused, none."""

    _add(
        router,
        "POST",
        "/keys",
        fire_keys,
        _raw(room, endpoints.fire_batch, max_body=MAX_BATCH_BODY),
        answer=schemas.BatchAnswer,
        status=201,
        refusals=writing,
    )

    def describe_key(key: KeyPath) -> None:
        """Say where the key is at, and how many wait on it. Does not park."""

    _add(
        router,
        "GET",
        "/keys/{key:path}",
        describe_key,
        _raw(room, endpoints.describe, tail="key"),
        answer=schemas.KeyAnswer,
    )

    def drop_key(key: KeyPath) -> None:
        """End every wait on the key with reason "cancelled", and drop its history."""

    _add(
        router,
        "DELETE",
        "/keys/{key:path}",
        drop_key,
        _raw(room, endpoints.drop, tail="key"),
        answer=schemas.CancelledAnswer,
        refusals=("not-open",),
    )

    def list_keys(
        prefix: Annotated[str, Query(description="Only keys that begin with this.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> None:
        """List the keys that are watched, in order, and how many wait on each."""

    _add(
        router,
        "GET",
        "/keys",
        list_keys,
        _raw(room, endpoints.list_watched),
        answer=schemas.KeysAnswer,
    )


def _add_operators(router: APIRouter, room: WaitingRoom) -> None:
    statistics_json = TypeAdapter(dict[str, Any])

    async def answer_statistics(raw: RawRequest) -> Answer:
        raw.query(frozenset())
        return Answer.of_json(200, statistics_json.dump_json(asdict(room.purgatory.statistics())))

    def statistics() -> None:
        """Return exact counts of now and since the start. Does not park."""

    _add(
        router,
        "GET",
        "/statistics",
        statistics,
        _raw(room, answer_statistics),
        answer=Statistics,
    )

    async def answer_problem(raw: RawRequest) -> Answer:
        raw.query(frozenset())
        kind = KINDS.get(raw.tail)
        if kind is None:
            raise Problem("not-found", f"there is no kind of problem called {raw.tail[:64]!r}")
        body = f"{kind.title} ({kind.status} {kind.slug})\n\n{kind.remedy}\n".encode()
        return Answer(
            200,
            [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
            ],
            body,
        )

    def problem(slug: Annotated[str, Path(description="The last part of a `type`.")]) -> None:
        """Describe a kind of problem, and what to do about it."""

    _add(
        router,
        "GET",
        "/problems/{slug}",
        problem,
        _raw(room, answer_problem, tail="slug"),
        answer=None,
        refusals=("not-found",),
        responses={200: {"content": {"text/plain": {}}, "description": "A few sentences."}},
    )


def _raw(room: WaitingRoom, handler: Handler, *, tail: str = "", max_body: int = 0) -> RawEndpoint:
    return RawEndpoint(handler, room.prefix, tail=tail, max_body=max_body)
