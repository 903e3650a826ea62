"""What all commands share: which server or store, as whom, how to print, and JSON arguments."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from purgatory.client import Client
from purgatory.client.requests import base_url
from purgatory.jobs.stores.protocol import JobStore
from purgatory.json_value import TOO_DEEP, is_too_deep
from purgatory.log_text import REDIS_SCHEMES, either, redacted


@dataclass(frozen=True, slots=True)
class Session:
    """The options before the command."""

    url: str
    token: str | None
    prefix: str
    retry_for: float
    as_json: bool

    def client(self) -> Client:
        """Return a client of the server; refuse what is no URL as wrong usage."""
        try:
            base_url(self.url, self.prefix)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc
        return Client(self.url, token=self.token, prefix=self.prefix, retry_for=self.retry_for)


def session_of(context: typer.Context) -> Session:
    """Return the options of the command line that `context` is of."""
    session: Any = context.obj
    assert isinstance(session, Session)
    return session


def read_token(path: Path | None, token: str | None) -> str | None:
    """Return the token in a file, or the one of the environment; raise ValueError if it is empty.

    There is no option for the token itself: other users of the machine see command lines.
    """
    if path is None:
        return token or None
    found = path.read_text(encoding="utf-8-sig").strip()
    if not found or len(found.split()) > 1:
        raise ValueError(f"{path} has no token: write the token alone into it, on one line")
    return found


VARIABLE: Final = "PURGATORY_JOBS_URL"

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar=VARIABLE,
        show_envvar=True,
        help="The URL of the job store. Other users of the machine see command lines: set the "
        "variable if it has a password.",
    ),
]


def store_at(url: str | None) -> JobStore:
    """Return the store, which is not open yet; raise ImportError without its extra."""
    if not url:
        raise typer.BadParameter(f"give the job store: --store URL, or set {VARIABLE}")
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("sqlite", "postgresql", "postgres"):
        # SqlJobStore says what is wrong with the last.
        from purgatory.jobs.sql import SqlJobStore

        return SqlJobStore(url)
    if url.partition(":")[0] in REDIS_SCHEMES:
        from purgatory.jobs.redis import RedisJobStore

        return RedisJobStore(url)
    raise typer.BadParameter(
        f"no job store supports the URL {redacted(url)!r}: give one that begins with "
        f"{either(('sqlite', 'postgresql', *REDIS_SCHEMES))}, such as sqlite:///jobs.db"
    )


def json_argument(text: str | None, *, name: str) -> Any:
    """Return a JSON value, `-` for standard input; refuse other text."""
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        if is_too_deep(text.encode()):
            raise typer.BadParameter(f"{name} {TOO_DEEP}")
        return json.loads(text)
    except ValueError as exc:
        example = json.dumps(text[:40])
        raise typer.BadParameter(
            f"{name} is {text[:40]!r}, not JSON ({exc}): a text has quotes of its own, '{example}'"
        ) from None
