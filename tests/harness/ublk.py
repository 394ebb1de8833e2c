"""Block devices of ublk as tests use them.

Owns nothing. Never makes a device: the daemon does.
"""

import array
import fcntl
import os
from pathlib import Path

import pytest

from .programs import need_root

CONTROL = Path("/dev/ublk-control")
# Of include/uapi/linux/fs.h.
BLKDISCARD, BLKZEROOUT, BLKRRPART = 0x1277, 0x127F, 0x125F


def need_ublk() -> None:
    """Skips the test, and says why, where disks cannot be block devices."""
    need_root()
    if not os.access(CONTROL, os.R_OK | os.W_OK):
        pytest.skip(f"there is no {CONTROL} to use")


def devices() -> list[str]:
    """The devices that there are, by their names."""
    there = Path("/sys/class/ublk-char")
    return sorted(p.name.replace("ublkc", "ublkb") for p in there.iterdir()) if there.exists() else []


def said(device: Path, what: str) -> str:
    """What /sys says of a device: `queue/fua`."""
    return (Path("/sys/block") / os.path.realpath(device).removeprefix("/dev/") / what).read_text().strip()


def over_range(fd: int, command: int, at: int, length: int) -> None:
    """Discards or zeroes a range."""
    fcntl.ioctl(fd, command, array.array("Q", [at, length]))
