"""The payloads of callbacks, and the options of their handler."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from purgatory.jobs import FailJobError, InvalidPayloadError, Job
from purgatory.jobs.callbacks import CALLBACK, Callback, CallbackSecret
from purgatory.jobs.callbacks.addresses import Hosts
from purgatory.jobs.callbacks.callback import CallbackPayload
from purgatory.jobs.callbacks.headers import with_secrets
from purgatory.jobs.callbacks.webhook import Webhook
from tests.cases import cases


@cases(
    "url, options",
    [
        ("", {}),
        ("ftp://example.com/", {}),
        ("//example.com/", {}),
        ("http://", {}),
        ("http:///x", {}),
        ("http://user:pw@example.com/", {}),
        ("http://example.com:99999/", {}),
        ("http://example.com/a b", {}),
        ("http://example.com/\r\nX: 1", {}),
        ("http://example.com/#x", {}),
        ("http://exämple.com/", {}),
        ("http://example.com/" + "x" * 2_048, {}),
        ("http://example.com/", {"method": "CONNECT"}),
        ("http://example.com/", {"headers": {"Host": "x"}}),
        ("http://example.com/", {"headers": {"Transfer-Encoding": "chunked"}}),
        ("http://example.com/", {"headers": {"Purgatory-Signature": "x"}}),
        ("http://example.com/", {"headers": {"a b": "x"}}),
        ("http://example.com/", {"headers": {"a": "x\r\ny: 1"}}),
        ("http://example.com/", {"headers": {"a": "ß"}}),
        ("http://example.com/", {"headers": {"a": " x"}}),
        ("http://example.com/", {"headers": {"a": "x "}}),
        ("http://example.com/", {"headers": {str(n): "x" for n in range(21)}}),
    ],
)
def test_invalid_callbacks_are_refused(url: str, options: Any) -> None:
    """Refused when they are deferred."""
    with pytest.raises(InvalidPayloadError):
        Callback.of(url, **options)


def test_invalid_options_of_the_handler_are_refused() -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match="16"):
        Webhook("short")
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            Webhook(timeout=timeout)
    for name in ("max_running", "max_per_owner", "max_per_host"):
        for bound in (0, -1, 1.5, True, "5"):
            with pytest.raises(ValueError, match=f"{name} is .*from 1"):
                Webhook(**{name: bound})  # type: ignore[arg-type]  # what is wrong is tested
    with pytest.raises(TypeError, match="list of hosts"):
        Webhook(allowed_hosts="hooks.internal")
    for host in ("", "a/b", "http://a", "a:x", "a:99999", "u@a", "a?b", "[::1", "::1"):
        with pytest.raises(ValueError, match="is not a host"):
            Webhook(allowed_hosts=[host])
    for value in ("", "a\nb", "ß", " a", "a "):
        with pytest.raises(ValueError, match="printable ASCII"):
            CallbackSecret(value, hosts=["shop.example"])
    for host in ("http://shop.example", "ftp://shop.example:21", "://shop.example", "https://"):
        with pytest.raises(ValueError, match="is not a host"):
            CallbackSecret("hunter2", hosts=[host])
    with pytest.raises(TypeError, match="list of hosts"):
        CallbackSecret("hunter2", hosts="shop.example")
    assert "hunter2" not in repr(CallbackSecret("hunter2", hosts=["shop.example"]))


@cases(
    "host, url",
    [
        ("Shop.example", ("https", "shop.example", 443)),
        ("shop.example:8443", ("https", "shop.example", 8443)),
        ("https://shop.example", ("https", "shop.example", 443)),
        ("http://shop.example:8080", ("http", "shop.example", 8080)),
        ("http://[::1]:80", ("http", "::1", 80)),
    ],
)
def test_a_secret_is_sent_in_clear_only_where_that_is_said(
    host: str, url: tuple[str, str, int]
) -> None:
    """By https without a word; by http to a port that is named with it."""
    secret = CallbackSecret("Bearer hunter2", hosts=[host])
    headers, secrets = {"Authorization": "secret:shop"}, {"shop": secret}
    assert with_secrets(headers, secrets, *url) == {"authorization": "Bearer hunter2"}
    scheme, name, port = url
    others = [("http" if scheme == "https" else "https", name, port), (scheme, name, port + 1)]
    for other in [*others, ("http", name, 443), (scheme, "evil.example", port)]:
        with pytest.raises(FailJobError, match="may not be sent") as refused:
            with_secrets(headers, secrets, *other)
        assert "hunter2" not in refused.value.detail


def test_hosts_are_allowed_with_their_ports() -> None:
    """A name alone is at the ports of http and https."""
    hosts = Hosts(["Shop.Example", "hooks.internal:8080", "[::1]:9000"])
    assert ("shop.example", 80) in hosts and ("SHOP.example", 443) in hosts
    assert ("shop.example", 8080) not in hosts
    assert ("hooks.internal", 8080) in hosts and ("hooks.internal", 443) not in hosts
    assert ("::1", 9000) in hosts and ("::1", 80) not in hosts


def test_a_callback_survives_its_storage() -> None:
    """Given as a Callback, or as the JSON object of one."""
    callback = Callback.of(
        "https://shop.example:8443/hook?a=1",
        method="PUT",
        headers={"X-Shop": "7"},
        payload={"order": [1, "ß"]},
    )
    stored = CallbackPayload().encode(callback, 1_000)
    assert CallbackPayload().decode(stored) == callback
    assert CallbackPayload().encode(callback.document(), 1_000) == stored
    plain = CallbackPayload().encode({"url": "http://shop.example/"}, 1_000)
    assert CallbackPayload().decode(plain) == Callback(url="http://shop.example/")


@cases(
    "document, complaint",
    [
        ([], "is an object with a url"),
        ({"method": "GET"}, "is an object with a url"),
        ({"url": "http://a.example/", "to": 1, "via": 2}, "has no 'to'"),
        ({"url": "http://a.example/", "headers": []}, "headers are an object"),
        ({"url": "http://a.example/", "payload": "x" * 100}, "bytes"),
        *((Callback(url=url), "give http:// or https://") for url in ("ftp://a/", "http://[")),
    ],
)
def test_objects_that_are_no_callbacks_are_refused(document: Any, complaint: str) -> None:
    """Also from clients of another version."""
    with pytest.raises(InvalidPayloadError, match=complaint):
        CallbackPayload().encode(document, 100)


@cases(
    "payload, host",
    [
        ({"url": 'http://Shop.example:8443/"?a=1', "payload": "http://other/"}, "shop.example"),
        ({"payload": 1, "url": "http://shop.example/"}, "shop.example"),
        ({"url": "http://[::1]:80/"}, "::1"),
        *(({"url": url}, "") for url in ("", "http://[", 5, None, ["http://shop.example/"])),
        ({}, ""),
        ([], ""),
        ("http://shop.example/", ""),
    ],
)
def test_a_callback_waits_in_the_lane_of_its_owner_and_host(payload: Any, host: str) -> None:
    """Also one that another service deferred without checking it: it fails when it runs."""
    webhook = Webhook()
    stored = json.dumps(payload, separators=(",", ":"))
    times: dict[str, Any] = {"deadline_ms": 0, "due_ms": 0, "created_ms": 0}
    job = Job(id="1", handler=CALLBACK, payload_json=stored, owner="a", **times)
    lane = webhook.lane_of(job)
    assert (lane.owner, lane.host) == ("a", host)
    assert lane.slots is webhook.lane_of(replace(job, owner=None)).slots


@cases(
    "url", ["http://LOCALHOST/", "https://10.0.0.1/", "http://localhost:8080/", "http://[::1]:81/"]
)
def test_the_refusal_of_a_private_host_names_what_allows_it(url: str) -> None:
    """With its port, and in brackets, where these are needed."""
    callback = Callback(url=url)
    with pytest.raises(InvalidPayloadError, match=r"can allow '.*' with") as refused:
        Webhook().purgatory_payload_type().encode(callback, 1_000)
    allowed = str(refused.value).partition("can allow '")[2].partition("'")[0]
    webhook = Webhook(allowed_hosts=[allowed])
    assert webhook.purgatory_payload_type().encode(callback, 1_000)
