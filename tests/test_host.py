"""What this host lacks for a disk is said before its image is opened."""

from pathlib import Path

from harness import images
from harness.daemon import Daemon, Disk
from harness.programs import built, run


def test_a_missing_driver_is_said_by_check_and_keeps_the_image_closed(serve, scratch):
    """Each try would open the image and its locks, only to find the same driver missing; with one, all is good."""
    image = images.raw(scratch / "a.raw", images.MIB)
    disks = [Disk("a", image, "raw", {"ublk": f'"{scratch}/a.dev"', "nbd": "false"})]
    done = run(built("undercroft"), "check", Daemon(scratch / "d", disks).config, check=False)
    if Path("/dev/ublk-control").exists():
        assert done.returncode == 0, done.stdout
        return
    assert done.returncode == 1 and "modprobe ublk_drv" in done.stdout and "leave `ublk` out" in done.stdout
    daemon = serve(disks)
    assert "modprobe ublk_drv" in daemon.disk("a")["reason"]
    assert "image opened" not in daemon.log()
