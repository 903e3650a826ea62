"""The service's log: one line for each record, whatever it contains, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access_lines import AccessLineHandler
from app.json_log import JsonAccessFormatter, JsonAccessLineHandler, JsonFormatter
from app.log_format import ACCESS_LINE, LINE, AccessLineFormatter, LineFormatter, log_config
from purgatory.log_text import escaped

FORGED = "x\n2026-11-21T15:04:05.678Z INFO:     all is well\x1b[2K\u2028\u202e"

# Of 2026-11-21T15:04:05.678Z.
TIME_LENGTH = 24


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("purgatory", logging.ERROR, __file__, 1, message, args, None)


def access_record(*args: object) -> logging.LogRecord:
    """Return a record as uvicorn makes them."""
    message = '%s - "%s %s HTTP/%s" %d'
    return logging.LogRecord("uvicorn.access", logging.INFO, __file__, 1, message, args, None)


@given(st.text())
def test_a_line_contains_no_control_characters(text: str) -> None:
    """Neither line ends nor escape sequences nor marks that change the direction of text."""
    shown = escaped(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


def test_a_traceback_forges_no_line() -> None:
    """Its lines are indented, those of the exception's own text as well."""
    formatter = LineFormatter(LINE, use_colors=False)
    failed = record("a job failed")
    try:
        raise ValueError(FORGED)
    except ValueError:
        failed.exc_info = sys.exc_info()
    first, *others = formatter.format(failed).split("\n")
    assert first.endswith("a job failed")
    assert others and all(line.startswith("    ") and line.isprintable() for line in others)


def test_settings_of_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts and secrets; a wrong value is not repeated."""
    from app.settings import Settings

    monkeypatch.setenv("PURGATORY_CALLBACK_ALLOWED_HOSTS", "hooks.internal, build:8080")
    valid = '{"billing": {"value": "Bearer hunter2", "hosts": ["billing.example"]}}'
    monkeypatch.setenv("PURGATORY_CALLBACK_SECRETS", valid)
    assert Settings().webhook() is not None
    for wrong in (
        "hunter2",
        '{"billing": "hunter2"}',
        '["hunter2"]',
        '{"billing": {"value": "hunter2"}}',
        '{"billing": {"value": "hunter2\\n", "hosts": ["a.example"]}}',
        '{"billing": {"value": 2, "hosts": ["a.example"]}}',
        '{"billing": {"value": "hunter2", "hosts": "a.example"}}',
        '{"billing": {"value": "hunter2", "hosts": ["http://a.example"]}}',
    ):
        monkeypatch.setenv("PURGATORY_CALLBACK_SECRETS", wrong)
        with pytest.raises(ValueError, match="PURGATORY_CALLBACK_SECRETS") as caught:
            Settings().webhook()
        assert "hunter2" not in str(caught.value)


TARGETS = st.text(st.characters(max_codepoint=255), max_size=3000)


@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from(["", "127.0.0.1:80", "[::1]:8000", FORGED]),
            st.sampled_from(["GET", "POST", "DELETE"]),
            TARGETS,
            st.sampled_from(["1.0", "1.1"]),
            st.sampled_from([200, 201, 304, 404, 503, 599]),
        ),
        max_size=40,
    ),
    colors=st.booleans(),
)
def test_lines_from_templates_are_those_of_the_formatter(
    entries: list[tuple[str, str, str, str, int]], colors: bool
) -> None:
    """In order, whole lines in each write, and no write is longer than a pipe takes at once."""
    stream = Writes()
    handler = AccessLineHandler(stream)
    handler.setFormatter(AccessLineFormatter(ACCESS_LINE, use_colors=colors))
    for entry in entries:
        handler.add_line(*entry)
    assert not stream.writes
    handler.write_lines()
    text = "".join(stream.writes)
    assert [line[TIME_LENGTH:] for line in text.splitlines()] == [
        handler.format(access_record(*entry))[TIME_LENGTH:] for entry in entries
    ]
    assert all(write.endswith("\n") for write in stream.writes)
    assert all(len(write.encode()) <= 4096 or write.count("\n") == 1 for write in stream.writes)


def test_a_line_has_the_time_of_its_response() -> None:
    """In the format of all other lines."""
    stream = Writes()
    handler = AccessLineHandler(stream)
    handler.setFormatter(AccessLineFormatter(ACCESS_LINE, use_colors=False))
    before = datetime.now(UTC)
    handler.add_line("", "GET", "/", "1.1", 200)
    handler.flush()
    handler.emit(access_record("", "GET", "/", "1.1", 200))
    first, second = (write.partition(" ")[0] for write in stream.writes if write.strip())
    assert len(first) == len(second) == TIME_LENGTH
    at = datetime.fromisoformat(first)
    assert before - timedelta(milliseconds=1) <= at <= datetime.now(UTC)


def test_a_stream_that_fails_ends_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    """As with any handler of logging: the error is on standard error."""
    stream = Writes()
    stream.is_full = True
    handler = AccessLineHandler(stream)
    handler.setFormatter(AccessLineFormatter(ACCESS_LINE, use_colors=False))
    handler.add_line("", "GET", "/", "1.1", 200)
    handler.write_lines()
    assert "No space left on device" in capsys.readouterr().err


class Writes:
    """A stream that notes each write."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.is_full = False

    def write(self, text: str) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.writes.append(text)

    def flush(self) -> None:
        pass


TEXT = st.text(st.characters(codec=None))
ACCESS = '%s - "%s %s HTTP/%s" %d'


def line_of(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    line = formatter.format(record)
    assert line.isascii() and line.isprintable()
    fields: dict[str, Any] = json.loads(line)
    return fields


@given(message=TEXT, name=TEXT, action=st.none() | TEXT)
def test_a_record_is_one_object(message: str, name: str, action: str | None) -> None:
    """With its action, if it has one; control characters and half surrogates come back."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 1, "%s", (message,), None)
    record.created = 0.25
    if action is not None:
        record.action = action
    expected: dict[str, Any] = {"time": "1970-01-01T00:00:00.250Z", "level": "warning"}
    expected |= {"logger": name, "pid": os.getpid()}
    expected |= {"message": message} | ({} if action is None else {"action": action})
    assert line_of(JsonFormatter(), record) == expected


def test_a_traceback_is_a_field() -> None:
    """In the same line."""
    try:
        raise ValueError('a "quoted"\nline')
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    found = line_of(JsonFormatter(), record)
    assert found["message"] == "failed"
    assert found["error"].endswith('ValueError: a "quoted"\nline')


@given(client=TEXT, target=TEXT)
def test_the_fast_access_line_is_that_of_the_formatter(client: str, target: str) -> None:
    """Whatever a client or a proxy sends."""
    stream = io.StringIO()
    handler = JsonAccessLineHandler(stream)
    handler.setFormatter(JsonAccessFormatter())
    handler.add_line(client, "GET", target, "1.1", 200)
    handler.write_lines()
    arguments = (client, "GET", target, "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, __file__, 1, ACCESS, arguments, None)
    handler.emit(record)
    fast, slow = map(json.loads, stream.getvalue().splitlines())
    assert {**fast, "time": slow["time"]} == slow
    assert (slow["client"], slow["target"], slow["status"]) == (client, target, 200)
    assert stream.getvalue().isascii()


def test_the_configuration_chooses_the_format() -> None:
    """Text, unless JSON is asked for."""
    assert "json" not in str(log_config("info"))
    assert str(log_config("info", "json")).count("app.json_log.") == 3
