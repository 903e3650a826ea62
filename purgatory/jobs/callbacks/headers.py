"""Headers of callbacks: signatures, which receivers verify, and secrets that no store has."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from purgatory.job_errors import FailJobError, RetryJobError
from purgatory.jobs.callbacks.addresses import DEFAULT_PORTS, listed_hosts, parsed_host
from purgatory.timer.clock import Seconds, seconds_of

SIGNATURE_HEADER = "Purgatory-Signature"
DEFAULT_TOLERANCE_S = 300.0

_SIGNATURE = re.compile(r"t=(\d{1,12}),kid=([0-9a-f]{8}),v2=([0-9a-f]{64})")


def key_id(secret: str | bytes) -> str:
    """Return the id of a secret: eight hexadecimal digits that say which secret signed."""
    return hmac.new(_bytes(secret), b"purgatory key id", hashlib.sha256).hexdigest()[:8]


def sign(
    secret: str | bytes, *, method: str, url: str, job_id: str, timestamp: int, body: bytes
) -> str:
    """Return the value of `Purgatory-Signature` for a callback.

    `t=<seconds since 1970>,kid=<key_id(secret)>,v2=<hex>`: HMAC-SHA256 over the version, the
    timestamp, the id of the secret, the method, the URL, the job's id and the body, joined by line
    feeds; the URL has its host in lower case, and an empty path as `/`. Method and URL are signed
    so that a receiver cannot send the request on to another one in our name.
    """
    kid = key_id(secret)
    mac = _mac(secret, kid, method, url, job_id, timestamp, body)
    return f"t={timestamp},kid={kid},v2={mac}"


def verify_signature(
    secret: str | bytes,
    header: str,
    *,
    method: str,
    url: str,
    job_id: str,
    body: bytes,
    now: float,
    tolerance: Seconds = DEFAULT_TOLERANCE_S,
) -> bool:
    """Return True iff `header` is a valid signature of the request, at most `tolerance` s old.

    For receivers: `header` is `Purgatory-Signature`, `url` is the whole URL that the job was given,
    as it was given (a proxy may have changed what arrives), `job_id` is `Purgatory-Job-Id`, `body`
    the received bytes, and `now` is `time.time()`. Compared in constant time. While secrets are
    being exchanged, try each: `kid=` is the `key_id` of the one that signed. A valid request may
    still be a repeat: remember the job's id.
    """
    match = _SIGNATURE.fullmatch(header.strip())
    # With a line feed it would be ambiguous where the id ends.
    if match is None or "\n" in f"{method}{url}{job_id}":
        return False
    timestamp = int(match[1])
    expected = _mac(secret, key_id(secret), method, url, job_id, timestamp, body)
    return hmac.compare_digest(expected, match[3]) and abs(now - timestamp) <= seconds_of(tolerance)


def _mac(
    secret: str | bytes, kid: str, method: str, url: str, job_id: str, timestamp: int, body: bytes
) -> str:
    # What cannot be parsed was not signed by us: it needs no canonical form.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        url = parts._replace(netloc=parts.netloc.lower(), path=parts.path or "/").geturl()
    head = f"v2\n{timestamp}\n{kid}\n{method}\n{url}\n{job_id}\n"
    return hmac.new(_bytes(secret), head.encode() + body, hashlib.sha256).hexdigest()


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


PREFIX = "secret:"


class CallbackSecret:
    """The value of a header, such as `Bearer ...`, and the hosts that may receive it.

    A callback's header `Authorization: secret:NAME` is sent with the value of that name. Without
    the hosts, everyone who may add jobs could have the value sent to a host of their own.
    """

    __slots__ = ("_origins", "_value")

    def __init__(self, value: str, *, hosts: Iterable[str]) -> None:
        """Send `value` to `hosts` only, and by TLS: `name` is port 443, `name:port` that port.

        `http://name:port` allows a request in clear text, which a host in between can read. Raises
        ValueError for a value that is no header's, and for hosts that are none; TypeError for a
        string of hosts.
        """
        is_text = value.isascii() and value.isprintable()
        if not value or not is_text or value != value.strip():
            raise ValueError(
                "the value of a secret is empty, not printable ASCII, or has a blank at either "
                "end: give a header's value"
            )
        self._value = value
        self._origins = frozenset(map(_origin, listed_hosts(hosts)))

    def __repr__(self) -> str:
        """Return the name of the class, without the value."""
        return "<CallbackSecret>"

    def value_for(self, name: str, scheme: str, host: str, port: int) -> str:
        """Return the value; raise FailJobError for a host that may not receive it."""
        if (scheme, host, port) not in self._origins:
            raise FailJobError(
                f"secret {name!r} may not be sent to {scheme}://{host}:{port}: add it to the hosts "
                "of the secret, as name or name:port for https; http only as http://name:port"
            )
        return self._value


def _origin(text: str) -> tuple[str, str, int]:
    scheme, separator, place = text.rpartition("://")
    host, port = parsed_host(place)
    if scheme == "http" and port is not None:
        return scheme, host, port
    if scheme == "https" or not separator:
        return "https", host, DEFAULT_PORTS["https"] if port is None else port
    raise ValueError(
        f"{text!r} is not a host of a secret: give name or name:port for https, or http://name:port"
    )


def with_secrets(
    headers: Mapping[str, str],
    secrets: Mapping[str, CallbackSecret],
    scheme: str,
    host: str,
    port: int,
) -> dict[str, str]:
    """Return `headers` in lower case, with the values of the secrets that they name.

    Raises FailJobError for a host that may not receive one, and RetryJobError for an unknown name:
    a service that was started without the setting must not fail its jobs for good.
    """
    resolved = {}
    for name, value in headers.items():
        if value.startswith(PREFIX):
            secret = secrets.get(value.removeprefix(PREFIX))
            if secret is None:
                raise RetryJobError(
                    f"the header {name!r} names the secret {value.removeprefix(PREFIX)[:64]!r}, "
                    "which is not known here: give it with Webhook(secrets=), and in the service "
                    "with PURGATORY_CALLBACK_SECRETS"
                )
            value = secret.value_for(value.removeprefix(PREFIX), scheme, host, port)
        resolved[name.lower()] = value
    return resolved
