"""A server of S3, from PyPI, with a bucket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from pyarrow import fs

from tests.free_port import free_port
from tests.patience import PATIENCE_S

BUCKET = "logs"

needs_s3 = pytest.mark.skipif(
    find_spec("moto") is None and "CI" not in os.environ,
    reason="needs moto, which is in tests/requirements.txt; CI fails without it",
)


@contextmanager
def s3_server() -> Iterator[fs.S3FileSystem]:
    """Serve S3 on loopback, with an empty bucket, and name it in the environment as users do."""
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", code], **quiet)  # type: ignore[call-overload] # of both streams
    try:
        _wait_for(port)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, "testing")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            files = fs.S3FileSystem(
                endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
            )
            files.create_dir(BUCKET)
            yield files
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the server of S3 did not start"
            time.sleep(0.05)
        else:
            return
