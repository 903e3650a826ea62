"""What is imported without its extra."""

import subprocess
import sys

from tests.cases import cases

_WITHOUT = """
import sys
sys.modules[{missing!r}] = None
try:
    import {module}
except ImportError as exc:
    print(exc)
"""


@cases(
    "missing, module, extra",
    [
        ("httptools", "purgatory.uvicorn", "fastapi"),
        ("httpx", "purgatory.client", "client"),
        ("opentelemetry", "purgatory.tracing", "tracing"),
        ("prometheus_client", "purgatory.metrics", "metrics"),
        ("pyarrow", "purgatory.journal", "journal"),
        ("redis", "purgatory.journal.redis_stream", "redis"),
        ("redis", "purgatory.ownership.redis", "redis"),
        ("redis", "purgatory.signals.redis", "redis"),
        ("uvicorn", "purgatory.uvicorn", "fastapi"),
    ],
)
def test_without_its_vendor_it_names_the_extra(missing: str, module: str, extra: str) -> None:
    """And how to install that."""
    script = _WITHOUT.format(missing=missing, module=module)
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"pip install 'fastapi-purgatory[{extra}]'" in printed
