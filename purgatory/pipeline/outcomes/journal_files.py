"""Checks of the journal's files before they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.schema import SCHEMA_VERSION
from purgatory.pipeline.outcomes.manifest import FileContent, fingerprint
from purgatory.pipeline.schemas import EVENT_SCHEMA, SAMPLE_KEY, VERSION_KEY
from purgatory.pipeline.spark.folder import File, Folder

_HOUR_US = 3_600_000_000
# Of the year 9998.
_LAST_HOUR = 70_000_000


@dataclass(frozen=True, slots=True)
class Footer:
    """The part of a file's footer that a run uses."""

    content: FileContent
    sampling: dict[str, float]
    """The share of the operations that was recorded, of each sampled kind."""


def sampling_of(text: str | None) -> dict[str, float]:
    """Return the shares in a file's metadata. Raises ValueError for others than the journal's."""
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(share, int | float) and 0 <= share <= 1 for share in found.values()
    ):
        raise ValueError(f"{SAMPLE_KEY} in its metadata is {text[:80]!r}, not shares of kinds")
    # Of a kind that is left out there is nothing to scale.
    return {kind: float(share) for kind, share in found.items() if 0 < share < 1}


class OnBadFile(StrEnum):
    """Whether a bad file is skipped or fails the job."""

    SKIP = "skip"
    """Skip, name and count it; the next run tries it again."""
    REFUSE = "refuse"
    """Raise BadFileError; nothing is written."""


def checked_footer(folder: Folder, file: File) -> Footer | str:
    """Return the footer of a file of the journal, or why the file is bad."""
    if file.fault:
        return file.fault
    try:
        with folder.open(file.path) as content:
            return _footer_of(content, file.path.rpartition("/")[2])
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def damage(folder: Folder, path: str) -> str:
    """Return why the rows of a file cannot be read; "" if they can.

    Not by the engine: both find the same files, and say the same of them.
    """
    try:
        with folder.open(path) as content:
            for batch in pq.ParquetFile(content).iter_batches():
                # That texts are valid, too.
                batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        return f"damaged: {str(error).splitlines()[0]}"
    return ""


def _footer_of(file: BinaryIO, name: str) -> Footer:
    """Return the footer of a file of the journal. Raises ValueError if it is bad.

    The footer shows whether a file is complete and of our schema. The rows themselves are not read:
    damage in the middle of the file is found later. Spark would fail the whole job.
    """
    if not (size := file.seek(0, 2)):
        raise ValueError("empty")
    try:
        found = pq.read_metadata(file)
        schema = found.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"not a Parquet file, or cut off: {reason}") from error
    metadata = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in (found.metadata or {}).items()
    }
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise ValueError(f"no {VERSION_KEY} in its metadata: not written by the journal")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"schema version {version!r}, and this release reads {SCHEMA_VERSION!r}: use the "
            "release that wrote it"
        )
    if wrong := _wrong_columns(schema.remove_metadata()):
        raise ValueError(f"missing or of another type: {', '.join(wrong)}")
    # Before its own length of four bytes and the mark of four more.
    file.seek(size - 8 - found.serialized_size)
    content = fingerprint(file.read(found.serialized_size))
    known = FileContent(fingerprint(name.encode()), content, found.num_rows, *_hours(found))
    return Footer(known, sampling_of(metadata.get(SAMPLE_KEY)))


def _hours(found: pq.FileMetaData) -> tuple[int, int]:
    """Return the first and the last hour in which operations began, numbered since 1970."""
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    names = [found.schema.column(number).path for number in range(found.num_columns)]
    place = names.index("watched_at")
    statistics = [group.column(place).statistics for group in groups]
    if not all(of_group is not None and of_group.has_min_max for of_group in statistics):
        return 0, _LAST_HOUR
    first = min((of_group.min_raw for of_group in statistics), default=0)
    last = max((of_group.max_raw for of_group in statistics), default=0)
    return max(0, first // _HOUR_US), min(_LAST_HOUR, last // _HOUR_US)


# Most files have the same one, and to compare it takes as long as to read a footer.
@lru_cache(64)
def _wrong_columns(schema: pa.Schema) -> list[str]:
    return [field.name for field in EVENT_SCHEMA if not _is_in(schema, field)]


def _is_in(schema: pa.Schema, field: pa.Field) -> bool:
    """Return whether a file has a column as it is stored for `field`, once."""
    # Engines that ignore case could read another one.
    if [name.lower() for name in schema.names].count(field.name) != 1:
        return False
    if field.name not in schema.names:
        return False
    return bool(_stored(schema.field(field.name).type) == _stored(field.type))


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return what Parquet makes of a type: times in UTC, and one type of texts and of lists."""
    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    return kind
