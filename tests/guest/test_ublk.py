"""Disks as block devices (ublk), in a guest with a kernel that has the driver: Debian's of its backports.

What is tested there are this machine's programs, on devices of the guest's kernel (decision 0209).
"""

import pytest
from harness.inside import Inside
from rig import guest as guests
from rig.process import Stopped

# A guest of 1 GiB on two processors.
pytestmark = pytest.mark.alone

# The most that it may take, in seconds: emulated, on a machine that does other things too.
LONG_S, SHORT_S = 3600, 600


# QEMU 7.2 emulates something wrong that this kernel needs: with its usual threads it faulted while it booted in four of
# ten boots. With interrupts between counted instructions alone it did in one of fifteen (0209).
COUNTED = ["-icount", "shift=1,sleep=off"]
BOOTS_MAX = 5


def booted(tmp_path_factory, accel):
    """A guest with the driver loaded; one that faults while it boots is booted again."""
    is_emulated = accel == "tcg"
    for boot in range(1, BOOTS_MAX + 1):
        try:
            return Inside(
                tmp_path_factory.mktemp("inside"),
                "tcg,thread=single" if is_emulated else accel,
                "insmod /lib/modules/ublk_drv.ko",
                programs=["mkfs.ext4", "e2fsck", "umount"],
                kernel="vmlinuz-backports",
                initramfs="initramfs-backports",
                ram_mib=1024,
                qemu=COUNTED if is_emulated else [],
            )
        except Stopped as e:
            if not is_emulated or boot == BOOTS_MAX:
                raise
            print(f"boot {boot}: {e}")
    return None


@pytest.fixture(scope="module")
def inside(tmp_path_factory, accel):
    """The guest."""
    guests.build(backports=True)
    made = booted(tmp_path_factory, accel)
    yield made
    made.close()


def test_a_disk_is_a_block_device_and_outlives_its_daemon(inside):
    """Reads and writes of any length reach the image; kill -9 under load and the next start lose nothing."""
    inside.test("test_ublk.py -k 'reach_the_image or killed'", SHORT_S)


@pytest.mark.long
def test_everything_about_block_devices(inside):
    """What a device says of itself, file systems on it, stops, upgrades, what is refused."""
    inside.test("test_ublk.py", LONG_S)
