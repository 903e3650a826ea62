"""The requests, with the headers of an ordinary client."""

from __future__ import annotations


def watch(address: str, key: str, wait: float) -> bytes:
    """Return the request that parks; `address` is that of all keys."""
    return _request("GET", f"{address}/{key}?wait={wait:.3f}")


def fire(key: str) -> bytes:
    """Return the request that fires."""
    return _request("POST", f"/purgatory/keys/{key}", "content-length: 0\r\n")


def probe() -> bytes:
    """Return the request for what the server says of itself."""
    return _request("GET", "/bench")


def _request(method: str, target: str, headers: str = "") -> bytes:
    return (
        f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
        f"accept-encoding: gzip, deflate\r\nuser-agent: benchmark/1.0\r\n{headers}\r\n"
    ).encode()
