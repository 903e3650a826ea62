"""The handler of callbacks: it sends HTTP requests."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from purgatory.job_errors import FailJobError, InvalidPayloadError, RetryJobError
from purgatory.jobs.callbacks.addresses import (
    DEFAULT_PORTS,
    DnsLookups,
    Hosts,
    LookUp,
    how_to_allow,
    is_private_host,
)
from purgatory.jobs.callbacks.callback import CALLBACK, Callback, CallbackPayload, stored_url
from purgatory.jobs.callbacks.headers import SIGNATURE_HEADER, CallbackSecret, sign, with_secrets
from purgatory.jobs.callbacks.http_connection import ExchangeError, HttpConnection, ResponseHead
from purgatory.jobs.handlers.fair_slots import FairSlots, Lane
from purgatory.jobs.handlers.job_context import JobContext
from purgatory.jobs.model.deadline import rfc3339
from purgatory.jobs.model.job import Job
from purgatory.timer import Clock, SystemClock
from purgatory.timer.clock import Seconds, seconds_of

if TYPE_CHECKING:
    import httpx
elif find_spec("httpx") is None:
    raise ImportError("callbacks over HTTP need httpx: pip install 'fastapi-purgatory[webhook]'")

__all__ = ["CALLBACK", "Callback", "Webhook"]

MIN_SECRET_LENGTH = 16
MAX_RETRY_AFTER_S = 3_600.0
# The 4xx statuses after which the same request may succeed later.
RETRIED = frozenset((408, 409, 421, 423, 425, 429))
_DEFAULT_USER_AGENT = "fastapi-purgatory"


class Webhook:
    """The handler of callbacks: `purgatory.handler(CALLBACK)(Webhook(secret=...))`.

    A 2xx response completes the job. A 4xx fails it, except 408, 409, 421, 423, 425 and 429, which
    are retried, as are 5xx, timeouts and connection errors; `Retry-After` sets the delay, up to an
    hour. Redirects are not followed, but fail the job. Each request has its own connection, to the
    address that was looked up and checked for it, and only the head of the response counts.

    Callbacks have slots of their own, which owners (`Job.owner`) share. One that waits for a slot
    is not started, which costs no attempt.
    """

    def __init__(
        self,
        secret: str | bytes | None = None,
        *,
        timeout: Seconds = 10.0,
        allow_private: bool = False,
        allowed_hosts: Iterable[str] = (),
        secrets: Mapping[str, CallbackSecret] | None = None,
        user_agent: str = _DEFAULT_USER_AGENT,
        max_running: int = 200,
        max_per_owner: int = 100,
        max_per_host: int = 100,
        look_up: LookUp = socket.getaddrinfo,
        clock: Clock | None = None,
    ) -> None:
        """Sign with `secret` if given; `timeout` is in seconds, from the look-up to the status.

        `allow_private` allows callbacks to loopback, private and link-local addresses, and
        `allowed_hosts` to these hosts at any address: `name` at ports 80 and 443, `name:port` at
        that port only. `secrets` are values that headers name as `secret:NAME`.

        `max_running` callbacks run at once in this process, besides the `max_running` of other
        handlers; `max_per_owner` of one owner, and `max_per_host` to one host. An owner uses no
        more than are left free, in all and at the host: half of them if it is alone. A look-up that
        outlasts its callback keeps the slot. `look_up` is called in a thread.

        Raises ValueError for a secret that is too short, an invalid timeout, number or host;
        TypeError for a string of hosts.
        """
        if secret is not None and len(secret) < MIN_SECRET_LENGTH:
            raise ValueError(
                f"the secret has {len(secret)} characters, fewer than {MIN_SECRET_LENGTH}, and "
                "can be guessed: give a longer one"
            )
        # Written so that NaN, which compares as false, is refused.
        timeout = seconds_of(timeout)
        if not 0 < timeout <= 3_600:
            raise ValueError(f"timeout is {timeout!r}: give seconds above 0 and up to 3600")
        for name, bound in (
            ("max_running", max_running),
            ("max_per_owner", max_per_owner),
            ("max_per_host", max_per_host),
        ):
            if type(bound) is not int or bound < 1:
                raise ValueError(f"{name} is {bound!r}: give a whole number from 1")
        self._secret = secret
        self._timeout = timeout
        self._allow_private = allow_private
        self._allowed_hosts = Hosts(allowed_hosts)
        self._secrets = {} if secrets is None else dict(secrets)
        self._user_agent = user_agent
        self._clock: Clock = SystemClock() if clock is None else clock
        self._tls: ssl.SSLContext | None = None
        self._new_slots = partial(
            FairSlots, max_running, per_owner=max_per_owner, per_host=max_per_host
        )
        # With a thread for each slot, no callback waits for one.
        self._new_look_ups = partial(DnsLookups, look_up, max_threads=max_running)
        self._slots, self._look_ups = self._new_slots(), self._new_look_ups()

    def purgatory_payload_type(self) -> CallbackPayload:
        """Return the payload type, which refuses the private addresses that a URL has itself."""
        return CallbackPayload(self._refuse_private_host)

    def _refuse_private_host(self, callback: Callback) -> None:
        # What a name leads to is checked at each call, as it may change.
        parts = urlsplit(callback.url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        if is_private_host(host) and not self._is_private_allowed(host, port):
            raise InvalidPayloadError(f"the callback's {how_to_allow(host, port)}", param="url")

    def _is_private_allowed(self, host: str, port: int) -> bool:
        return self._allow_private or (host, port) in self._allowed_hosts

    def lane_of(self, job: Job) -> Lane:
        """Return where a job waits for a slot."""
        return self._lane(job.owner, stored_url(job.payload_json))

    async def __call__(self, job: JobContext, callback: Callback) -> None:
        """Send the request; raise RetryJobError or FailJobError unless the response is 2xx."""
        try:
            response = await self._send(job, callback)
        except TimeoutError as exc:
            raise RetryJobError(
                f"{_shown(callback)} did not respond within {self._timeout:g} seconds"
            ) from exc
        except (OSError, ExchangeError) as exc:
            raise RetryJobError(f"{_shown(callback)} could not be called: {_reason(exc)}") from exc
        if not 200 <= response.status < 300:
            self._raise_for(callback, response)

    async def aclose(self) -> None:
        """Begin no further look-up; the thread of one may continue."""
        self._look_ups.shut()
        # For the next opening: look-ups that continue keep none of its slots.
        self._slots, self._look_ups = self._new_slots(), self._new_look_ups()

    async def _send(self, job: JobContext, callback: Callback) -> ResponseHead:
        url, lane = _url(callback), self._lane(job.owner, callback.url)
        until_s = asyncio.get_running_loop().time() + self._timeout
        # First: what is wrong with the host is said of the host, not by TLS.
        async with asyncio.timeout_at(until_s):
            address, port, content = await self._request(job, callback, url, lane)
        tls = self._open_tls() if url.scheme == "https" else None
        async with HttpConnection(tls, lane.host) as connection:
            async with asyncio.timeout_at(until_s):
                await connection.open(address, port)
                response = await connection.send(content)
            await connection.read_body(response)
        return response

    async def _request(
        self, job: JobContext, callback: Callback, url: httpx.URL, lane: Lane
    ) -> tuple[str, int, bytes]:
        """Return where to send the request, and its bytes."""
        port = url.port or DEFAULT_PORTS[url.scheme]
        allow_private = self._is_private_allowed(lane.host, port)
        given = with_secrets(callback.headers, self._secrets, url.scheme, lane.host, port)
        address = await self._look_ups.address(lane, port=port, allow_private=allow_private)
        body = b"" if callback.method == "GET" else _body(job, callback)
        headers = {
            "host": url.netloc.decode("ascii"),
            "accept": "*/*",
            "user-agent": self._user_agent,
            **given,
            "connection": "close",
            "idempotency-key": job.id,
            "purgatory-job-id": job.id,
            "purgatory-attempt": str(job.attempt),
            "purgatory-outcome": str(job.outcome),
        }
        if body:
            headers["content-type"] = "application/json"
            headers["content-length"] = str(len(body))
        if self._secret is not None:
            timestamp = self._clock.wall_ms() // 1000
            headers[SIGNATURE_HEADER] = sign(
                self._secret,
                method=callback.method,
                url=callback.url,
                job_id=job.id,
                timestamp=timestamp,
                body=body,
            )
        lines = [f"{callback.method} {url.raw_path.decode('ascii')} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        content = "\r\n".join((*lines, "", "")).encode("ascii") + body
        # To the checked address; the certificate is still verified for the name.
        return str(address), port, content

    def _lane(self, owner: str | None, url: str) -> Lane:
        try:
            host = urlsplit(url).hostname
        except ValueError:
            host = None
        return Lane(self._slots, owner, host or "")

    def _open_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            # Not at the top: it takes a tenth of a second, which a service would start later.
            import httpx

            # The machine's own settings are not for addresses that clients give.
            self._tls = httpx.create_ssl_context(trust_env=False)
            # A server could have us check its certificate again and again.
            self._tls.options |= ssl.OP_NO_RENEGOTIATION
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _raise_for(self, callback: Callback, response: ResponseHead) -> NoReturn:
        status = response.status
        result = f"{callback.method} {_shown(callback)} returned {status}"
        if status in RETRIED or status >= 500:
            raise RetryJobError(result, after=self._retry_after(response.retry_after))
        if 300 <= status < 400:
            raise FailJobError(f"{result}: redirects are not followed, give the final address")
        raise FailJobError(f"{result}: it is not retried")

    def _retry_after(self, text: str) -> float | None:
        if text.isascii() and text.isdigit():
            seconds = float(text[:9])
        else:
            try:
                date = parsedate_to_datetime(text)
            except (TypeError, ValueError, OverflowError):
                return None
            if date.tzinfo is None:
                date = date.replace(tzinfo=UTC)
            seconds = date.timestamp() - self._clock.wall_ms() / 1000
        # Up to a tenth more, so that requests that were refused together do not return together.
        return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) * random.uniform(1, 1.1)  # noqa: S311 - spreads retries


def _url(callback: Callback) -> httpx.URL:
    import httpx  # as above

    try:
        return httpx.URL(callback.url)
    except httpx.InvalidURL as exc:
        raise FailJobError(
            f"{_shown(callback)} is not a valid URL ({exc}): it is not retried"
        ) from exc


def _shown(callback: Callback) -> str:
    # Logged, and kept as the job's error: path and query often contain credentials.
    parts = urlsplit(callback.url)
    return f"{parts.scheme}://{parts.netloc}/..."


def _reason(exc: OSError | ExchangeError) -> str:
    # Not the text of what the server sent, or of the system: the error can be read by everyone who
    # may read the job.
    if isinstance(exc, ExchangeError):
        return str(exc)
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed ({exc.reason or 'no reason given'})"
    return "the connection failed"


def _body(job: JobContext, callback: Callback) -> bytes:
    document = {
        "job": job.id,
        "attempt": job.attempt,
        "outcome": str(job.outcome),
        "deadline": rfc3339(job.deadline),
        "fired_key": job.fired_key,
        "fired_value": job.fired_value,
        "payload": callback.payload,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
