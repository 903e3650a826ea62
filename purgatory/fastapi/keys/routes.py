"""The routes under `/keys`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from purgatory.fastapi.http.raw_request import Action
from purgatory.fastapi.keys.endpoints import KeyEndpoints
from purgatory.fastapi.keys.schemas import (
    FIRE,
    FIRE_BATCH,
    LIST,
    ONE_KEY,
    DropKeyResponse,
    FireBatchResponse,
    FireResponse,
    KeyResponse,
    WatchedKeysResponse,
    batch_json,
    signal_json,
)
from purgatory.fastapi.routing.endpoint_spec import EndpointContext, EndpointSpec
from purgatory.fastapi.routing.raw_endpoint import RawEndpoint
from purgatory.fastapi.routing.raw_route import add_endpoint
from purgatory.limits import Limits

_KEY_PATH: Final = "/keys/{key:watch_key}"
_WRITING: Final = (
    "bad-json",
    "body-too-large",
    "unsupported-media-type",
    "not-open",
    "signals-unavailable",
)


def add_key_routes(router: APIRouter, context: EndpointContext) -> None:
    """Add the routes of keys to `router`."""
    endpoints = KeyEndpoints(context.purgatory)
    limits = context.purgatory.limits
    for spec, handler in (
        (_fire(limits), endpoints.fire),
        (_fire_batch(limits), endpoints.fire_batch),
        (_DESCRIBE, endpoints.describe),
        (_DROP, endpoints.drop),
        (_LIST, endpoints.list_watched),
    ):
        add_endpoint(router, spec, RawEndpoint(context, spec, handler))


def _fire(limits: Limits) -> EndpointSpec:
    return EndpointSpec(
        name="fire_key",
        method="POST",
        path=_KEY_PATH,
        summary="Fire a key",
        description="""Fire a key: keep the signal, and wake its waiters.

        With an `Idempotency-Key`, a repeat within ten minutes gets the first response and fires
        nothing.""",
        action=Action.FIRE,
        parameters=FIRE,
        body=signal_json(limits),
        response=FireResponse,
        response_description="The signal is kept, and the waiters are woken.",
        status=201,
        problems=(
            *_WRITING,
            "draining",
            "bad-cursor",
            "cursor-expired",
            "precondition-failed",
            "idempotency-conflict",
        ),
    )


def _fire_batch(limits: Limits) -> EndpointSpec:
    return EndpointSpec(
        name="fire_keys",
        method="POST",
        path="/keys",
        summary="Fire several keys",
        description="""Fire several keys: all of them or, if one is refused, none.

        `If-Match` is refused, since each key has a cursor of its own.""",
        action=Action.FIRE,
        parameters=FIRE_BATCH,
        body=batch_json(limits),
        response=FireBatchResponse,
        response_description="All of them have fired.",
        status=201,
        problems=(*_WRITING, "draining", "idempotency-conflict"),
    )


_DESCRIBE: Final = EndpointSpec(
    name="describe_key",
    method="GET",
    path=_KEY_PATH,
    summary="Look at a key",
    description="Return the cursor of a key, and the number of its waiters. Does not park.",
    action=Action.WAIT,
    parameters=ONE_KEY,
    response=KeyResponse,
    response_description="The cursor of the key, and the number of its waiters.",
)
_DROP: Final = EndpointSpec(
    name="drop_key",
    method="DELETE",
    path=_KEY_PATH,
    summary="Drop a key",
    description='End every wait on the key with reason "cancelled", and drop its history.',
    action=Action.OPERATE,
    parameters=ONE_KEY,
    response=DropKeyResponse,
    response_description="Its waits have ended, and its history is gone.",
    problems=("not-open", "signals-unavailable"),
)
_LIST: Final = EndpointSpec(
    name="list_keys",
    method="GET",
    path="/keys",
    summary="List watched keys",
    description="List the watched keys, in order, and the number of waiters of each.",
    action=Action.OPERATE,
    parameters=LIST,
    response=WatchedKeysResponse,
    response_description="The first of them, in order.",
)
