"""A daemon's SSD store: its section of the configuration, and what tests do with it.

Owns nothing that lasts.
"""

import time
from pathlib import Path

from . import images
from .daemon import Daemon
from .programs import PATIENCE, run


def section(scratch: Path, keys: str = "", names: str = '"ssd0", "ssd1"') -> str:
    paths = ", ".join(f'"{scratch}/{name.strip().strip(chr(34))}"' for name in names.split(","))
    return f'[ssd]\npaths = [{paths}]\nsize = "128MiB"\nsegment = "256KiB"\nadmit = "all"\n{keys}'


def read_all(daemon: Daemon, disk: str = "a") -> str:
    """The digest of a disk, read as a client does."""
    out = daemon.directory / "out.raw"
    run("nbdcopy", "--connections=1", daemon.nbd(disk), out)
    return images.digest(out)


def ssd(daemon: Daemon) -> dict:
    """What `undercroft ssd --json` says."""
    return daemon.get("/v1/ssd")


def have_shares(daemon: Daemon) -> None:
    """Waits until every disk has a share of the store, which it is given at the next look at what disks do."""
    give_up = time.monotonic() + 30 * PATIENCE
    while not all(disk["share_bytes"] > 0 for disk in ssd(daemon)["disks"]):
        assert time.monotonic() < give_up, ssd(daemon)
        time.sleep(0.05)


def fill(daemon: Daemon, image: Path, disk: str = "a") -> int:
    """Reads the disk until most of it is in the store; how many bytes are."""
    want = images.digest(image)
    for _ in range(8):
        assert read_all(daemon, disk) == want
    cached = ssd(daemon)["cached_bytes"]
    assert cached > image.stat().st_size // 2, ssd(daemon)
    return cached


def rest() -> None:
    """Waits until what the store has is written down; nobody changes the disk meanwhile."""
    time.sleep(8 * PATIENCE)


def write(daemon: Daemon, at: int, byte: int) -> None:
    run("qemu-io", "-f", "raw", "-c", f"write -P {byte} {at} 64k", "-c", "flush", daemon.nbd("a"))
