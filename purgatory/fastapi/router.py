"""The router: every endpoint, with what OpenAPI says of it."""

# No postponed annotations here: FastAPI reads those of the endpoints, which name local things.
import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query
from pydantic import TypeAdapter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import compile_path

from purgatory.errors import PurgatoryError
from purgatory.fastapi.access.bearer_tokens import BearerTokens
from purgatory.fastapi.http.openapi_headers import idempotency_key, response_header
from purgatory.fastapi.http.permit import Access, Action, allow_anyone
from purgatory.fastapi.http.problems import KINDS, MEDIA_TYPE, Problem, ProblemKind
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.http.raw_response import RawResponse
from purgatory.fastapi.http.schemas import KEY_PATTERN, ProblemDetails
from purgatory.fastapi.jobs.routes import add_job_routes
from purgatory.fastapi.keys import schemas as key_schemas
from purgatory.fastapi.keys.endpoints import KeyEndpoints
from purgatory.fastapi.lifespan import create_lifespan
from purgatory.fastapi.routing.endpoint_context import DEFAULT_PREFIX, EndpointContext
from purgatory.fastapi.routing.raw_endpoint import (
    Handler,
    RawEndpoint,
    RawRoute,
    TaskEndpoint,
    method_not_allowed,
)
from purgatory.fastapi.statistics_schemas import StatisticsResponse
from purgatory.fastapi.watch import schemas as watch_schemas
from purgatory.fastapi.watch.endpoint import WatchEndpoint
from purgatory.fastapi.watch.request import (
    WAIT_ID_PATTERN,
    WaitSettings,
    parse_watch,
    parse_watch_many,
    wait_name,
)
from purgatory.fastapi.watch.wait_registry import WaitRegistry
from purgatory.purgatory import Purgatory

# Seconds that statistics wait for the store of jobs.
STATES_PATIENCE = 2.0

Endpoint = Callable[..., Any]


# As a key, or nothing.
PREFIX_PATTERN = KEY_PATTERN.replace("+$", "*$")


class _KeyConvertor(PathConvertor):
    # Starlette's own ends at a newline: a key with one would not be found, or be taken for another.
    regex = "(?s:.*)"


register_url_convertor("watch_key", _KeyConvertor())

KeyPath = Annotated[
    str,
    Path(
        min_length=1,
        max_length=256,
        pattern=KEY_PATTERN,
        description="The key; a slash in it may be written as it is or percent-encoded.",
        examples=["order:42:paid"],
    ),
]
WaitId = Annotated[
    str | None,
    Header(alias="Wait-Id", description="A UUID that names this wait.", pattern=WAIT_ID_PATTERN),
]
IdempotencyKey = Annotated[
    str | None,
    idempotency_key(
        "a repeat of it within ten minutes is given the first answer, and does nothing."
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        description="`wait=25`, and `return=minimal` for 204 in place of an empty 200.",
        examples=["wait=25"],
    ),
]


def create_router(
    purgatory: Purgatory,
    *,
    prefix: str = DEFAULT_PREFIX,
    settings: WaitSettings | None = None,
    allow_separate_workers: bool = False,
    bypass_middleware: bool = False,
    authorize: BearerTokens | Callable[..., Any] | None = None,
) -> APIRouter:
    """Return a router with every endpoint under `prefix`, and the lifespan that opens `purgatory`.

    Include it in the outermost application: a router included in a mounted one gets no lifespan.

    Where no middleware of the application stands before these endpoints, requests reach them on a
    shorter way; with `bypass_middleware` also past middleware, whatever that is there for.

    `authorize` is `BearerTokens`, or a dependency of your own that raises where something is not
    allowed; its parameter of type `AccessesDep` says what the request wants to do.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ValueError(f"prefix is {prefix!r}: it begins with a slash and does not end with one")
    is_dependency = authorize is not None and not isinstance(authorize, BearerTokens)
    router = APIRouter(
        prefix=prefix,
        tags=["purgatory"],
        lifespan=create_lifespan(purgatory, allow_separate_workers=allow_separate_workers),
        dependencies=[Depends(authorize)] if is_dependency else None,
    )
    context = EndpointContext(
        purgatory,
        prefix,
        authorize if isinstance(authorize, BearerTokens) else allow_anyone,
        bypass_middleware,
    )
    registry = WaitRegistry(context, settings or WaitSettings())
    _add_watching(router, registry)
    _add_keys(router, context)
    if purgatory.job_limits is not None:
        add_job_routes(partial(_add, router), registry, purgatory.job_limits)
    _add_operators(router, context)
    return router


_PROBLEM_SCHEMA = ProblemDetails.model_json_schema()


ETAG = response_header("ETag", "The cursor, in quotes: for If-None-Match of the next wait.")
PREFERENCE_APPLIED = response_header(
    "Preference-Applied", "What was made of Prefer, or of a longer wait."
)
PURGATORY_CURSOR = response_header("Purgatory-Cursor", "The cursor for the next wait.")
RETRY_AFTER = response_header("Retry-After", "Seconds; jittered.", "integer")


def problems(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI responses for kinds of problems, grouped by status."""
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in (KINDS[slug] for slug in slugs):
        by_status.setdefault(kind.status, []).append(kind)
    return {
        status: {
            "description": _in_words(kinds),
            # Not a model: FastAPI would say that it is application/json.
            "content": {
                MEDIA_TYPE: {
                    "schema": _PROBLEM_SCHEMA,
                    "examples": {kind.slug: _problem_example(kind) for kind in kinds},
                }
            },
            "headers": RETRY_AFTER if status in (429, 503) else {},
        }
        for status, kinds in by_status.items()
    }


