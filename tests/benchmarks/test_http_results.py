"""The tables of `make bench-http`."""

from __future__ import annotations

from dataclasses import fields

from tests.benchmarks.http.figures import FIGURES
from tests.benchmarks.http.measurement import Measurement
from tests.benchmarks.http.results import Results
from tests.benchmarks.http.servers import BARE, HANDLER, PROTOCOL, SERVERS, SERVICE, ServerKind
from tests.cases import cases

ONE = Measurement(**{field.name: 1.0 for field in fields(Measurement)})


@cases("kinds", [SERVERS, (PROTOCOL,), (PROTOCOL, BARE), (PROTOCOL, HANDLER), (SERVICE, HANDLER)])
def test_any_servers_make_tables(kinds: tuple[ServerKind, ...]) -> None:
    """All of them, or those that were asked for with `--only`."""
    results = Results(10)
    for kind in kinds:
        results.add(kind, ONE)
    text = results.text()
    assert all(kind.title in text for kind in kinds)
    assert all(figure.title in text for figure in FIGURES)
