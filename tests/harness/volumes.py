"""Loop devices and mounts as the kernel has them, and the volume plugin, for tests of what is mounted.

Owns the plugin's process. Never unmounts. Invariant: `stop` holds the plugin to exit code 0 and no socket left behind.
"""

import errno
import fcntl
import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from .programs import PATIENCE, built, need_root

LOOP_GET_STATUS64 = 0x4C05
# Where `struct loop_info64` has the name of the file, and its length.
NAME_AT, NAME_BYTES, INFO_BYTES = 56, 64, 232


def need_fuse() -> None:
    """Skips the test, and says why, where disks cannot be files."""
    need_root()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no /dev/fuse to use")


def need_loops() -> None:
    """Skips the test, and says why, where there are no loop devices or no FUSE."""
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        pytest.skip("there is no /dev/loop-control to use")
    need_fuse()


def mounts(path: Path) -> list[str]:
    """What is mounted at a path, from below."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[4] == str(path)]


def own(name: str) -> str:
    """A name of a disk that tests in other processes do not have: loop devices are the whole machine's."""
    return f"{name}{os.getpid()}"


def loops_of(disk: str) -> list[str]:
    """Loop devices of a disk, by the name that `undercroft mount` gives their file."""
    found = []
    for loop in sorted(Path("/sys/block").glob("loop*/loop")):
        info = bytearray(INFO_BYTES)
        try:
            with open(f"/dev/{loop.parent.name}", "rb", buffering=0) as device:
                fcntl.ioctl(device, LOOP_GET_STATUS64, info)
        except OSError as e:
            # Whose it was is not told any more once its daemon is gone and the mount of its file, too.
            backing = (loop / "backing_file").read_text(encoding="utf-8").strip() if e.errno == errno.ENOTCONN else ""
            if backing == "/" or disk in Path(backing).parts:
                found.append(loop.parent.name)
            continue
        name = bytes(info[NAME_AT : NAME_AT + NAME_BYTES]).split(b"\0")[0]
        if name == f"undercroft:{disk}".encode():
            found.append(loop.parent.name)
    return found


class Plugin:
    """A running `undercroft volume-plugin`."""

    def __init__(self, directory: Path, control: Path):
        self.socket, self.images = directory / "plugin.sock", directory / "volumes"
        self.control, self.log_path = control, directory / "plugin.log"
        self.process: subprocess.Popen | None = None

    def command(self, **options: object) -> list[str]:
        """The command line; `socket` and `images` may be others."""
        words = {"socket": self.socket, "images": self.images, "control": self.control} | options
        return [built("undercroft"), "volume-plugin", *(str(w) for k, v in words.items() for w in (f"--{k}", v))]

    def start(self) -> "Plugin":
        """Starts it, and waits until it is ready."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 20 * PATIENCE
        while not self.listens():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the plugin is not ready:\n{self.log()}")
            time.sleep(0.02)
        return self

    def listens(self) -> bool:
        """Whether somebody listens on its socket: one that was killed has left its file."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def log(self) -> str:
        """What it has written."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """SIGTERM; holds it to an orderly end."""
        if self.process is None:
            return
        self.process.terminate()
        code = self.process.wait(30 * PATIENCE)
        self.process = None
        assert "panicked" not in self.log(), self.log()
        assert code == 0 and not self.socket.exists(), f"it ended with {code}:\n{self.log()}"

    def raw(self, method: str, path: str, body: bytes) -> tuple[int, dict]:
        """A request: status and answer."""
        connection = http.client.HTTPConnection("plugin", timeout=60 * PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.socket))
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ask(self, what: str, **body: object) -> dict:
        """A request of the protocol, which has to succeed."""
        status, answer = self.raw("POST", f"/{what}", json.dumps(body).encode())
        assert (status, answer.get("Err", "")) == (200, ""), answer
        return answer

    def refused(self, what: str, **body: object) -> str:
        """The error of a request that must not succeed."""
        status, answer = self.raw("POST", f"/{what}", json.dumps(body).encode())
        assert status >= 400 and answer["Err"], answer
        return answer["Err"]