def _in_words(kinds: list[ProblemKind]) -> str:
    lines = [f"`{kind.slug}`: {kind.title}." for kind in kinds]
    # Markdown: a list, where there are several.
    return lines[0] if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)


def _problem_example(kind: ProblemKind) -> dict[str, Any]:
    return {
        "summary": kind.title,
        "description": kind.remedy,
        "value": {
            "type": f"{DEFAULT_PREFIX}/problems/{kind.slug}",
            "title": kind.title,
            "status": kind.status,
            "detail": kind.remedy,
            "instance": f"{DEFAULT_PREFIX}/...",
        },
    }


def _add(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Endpoint,
    raw: Any,
    *,
    summary: str,
    answered: str,
    answer: Any = None,
    status: int = 200,
    refusals: tuple[str, ...] = (),
    responses: dict[int | str, dict[str, Any]] | None = None,
    action: Action | None = None,
    openapi_extra: dict[str, Any] | None = None,
) -> None:
    """Add a route that `endpoint` documents and `raw` answers; `action` is what it lets one do.

    `summary` is what its documentation is headed by, `answered` what it says of a good answer.
    """
    endpoint.action = action  # type: ignore[attr-defined] # get_accesses looks for it
    # Attributes are how RawRoute finds them.
    endpoint.raw = raw  # type: ignore[attr-defined]
    endpoint.allowed = _allowed(router, path)  # type: ignore[attr-defined]
    endpoint.allowed.append(method)  # type: ignore[attr-defined]
    endpoint.refuse_method = method_not_allowed(router.prefix, endpoint.allowed)  # type: ignore[attr-defined]
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        status_code=status,
        summary=summary,
        response_description=answered,
        # Of the path as it is in the document: without the convertors.
        generate_unique_id_function=partial(_operation_id, compile_path(path)[1]),
        response_model=answer,
        responses={
            **problems(*_always(action), *refusals),
            **(responses or {}),
        },
        route_class_override=RawRoute,
        openapi_extra=openapi_extra,
    )


def _operation_id(own_path: str, route: Any) -> str:
    """Return the endpoint's name: `watch_key`; `v2_watch_key` under another prefix than ours.

    What client generators name their methods by, and so no more than a person would call it.
    """
    before = route.path_format.removesuffix(own_path).removesuffix(DEFAULT_PREFIX)
    return "_".join([*re.findall(r"\w+", before), route.endpoint.__name__])


def _always(action: Action | None) -> tuple[str, ...]:
    """Return the refusals that every endpoint has, with those for who may not ask."""
    return ("bad-parameter",) if action is None else ("unauthorized", "forbidden", "bad-parameter")


def _allowed(router: APIRouter, path: str) -> list[str]:
    """Return the methods of the routes at `path`: one list, which all of them share."""
    for route in router.routes:
        if isinstance(route, RawRoute) and route.path == router.prefix + path:
            allowed: list[str] = route.endpoint.allowed  # type: ignore[attr-defined]
            return allowed
    return []


