"""The service's log as JSON: one object in each line, whatever a record contains."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.json_log import JsonAccessFormatter, JsonAccessLineHandler, JsonFormatter
from app.log_format import log_config

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
