"""All stages, in the order in which they run."""

from __future__ import annotations

from tests.benchmarks.core.contenders.expiry import EXPIRY
from tests.benchmarks.core.contenders.idle import IDLE
from tests.benchmarks.core.contenders.journaling import IS_PYARROW_INSTALLED, JOURNALING
from tests.benchmarks.core.contenders.kafka import KAFKA
from tests.benchmarks.core.contenders.lateness import LATENESS
from tests.benchmarks.core.contenders.parking import PARKING
from tests.benchmarks.core.contenders.stall import STALL
from tests.benchmarks.core.contenders.timers import OUTSTANDING, WEIGHT
from tests.benchmarks.core.contenders.watching import WATCHING
from tests.benchmarks.core.stage import IS_UVLOOP_INSTALLED, Contender, Stage

STAGES: dict[str, Stage] = {
    "idle": IDLE,
    "weight": WEIGHT,
    "outstanding": OUTSTANDING,
    "expiry": EXPIRY,
    "stall": STALL,
    "lateness": LATENESS,
    "watching": WATCHING,
    "parking": PARKING,
    "journal": JOURNALING,
    "kafka": KAFKA,
}


def contenders(stage: Stage) -> dict[str, Contender]:
    """Return the contenders of `stage` that can run here: some need uvloop, or pyarrow."""
    return {
        name: contender
        for name, contender in stage.contenders.items()
        if (IS_UVLOOP_INSTALLED or not contender.needs_uvloop)
        and (IS_PYARROW_INSTALLED or not contender.needs_pyarrow)
    }
