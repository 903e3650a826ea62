"""Parsing requests for streams: what a client asks for, or one Problem with all that is wrong."""

from __future__ import annotations

from purgatory.errors import BadCursorError, PurgatoryError
from purgatory.fastapi.http.authorization import Action
from purgatory.fastapi.http.parameters import ParameterErrors, Parameters, ParameterValues
from purgatory.fastapi.http.problem_mapping import problem_of_error
from purgatory.fastapi.http.raw_request import RawRequest
from purgatory.fastapi.sse.event_bytes import END_ID
from purgatory.fastapi.sse.parameters import LAST_EVENT_ID, MAX_CURSOR, StreamParameters, split_keys
from purgatory.fastapi.sse.stream_positions import positions_of_cursor
from purgatory.fastapi.sse.stream_request import StreamRequest
from purgatory.fastapi.watch.parameters import CURSOR, WAIT_ID
from purgatory.fastapi.watch.request import WatchRequest, WatchTerms
from purgatory.fastapi.watch.request_parser import owned_wait_id
from purgatory.fastapi.watch.settings import WaitSettings
from purgatory.operations.watch_key import check_key
from purgatory.purgatory import Purgatory


class StreamParser:
    """Parses the requests of one router for streams."""

    def __init__(self, purgatory: Purgatory, settings: WaitSettings) -> None:
        """Parse by the limits and cursors of `purgatory`."""
        self._purgatory = purgatory
        self._settings = settings
        self.parameters = StreamParameters(purgatory.limits, settings)
        # Most streams last as long as they may: they share one object.
        self._terms = WatchTerms(settings.max_stream)

    def parse(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch/{key}` asks for; raise Problem.

        None for a client that reconnects to a stream that has ended for good.
        """
        return self._parse(raw, (raw.key(),), raw.query_string, self.parameters.one)

    def parse_several(self, raw: RawRequest) -> StreamRequest | None:
        """Return what `GET .../watch?key=a&key=b` asks for; as `parse`."""
        keys, rest = split_keys(raw.query_string, self.parameters.max_keys)
        return self._parse(raw, keys, rest, self.parameters.several)

    def _parse(
        self, raw: RawRequest, keys: tuple[str, ...], query_string: bytes, parameters: Parameters
    ) -> StreamRequest | None:
        # First: whether a cursor is valid says something about the key.
        raw.permit.check_keys(Action.WAIT, keys)
        errors = ParameterErrors()
        values = ParameterValues()
        for key in keys:
            errors.collect(_check, key)
        parameters.parse_query(query_string, values, errors)
        parameters.parse_headers(raw, values, errors)
        errors.raise_if_any()
        by_name = values.by_name()
        header = LAST_EVENT_ID.name if by_name.get(LAST_EVENT_ID.name) else ""
        cursor: str | None = by_name.get(header or CURSOR.name)
        if cursor == END_ID:
            return None
        wait_id = values[WAIT_ID]
        watch = WatchRequest(
            keys,
            self._positions(keys, cursor, header),
            self._terms_of(values[self.parameters.wait]),
            None if wait_id is None else owned_wait_id(raw, wait_id),
        )
        return StreamRequest(watch, cursor is None)

    def _terms_of(self, wait: float | None) -> WatchTerms:
        longest = self._settings.max_stream
        return self._terms if wait is None or wait >= longest else WatchTerms(wait)

    def _positions(self, keys: tuple[str, ...], cursor: str | None, header: str) -> tuple[int, ...]:
        try:
            if cursor is not None and len(cursor) > MAX_CURSOR:
                raise BadCursorError(f"the cursor has {len(cursor)} characters: too many")
            return positions_of_cursor(self._purgatory.signals, keys, cursor)
        except PurgatoryError as exc:
            raise problem_of_error(exc, header) from exc


def _check(key: str) -> None:
    try:
        check_key(key)
    except PurgatoryError as exc:
        raise problem_of_error(exc) from exc
