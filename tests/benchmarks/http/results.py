"""What a run gave: the tables that are printed, and the file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from purgatory.timer import compiled
from tests.benchmarks.http.figures import CPU_FIGURES, FIGURES, TARGETS, Figure
from tests.benchmarks.http.measurement import Measurement
from tests.benchmarks.http.servers import (
    BARE,
    HANDLER,
    SERVERS,
    SERVICE,
    UVICORN_HANDLER,
    ServerKind,
)

# The default of a wait; a client that polls asks so many times.
WAIT_S = 25
HANDLERS = (HANDLER, UVICORN_HANDLER)
_CONDITIONS = (
    "uvloop and httptools, no access log; the collector as in the service, for each of them:\n"
    "frozen after the start, thresholds 100,000, 50 and 50. Two are started with all defaults,\n"
    "access log to a file included. The client: sockets in one thread."
)


def baseline(kind: ServerKind) -> ServerKind:
    """Return the handler that a server is compared with: on defaults if the server is."""
    return UVICORN_HANDLER if kind is SERVICE else HANDLER


class Results:
    """The rounds of each server."""

    def __init__(self, parked: int) -> None:
        """Begin with none; `parked` requests are parked at once."""
        self._parked = parked
        self._load = os.getloadavg()
        self._rounds: dict[ServerKind, list[Measurement]] = {kind: [] for kind in SERVERS}

    def add(self, kind: ServerKind, measurement: Measurement) -> None:
        """Keep a round."""
        self._rounds[kind].append(measurement)

    def text(self) -> str:
        """Return the tables: figures, times the handler, and what the targets ask for."""
        kinds = [kind for kind in SERVERS if self._rounds[kind]]
        rounds = len(self._rounds[kinds[0]])
        parts = [
            f"{self._parked:,} parked; medians of {rounds} rounds (least-most)",
            _CONDITIONS,
            _table([_titles(FIGURES), *(self._figures(kind, FIGURES) for kind in kinds)]),
            "CPU of the server, us:",
            _table([_titles(CPU_FIGURES), *(self._figures(kind, CPU_FIGURES) for kind in kinds)]),
        ]
        compared = [kind for kind in kinds if kind not in HANDLERS and self._rounds[baseline(kind)]]
        if compared:
            parts.append(
                "Times better than the handler in the same run; the service, than the handler on "
                "uvicorn's defaults:"
            )
            rows = [self._ratios(kind) for kind in compared]
            parts.append(_table([_titles(FIGURES[:-1] + CPU_FIGURES), *rows]))
            parts.append(
                f"CPU to wait {WAIT_S} s, times less than polling the handler once a second:"
            )
            parts.append(_table([self._polling(kind) for kind in compared]))
        if targets := [line for kind in kinds for line in self._targets(kind)]:
            parts.append("Targets, as they are and in proportion to the floor of this run:")
            parts.append(_table(targets))
        if sum(self._load[:1]) > 0.5:
            parts.append(
                f"The load was {self._load[0]:.1f} when it began: times are worse than they are."
            )
        return "\n\n".join(parts)

    def write(self, folder: Path) -> Path:
        """Write everything as JSON; return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "http.json"
        path.write_text(json.dumps(self._as_dict(), indent=2) + "\n", encoding="utf-8")
        return path

    def _as_dict(self) -> dict[str, Any]:
        return {
            "parked": self._parked,
            "machine": {
                "system": f"{platform.system()} {platform.release()} {platform.machine()}",
                "cores": os.cpu_count(),
                "load": self._load,
                "python": platform.python_version(),
                "core": "compiled" if compiled else "plain",
                **{name: version(name) for name in ("fastapi", "httptools", "uvicorn", "uvloop")},
            },
            "rounds": {kind.name: list(map(asdict, self._rounds[kind])) for kind in SERVERS},
        }

    def _median(self, kind: ServerKind, field: str) -> float:
        figures: list[float] = [getattr(found, field) for found in self._rounds[kind]]
        return median(figures)

    def _figures(self, kind: ServerKind, figures: Sequence[Figure]) -> list[str]:
        return [kind.title, *(self._figure(kind, figure) for figure in figures)]

    def _figure(self, kind: ServerKind, figure: Figure) -> str:
        found = [getattr(measurement, figure.field) for measurement in self._rounds[kind]]
        middle, least, most = (
            f"{value:,.{figure.digits}f}" for value in (median(found), min(found), max(found))
        )
        return middle if least == most else f"{middle} ({least}-{most})"

    def _ratios(self, kind: ServerKind) -> list[str]:
        ratios = []
        for figure in FIGURES[:-1] + CPU_FIGURES:
            ours, theirs = (
                self._median(kind, figure.field),
                self._median(baseline(kind), figure.field),
            )
            ratios.append(f"{ours / theirs if figure.is_more_better else theirs / ours:.1f} x")
        return [kind.title, *ratios]

    def _polling(self, kind: ServerKind) -> list[str]:
        waiting = self._median(kind, "request_us") + self._median(kind, "timeout_us")
        return [kind.title, f"{WAIT_S * self._median(baseline(kind), 'poll_us') / waiting:.0f} x"]

    def _targets(self, kind: ServerKind) -> list[list[str]]:
        if kind is BARE or kind.name not in TARGETS:
            return []
        rows = []
        for figure in FIGURES:
            target = TARGETS[kind.name].get(figure.field)
            if target is None:
                continue
            found = self._median(kind, figure.field)
            row = [kind.title, figure.title, f"{found:,.{figure.digits}f}"]
            row += [f"{target:,g}", _verdict(figure, found, target)]
            if not figure.depends_on_machine or not self._rounds[BARE]:
                row += ["", ""]
            else:
                floor = self._median(BARE, figure.field) / TARGETS[BARE.name][figure.field]
                row += [f"{target * floor:,.{figure.digits}f}"]
                row += [_verdict(figure, found, target * floor)]
            rows.append(row)
        return rows


def _verdict(figure: Figure, found: float, target: float) -> str:
    share = found / target if figure.is_more_better else target / found
    return "met" if share >= 1 else "80 %" if share >= 0.8 else "not met"


def _titles(figures: Sequence[Figure]) -> list[str]:
    return ["", *(figure.title for figure in figures)]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
