"""The command line of the service: `python -m app`, and `python -m app token SCOPE ...`."""

from __future__ import annotations

import errno
import gc
import logging.config
import socket
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.file_limit import raise_file_limit, shortage
from app.journal import JournalUnavailableError
from app.log_format import log_config
from app.main import create_app
from app.settings import Settings, service_url
from purgatory.fastapi import BearerTokens, new_token
from purgatory.uvicorn import ParkingProtocol

logger = logging.getLogger("purgatory.app")

USAGE = """\
python -m app                  run the service; settings: environment, see docs/reference/service.md
python -m app token SCOPE ...  create a token and its line for the tokens file"""

# Warn if fewer requests than this can be parked, unless the settings ask for fewer.
MIN_EXPECTED_PARKED = 4096


def main() -> int:
    """Run the service until it is stopped; return the exit status."""
    if sys.argv[1:2] == ["token"] and not {"-h", "--help"} & set(sys.argv):
        return _print_token(sys.argv[2:])
    if sys.argv[1:]:
        print(USAGE, file=sys.stdout if {"-h", "--help"} & set(sys.argv) else sys.stderr)
        return 0 if {"-h", "--help"} & set(sys.argv) else 2
    try:
        settings = Settings()
        logging.config.dictConfig(log_config(settings.log_level))
        sockets, app = _prepare(settings)
    except ValidationError as exc:
        for error in exc.errors():
            print(_message(error), file=sys.stderr)
        return 2
    except (JournalUnavailableError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 2
    except AddressError as exc:
        print(exc, file=sys.stderr)
        return 1
    config = server_config(app, settings)
    _check_files(settings)
    configure_garbage_collector()
    try:
        _Server(config).run(sockets)
    except KeyboardInterrupt:
        # uvicorn has shut down cleanly and raises the interrupt again.
        print("Purgatory has stopped.", flush=True)
    return 0


def _prepare(settings: Settings) -> tuple[list[socket.socket], FastAPI]:
    # Sockets first: nothing else has to be closed if the port is in use.
    sockets = bind(settings.host, settings.port)
    try:
        return sockets, create_app(settings)
    except Exception:
        for listener in sockets:
            listener.close()
        raise


class AddressError(Exception):
    """The service cannot listen on its address."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets that are bound to each address of `host`; raise AddressError.

    They do not listen yet: until the service has started, connections are refused.
    """
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind(address)
            except OSError as exc:
                listener.close()
                # localhost has an IPv6 address also where IPv6 is disabled.
                if exc.errno != errno.EADDRNOTAVAIL:
                    raise
                failure = exc
            else:
                sockets.append(listener)
        if failure is not None and not sockets:
            raise failure
    except OSError as exc:
        for listener in sockets:
            listener.close()
        way_out = ""
        if exc.errno == errno.EADDRINUSE:
            way_out = f"; stop what uses it, or choose another port: make run PORT={port + 1}"
        raise AddressError(
            f"cannot listen on {host!r}, port {port}: {exc.strerror}{way_out}"
        ) from exc
    return sockets


class _Server(uvicorn.Server):
    """A server that prints its address once it listens: no sooner can a client reach it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        # The actual port, if the setting is 0.
        address = service_url(self.config.host, sockets[0].getsockname()[1])
        print(
            f"Purgatory on {address} -- API documentation: {address}/docs (Ctrl+C stops it)",
            flush=True,
        )


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves the service."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        # Already configured, so that messages before the server starts look the same.
        log_config=None,
        log_level=settings.log_level,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive,
        forwarded_allow_ips=settings.trusted_proxies,
        # Parks requests without a task each; the application needs no change.
        http=ParkingProtocol,
    )


def _message(error: ErrorDetails) -> str:
    """Return which variable is wrong and why, without the value of a secret."""
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ")
    name, *within = (str(part) for part in error["loc"])
    name = name.upper()
    if name in {"HOST", "PORT"}:
        return f"{name} is {error['input']!r}: {error['msg']}"
    if name == "TOKENS":
        return f"PURGATORY_TOKENS: {error['msg']}"
    field = Settings.model_fields.get(name.lower())
    if field is not None and "Secret" in str(field.annotation):
        if error["type"] == "too_short":
            return f"PURGATORY_{name} is too short: give {error['ctx']['min_length']} characters"
        return f"PURGATORY_{name}: {error['msg']}"
    place = "".join(f", {part!r}," for part in within)
    reason = error["msg"].removeprefix("Value error, ")
    return f"PURGATORY_{name}{place} is {error['input']!r}: {reason}"


def _print_token(scopes: list[str]) -> int:
    token, entry = new_token()
    try:
        BearerTokens([(entry, " ".join(scopes))])
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    print(f"Give this token to the client:      {token}")
    print(f"Add this line to the tokens file:   {entry} {' '.join(scopes)}")
    return 0


def _check_files(settings: Settings) -> None:
    files = raise_file_limit()
    # The default limit is deliberately high; check it only if it was set explicitly.
    is_explicit = "max_parked" in settings.model_fields_set
    wanted = settings.max_parked if is_explicit else MIN_EXPECTED_PARKED
    if message := shortage(files, wanted):
        logger.warning(message, extra={"action": "few-files"})


def configure_garbage_collector() -> None:
    """Scan rarely, and never what exists now: parked requests are many long-lived objects."""
    # Scanning them repeatedly takes half of the CPU time of parking.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


if __name__ == "__main__":
    sys.exit(main())
