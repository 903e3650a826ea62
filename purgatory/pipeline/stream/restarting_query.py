"""A streaming query that starts again if Spark's Python worker was too slow to start."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.pipeline.errors import PipelineError
from purgatory.pipeline.spark.error_message import python_cause
from purgatory.retry_policy import RetryPolicy

MAX_STARTS = 10
"""A slow start is repeated up to nine times."""

# Spark waits ten seconds for a new Python process, which no setting changes: on a busy machine that
# is too short. Nothing of the batch was done yet.
_TOO_SLOW = "Python worker failed to connect back"
_RETRY_POLICY = RetryPolicy(first_ms=1_000, max_ms=30_000)


class RestartingQuery:
    """A StreamingQuery that continues from its checkpoint, up to nine times, if Python was slow.

    Spark gives a new Python process ten seconds to connect.
    """

    def __init__(
        self, start: Callable[[], StreamingQuery], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Start a query with `start`, which is called again for each restart."""
        self._start = start
        self._sleep = sleep
        self._starts = 0
        self._query = self._started()

    @property
    def name(self) -> str:
        """The name of the query."""
        return self._query.name or ""

    @property
    def isActive(self) -> bool:  # noqa: N802 # as of a StreamingQuery
        """Whether it runs; restarts a query that has failed since Python was slow."""
        if self._query.isActive:
            return True
        if not self._may_restart(self._query.exception()):
            return False
        self._query = self._started()
        return True

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 # as above
        """The progress of the last batches, oldest first."""
        return self._query.recentProgress

    def exception(self) -> Exception | None:
        """Return the error that ended the query; None without one."""
        return self._query.exception()

    def check(self) -> None:
        """Raise PipelineError, with the cause, if the query has failed; call it after its end."""
        try:
            self._query.awaitTermination()
        except StreamingQueryException as error:
            raise PipelineError(f"{self.name} stopped: {_cause(str(error))}") from error

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    def _started(self) -> StreamingQuery:
        # Spark Connect starts the Python process of foreachBatch within `start`.
        while True:
            self._starts += 1
            try:
                return self._start()
            except PySparkException as error:
                if not self._may_restart(error):
                    raise

    def _may_restart(self, error: Exception | None) -> bool:
        if self._starts >= MAX_STARTS or _TOO_SLOW not in str(error):
            return False
        # The process that was too slow still runs: a new one at once would be slower.
        self._sleep(_RETRY_POLICY.delay_s(self._starts))
        return True


def _cause(text: str) -> str:
    """Return the error of a Python worker, else the first line of Spark's message."""
    return python_cause(text) or text.strip().splitlines()[0].strip()
