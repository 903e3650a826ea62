"""What Spark's JVM kept, collected and spilled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


class SparkMemory:
    """Asks the JVM of a local session, since it was started."""

    def __init__(self, spark: SparkSession) -> None:
        """Take the JVM behind `spark`."""
        # Any: py4j's objects have the methods of the Java objects behind them.
        jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._context: Any = spark.sparkContext._jsc.sc()
        self._double: Any = jvm.double
        self._management: Any = jvm.java.lang.management.ManagementFactory

    def old_bytes(self) -> int:
        """Return the most that the old generation held, garbage that was not yet collected too."""
        pools = self._management.getMemoryPoolMXBeans()
        return sum(int(pool.getPeakUsage().getUsed()) for pool in pools if "Old" in pool.getName())

    def collecting_s(self) -> float:
        """Return the seconds, by the clock, in which garbage was collected."""
        collectors = self._management.getGarbageCollectorMXBeans()
        return sum(int(collector.getCollectionTime()) for collector in collectors) / 1000

    def spilled_bytes(self) -> int:
        """Return what did not fit into memory, as it was written to disk."""
        return sum(int(stage.diskBytesSpilled()) for stage in self._stages())

    def _stages(self) -> Iterator[Any]:
        no_quantiles = self._gateway.new_array(self._double, 0)
        stages = self._context.statusStore().stageList(None, False, False, no_quantiles, None)
        return (stages.apply(index) for index in range(stages.size()))
