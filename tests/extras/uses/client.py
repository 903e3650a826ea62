"""A client that cannot reach its server says so."""

from purgatory.client import Client, ServerUnavailableError

with Client("http://127.0.0.1:9", retry_for=0.0) as client:
    try:
        client.fire("order:42")
    except ServerUnavailableError:
        pass
    else:
        raise AssertionError("nobody listens there")
