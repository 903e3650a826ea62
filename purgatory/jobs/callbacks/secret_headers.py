"""Header values that jobs name but do not contain, so that no store or backup has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from purgatory.job_errors import FailJobError, RetryJobError
from purgatory.jobs.callbacks.hosts import DEFAULT_PORTS, listed_hosts, parsed_host

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
