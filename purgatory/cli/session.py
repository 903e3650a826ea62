"""The options that all commands share: which server, as whom, and how to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from purgatory.client import Client
from purgatory.client.requests import base_url


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
