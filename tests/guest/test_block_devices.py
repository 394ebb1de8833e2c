"""Disks as block devices (ublk), in a guest with a kernel that has the driver: Debian's of its backports.

What is tested there are this machine's programs, on devices of the guest's kernel (decision 0209).
"""

import pytest
from harness.inside import Inside
from rig import guest as guests

# A guest of 1 GiB on two processors. Beside three other guests its kernel came to a stop once in two runs, in the
# daemon's worker (docs/maintainers.md).
pytestmark = pytest.mark.alone

# The most that it may take, in seconds: emulated, on a machine that does other things too (50 on a quiet one).
LONGEST_S = 1800


@pytest.fixture(scope="module")
def inside(tmp_path_factory, accel):
    """The guest, with the driver loaded."""
    guests.build(backports=True)
    made = Inside(
        tmp_path_factory.mktemp("inside"),
        accel,
        "insmod /lib/modules/ublk_drv.ko",
        programs=["mkfs.ext4", "e2fsck", "umount"],
        kernel="vmlinuz-backports",
        initramfs="initramfs-backports",
        ram_mib=1024,
    )
    yield made
    made.close()


def test_disks_are_block_devices_and_outlive_their_daemon(inside):
    """All of test_ublk.py: reads and writes of any length reach the image; what waits over kill -9 is done by the next
    daemon; what a device says of itself, file systems on it, what is refused; at length loads, stops and upgrades,
    too."""
    inside.test("test_ublk.py", LONGEST_S)
