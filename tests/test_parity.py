"""Both front ends show one disk: what one writes, the other reads."""

import json
import time

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, need, run, start_driver

SIZE = 32 * images.MIB


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_written_by_one_read_by_the_other(serve, scratch, image_format):
    """Stamps written over NBD are audited over vhost-user, and the other way round, without a flush or restart
    between."""
    need("qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    journal = scratch / "journal"
    load = ["--journal", journal, "--block", "512", "--block-max", "32KiB", "--depth", "8", "--ops", "1500"]
    for turn, (writer, reader) in enumerate([("nbd", "vhost"), ("vhost", "nbd"), ("nbd", "vhost")]):
        targets = {"nbd": daemon.nbd("a"), "vhost": daemon.vhost("a")}
        # A flush at the end of each load would hide nothing: audits are strict, every acknowledged write counts.
        driver("run", targets[writer], *load, "--write-percent", "60", "--zero-percent", "5", "--seed", turn)
        findings = driver("audit", "--journal", journal, "--target", targets[reader], "--strict")
        assert findings["ok"], f"{writer} to {reader}: {findings}"


def test_both_describe_the_same_disk(serve, scratch):
    """Size, block size and the right to write are the same by both ways; the serial number is a guest's to see."""
    need("nbdinfo")
    disks = [
        Disk("a", images.raw(scratch / "a.raw", SIZE), "raw", {"serial": '"my-serial"'}),
        Disk("b", images.raw(scratch / "b.raw", SIZE), "raw", {"read_only": "true"}),
    ]
    daemon = serve(disks)
    for name, read_only in (("a", False), ("b", True)):
        guest = driver("probe", daemon.vhost(name))
        client = json.loads(run("nbdinfo", "--json", daemon.nbd(name)).stdout)["exports"][0]
        assert guest["size_bytes"] == client["export-size"] == SIZE
        assert guest["read_only"] == client["is_read_only"] == read_only
        assert guest["block_bytes"] in (512, 4096) and guest["segments_max"] > 0
    guest = driver("probe", daemon.vhost("a"))
    assert guest["serial"] == "my-serial"
    assert guest["flush"] and guest["discard"] and guest["write_zeroes"]
    assert guest["queues"] == guest["queues_max"] > 1


def test_a_guest_may_come_back(serve, scratch):
    """A front end that leaves, orderly or not, is followed by the next on the same socket."""
    image = images.raw(scratch / "a.raw", SIZE, seed=9)
    daemon = serve([Disk("a", image, "raw")])
    for _ in range(5):
        driver("run", daemon.vhost("a"), "--ops", "300", "--depth", "8", "--verify", image)
        broken = start_driver("run", daemon.vhost("a"), "--seconds", "20", "--depth", "32")
        time.sleep(0.15)
        broken.kill()
        broken.communicate()
    driver("run", daemon.vhost("a"), "--ops", "300", "--depth", "8", "--verify", image)
