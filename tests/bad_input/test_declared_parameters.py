"""Parameters that the declarations of endpoints do not allow, at every endpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest

from purgatory.operations.watch_key import MAX_KEY_LENGTH
from tests.acceptance.client import Connection, Reply
from tests.bad_input.declared import UUID, Endpoint, Parameter
from tests.bad_input.refusals import check_refusal, errors_of

pytestmark = pytest.mark.usefixtures("nothing_is_done")

# Each is wrong for some parameters, and most for nearly all.
TEXTS = [
    *("", " ", "x", "odd", "TRUE", "null", "[25]", "<script>", "*"),
    # Numbers, and what is nearly one: to Python, too.
    *("0", "-1", "1001", "1.5", "1e1", "1e400", "ten", "+5", "0x10", "1_0", "2,5", "2.5.1", "."),
    *("٣", "２５", " 25", "25 ", "25\n", "25\0", "9" * 20, "9" * 3000),  # noqa: RUF001
    # Durations.
    *("nan", "NaN", "inf", "Infinity", "-inf", "-0.001", "25h", "1m1s", "true"),
    # Identifiers: what int() takes for hexadecimal digits, and what is no URN to `uuid.UUID`.
    *("x" * 36, UUID[:-1], "+" + 31 * "0", 15 * "0_" + "00", "{" + UUID, "-" + UUID),
    "URN:UUID:" + UUID,
    # Entity tags.
    *('"25', '"', "W/", '"1" "2"', "*, *", '"0", "1"', '"a""', '""a"', '"a"b"', 'a"', '""'),
    *('"\\"', "a b", "a" * 1_000),
    # Keys and cursors.
    *("x" * 256, "x" * 257, "☂" * 300, "a\0", "a\nb", "\x7f", "\x85", "a\x1b[31m"),
    *("made-up", "0" * 65, "g" * 32, "1.0123456789ab.0123456789abcde"),
]


def refuses(parameter: Parameter, text: str) -> bool:
    """Return whether the declaration alone does, and not only what else the service knows."""
    schema = parameter.schema
    if parameter.type == "integer":
        is_number = re.fullmatch("[0-9]{1,15}", text)
        return not is_number or not schema["minimum"] <= int(text) <= schema["maximum"]
    if chosen := choices(parameter):
        return text not in chosen
    if "pattern" not in schema:
        # A cursor, or a name that is looked up once the rest is right.
        return False
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 10**6)
    return not shortest <= len(text) <= longest or not re.fullmatch(schema["pattern"], text)


def choices(parameter: Parameter) -> list[str]:
    of_flags = ["true", "false"] if parameter.type == "boolean" else []
    return [*parameter.schema.get("enum", of_flags)]


def wrong_texts(parameter: Parameter) -> list[str]:
    """Return the texts that can be sent in its place, and are refused there."""
    texts = [text for text in TEXTS if refuses(parameter, text)]
    if parameter.type == "integer":
        texts.append(str(parameter.schema["maximum"] + 1))
    if parameter.name == "Prefer":
        return [f"wait={text}" for text in ("nan", "-1", "inf", "25h", '""', "", '"25', "1e9")]
    if parameter.location == "header":
        return [text for text in texts if re.fullmatch("|[!-~]|[!-~][ -~]*[!-~]", text)]
    is_segment = parameter.location == "path" and parameter.name != "key"
    return [text for text in texts if text and "/" not in text] if is_segment else texts


def checked(endpoint: Endpoint, *locations: str) -> list[Parameter]:
    """Return the parameters of which the declaration refuses something."""
    declared = endpoint.declared(*locations)
    return [item for item in declared if item.type != "array" and wrong_texts(item)]


def named(parameter: Parameter) -> str:
    """Return what errors call it."""
    return {"id": "Wait-Id", "Prefer": "Prefer: wait"}.get(parameter.name, parameter.name)


def limits(parameter: Parameter) -> list[str]:
    """Return what a refusal says of what is allowed."""
    schema = parameter.schema
    if parameter.type == "integer":
        return [f"a whole number from {schema['minimum']} to {schema['maximum']}"]
    if chosen := choices(parameter):
        return chosen
    if parameter.name in ("Prefer", "wait"):
        return ["25", "500ms", "1m"]
    return ["256"] if schema.get("maxLength") == MAX_KEY_LENGTH else []


async def send(
    connection: Connection,
    endpoint: Endpoint,
    query: list[tuple[str, str]] | None = None,
    headers: list[tuple[str, str]] | None = None,
    in_path: Mapping[str, str] | None = None,
) -> Reply:
    target = endpoint.target(*(query or []), **(in_path or {}))
    lines = [f"{endpoint.method} {target} HTTP/1.1", "Host: h", "Content-Length: 0"]
    lines += [f"{name}: {value}" for name, value in headers or []]
    connection.write("\r\n".join([*lines, "", ""]).encode())
    return await connection.reply()


async def test_a_text_that_is_not_allowed(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """422 names the parameter, the value and the limit, wherever the parameter stands."""
    for endpoint in endpoints:
        for parameter in checked(endpoint, "path", "query", "header"):
            for text in wrong_texts(parameter):
                pair = (parameter.name, text)
                match parameter.location:
                    case "path":
                        reply = await send(connection, endpoint, in_path=dict([pair]))
                    case "query":
                        reply = await send(connection, endpoint, [pair])
                    case "header":
                        reply = await send(connection, endpoint, headers=[pair])
                words = limits(parameter)
                if parameter.name != "Prefer":
                    words.append(repr(text[:30])[1:-1])
                case = f"{endpoint} with {parameter.name}={text[:30]!r}"
                document = check_refusal(reply, 422, "bad-parameter", *words, case=case)
                assert document["param"] == named(parameter), case
                assert document["detail"].endswith(document["allowed"]), case
                assert text[:65] not in document["detail"] or len(text) <= 64, case
                # One alone is told alone.
                assert "errors" not in document, case


async def test_a_parameter_that_is_unknown(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """422 names it, and all that there are: no other spelling of one is that one."""
    for endpoint in endpoints:
        known = sorted(item.name for item in endpoint.declared("query") if not item.is_required)
        others = [name.upper() for name in known] + [f"{name}[]" for name in known]
        for name in ("colour", "timeout", "", "a b", "x" * 65, *others):
            case = f"{endpoint} with {name!r}"
            reply = await send(connection, endpoint, [(name, "5")])
            document = check_refusal(reply, 422, "bad-parameter", repr(name[:64]), case=case)
            assert document["param"] == name[:64], case
            assert document["allowed"] == (", ".join(known) or "no parameters"), case


async def test_a_parameter_given_twice(connection: Connection, endpoints: list[Endpoint]) -> None:
    """422 names it: there is no telling which of the two was meant."""
    for endpoint in endpoints:
        for parameter in endpoint.declared("query", "header"):
            if parameter.is_list:
                continue
            # Which is of streams, of which this is none.
            if parameter.name == "Last-Event-ID" and endpoint.declared("path"):
                continue
            pairs = [(parameter.name, "0")] * 2
            query, headers = (pairs, []) if parameter.location == "query" else ([], pairs)
            reply = await send(connection, endpoint, query, headers)
            document = check_refusal(reply, 422, "bad-parameter", case=(endpoint, pairs))
            [error] = [error for error in errors_of(document) if "twice" in error["detail"]]
            assert (error["param"], error["allowed"]) == (parameter.name, "once"), error


async def test_several_mistakes(connection: Connection, endpoints: list[Endpoint]) -> None:
    """All of them are told at once: each with its name, what is wrong, and what is allowed."""
    for endpoint in endpoints:
        in_query = checked(endpoint, "query")
        in_path = {"key": "\x7f"} if in_query and "{key}" in endpoint.path else {}
        query = [(item.name, wrong_texts(item)[-1]) for item in in_query]
        # The first of each counts, and what is too much is another mistake.
        query += [("colour", "red"), *query[:1]]
        given = checked(endpoint, "header")
        headers = [(item.name, wrong_texts(item)[-1]) for item in given]
        names = [*in_path, *(name for name, _ in query), *map(named, given)]
        reply = await send(connection, endpoint, query, headers, in_path)
        document = check_refusal(reply, 422, "bad-parameter", case=(endpoint, query, headers))
        errors = errors_of(document)
        assert sorted(error["param"] for error in errors) == sorted(names), (endpoint, document)
        assert all(error["detail"].endswith(error["allowed"]) for error in errors), document


async def test_a_query_that_cannot_be_read(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """422 says how a query is written, and how long it may be."""
    written = "name=value pairs joined by &, UTF-8, percent-encoded"
    queries = dict.fromkeys(
        ["x", "&", "x=0&", "x=0&&y=1", "x=%ff", "x=%ED%A0%80", "%ff=0", "x=%C3"], written
    )
    queries["&".join(f"p{number}=1" for number in range(21))] = written
    queries["x=" + "0" * 5000] = "up to 4096 bytes"
    for endpoint in endpoints:
        target = endpoint.target()
        for query, allowed in queries.items():
            given = f"{target}{'&' if '?' in target else '?'}{query}"
            reply = await connection.request(endpoint.method, given)
            document = check_refusal(reply, 422, "bad-parameter", allowed, case=given[:60])
            assert document["param"] == "query", given


async def test_a_method_that_an_address_does_not_take(
    connection: Connection, endpoints: list[Endpoint]
) -> None:
    """405 with every method that it does take in the Allow header."""
    taken: dict[str, set[str]] = defaultdict(set)
    for endpoint in endpoints:
        taken[endpoint.address()] |= {endpoint.method}
        taken[endpoint.address()] |= {"HEAD"} if endpoint.allows_head else set()
    for target, allowed in taken.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"} - allowed:
            reply = await connection.request(method, target, headers={"Content-Length": "0"})
            assert reply.status == 405, (method, target)
            assert set(reply.headers["allow"].split(", ")) == allowed, (method, target)
            if method != "HEAD":
                check_refusal(reply, 405, "method-not-allowed", method, *allowed)
