"""Signals through Redis: what a purgatory is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import Future
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, NamedTuple
from zlib import crc32

from purgatory.background import Uncancelled, cancel_until_done
from purgatory.errors import (
    SignalsConflictError,
    SignalsError,
    SignalsNotReadyError,
    SignalsUnavailableError,
)
from purgatory.event_loop.parked_operations import LogListener
from purgatory.group_commit import CLOSE_S, GroupCommit
from purgatory.limits import Limits
from purgatory.outcome import FireResult
from purgatory.redis_server.script import CONNECTION_ERRORS, Client
from purgatory.redis_server.server import RedisServer
from purgatory.signals.log_replica import LogReplica, ShardedSignals
from purgatory.signals.memory import MemorySignals
from purgatory.signals.model import (
    EntryType,
    Idempotency,
    ShardStatistics,
    SharedSignalStatistics,
)
from purgatory.signals.redis.entry_applier import Ended
from purgatory.signals.redis.entry_codec import AppendReply, AppendRequest, short_name
from purgatory.signals.redis.follower import Follower
from purgatory.signals.redis.peers import Peers
from purgatory.signals.redis.records import NameClaims, PendingFireRecords
from purgatory.signals.redis.script_connection import ScriptConnection
from purgatory.signals.redis.shard_log import FireDeadlines, ShardLog, is_heavy, no_reply
from purgatory.timer import Clock
from purgatory.timer.clock import Seconds
from purgatory.trace_context import TracePropagation, current_traceparent

logger = logging.getLogger("purgatory.signals.redis")

MAX_SHARDS: Final = 256
# How long the next batch waits until the last one was applied here, if messages are late.
_APPLIED_S: Final = 0.25

# The result of appending to each log, and for each entry what it ended here.
_Parts = list[tuple[AppendReply, list[Future[Ended]]]]


class _Append(NamedTuple):
    """Entries that are appended to several logs, as `_append_parts` takes them."""

    requests: Sequence[tuple[Follower, AppendRequest]]
    home: int | None
    """The log, which is none of these, that is to know the name."""
    until_s: float


class RedisSignals:
    """Signals of any number of processes, through Redis 6.2 or Valkey.

    Give it to a purgatory: `Purgatory(signals=RedisSignals("redis://..."))`. A fire in one process
    wakes who waits in any other, and a cursor of one is good in all of them.

    `fire` appends to a log in the server, and is acknowledged once it is there. Each process
    follows the log into a copy of its own, which waits and cursors use: a wait costs the server
    nothing. What the server loses (a deleted log, a failover that lost writes) expires the cursors
    of the keys concerned.
    """

    def __init__(
        self,
        url_or_client: str | Client,
        prefix: str = "purgatory",
        *,
        shards: int = 1,
        ack: Literal["memory", "aof"] = "memory",
        timeout: Seconds = 2.0,
    ) -> None:
        """Keep the log under `prefix`; a client that is given is left open.

        The URL of a node of a cluster begins with `redis+cluster://` or `rediss+cluster://`, and
        `redis+sentinel://user:password@host:26379,host:26379/service` asks Sentinels.

        `shards` are logs of their own, in a cluster on several servers; the number must be the same
        in all processes. With `ack="aof"`, a fire is acknowledged once it is on the server's disk
        (WAITAOF: Redis 7.2, Valkey). A round trip that takes longer than `timeout` seconds raises
        SignalsUnavailableError. Raises ValueError for arguments that cannot work.
        """
        if isinstance(shards, bool) or not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards is {shards!r}: give a number from 1 to {MAX_SHARDS}")
        if ack not in ("memory", "aof"):
            raise ValueError(f"ack is {ack!r}: give 'memory' or 'aof'")
        self._server = RedisServer(
            url_or_client,
            "signals",
            prefix,
            timeout,
            fsync='ack="aof"',
            is_fsynced=ack == "aof",
            on_moved=self._drop_connection,
        )
        self._prefix = prefix
        self._shards = shards
        self._timeout = self._server.timeout
        self._timeout_s = self._timeout.seconds
        # For all logs: not in a cluster, which has several servers.
        self._connection: ScriptConnection | None = None
        self._followers: list[Follower] = []
        self._logs: list[ShardLog] = []
        self._claims = NameClaims(self._logs, self._timeout_s)
        self.propagation: TracePropagation | None = None
        """Reads the trace context of fires, and restores it where their entries apply. Set it
        before `begin`."""
        self.peers = Peers(prefix, self._server)
        """Asks the other processes, and answers them."""
        self.pending_fires = PendingFireRecords(f"{{{prefix}:signals:0}}:", self._server)
        """Records of fires whose jobs are not decided, kept beside the log for any process."""
        self._appended = 0
        # Batches over several logs that are under way.
        self._batches = Uncancelled("purgatory-signals-batch")
        # One at a time, as many batches of one client would delay all others.
        self._heavy: GroupCommit[_Append] = GroupCommit(
            self._append_next,
            weigh=lambda _: 1,
            max_weight=1,
            owner_of=lambda append: append.requests[0][1].owner,
        )
        self._last_heavy: list[Future[Ended]] = []
        # The offset after the last one in each log, and when the next one may be sent.
        self._after_heavy: dict[Follower, int] = {}
        self._next_heavy_s = 0.0
        self._deadlines = FireDeadlines(self._timeout)
        self._hurrying: asyncio.TimerHandle | None = None
        self._settled: asyncio.Event | None = None
        self._judging: asyncio.Task[None] | None = None
        self._fault: SignalsNotReadyError | None = None
        # Of each follower, when a loss was logged last.
        self._looks_at_loss: list[int] = []

    def bind(self, clock: Clock, limits: Limits) -> MemorySignals:
        """Return the copy of the log in this process; raise ValueError if it has one already."""
        if self._followers:
            raise ValueError(
                "these RedisSignals belong to another purgatory: make one for each purgatory"
            )
        shards = self._shards
        limits_of_one = replace(
            limits,
            max_signals=limits.max_signals // shards or 1,
            max_signal_bytes=max(limits.max_signal_bytes // shards, limits.max_value_bytes),
        )
        for index in range(shards):
            replica = LogReplica(clock=clock, limits=limits_of_one, index=index, count=shards)
            log = ShardLog(
                f"{{{self._prefix}:signals:{index}}}:",
                self._server,
                self._deadlines,
                shards=shards,
                limits=limits,
            )
            self._logs.append(log)
            self._followers.append(
                Follower(
                    log,
                    replica,
                    shards=shards,
                    has_key=partial(self._is_in, index),
                    on_change=self._note_change,
                    on_lost=self._log_lost,
                )
            )
        replicas = [follower.replica for follower in self._followers]
        return replicas[0] if shards == 1 else ShardedSignals(clock, replicas, self.shard_of)

    def shard_of(self, key: str) -> int:
        """Return the number of the log that has `key`."""
        return crc32(key.encode("utf-8", "surrogatepass")) % self._shards

    def begin(self, listener: LogListener) -> None:
        """Start to follow the logs on the running event loop."""
        self._server.open()
        self._settled = asyncio.Event()
        self._note_change()
        self._fault = None
        self._judging = asyncio.create_task(self._judge(), name="purgatory-signals-settings")
        self._connection = None if self._server.is_cluster else ScriptConnection()
        # Those of an event loop that was not closed in order would never be done, nor run.
        self._deadlines.close()
        self._last_heavy = []
        self._after_heavy, self._next_heavy_s = {}, 0.0
        self._looks_at_loss = [follower.looks for follower in self._followers]
        for follower in self._followers:
            follower.log.connect(self._connection)
            follower.applier.propagation = self.propagation
            follower.start(self._server, listener)
        self.peers.start()

    async def opened(self) -> None:
        """Return once the logs were read, or after the timeout: they are tried again until then.

        Raises SignalsNotReadyError for a server that loses signals, or has others' in this prefix.
        """
        assert self._settled is not None and self._judging is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(self._judging)
                await self._settled.wait()
        except TimeoutError:
            errors = [each.error for each in self._followers if each.error is not None]
            logger.error(
                "signals are not exchanged until %s can be used: %s",
                self._server.address,
                errors[0].detail if errors else "its settings were not read yet",
                extra={"action": "signals-away"},
            )
        for fault in [self._fault, *(follower.error for follower in self._followers)]:
            if isinstance(fault, SignalsNotReadyError):
                raise fault

    def hurry(self) -> None:
        """Leave half a second to round trips under way, as the process ends: the server may hang.

        So long, too, for entries to arrive that callers wait for.
        """
        self._timeout.hurry()
        self._deadlines.hurry()
        self._hurrying = asyncio.get_running_loop().call_later(CLOSE_S, self._give_up)

    def _give_up(self) -> None:
        for follower in self._followers:
            follower.applier.give_up()

    async def close(self) -> None:
        """Stop following, wait for the round trips under way, and release the connections."""
        judging, self._judging = self._judging, None
        await cancel_until_done(judging)
        if self._hurrying is not None:
            self._hurrying.cancel()
        await self.peers.stop()
        await self._heavy.join()
        await self._batches.join()
        await self._claims.drain()
        await self.pending_fires.drain()
        for follower in self._followers:
            await follower.log.drain()
            await follower.stop()
        self._deadlines.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        await self._server.close()

    @property
    def missing(self) -> list[str]:
        """What is missing until signals are exchanged, a sentence each."""
        errors = [self._fault, *(follower.error for follower in self._followers)]
        # For /readyz, which anyone may ask. The log has the reasons.
        texts = [f"signals: {error.summary}" for error in errors if error is not None]
        texts += [f"signals: {each.refusal}" for each in self._followers if each.refusal]
        return list(dict.fromkeys(texts))

    def require_loaded(self) -> None:
        """Raise SignalsUnavailableError until each log was read once."""
        for follower in self._followers:
            if not follower.replica.is_loaded:
                reason = "" if follower.error is None else f" ({follower.error.detail})"
                raise SignalsUnavailableError(
                    f"the signals were not read from Redis yet{reason}: try again later"
                )

    async def append(
        self,
        items: Sequence[tuple[EntryType, str, bytes]],
        *,
        unless_after: int | None = None,
        idempotency: Idempotency | None = None,
        owner: str | None = None,
    ) -> list[FireResult] | bytes:
        """Append entries of (type, key, value as JSON), all or none, and wait until they are here.

        Entries of several logs are appended to all of them, whether or not the caller is cancelled.

        Raises SignalsUnavailableError: then it may or may not be done. Owners share the log
        fairly: see `MemorySignals`.

        Raises SignalsConflictError if the first key has an entry after the position `unless_after`,
        or if the name of `idempotency` was another request's. A repeat with that name appends
        nothing: the result is the response of the first request, or what that has appended if
        `remember` has stored none.

        All or none in one log. Several logs, which may be on several servers, are appended to one
        after another: if that fails in between, a repeat with the same `idempotency` appends what
        is left.

        Each name of a request has a home, which is one of the logs: that knows it, too, so that
        requests with other keys in other logs are refused.
        """
        self.require_loaded()
        until_s = asyncio.get_running_loop().time() + self._timeout_s
        if owner is not None:
            owner = short_name(owner)
        traceparent = current_traceparent(self.propagation)
        home = None if idempotency is None else self._home_of(idempotency)
        by_shard: defaultdict[int, list[int]] = defaultdict(list)
        if home is not None and any(self.shard_of(key) == home for _, key, _ in items):
            # First: it refuses what is another request's before the others are appended to.
            by_shard[home], home = [], None
        if self._shards == 1:
            by_shard[0] = list(range(len(items)))
        else:
            for index, (_, key, _) in enumerate(items):
                by_shard[self.shard_of(key)].append(index)
        requests: list[tuple[Follower, AppendRequest]] = []
        for shard, indexes in by_shard.items():
            follower = self._followers[shard]
            after = None if unless_after is None else follower.replica.offset_of(unless_after)
            own = [items[index] for index in indexes]
            requests.append((follower, AppendRequest(own, after, idempotency, owner, traceparent)))
        results: list[FireResult | None] = [None] * len(items)
        append = _Append(requests, home, until_s)
        if is_heavy([request for _, request in requests]):
            # It takes the server long: in turns with what others append that does.
            turn: Future[_Parts] = self._heavy.submit(append)
            appended = await self._deadlines.wait(turn)
        else:
            appended = await self._append_parts(append)
        for (reply, ends), indexes in zip(appended, by_shard.values(), strict=False):
            if reply.response is not None:
                return reply.response
            done = await self._appended_of(reply, ends, until_s)
            for index, result in zip(indexes, done, strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    def _home_of(self, idempotency: Idempotency) -> int | None:
        """Return the number of the log that knows the name, whatever log has the keys.

        None if the log of the keys is enough.
        """
        if self._shards == 1 or idempotency.is_of_one_key:
            return None
        return self.shard_of(idempotency.hash)

    async def _append_next(self, appends: Sequence[_Append]) -> list[_Parts]:
        # Only once the last ones were applied here: entries are applied in order, and all others
        # would wait for these.
        if self._last_heavy:
            await asyncio.wait(self._last_heavy, timeout=_APPLIED_S)
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._next_heavy_s - clock())
        (append,) = appends
        begun_s = clock()
        appended = await self._append_parts(append)
        self._last_heavy = [ends[-1] for _, ends in appended if ends]
        # As long as it took, if others append, too: half of the server is left to them.
        is_shared = False
        for (follower, _), (reply, _) in zip(append.requests, appended, strict=False):
            if reply.is_repeat:
                continue
            is_shared |= reply.before != self._after_heavy.get(follower, reply.before)
            self._after_heavy[follower] = reply.before + len(reply.seqs)
        if is_shared:
            self._next_heavy_s = clock() + min(clock() - begun_s, _APPLIED_S)
        return [appended]

    async def _append_parts(self, append: _Append) -> _Parts:
        """Append to each log, one after another; stop at what was done before."""
        if len(append.requests) == 1 and append.home is None:
            return [await self._append_to(*append.requests[0])]
        # A task of its own: a server may run the first step of its caller outside any. `close`
        # waits for it as well.
        return await self._batches.run(self._append_in_turn(append))

    async def _append_to(
        self, follower: Follower, request: AppendRequest
    ) -> tuple[AppendReply, list[Future[Ended]]]:
        """Append to one log, and apply the entries."""
        follower.applier.begin_append()
        try:
            reply = await follower.log.append(request)
            return reply, follower.applier.apply_own(reply.epoch, request.entries(reply))
        finally:
            follower.applier.end_append()

    async def _append_in_turn(self, append: _Append) -> _Parts:
        """Claim the name in its home, and append to one log after another."""
        requests, home, until_s = append
        appended: _Parts = []
        claim = None
        try:
            async with asyncio.timeout_at(until_s):
                idempotency = requests[0][1].idempotency
                if home is not None and idempotency is not None:
                    shards = [self.shard_of(request.items[0][1]) for _, request in requests]
                    claim = await self._claims.claim(home, idempotency, shards)
                for follower, request in requests:
                    appended.append(await self._append_to(follower, request))
                    if appended[-1][0].response is not None:
                        break
        except TimeoutError as exc:
            raise no_reply(exc, self._timeout_s) from exc
        except SignalsConflictError:
            # Nothing was appended: the name can be used for another request. Not so after an error:
            # the client repeats commands by itself, and one without a reply may have been done.
            if claim is not None and not appended:
                with contextlib.suppress(SignalsError, TimeoutError):
                    async with asyncio.timeout_at(until_s):
                        await self._claims.release(claim)
            raise
        return appended

    async def remember(
        self, idempotency: Idempotency, keys: Sequence[str], response: bytes
    ) -> None:
        """Store the response of a request for its repeats, in the logs of its keys."""
        for shard in dict.fromkeys(map(self.shard_of, keys)):
            await self._followers[shard].log.remember(idempotency, response)

    async def catch_up(self, keys: Sequence[str], positions: Sequence[int]) -> None:
        """Return once the copy here has reached `positions`; raise SignalsUnavailableError."""
        for key, position in zip(keys, positions, strict=True):
            follower = self._followers[self.shard_of(key)]
            if not follower.replica.has_applied(position):
                offset = follower.replica.offset_of(position)
                if not await follower.applier.reach(offset, self._timeout.left_s):
                    raise SignalsUnavailableError(
                        f"the cursor of key {key!r} is ahead of the signals that have arrived in "
                        f"this process within {self._timeout_s:g} s: try again",
                        is_behind=True,
                    )

    async def read_to_end(self, keys: Sequence[str]) -> None:
        """Return once all that was in the logs of `keys` at the call is here.

        Raises SignalsUnavailableError.
        """
        self.require_loaded()
        shards = {self.shard_of(key) for key in keys}
        await asyncio.gather(*(self._followers[shard].read_to_end() for shard in shards))

    async def refresh(self) -> None:
        """Read the logs soon, as a cursor is not known here; several callers share that."""
        await asyncio.wait([follower.refresh() for follower in self._followers])

    def statistics(self) -> SharedSignalStatistics:
        """Return counts of this process."""
        followers = self._followers
        return SharedSignalStatistics(
            appended=self._appended,
            applied=sum(follower.applier.applied for follower in followers),
            lag=sum(follower.lag for follower in followers),
            gaps=sum(follower.gaps for follower in followers),
            reconnects=sum(follower.reconnects for follower in followers),
            shards=tuple(
                ShardStatistics(each.applier.applied, each.lag, each.gaps, each.reconnects)
                for each in followers
            ),
        )

    async def _appended_of(
        self, reply: AppendReply, futures: list[Future[Ended]], until_s: float
    ) -> list[FireResult]:
        self._appended += len(futures)
        # In order: the others are done before the last one.
        if futures and not futures[-1].done():
            left_s = until_s - asyncio.get_running_loop().time()
            await asyncio.wait(futures[-1:], timeout=max(0.0, left_s))
        # What does not arrive in time is in the log: this process will apply it, however late. And
        # the first request of a repeat was interrupted before it had a response.
        ended = [future.result() if future.done() else 0 for future in futures]
        ended = ended or [0] * len(reply.seqs)
        completed = [each if isinstance(each, int) else await each for each in ended]
        return [
            FireResult(f"{reply.epoch}-{reply.before + number}", seq, count)
            for number, (seq, count) in enumerate(zip(reply.seqs, completed, strict=True), start=1)
        ]

    def _is_in(self, shard: int, key: str) -> bool:
        return self.shard_of(key) == shard

    def _note_change(self) -> None:
        if self._settled is None:
            return
        # What a user has to repair is logged at once.
        is_refused = any(isinstance(each.error, SignalsNotReadyError) for each in self._followers)
        if is_refused or all(each.replica.is_loaded for each in self._followers):
            self._settled.set()

    def _log_lost(self, error: SignalsError) -> None:
        # One failover takes all logs away, the last one after others are back: it is said once.
        looks = [follower.looks for follower in self._followers]
        if all(now > then for now, then in zip(looks, self._looks_at_loss, strict=True)):
            self._looks_at_loss = looks
            logger.error(
                "signals of other processes do not arrive until Redis is back: %s",
                error,
                extra={"action": "signals-away"},
            )

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    async def _judge(self) -> None:
        """Check the settings of the server once, as soon as it responds."""
        while True:
            try:
                settings = await self._server.settings([log.tag for log in self._logs])
            except CONNECTION_ERRORS:
                await asyncio.sleep(self._timeout_s)
                continue
            break
        for warning in settings.warnings:
            logger.warning("signals: %s", warning, extra={"action": "signals-settings"})
        if settings.faults:
            self._fault = SignalsNotReadyError(". ".join(settings.faults))
            logger.error("signals: %s", self._fault.detail, extra={"action": "signals-settings"})
