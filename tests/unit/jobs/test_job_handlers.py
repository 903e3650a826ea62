"""Which functions can be handlers, and what they take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, Field, Json, computed_field

from purgatory import Purgatory
from purgatory.jobs import (
    FailJobError,
    InvalidPayloadError,
    JobContext,
    JobError,
    MemoryJobStore,
    RetryJobError,
    StoreUnavailableError,
    UnknownHandlerError,
    WorkerSettings,
)
from purgatory.jobs.handlers import JobHandlers
from tests.cases import cases

T = TypeVar("T")


class Order(BaseModel):
    id: int
    by: datetime


class Renamed(BaseModel):
    size: int = Field(0, alias="Size")
    colour: str = Field("", validation_alias="in", serialization_alias="out")


class Sum(BaseModel, extra="forbid"):
    parts: Json[list[int]]

    @computed_field  # type: ignore[prop-decorator] # pydantic's own form
    @property
    def total(self) -> int:
        return sum(self.parts)


class Parcel(Order):
    weight: int = 1
    note: str = Field("", exclude=True)


class Labelled(Order):
    label: str = Field("", exclude=True)


@dataclass
class Point:
    x: float
    y: float


@dataclass
class Voxel(Point):
    z: float


@dataclass
class Dot(Point):
    radius: float = 1


@dataclass
class Pixel(Point):
    shades: ClassVar[int] = 256
    shift: InitVar[float] = 0
    drawn: bool = field(default=False, init=False)


@pydantic.dataclasses.dataclass
class Size:
    width: int


@pydantic.dataclasses.dataclass
class LabelledSize(Size):
    label: str = Field("", exclude=True)


class Box(BaseModel, Generic[T]):
    size: T


class Receipt(BaseModel):
    id: int
    by: datetime
    pages: int = 1


@dataclass
class Cube:
    x: float
    y: float
    z: float


@dataclass
class Message:
    payload_type: str = "order"


async def take_order(job: JobContext, order: Order) -> None: ...
async def take_model(job: JobContext, model: BaseModel) -> None: ...
async def take_either(job: JobContext, order: Order | Parcel) -> None: ...
async def take_order_or_none(job: JobContext, order: Order | None) -> None: ...
async def take_noted(job: JobContext, order: Annotated[Order, "noted"]) -> None: ...
async def take_box(job: JobContext, box: Box[int] | None) -> None: ...
async def take_younger(job: JobContext, order: Parcel | Order) -> None: ...
async def take_dot_or_point(job: JobContext, point: Dot | Point) -> None: ...
async def take_name_or_time(job: JobContext, value: str | datetime) -> None: ...
async def take_numbers(job: JobContext, numbers: list[int] | tuple[int, ...]) -> None: ...
async def take_sequence(job: JobContext, numbers: Sequence[int] | None) -> None: ...
async def take_size(job: JobContext, size: Size) -> None: ...
async def take_point(job: JobContext, point: Point) -> None: ...
async def take_many(job: JobContext, orders: list[Order]) -> None: ...
async def take_renamed(job: JobContext, renamed: Renamed) -> None: ...
async def take_sum(job: JobContext, parts: Sum) -> None: ...
async def take_maybe(job: JobContext, number: int | None) -> None: ...
async def take_mapping(job: JobContext, mapping: dict[str, int]) -> None: ...
async def take_anything(job: JobContext, payload: Any) -> None: ...
async def take_untyped(job, payload) -> None: ...  # type: ignore[no-untyped-def] # on purpose
async def take_int(job: JobContext, number: int) -> None: ...
async def take_float(job: JobContext, number: float) -> None: ...
async def take_text(job: JobContext, text: str) -> None: ...
async def take_bool(job: JobContext, flag: bool) -> None: ...
async def take_dict(job: JobContext, payload: dict) -> None: ...  # type: ignore[type-arg] # as many write it
async def take_nothing(job: JobContext) -> None: ...
async def take_days(job: JobContext, days: int = 7) -> None: ...


AT = datetime(2027, 1, 1, tzinfo=UTC)
ORDER = Order(id=1, by=AT)
RENAMED = Renamed.model_validate({"Size": 7, "in": "red"})
PARCEL = Parcel(id=1, by=AT)
ORDER_JSON = '{"id":1,"by":"2027-01-01T00:00:00Z"}'


def payload_type(function: Any) -> Any:
    handlers = JobHandlers()
    handlers.add("h", function)
    return handlers.payload_of("h")


@cases(
    "function, payload, encoded, decoded",
    [
        (take_order, ORDER, ORDER_JSON, ORDER),
        (take_order, {"id": 1, "by": AT.isoformat()}, None, ORDER),
        (take_point, Point(1, 2), '{"x":1.0,"y":2.0}', Point(1, 2)),
        (take_many, [{"id": 1, "by": AT.isoformat()}], None, [ORDER]),
        (take_order, Labelled(id=1, by=AT, label="x"), ORDER_JSON, ORDER),
        (take_point, Pixel(1, 2), '{"x":1.0,"y":2.0}', Point(1, 2)),
        (take_size, LabelledSize(width=1, label="x"), '{"width":1}', Size(width=1)),
        (take_order_or_none, ORDER, ORDER_JSON, ORDER),
        (take_either, PARCEL, ORDER_JSON[:-1] + ',"weight":1}', PARCEL),
        (take_box, Box(size=1), '{"size":1}', Box[int](size=1)),
        (take_sequence, (1, 2), "[1,2]", [1, 2]),
        (take_name_or_time, AT.isoformat(), None, AT.isoformat()),
        (take_many, [ORDER], f"[{ORDER_JSON}]", [ORDER]),
        (take_renamed, RENAMED, '{"size":7,"colour":"red"}', RENAMED),
        (take_renamed, {"Size": 7, "in": "red"}, '{"Size":7,"in":"red"}', RENAMED),
        (take_sum, Sum(parts="[1,2]"), '{"parts":"[1,2]"}', Sum(parts="[1,2]")),
        (take_maybe, None, "null", None),
        (take_mapping, {"a": 1}, '{"a":1}', {"a": 1}),
        (take_anything, [1, "x"], '[1,"x"]', [1, "x"]),
        (take_untyped, {"a": None}, '{"a":null}', {"a": None}),
        (take_int, 7, "7", 7),
        (take_float, 7, "7", 7),
        (take_float, 7.5, "7.5", 7.5),
        (take_text, "ß", '"ß"', "ß"),
        (take_bool, True, "true", True),
        (take_dict, {"a": 1}, '{"a":1}', {"a": 1}),
        (take_nothing, None, "null", None),
        (take_days, None, "null", None),
        (take_days, 3, "3", 3),
    ],
)
def test_payloads_come_back_as_they_are_annotated(
    function: Any, payload: Any, encoded: str | None, decoded: Any
) -> None:
    """Instances of the type, or JSON for one, go in; instances come out."""
    kind = payload_type(function)
    text = kind.encode(payload, 1_000)
    assert encoded in (None, text)
    assert kind.decode(text) == decoded


@cases(
    "function, payload, word",
    [
        (take_order, {"id": "x", "by": AT.isoformat()}, "/id"),
        (take_order, None, "the payload"),
        (take_order, Point(1, 2), "/id"),
        (take_order, object(), "object"),
        (take_order, PARCEL, "Parcel, whose 'weight' its handler would not get: that takes Order"),
        (take_order_or_none, PARCEL, "Parcel, whose 'weight' .* takes Order"),
        (take_noted, PARCEL, "Parcel, whose 'weight' .* takes Order"),
        (take_model, ORDER, "Order, whose 'by' .* takes BaseModel; annotate it with Order"),
        (take_point, Voxel(1, 2, 3), "Voxel, whose 'z'"),
        (take_younger, ORDER, "is Order, and its handler would get it as Parcel: .* Literal field"),
        (take_order, Receipt(id=1, by=AT), "is Receipt, and its handler would get it as Order"),
        (take_dot_or_point, Point(1, 2), "is Point, .* as Dot"),
        (take_point, Cube(1, 2, 3), "is Cube, .* as Point"),
        (take_name_or_time, AT, "is datetime, .* as str"),
        (take_numbers, (1, 2), "is tuple, .* as list"),
        (take_many, [{"id": 1}], "/0/by"),
        (take_many, [{"id": 1, "by": AT}], "not JSON .*datetime"),
        (take_mapping, {"a": "x"}, "/a"),
        (take_int, "7", "takes int"),
        (take_int, True, "takes int"),
        (take_int, 1.5, "takes int"),
        (take_bool, 1, "takes bool"),
        (take_text, None, "takes str"),
        (take_dict, [], "takes dict"),
        (take_anything, object(), "object is not JSON.*; or annotate the handler's parameter"),
        (take_untyped, {"a": ORDER}, r"Order is not JSON, but what its model_dump\(mode='json'\)"),
        (take_dict, {"a": ORDER}, "or annotate the handler's parameter with the type"),
        (take_nothing, 1, r"handler 'h' is a function of \(job\).*declare it as \(job, payload\)"),
        (take_days, "x", "takes int"),
        (take_anything, "x" * 1_000, "1002 bytes"),
        (take_order, {"id": 1, "by": AT.isoformat(), "x": "x" * 1_000}, "bytes"),
    ],
)
def test_payloads_that_do_not_fit(function: Any, payload: Any, word: str) -> None:
    """Refused with where and why."""
    with pytest.raises(InvalidPayloadError, match=word):
        payload_type(function).encode(payload, 1_000)


def test_functions_that_cannot_be_handlers() -> None:
    """Said when they are registered, not when a job is due."""
    handlers = JobHandlers()

    def generator(job: JobContext) -> Any:
        yield job

    async def async_generator(job: JobContext) -> Any:
        yield job

    def local(job: JobContext, payload: Unknown) -> None: ...  # type: ignore[name-defined] # noqa: F821 - on purpose

    for function in (
        lambda: None,
        lambda a, b, c: None,
        lambda job, *, needed: None,
        generator,
        async_generator,
        partial(generator),
        local,
        7,
    ):
        with pytest.raises(TypeError):
            handlers.add("h", function)  # type: ignore[arg-type] # 7 is none
    with pytest.raises(TypeError, match="list of names"):
        handlers.expect("name")
    for name in ("", "a\x00", "x" * 257):
        with pytest.raises(ValueError, match="not a name"):
            handlers.add(name, take_nothing)
    assert len(handlers) == 0
    handlers.add("h", take_nothing)
    with pytest.raises(ValueError, match="registered already"):
        handlers.add("h", take_nothing)


def test_names_of_an_application_are_its_own() -> None:
    """A field of a payload, or an attribute of a handler, may be called payload_type."""

    class Handle:
        payload_type = Order

        async def __call__(self, job: JobContext, message: Message) -> None: ...

    kind = payload_type(Handle())
    assert kind.decode(kind.encode(Message(), 1_000)) == Message()


def test_a_type_that_pydantic_does_not_know() -> None:
    """Refused with its reason: on Python 3.11, it takes another TypedDict than that of typing."""

    async def handler(job: JobContext, payload: JobHandlers) -> None: ...

    with pytest.raises(TypeError, match=r"cannot check a payload of type .*JobHandlers'>: Unable"):
        JobHandlers().add("h", handler)


def test_a_keyword_only_parameter_without_a_default_is_named() -> None:
    """The rest of the signature is right."""
    with pytest.raises(TypeError, match="its keyword-only 'needed' needs a default"):
        JobHandlers().add("h", lambda job, *, needed: None)


def test_a_decorated_function_can_be_called_and_decorated_again() -> None:
    """As a test of it calls it."""
    purgatory = Purgatory(jobs=MemoryJobStore())
    handlers = purgatory.handlers
    decorated = purgatory.handler("h")(take_nothing)
    assert decorated.function is take_nothing and decorated.name == "h"
    assert purgatory.handler("i")(decorated).function is take_nothing
    with pytest.raises(TypeError, match="has no name of its own"):
        purgatory.handler()(partial(take_nothing))
    with pytest.raises(TypeError, match="has no name of its own"):
        purgatory.handler()(lambda job: None)
    assert handlers.own_names == ("h", "i")
    handlers.expect(["g"])
    assert handlers.names == ["g", "h", "i"]
    assert handlers.get("g") is None
    with pytest.raises(UnknownHandlerError, match="known: 'g', 'h', 'i'"):
        handlers.payload_of("f")


def test_a_bare_decorator_takes_the_name_of_the_function() -> None:
    """With parentheses or without."""
    purgatory = Purgatory(jobs=MemoryJobStore())

    @purgatory.handler
    async def cancel_order(job: JobContext) -> None: ...

    @purgatory.handler()
    def remind(job: JobContext) -> None: ...

    assert purgatory.handlers.names == ["cancel_order", "remind"]
    assert (cancel_order.name, remind.name) == ("cancel_order", "remind")


def test_a_request_names_only_what_was_allowed() -> None:
    """Another handler, and none at all, are the same to it."""
    handlers = JobHandlers()
    handlers.add("inner", take_nothing)
    handlers.add("outer", take_nothing, http=True)
    handlers.expect(["elsewhere"])
    handlers.expect(["far"], http=True)
    for name in handlers.http_names:
        handlers.require_http(name)
    said = []
    for name in ("inner", "elsewhere", "unknown"):
        with pytest.raises(UnknownHandlerError, match=r"known: 'far', 'outer'\.") as caught:
            handlers.require_http(name)
        said.append(str(caught.value).replace(repr(name), "?"))
    (only,) = set(said)
    assert "handled_elsewhere([...], http=True) (in the service, PURGATORY_JOB_HANDLERS)" in only


def test_a_model_for_a_handler_without_a_type() -> None:
    """It is dumped, as where a key is fired with one."""
    assert payload_type(take_anything).encode(ORDER, 1_000) == ORDER_JSON
    assert payload_type(take_untyped).encode(ORDER, 1_000) == ORDER_JSON


@cases(
    "options",
    [
        *({"max_running": 0}, {"lease_ms": -1}, {"grace_ms": -1}, {"grace_ms": 2.5}),
        *({"poll_ms": 0}, {"lease_ms": 15e3}, {"max_held": 1.5}, {"max_held": "5"}),
        *({"max_running": True}, {"retry": None}),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any]) -> None:
    """A ValueError that names them."""
    with pytest.raises(ValueError, match=next(iter(options))):
        WorkerSettings(**options)


@cases("kind", [RetryJobError, FailJobError, StoreUnavailableError])
def test_errors_say_something(kind: type[JobError]) -> None:
    """Though nobody gave them a sentence."""
    assert len(str(kind())) > 10


async def test_what_a_handler_has_open_is_closed() -> None:
    """An object with `aclose`, as a webhook is."""

    class Closable:
        is_closed = False

        async def __call__(self, job: JobContext) -> None: ...

        async def aclose(self) -> None:
            self.is_closed = True

    handlers, closable = JobHandlers(), Closable()
    handlers.add("h", closable)
    handlers.add("g", take_nothing)
    await asyncio.wait_for(handlers.close(), 10)
    assert closable.is_closed


def test_clients_may_name_what_is_allowed_to_them_only() -> None:
    """However a handler is declared: by name, bare, or elsewhere."""
    purgatory = Purgatory(jobs=MemoryJobStore())

    async def work(job: JobContext) -> None:
        raise NotImplementedError

    purgatory.handler("named")(work)
    purgatory.handler("open", http=True)(work)
    purgatory.handler(work)
    purgatory.handled_elsewhere(["elsewhere"])
    purgatory.handled_elsewhere(["open elsewhere"], http=True)
    assert purgatory.handlers.http_names == ["open", "open elsewhere"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts of handler 'h' is 0: give a number of starts from 1"),
        ({"max_running": True}, "max_running of handler 'h' is True"),
        ({"timeout": 0}, "timeout of handler 'h' is 0"),
        ({"timeout": float("nan")}, "timeout of handler 'h' is nan"),
        ({"retry": 3}, "retry of handler 'h' is 3: give a RetryPolicy"),
        ({"final_errors": "ValueError"}, "final_errors of handler 'h' is 'ValueError'"),
        ({"retried_errors": (OSError, 500)}, "retried_errors of handler 'h' is "),
        ({"attempts": 3}, "a handler has no option 'attempts'"),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    """Are errors where they are declared."""
    with pytest.raises((TypeError, ValueError), match=message):
        JobHandlers().add("h", take_nothing, **options)


def test_a_thread_has_no_timeout() -> None:
    """It could not be stopped."""

    def blocking(job: JobContext) -> None: ...

    with pytest.raises(TypeError, match="has a timeout and is not async"):
        JobHandlers().add("h", blocking, timeout=1)
