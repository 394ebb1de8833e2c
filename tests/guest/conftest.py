"""Fixtures for tests with real guests: a disk image, the daemon on it, a guest on the daemon.

The parts come from experiments/rig, which the demo and the laboratory use too. UNDERCROFT_LONG=1 makes the tests
longer.
"""

import sys
from pathlib import Path

import pytest

from harness.programs import built

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments"))

from rig import guest as guests  # noqa: E402
from rig import process, serving  # noqa: E402


@pytest.fixture(scope="session")
def accel():
    """Builds what guests boot from, once, and says how they run here."""
    serving.Undercroft.binary = Path(built("undercroft"))
    guests.build(tools=True)
    return guests.accelerator()


@pytest.fixture
def disk(request, scratch):
    """An empty image of 256 MiB; the parameter is its format."""
    path = scratch / f"disk.{request.param}"
    process.run(["qemu-img", "create", "-q", "-f", request.param, path, "256M"], "qemu-img create")
    return path


@pytest.fixture
def undercroft(scratch):
    """undercroft(disk, ..., **options): the daemon with these disks, 64 MiB of store; ended after the test."""
    started = []

    def start(*disks, **options):
        daemon = serving.Undercroft(64 << 20, scratch, image_format=disks[0].suffix[1:], limited=False, **options)
        started.append(daemon)
        daemon.__enter__()
        daemon.start(list(disks))
        return daemon

    yield start
    for daemon in started:
        daemon.__exit__()
        _show(daemon.log)


@pytest.fixture
def boot(scratch, accel):
    """boot(daemon, **options): a guest on the daemon's first disk, or its first `disks`, with mkfs.ext4 and e2fsck in
    it unless told otherwise; ended after the test."""
    started = []

    def start(daemon, disks=1, **options):
        options = {"ram_mib": 512, "initramfs": "initramfs-tools"} | options
        name = f"guest-{len(started) + 1}"
        argv = [arg for n in range(disks) for arg in serving.vhost_user(n, daemon.socket(n), daemon.reconnect)]
        guest = guests.Guest(name, argv, scratch, accel=accel, **options)
        started.append(guest)
        guest.wait_ready()
        return guest

    yield start
    for guest in started:
        guest.close()
        _show(guest.log)
        _show(guest.console)


def _show(log):
    """Prints the end of a log; pytest shows it if the test failed."""
    print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:] if log.exists() else 'was not written'}")
