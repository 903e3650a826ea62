"""Payloads with secrets of pydantic, whose dump is asterisks."""

from __future__ import annotations

from collections import deque
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
)

from purgatory.jobs import InvalidPayloadError, JobContext, MemoryJobStore
from purgatory.jobs.clients import JobClient
from purgatory.jobs.handlers import JobHandlers
from tests.cases import cases


class Login(BaseModel):
    user: str
    password: SecretStr = SecretStr("")


class Logins(BaseModel):
    logins: dict[int, list[Login]]
    rest: Any = None


class Key(BaseModel):
    key: SecretBytes


class Birth(BaseModel):
    day: Secret[date]


class Shown(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def _clear(self, password: SecretStr) -> str:
        return password.get_secret_value()


class Words(BaseModel):
    model_config = ConfigDict(frozen=True)
    words: str


class Sets(BaseModel):
    sets: set[Words]


class Rest(BaseModel):
    rest: Any


Hidden = Annotated[SecretStr, PlainSerializer(lambda secret: f"vault:{len(str(secret))}")]


class Vaulted(BaseModel):
    password: Hidden


def payload_type(kind: Any) -> Any:
    async def take(job: JobContext, payload: Any) -> None: ...

    take.__annotations__["payload"] = kind
    handlers = JobHandlers()
    handlers.add("h", take)
    return handlers.payload_of("h")


ADA = Login(user="***", password="hunter2")


@cases(
    "payload, place",
    [
        (ADA, "/password is a SecretStr"),
        (Logins(logins={7: [Login(user="x"), ADA]}), "/logins/7/1/password is a SecretStr"),
        (Logins(logins={}, rest={"a": (SecretStr("b"),)}), "/rest/a/0 is a SecretStr"),
        (Rest(rest=deque([SecretStr("b")])), "/rest/0 is a SecretStr"),
        (Rest(rest={SecretStr("b"): 1}), r"/rest/\*{10} is a SecretStr"),
        (Key(key=b"hunter2"), "/key is a SecretBytes"),
        (Birth(day=date(1815, 12, 10)), "/day is a Secret"),
    ],
)
async def test_a_secret_that_would_be_lost_is_refused(payload: BaseModel, place: str) -> None:
    """With its place, and what to do: for handlers with and without a type, and by a client."""
    for kind in (type(payload), Any):
        with pytest.raises(InvalidPayloadError, match=f"{place}.*Defer an id") as caught:
            payload_type(kind).encode(payload, 1_000)
        assert "hunter2" not in str(caught.value)
    async with JobClient(MemoryJobStore()) as client:
        with pytest.raises(InvalidPayloadError, match=place):
            await client.defer("h", payload, delay=1)


def test_a_secret_within_a_list_or_as_the_payload_is_refused() -> None:
    """As within a model."""
    with pytest.raises(InvalidPayloadError, match=r"^/0/password is"):
        payload_type(list[Login]).encode([ADA], 1_000)
    with pytest.raises(InvalidPayloadError, match=r"^the payload is a SecretStr"):
        payload_type(SecretStr).encode(SecretStr("hunter2"), 1_000)


@cases(
    "kind, payload, encoded",
    [
        (Login, Login(user="***"), '{"user":"***","password":""}'),
        (Shown, Shown(password="hunter2"), '{"password":"hunter2"}'),
        (Shown, Shown(password="***"), '{"password":"***"}'),
        (Vaulted, Vaulted(password="hunter2"), '{"password":"vault:10"}'),
        (Sets, Sets(sets={Words(words="***")}), '{"sets":[{"words":"***"}]}'),
        (Login, {"user": "x", "password": "hunter2"}, '{"user":"x","password":"hunter2"}'),
        (SecretStr, "**********", '"**********"'),
    ],
)
def test_a_secret_that_reaches_its_handler_is_accepted(
    kind: Any, payload: Any, encoded: str
) -> None:
    """A serializer of its own, plain JSON, and no secret at all."""
    decode = payload_type(kind).decode
    assert payload_type(kind).encode(payload, 1_000) == encoded
    assert payload_type(Any).encode(payload, 1_000) == encoded
    assert isinstance(decode(encoded), kind)
