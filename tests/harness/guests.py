"""Guests without a system: QEMU processes, stopped before their first instruction, whose memory holds what a test put
there.

Owns the process. Never boots anything: `-device loader` copies a file to an address of the guest's memory.
"""

import ctypes
import os
import subprocess
import time
from pathlib import Path

import pytest

from .images import MIB
from .programs import need

PAGE = 4096
QEMU = "qemu-system-x86_64"
PR_SET_THP_DISABLE = 41


def page(number: int) -> bytes:
    """The page of a number: different for every number, never zero."""
    return (b"%016d" % number) * (PAGE // 16)


def pages(numbers) -> bytes:
    """Several of them; `None` is a page of zeroes."""
    return b"".join(bytes(PAGE) if n is None else page(n) for n in numbers)


def _no_huge_pages() -> None:
    # Huge pages would make zeroes present around what was loaded, as many as the kernel likes.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


class StillGuest:
    """A guest that does nothing. `contents` maps addresses to bytes."""

    def __init__(
        self, directory: Path, name: str, contents: dict[int, bytes], shared: bool, images=(), size: int = 64 * MIB
    ):
        need(QEMU)
        self.name, self.size = name, size
        self.monitor = directory / f"{name}.monitor"
        command = [
            QEMU,
            "-M",
            "none",
            "-accel",
            "tcg",
            "-nodefaults",
            "-display",
            "none",
            "-S",
            "-name",
            f"guest={name}",
        ]
        command += ["-monitor", f"unix:{self.monitor},server=on,wait=off", "-m", f"{size >> 20}M"]
        if shared:
            command += [
                "-object",
                f"memory-backend-memfd,id=ram,size={size},share=on",
                "-machine",
                "memory-backend=ram",
            ]
        for n, (address, data) in enumerate(contents.items()):
            path = directory / f"{name}.{n}.bin"
            path.write_bytes(data)
            command += ["-device", f"loader,file={path},addr={address:#x},force-raw=on"]
        for n, image in enumerate(images):
            command += [
                "-drive",
                f"if=none,id=d{n},file={image},format={'qcow2' if str(image).endswith('qcow2') else 'raw'}",
            ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_no_huge_pages
        )
        end = time.monotonic() + 20
        # The loader's contents are there before the monitor listens to anybody.
        while not self.monitor.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                pytest.fail(f"QEMU did not start: {self.process.stderr.read().decode()}")
            time.sleep(0.05)
        self._settle()

    def _settle(self) -> None:
        """Waits until QEMU answers: its memory is filled by then."""
        import socket

        end = time.monotonic() + 20
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            while True:
                try:
                    s.connect(str(self.monitor))
                    break
                except ConnectionRefusedError:
                    # Bound and not yet listened to: the file is there between the two.
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)
            said = b""
            s.sendall(b"info status\n")
            while b"VM status" not in said:
                said += s.recv(4096)

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory_fd(self) -> str:
        """The descriptor of its shared memory."""
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            path = f"/proc/{self.pid}/fd/{fd}"
            if os.readlink(path).startswith("/memfd:memory-backend-memfd"):
                return path
        pytest.fail("the guest has no memfd")

    def held(self) -> dict[str, int]:
        """What the kernel says of the mapping that is its memory, in KiB: Rss, Anonymous, Swap ... (QEMU's own heap
        breathes)."""
        with open(f"/proc/{self.pid}/smaps", encoding="ascii") as f:
            fields: dict[str, int] = {}
            for line in f:
                words = line.split()
                if words[-1] == "kB":
                    fields[words[0].rstrip(":")] = int(words[1])
                elif words[0] == "VmFlags:":
                    if fields.get("Size") == self.size >> 10 and "dc" in words:
                        # How far others share it, and when it was last used, is not what it holds.
                        return {
                            k: v
                            for k, v in fields.items()
                            if k in ("Rss", "Anonymous", "AnonHugePages", "Swap", "Size")
                        }
                    fields = {}
        pytest.fail("the guest has no memory")

    def stop(self) -> None:
        """Ends it; once more does nothing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
