"""What a user of the command can do about an error of the server."""

from __future__ import annotations

from typing import Final

from purgatory.cli.session import Session
from purgatory.client import RefusedError, ServerUnavailableError

_ABOUT_ADDRESS: Final = (
    "Is it running? --url (or PURGATORY_URL) is its address, and --retry-for the seconds for which "
    "it is tried again"
)
_ABOUT_PATH: Final = (
    "Check --url (or PURGATORY_URL), which is without the prefix, and --prefix; or the server does "
    "not offer these endpoints"
)
_ABOUT_MISSING: Final = "Set PURGATORY_TOKEN, or give --token-file"
_ABOUT_UNKNOWN: Final = "This server does not know the token in PURGATORY_TOKEN or --token-file"


def with_way_out(sentence: str, error: Exception, session: object) -> str:
    """Return `sentence`, and after it what the options of the command have to do with `error`.

    `session` is the Session of the command, or something else if it has none.
    """
    has_token = isinstance(session, Session) and session.token is not None
    match error:
        case ServerUnavailableError() if error.__cause__ is not None:
            way_out = _ABOUT_ADDRESS
        case RefusedError(status=401):
            way_out = _ABOUT_UNKNOWN if has_token else _ABOUT_MISSING
        case RefusedError(status=404, slug="" | "not-found"):
            way_out = _ABOUT_PATH
        case _:
            return sentence
    return f"{sentence.rstrip('.')}. {way_out}."
