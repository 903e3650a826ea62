"""The files of rollups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purgatory.pipeline.rollups.node_files import NodeFiles
from purgatory.pipeline.rollups.rollup_manifest import (
    ALL,
    RollupManifest,
    hour_path,
    node_path,
    prefix_path,
)


@dataclass(frozen=True, slots=True)
class Rollups:
    """The rollups of a table of outcomes."""

    files: NodeFiles
    manifest: RollupManifest

    def of_hours(self) -> list[str]:
        """Return the files of all hours."""
        hours = sorted(self.manifest.hours.items())
        return self.files.fetch(hour_path(hour.run, name) for name, hour in hours)

    def of_days(self, node: str) -> list[str]:
        """Return the files of a node of all days."""
        return self.files.fetch(
            node_path(run, f"days/{node}", day) for day, run in sorted(self.manifest.days.items())
        )

    def of_months(self, node: str) -> list[str]:
        """Return the files of a node of all months."""
        return self.files.fetch(_months_of(self.manifest.months, node))

    def of_all(self) -> list[str]:
        """Return the files whose rows are the parts of all months: few, however many months."""
        months = self.manifest.months
        prefix = self.manifest.prefix_of(ALL, months)
        if prefix is None:
            return self.of_months("parts")
        rest = {month: run for month, run in months.items() if month not in prefix.members}
        return self.files.fetch([prefix_path(prefix.run, ALL), *_months_of(rest, "parts")])


def _months_of(months: Mapping[str, str], node: str) -> list[str]:
    return [node_path(run, f"months/{node}", month) for month, run in sorted(months.items())]