def _add_watching(router: APIRouter, registry: WaitRegistry) -> None:
    limits = registry.purgatory.limits
    refusals = (
        "bad-cursor",
        "superseded",
        "cursor-expired",
        "too-many-waits",
        "full",
        "draining",
        "not-open",
    )

    def watch_key(
        key: KeyPath,
        cursor: Annotated[
            str | None,
            Query(
                max_length=64,
                description="From an earlier answer; 0: the earliest kept; without it: from now.",
                examples=["8c1f0a9be2d4-1"],
            ),
        ] = None,
        wait: Annotated[
            str,
            Query(
                pattern=r"^[0-9]{1,10}(\.[0-9]{1,9})?(ms|s|m)?$",
                examples=["25", "500ms"],
                description="Seconds, or with a unit: 500ms, 25s, 1m. 0 asks and does not park; "
                f"the default is {registry.settings.default_wait:g} s, more than "
                f"{registry.settings.max_wait:g} s is taken as that.",
            ),
        ] = f"{registry.settings.default_wait:g}",
        limit: Annotated[int, Query(ge=1, le=1000, description="Signals in the answer.")] = 100,
        min: Annotated[  # noqa: A002 - the parameter's name in the interface
            int,
            Query(
                ge=1,
                le=limits.max_signals_per_key,
                description="Park until there are so many signals: as many as are kept, at most.",
            ),
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
        "/watch/{key:watch_key}",
        watch_key,
        WatchEndpoint(registry, parse_watch, tail="key"),
        summary="Wait for a key",
        answered="How the wait ended: always this, whatever ended it.",
        action=Action.WAIT,
        answer=watch_schemas.WatchResponse,
        refusals=refusals,
        responses={
            200: {"headers": ETAG | PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": ETAG | PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
            304: {
                "description": "Nothing fired, with `If-None-Match`.",
                "headers": ETAG | PREFERENCE_APPLIED,
            },
        },
    )

    body_of_watch = watch_schemas.watch_body(limits)

    def watch_keys(
        body: body_of_watch,  # type: ignore[valid-type] # a type made at run time
        prefer: Prefer = None,
        wait_id: WaitId = None,
    ) -> None:
        """Park until any, all or some number of several keys have fired, or the wait is over."""

    _add(
        router,
        "POST",
        "/watch",
        watch_keys,
        WatchEndpoint(registry, parse_watch_many, max_body=watch_schemas.max_watch_body(limits)),
        summary="Wait for several keys",
        answered="How the wait ended, with an entry for each key that fired.",
        action=Action.WAIT,
        answer=watch_schemas.WatchManyResponse,
        refusals=("bad-json", *refusals, "body-too-large", "unsupported-media-type"),
        responses={
            200: {"headers": PREFERENCE_APPLIED},
            204: {
                "description": "Nothing fired, with `Prefer: return=minimal`.",
                "headers": PREFERENCE_APPLIED | PURGATORY_CURSOR,
            },
        },
    )

    def cancel_wait(
        id: Annotated[  # noqa: A002 - the parameter's name in the interface
            str, Path(description="A Wait-Id.", pattern=WAIT_ID_PATTERN)
        ],
    ) -> None:
        """End the wait of that Wait-Id: its request is answered with reason "cancelled"."""

    async def cancel(raw: RawRequest) -> RawResponse:
        raw.permit.check(Access(Action.WAIT))
        raw.query(frozenset())
        registry.cancel(wait_name(raw, raw.tail))
        return RawResponse.empty(204)

    _add(
        router,
        "DELETE",
        "/waits/{id}",
        cancel_wait,
        _raw(registry.context, cancel, tail="id"),
        summary="End a wait",
        answered="Its request is answered.",
        action=Action.WAIT,
        status=204,
        refusals=("unknown-wait",),
    )


def _add_keys(router: APIRouter, context: EndpointContext) -> None:
    endpoints = KeyEndpoints(context.purgatory)
    limits = context.purgatory.limits
    signal, item = key_schemas.signal_body(limits), key_schemas.batch_item(limits)
    writing = ("bad-json", "body-too-large", "unsupported-media-type", "not-open")

    def fire_key(
        key: KeyPath,
        body: Annotated[signal, Body()] = signal(),  # type: ignore[valid-type] # noqa: B008 - made at run time; it may be left out
        idempotency_key: IdempotencyKey = None,
        if_match: Annotated[
            str | None, Header(description='`"<cursor>"`: only if nothing fired since.')
        ] = None,
    ) -> None:
        """Fire a key: keep the signal, and wake whoever waits for it.

        With an `Idempotency-Key`, a repeat within ten minutes is given the first answer and fires
        nothing.
        """

    _add(
        router,
        "POST",
        "/keys/{key:watch_key}",
        fire_key,
        _raw(context, endpoints.fire, tail="key", max_body=key_schemas.max_signal_body(limits)),
        summary="Fire a key",
        answered="The signal is kept, and whoever waited is woken.",
        action=Action.FIRE,
        answer=key_schemas.FireResponse,
        status=201,
        refusals=(
            *writing,
            "bad-cursor",
            "cursor-expired",
            "precondition-failed",
            "idempotency-conflict",
        ),
    )

    def fire_keys(
        body: Annotated[
            list[item],  # type: ignore[valid-type] # a type made at run time
            Body(min_length=1, max_length=key_schemas.MAX_BATCH),
        ],
        idempotency_key: IdempotencyKey = None,
    ) -> None:
        """Fire several keys: all of them or, where one is refused, none."""

    _add(
        router,
        "POST",
        "/keys",
        fire_keys,
        _raw(context, endpoints.fire_batch, max_body=key_schemas.max_batch_body(limits)),
        summary="Fire several keys",
        answered="All of them have fired.",
        action=Action.FIRE,
        answer=key_schemas.FireBatchResponse,
        status=201,
        refusals=(*writing, "idempotency-conflict"),
    )

    def describe_key(key: KeyPath) -> None:
        """Say where the key is at, and how many wait on it. Does not park."""

    _add(
        router,
        "GET",
        "/keys/{key:watch_key}",
        describe_key,
        _raw(context, endpoints.describe, tail="key"),
        summary="Look at a key",
        answered="Where the key is at, and how many wait on it.",
        action=Action.WAIT,
        answer=key_schemas.KeyResponse,
    )

    def drop_key(key: KeyPath) -> None:
        """End every wait on the key with reason "cancelled", and drop its history."""

    _add(
        router,
        "DELETE",
        "/keys/{key:watch_key}",
        drop_key,
        _raw(context, endpoints.drop, tail="key"),
        summary="Drop a key",
        answered="Its waits have ended, and its history is gone.",
        action=Action.OPERATE,
        answer=key_schemas.DropKeyResponse,
        refusals=("not-open",),
    )

    def list_keys(
        prefix: Annotated[
            str,
            Query(
                max_length=256,
                pattern=PREFIX_PATTERN,
                description="Only keys that begin with this.",
                examples=["order:"],
            ),
        ] = "",
        limit: Annotated[int, Query(ge=1, le=1000, description="Keys in the answer.")] = 100,
    ) -> None:
        """List the keys that are watched, in order, and how many wait on each."""

    _add(
        router,
        "GET",
        "/keys",
        list_keys,
        _raw(context, endpoints.list_watched),
        summary="List watched keys",
        answered="The first of them, in order.",
        action=Action.OPERATE,
        answer=key_schemas.WatchedKeysResponse,
    )


def _add_operators(router: APIRouter, context: EndpointContext) -> None:
    statistics_json = TypeAdapter(dict[str, Any])

    async def answer_statistics(raw: RawRequest) -> RawResponse:
        raw.permit.check(Access(Action.OPERATE))
        raw.query(frozenset())
        document = asdict(context.purgatory.statistics())
        if document["jobs"] is not None:
            document["jobs"]["states"] = await _job_states(context.purgatory)
        return RawResponse.from_json(200, statistics_json.dump_json(document))

    def statistics() -> None:
        """Return exact counts of this process, of now and since its start. Does not park."""

    _add(
        router,
        "GET",
        "/statistics",
        statistics,
        TaskEndpoint(context, answer_statistics),
        summary="Statistics",
        answered="Counts of this process, and the jobs of all.",
        action=Action.OPERATE,
        answer=StatisticsResponse,
    )

    async def answer_problem(raw: RawRequest) -> RawResponse:
        raw.query(frozenset())
        kind = KINDS.get(raw.tail)
        if kind is None:
            raise Problem("not-found", f"there is no kind of problem called {raw.tail[:64]!r}")
        body = f"{kind.title} ({kind.status} {kind.slug})\n\n{kind.remedy}\n".encode()
        return RawResponse(
            200,
            [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
            ],
            body,
        )

    def problem(
        slug: Annotated[
            str, Path(description="The last part of a `type`.", examples=["cursor-expired"])
        ],
    ) -> None:
        """Describe a kind of problem, and what to do about it."""

    _add(
        router,
        "GET",
        "/problems/{slug}",
        problem,
        RawEndpoint(context, answer_problem, tail="slug", is_public=True),
        summary="A kind of problem",
        answered="What it is and what to do, in a few sentences.",
        answer=None,
        refusals=("not-found",),
        responses={
            200: {
                "content": {"text/plain": {}},
            }
        },
    )


async def _job_states(purgatory: Purgatory) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(STATES_PATIENCE):
            return asdict(await purgatory.job_counts())
    except (PurgatoryError, TimeoutError):
        # The rest is worth knowing all the more while the store is away.
        return None


def _raw(
    context: EndpointContext, handler: Handler, *, tail: str = "", max_body: int = 0
) -> RawEndpoint:
    return RawEndpoint(context, handler, tail=tail, max_body=max_body)
