"""All stages, in the order in which they run."""

from __future__ import annotations

from purgatory.bench.expiry import EXPIRY
from purgatory.bench.idle import IDLE
from purgatory.bench.journaling import IS_PYARROW_INSTALLED, JOURNALING
from purgatory.bench.kafka_requests import KAFKA
from purgatory.bench.lateness import LATENESS
from purgatory.bench.loops import IS_UVLOOP_INSTALLED
from purgatory.bench.outstanding import OUTSTANDING
from purgatory.bench.parking import PARKING
from purgatory.bench.stage import Contender, Stage
from purgatory.bench.stall import STALL
from purgatory.bench.watching import WATCHING
from purgatory.bench.weight import WEIGHT

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
