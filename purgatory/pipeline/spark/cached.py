"""What is made once and read several times."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame


class Cached:
    """Keeps DataFrames, in memory and beyond that on disk, until the end of a `with`."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._frames: list[DataFrame] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of all of them."""
        for frame in self._frames:
            frame.unpersist()
        self._frames.clear()

    def add(self, frame: DataFrame) -> DataFrame:
        """Return `frame`, which is computed when it is first asked for, and then no more."""
        self._frames.append(frame)
        return frame.persist()
