"""Labels: whose they are, what is cut off, and what is refused."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.journal import CLIENT, WAIT_ID, Journal, Label, ParquetFiles
from purgatory.journal.labels import MAX_LABELS, Labels
from purgatory.operations.event_buffer import EventBuffer
from tests.journal_batches import rows_in

TENANT: ContextVar[str | None] = ContextVar("TENANT", default=None)


async def park(purgatory: Purgatory, tenant: str | None, key: str) -> None:
    token = TENANT.set(tenant)
    await purgatory.park(key, timeout=0.02)
    TENANT.reset(token)


async def test_both_rows_have_the_labels_of_the_one_that_parks(tmp_path: Path) -> None:
    """And not of the one that fires; without a value there is no such label."""
    labels: dict[str, Label] = {"version": "1.2", "tenant": TENANT.get}
    with Journal(ParquetFiles(tmp_path), labels=labels) as journal:
        async with Purgatory(listeners=[journal]) as purgatory:
            for tenant in ("a", "b", None):
                await park(purgatory, tenant, f"k:{tenant}")
    found = {(row["keys"][0], row["event"]): dict(row["labels"]) for row in rows_in(tmp_path)}
    for event in ("watched", "expired"):
        assert found["k:a", event] == {"version": "1.2", "tenant": "a"}
        assert found["k:b", event] == {"version": "1.2", "tenant": "b"}
        assert found["k:None", event] == {"version": "1.2"}
    assert len(found) == 6


def test_a_label_of_the_operation_is_read_from_it() -> None:
    """On any server; what other operations lack is no label of theirs."""
    labels = Labels({"wait": WAIT_ID, "client": CLIENT})
    parked = SimpleNamespace(wait_id="someone/6f1c", client="someone")
    assert labels.pairs(labels.read(parked)) == (("wait", "6f1c"), ("client", "someone"))
    assert labels.pairs(labels.read(SimpleNamespace(wait_id=None, client=None))) == ()
    assert labels.pairs(labels.read(object())) == ()


def test_without_functions_the_event_loop_pays_nothing(tmp_path: Path) -> None:
    """The purgatory calls the buffer itself, whether or not there are texts."""
    for labels in (None, {"version": "1.2"}):
        journal = Journal(ParquetFiles(tmp_path), labels=labels)
        assert isinstance(getattr(journal.record, "__self__", None), EventBuffer)


def test_a_function_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its label is missing, and the others are there."""

    def broken() -> str:
        raise LookupError("no tenant")

    labels = Labels({"tenant": broken, "shard": lambda: 7})
    with caplog.at_level(logging.ERROR):
        assert [labels.pairs(labels.read(None)) for _ in range(2)] == [(("shard", "7"),)] * 2
    assert [record.message for record in caplog.records] == ["label tenant failed"]


def test_values_are_cut_off_and_valid_text() -> None:
    """Whatever a function returns: a row is never lost for its labels."""
    values: list[Any] = ["x" * 200, "\ud800"]
    [(_, long), (_, odd)] = Labels({"a": values.pop, "b": values.pop}).pairs(values)
    assert (long, odd) == ("x" * 128, "?")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({f"n{number}": "x" for number in range(MAX_LABELS + 1)}, "9 labels: give at most 8"),
        ({"a=b": "x"}, "label 'a=b': give a name of up to 64 letters"),
        ({"x" * 65: "x"}, "give a name of up to 64"),
        ({"version": "x" * 129}, "label 'version' has 129 characters: give at most 128"),
    ],
)
def test_what_is_known_at_the_start_is_refused_there(
    labels: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    """Names and texts."""
    with pytest.raises(ValueError, match=sentence):
        Journal(ParquetFiles(tmp_path), labels=labels)
