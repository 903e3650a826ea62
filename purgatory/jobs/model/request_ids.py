"""The ids of a job whose request has a name, so that repeats are detected."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

HOUR_MS: Final = 3_600_000
# A repeat is known for so many hours at least.
HOURS: Final = 24


def request_ids(request: str, wall_ms: int) -> list[str]:
    """Return every id that the job of `request` may have, the one to add it under first.

    32 hexadecimal digits each, as ids are: the hour that the request came in, so that jobs still
    sort by time, and 80 bits of a hash. What follows are the hour to come, as other processes may
    be ahead, and the hours before.
    """
    hour = wall_ms // HOUR_MS
    digits = sha256(request.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    hours = (hour, hour + 1, *range(hour - 1, hour - HOURS - 1, -1))
    return [f"{max(0, each) * HOUR_MS & 0xFFFF_FFFF_FFFF:012x}{digits}" for each in hours]


def common_part(job_id: str) -> str:
    """Return what the ids of one request have in common; of other ids, a part that is random."""
    return job_id[12:]
