"""NBD servers to stand upstream of the daemon: nbdkit with its filters.

Owns the process. Never judges.
"""

import subprocess
import time
from pathlib import Path

import pytest

from .pausing import go_on, pause
from .programs import need


class Nbdkit:
    """A running nbdkit on a unix socket."""

    def __init__(self, directory: Path, *arguments: object, name: str = "upstream"):
        need("nbdkit")
        self.socket = directory / f"{name}.sock"
        self.log_path = directory / f"{name}.log"
        self.arguments = [str(a) for a in arguments]
        self.process: subprocess.Popen | None = None

    def start(self) -> "Nbdkit":
        """Starts it and waits until it listens."""
        self.socket.unlink(missing_ok=True)
        with open(self.log_path, "ab") as log:
            command = ["nbdkit", "--foreground", "--unix", str(self.socket), *self.arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 10
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"nbdkit did not start: {self.log_path.read_text()}")
            time.sleep(0.02)
        return self

    @property
    def uri(self) -> str:
        return f"nbd+unix:///?socket={self.socket}"

    def pause(self) -> None:
        """It answers nothing from now on."""
        pause(self.process.pid)

    def go_on(self) -> None:
        """It answers again."""
        go_on(self.process.pid)

    def stop(self) -> None:
        """Ends it, paused or not."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.socket.unlink(missing_ok=True)
