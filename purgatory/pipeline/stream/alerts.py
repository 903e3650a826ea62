"""Alerts, and the service whose keys they are fired on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from purgatory.pipeline.errors import AlertRefusedError
from purgatory.retry_policy import RetryPolicy

MOST_ALERTS = 1_000
"""Alerts of one batch that are sent: a flood would not help."""

_MAX_ATTEMPTS = 6
_RETRY_POLICY = RetryPolicy(first_ms=500, max_ms=30_000)
_MAX_RETRY_AFTER_S = 30.0
_TIMEOUT_S = 30
# Temporary errors, for example of a proxy or a draining service.
_FOR_NOW = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert on one window of time."""

    alert: str
    subject: str
    start: datetime
    end: datetime
    detail_json: str

    @property
    def key(self) -> str:
        """The key that it fires: the same for all alerts of a sort."""
        return f"alert:{self.alert}"

    def idempotency_key(self, name: str) -> str:
        """Return the Idempotency-Key of this alert of this window, sent by `name`."""
        text = json.dumps([name, self.alert, self.subject, self._start()])
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()

    def body(self) -> bytes:
        """Return the request's body."""
        value = {
            "alert": self.alert,
            "subject": self.subject,
            "start": self._start(),
            "end": self.end.astimezone(UTC).isoformat(),
            **json.loads(self.detail_json),
        }
        return json.dumps({"value": value}).encode()

    def _start(self) -> str:
        return self.start.astimezone(UTC).isoformat()


@dataclass(frozen=True, slots=True)
class AlertService:
    """A service with a purgatory, at the URL of its router, such as http://host:8000/purgatory.

    Raises ValueError for other schemes than http and https.
    """

    url: str
    name: str = "live"
    """The sender: part of each Idempotency-Key."""
    token: str | None = field(default=None, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"the service is {self.url!r}: give http://HOST:PORT/purgatory")

    def send(self, alert: Alert) -> None:
        """Fire the alert's key; the service fires it once, however often it is sent.

        Retries while the service is unavailable. Raises AlertRefusedError if it stays unavailable
        or refuses the alert.
        """
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            pause_s = _RETRY_POLICY.delay_s(attempt)
            try:
                with urlopen(self._request(alert), timeout=_TIMEOUT_S) as response:  # noqa: S310 - http or https: see __post_init__
                    response.read()
                return
            except HTTPError as error:
                with error:
                    body = error.read(2_000).decode(errors="replace")
                reason = f"{error.code} {body}"
                if error.code not in _FOR_NOW:
                    break
                pause_s = max(pause_s, _seconds(error.headers.get("Retry-After")))
            except (OSError, HTTPException) as error:
                reason = str(error)
            if attempt < _MAX_ATTEMPTS:
                self.sleep(min(pause_s, _MAX_RETRY_AFTER_S))
        raise AlertRefusedError(
            f"{self.url} did not accept the alert {alert.alert!r} of {alert.subject!r}: {reason}. "
            "Nothing is lost: correct that and start again; no alert is fired twice"
        )

    def _request(self, alert: Alert) -> Request:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": alert.idempotency_key(self.name),
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        url = f"{self.url.rstrip('/')}/keys/{quote(alert.key, safe=':')}"
        return Request(url, data=alert.body(), headers=headers, method="POST")  # noqa: S310 - as above


def _seconds(text: str | None) -> float:
    # An HTTP date is rare, and the delay grows anyway.
    return float(text) if text and text.isascii() and text.isdigit() else 0.0
