"""Header values that jobs name but do not contain, so that no store or backup has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from purgatory.jobs.callbacks.hosts import Hosts
from purgatory.jobs.model.errors import FailJobError, RetryJobError

PREFIX = "secret:"


class CallbackSecret:
    """The value of a header, such as `Bearer ...`, and the hosts that may receive it.

    A callback's header `Authorization: secret:NAME` is sent with the value of that name. Without
    the hosts, everyone who may add jobs could have the value sent to a host of their own.
    """

    __slots__ = ("_value", "hosts")

    def __init__(self, value: str, *, hosts: Iterable[str]) -> None:
        """Send `value` to `hosts` only: `name` at ports 80 and 443, or `name:port`.

        Raises ValueError for a value that is no header's, and for hosts that are none.
        """
        if not value or not value.isascii() or not value.isprintable():
            raise ValueError("the value of a secret is not printable ASCII: give a header's value")
        self._value = value
        self.hosts = Hosts(hosts)

    def __repr__(self) -> str:
        """Return the name of the class, without the value."""
        return "<CallbackSecret>"

    def value_for(self, name: str, host: str, port: int) -> str:
        """Return the value; raise FailJobError for a host that may not receive it."""
        if (host, port) not in self.hosts:
            raise FailJobError(
                f"secret {name!r} may not be sent to {host}:{port}: add the host to its hosts"
            )
        return self._value


def with_secrets(
    headers: Mapping[str, str], secrets: Mapping[str, CallbackSecret], host: str, port: int
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
            value = secret.value_for(value.removeprefix(PREFIX), host, port)
        resolved[name.lower()] = value
    return resolved
