"""A file on a file system that stops answering when it is told to: nbdfuse before nbdkit.

Owns both processes and the mount. Invariant: they go on, and end, however a test ends.
"""

import os
import subprocess
from pathlib import Path

import pytest

from .daemon import until
from .pausing import go_on, pause
from .programs import need, need_root


class StallingFile:
    """4 MiB of zeroes."""

    def __init__(self, directory: Path):
        need_root()
        need("nbdfuse", "nbdkit")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("no /dev/fuse")
        self.where, sock = directory / "fuse", directory / "fuse.sock"
        self.path = self.where / "nbd"
        self.where.mkdir()
        self.server = subprocess.Popen(["nbdkit", "-f", "-U", sock, "memory", "4M"])
        until(sock.exists, "the server of the file listens")
        self.fuse = subprocess.Popen(["nbdfuse", self.where, f"nbd+unix:///?socket={sock}"])
        until(lambda: self.path.exists() or self.fuse.poll() is not None, "the file is there")
        if self.fuse.poll() is not None:
            self.server.kill()
            pytest.skip("nbdfuse cannot mount here")

    def stall_contents(self) -> None:
        """What is in the file does not come any more; the file system answers otherwise."""
        pause(self.server.pid)

    def stall(self) -> None:
        """Nothing comes any more. What the kernel knew of the file is forgotten by then."""
        pause(self.fuse.pid)
        until(self._is_silent, "the file system does not answer")

    def _is_silent(self) -> bool:
        try:
            subprocess.run(["stat", self.path], check=True, capture_output=True, timeout=0.3)
        except subprocess.TimeoutExpired:
            return True
        return False

    def go_on(self) -> None:
        """It answers again."""
        for process in (self.server, self.fuse):
            go_on(process.pid)

    def close(self) -> None:
        """Ends it."""
        self.go_on()
        subprocess.run(["umount", "-l", self.where], check=False)
        for process in (self.fuse, self.server):
            process.kill()
            process.wait()
