"""Reports of lost entries: errors in the log of this process, entries for the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from purgatory.signals.log_replica import LogReplica, Loss
from purgatory.signals.model import EntryType
from purgatory.signals.redis.shard_log import AppendRequest, ShardLog

logger = logging.getLogger("purgatory.signals.redis")

# Keys of one report.
CHUNK: Final = 200


class _Report(NamedTuple):
    """Losses that were reported in the log, which may lose the report, too."""

    epoch: str
    offset: int
    """The offset of the last entry that reports them."""
    lost: dict[tuple[str, str], int] | None
    """As `LossReports` has it; None for all keys."""


class LossReports:
    """Reports to other processes which keys have lost entries that this one alone may have seen.

    A report is an entry of the log, and made again if the log loses it before it was read here.
    """

    def __init__(self, log: ShardLog, replica: LogReplica) -> None:
        self._log = log
        self._replica = replica
        # {(key, epoch): offset of the last lost entry}, not reported to the log yet.
        self._unreported: dict[tuple[str, str], int] = {}
        # Nobody may know which keys have lost entries: the cursors of all have to expire.
        self._is_all_unreported = False
        # What was reported, and not read here yet: then each process that reads it knows.
        self._reports: list[_Report] = []

    def add(self, lost: Mapping[str, str]) -> None:
        """Report {key: cursor of its last lost entry} with the next `send`."""
        for key, cursor in lost.items():
            epoch, _, offset = cursor.partition("-")
            last = self._unreported.get((key, epoch), 0)
            self._unreported[key, epoch] = max(last, int(offset))

    def add_loss(self, loss: Loss, *, entries: int) -> None:
        """Log that the server has lost `entries`, and report their keys with the next `send`."""
        logger.error(
            "the server has lost %d entries of the log of signals: cursors of %s keys are expired",
            entries,
            "all" if loss.has_unknown_keys else len(loss.keys),
            extra={"action": "signals-lost"},
        )
        self.add(loss.keys)
        if loss.has_unknown_keys:
            self._is_all_unreported = True

    def begin(self, *, is_all: bool) -> None:
        """Log that the log was replaced, and forget its losses; report all keys if `is_all`."""
        logger.error(
            "the log of signals was emptied or replaced: every cursor of it is expired",
            extra={"action": "signals-lost"},
        )
        self._is_all_unreported = is_all
        self._unreported.clear()
        self._reports.clear()

    async def send(self) -> bool:
        """Write what is not reported yet to the log; return True iff there was any.

        Raises SignalsError.
        """
        is_any = self._is_all_unreported or bool(self._unreported)
        if self._is_all_unreported:
            started = await self._log.expire_all(self._replica.epochs[0].name)
            self._reports.append(_Report(started.name, started.start, None))
            self._is_all_unreported = False
            self._unreported.clear()
        while self._unreported:
            reported = dict(islice(self._unreported.items(), CHUNK))
            # Another process may have reported the same, or more: the log appends what is new.
            items = [
                (EntryType.LOST, key, f"{epoch}-{offset}".encode())
                for (key, epoch), offset in reported.items()
            ]
            reply = await self._log.append(AppendRequest(items))
            self._reports.append(_Report(reply.epoch, reply.before + len(reply.seqs), reported))
            for each, offset in reported.items():
                # Unless a later one was lost meanwhile.
                if self._unreported[each] == offset:
                    del self._unreported[each]
        return is_any

    def confirm(self) -> None:
        """Forget reports that were read here: if they are lost, the key is among what is lost."""
        names = {epoch.name for epoch in self._replica.epochs}
        applied = self._replica.applied
        self._reports = [
            report
            for report in self._reports
            if report.epoch not in names or report.offset > applied
        ]

    def repeat_lost(self) -> None:
        """Report again what was in reports that the log has lost."""
        names = {epoch.name for epoch in self._replica.epochs}
        reports, self._reports = self._reports, []
        for report in reports:
            is_kept = self._replica.kept_before(report.epoch, report.offset) is None
            if report.epoch in names and is_kept:
                self._reports.append(report)
            elif report.lost is None:
                self._is_all_unreported = True
            else:
                for each, offset in report.lost.items():
                    self._unreported[each] = max(self._unreported.get(each, 0), offset)


def log_returned_entries() -> None:
    """Log that entries are in the log again that were missing when it was read."""
    logger.error(
        "entries of the log of signals have returned that were removed when this process read it: "
        "every cursor is expired here",
        extra={"action": "signals-lost"},
    )
