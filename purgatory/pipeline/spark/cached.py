"""DataFrames that are cached while several queries read them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame


class Cached:
    """Caches DataFrames, in memory and then on disk, until the end of a `with`."""

    def __init__(self) -> None:
        """Begin without any."""
        self._frames: list[DataFrame] = []

    def __enter__(self) -> Self:
        """Return the cache."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release all of them."""
        for frame in self._frames:
            frame.unpersist()
        self._frames.clear()

    def add(self, frame: DataFrame) -> DataFrame:
        """Return `frame`, which from now on is computed once, when it is first read."""
        self._frames.append(frame)
        return frame.persist()
