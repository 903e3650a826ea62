"""The six clients as processes, and which of them are here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.event_source.node import NODE, NODE_MODULES
from tests.kafka_clients.client import TOPIC, Options
from tests.patience import PATIENCE_S

_HERE = Path(__file__).parent
_IS_CI = "CI" in os.environ

HAS_NPM = (NODE_MODULES / "kafkajs").exists() or _IS_CI
HAS_KCAT = shutil.which("kcat") is not None or _IS_CI

needs_npm = pytest.mark.skipif(
    not HAS_NPM,
    reason="needs kafkajs and @platformatic/kafka, which `make test` installs where npm is",
)
needs_kcat = pytest.mark.skipif(
    not HAS_KCAT, reason="needs kcat; .ci/run installs it, and CI fails without it"
)

KCAT = "kcat" if HAS_KCAT else "confluent"
KAFKAJS = "kafkajs" if HAS_NPM else "confluent"
PLATFORMATIC = "platformatic" if HAS_NPM else "confluent"

CLIENTS = [
    "confluent",
    "kafka-python",
    "aiokafka",
    pytest.param("kcat", marks=needs_kcat),
    pytest.param("kafkajs", marks=needs_npm),
    pytest.param("platformatic", marks=needs_npm),
]

# kcat does either: one after the other, in one process.
_KCAT = """
count=$1 address=$2 topic=$3; shift 3
[ "$count" = 0 ] || seq 0 $((count - 1)) | kcat -P -b "$address" -t "$topic" -X acks=all || exit 1
set -- -X auto.offset.reset=earliest -X auto.commit.interval.ms=100 "$@" "$topic"
exec kcat -q -u -b "$address" "$@"
"""


class Client:
    """A process that produces and consumes, and the values that it has printed."""

    def __init__(self, client: str, address: str, name: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            _command(client, address, name, Options(**options)),
            env={**os.environ, "NODE_MODULES": str(NODE_MODULES)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.values: list[int] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.values.extend(map(int, lines))

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process by a signal, and wait for all that it has printed."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._thread.join()


def _command(client: str, address: str, name: str, options: Options) -> list[str]:
    text = json.dumps(asdict(options))
    if client == "kcat":
        settings = {
            "client.id": name,
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": options.max_wait_ms,
            "fetch.min.bytes": options.min_bytes,
            "partition.assignment.strategy": options.strategy,
        }
        if options.instance is not None:
            settings["group.instance.id"] = options.instance
        pairs = [each for item in settings.items() for each in ("-X", "{}={}".format(*item))]
        group = ["-G", options.group]
        return ["sh", "-c", _KCAT, "kcat", str(options.produce), address, TOPIC, *pairs, *group]
    if client in ("kafkajs", "platformatic"):
        return [str(NODE), str(_HERE / "client.mjs"), client, address, name, TOPIC, text]
    return [sys.executable, "-m", "tests.kafka_clients.client", client, address, name, text]


def until(condition: Callable[[], object], *running: Client) -> None:
    """Return once `condition()` holds; fail if a client that is to run has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert all(each.process.poll() is None for each in running), "a client has ended"
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
