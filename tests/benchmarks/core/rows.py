"""The rows of the table, in its order."""

from __future__ import annotations

from tests.benchmarks.comparison.row import Row, Target


def _throughput(title: str, stage: str, measure: str, **targets: Target) -> tuple[Row, ...]:
    """Return a row for each baseline, in ns each."""
    return tuple(
        Row(title=title, stage=stage, measure=measure, unit="ns", baseline=name, target=target)
        for name, target in targets.items()
    )


ROWS: tuple[Row, ...] = (
    *_throughput(
        "add + cancel, {outstanding} outstanding",
        "outstanding",
        "add + cancel",
        asyncio=Target(19, 4),
        uvloop=Target(6.5, 1.4),
        heapq=Target(5.5, 1.2),
    ),
    *_throughput(
        "cancel the oldest + add, {outstanding} outstanding",
        "outstanding",
        "turnover",
        asyncio=Target(19, 7),
        uvloop=Target(7, 2.7),
        heapq=Target(8.5, 3.2),
    ),
    *_throughput(
        "expire, {expiring} outstanding",
        "expiry",
        "expire",
        asyncio=Target(37, 12),
        heapq=Target(28, 9),
    ),
    Row(
        title="the same, through the event loop",
        stage="expiry",
        measure="expire",
        unit="ns",
        ours="purgatory, reaper",
        baseline="asyncio",
    ),
    *(
        Row(
            title="memory per outstanding timer, {timers} of them",
            stage="weight",
            measure="bytes",
            unit="B",
            baseline=name,
            target=Target(56, 100, is_limit=True) if name == "asyncio" else None,
        )
        for name in ("asyncio", "uvloop")
    ),
    Row(
        title="the same with callback and arguments",
        stage="weight",
        measure="bytes",
        unit="B",
        ours="purgatory, call_later",
        baseline="asyncio",
    ),
    *(
        Row(
            title="still held per timer after {timers} were cancelled",
            stage="weight",
            measure="bytes held",
            unit="B",
            baseline=name,
            target=Target(3, 6, is_limit=True) if name == "asyncio" else None,
        )
        for name in ("asyncio", "uvloop")
    ),
    Row(
        title="longest turn, {timers} at one deadline, collector aside",
        stage="stall",
        measure="longest turn",
        unit="ms",
        baseline="asyncio",
        target=Target(2, 5, is_limit=True),
    ),
    Row(
        title="the same with the collector",
        stage="stall",
        measure="longest turn with the collector",
        unit="ms",
        baseline="asyncio",
    ),
    *(
        Row(
            title=title if ours == "purgatory" else "the same on uvloop",
            stage="lateness",
            measure=measure,
            unit=unit,
            ours=ours,
            baseline=baseline,
            target=target,
        )
        for title, measure, unit, target in (
            ("early fires of {lateness} timers", "early", "", Target(0, 0, is_limit=True)),
            ("lateness, p99", "lateness p99", "ms", Target(2.5, 5, is_limit=True)),
        )
        for ours, baseline in (("purgatory", None), ("purgatory, uvloop", "uvloop"))
    ),
    *_throughput(
        "watch on 1 key + complete, callbacks included",
        "watching",
        "1 key",
        **{"by hand": Target(5.2, 2.7)},
    ),
    *_throughput(
        "watch on 3 keys + complete, callbacks included",
        "watching",
        "3 keys",
        **{"by hand": Target(4.3, 2.5)},
    ),
    *(
        Row(
            title=f"{title}: cost over a bare await",
            stage="parking",
            measure="a cycle",
            unit="ns",
            ours=ours,
            baseline=name,
            floor="bare await",
            target=Target(12, 6) if name == "wait_for" else None,
        )
        for ours, title in (
            ("purgatory", "park + fire"),
            ("call_later", "await, call_later + cancel"),
        )
        for name in ("wait_for", "asyncio.timeout")
    ),
    *(
        Row(
            title=title,
            stage="journal",
            measure=measure,
            unit="ns",
            ours="journal",
            floor="no journal",
            target=target,
        )
        for title, measure, target in (
            (
                "journal: what an operation costs the event loop",
                "on the loop",
                Target(500, 1_000, is_limit=True),
            ),
            ("the same, the threads that write included", "in all", None),
        )
    ),
    *(
        Row(
            title=f"Kafka's load, {expired} expire: CPU a request, {time}",
            stage="kafka",
            measure=measure,
            unit="ns",
            ours=ours,
            baseline=baseline,
            target=Target(2_500, 5_000, is_limit=True),
        )
        for measure, expired in (("low", "8 %"), ("high", "50 %"))
        for ours, time, baseline in (
            ("purgatory, simulated", "simulated time", None),
            ("purgatory", "real time", "by hand"),
        )
    ),
    Row(
        title="of that in real time, the driver of the load alone",
        stage="kafka",
        measure="low",
        unit="ns",
        ours="driver alone",
    ),
    Row(
        title="wake-ups in {idle_ms} ms, {timers} timers an hour out",
        stage="idle",
        measure="wake-ups",
        unit="",
        floor="loop alone",
        target=Target(0, 0, is_limit=True),
    ),
)
