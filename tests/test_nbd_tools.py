"""nbdcopy and nbdinfo against the daemon: whole disks both ways, listing, maps."""

import json

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, need, run

SIZE = 48 * images.MIB


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_nbdcopy_both_ways(serve, scratch, image_format, transport):
    """A disk that is copied in, and out again, keeps its checksum; and the image has it."""
    need("nbdcopy", "qemu-img")
    source = images.raw(scratch / "source.raw", SIZE, seed=2)
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    uri = daemon.nbd("a") if transport == "unix" else daemon.nbd_tcp("a")
    run("nbdcopy", "--flush", source, uri)
    run("nbdcopy", uri, scratch / "back.raw")
    assert images.digest(scratch / "back.raw") == images.digest(source)
    daemon.stop()
    at_rest = images.flattened(image, image_format, scratch / "at-rest.raw")
    assert images.digest(at_rest) == images.digest(source)


def test_nbdcopy_between_two_disks(serve, scratch):
    """One disk is copied to another within the daemon, over many connections."""
    need("nbdcopy")
    source = images.raw(scratch / "a.raw", SIZE, seed=3)
    expected = images.digest(source)
    target = images.raw(scratch / "b.raw", SIZE)
    daemon = serve([Disk("a", source, "raw"), Disk("b", target, "raw")])
    run("nbdcopy", "--connections=4", "--requests=32", daemon.nbd("a"), daemon.nbd("b"))
    daemon.stop()
    assert images.digest(target) == expected


def test_nbdinfo_says_what_is_there(serve, scratch):
    """Lists name all exports; sizes, flags and maps are right."""
    need("nbdinfo", "qemu-io")
    first = images.raw(scratch / "a.raw", SIZE)
    second = images.raw(scratch / "b.raw", SIZE // 2)
    daemon = serve([Disk("a", first, "raw"), Disk("b", second, "raw", {"read_only": "true"})])
    listed = json.loads(run("nbdinfo", "--list", "--json", daemon.nbd("")).stdout)
    exports = {e["export-name"]: e for e in listed["exports"]}
    assert set(exports) == {"a", "b"}
    assert exports["a"]["export-size"] == SIZE and exports["b"]["export-size"] == SIZE // 2
    assert exports["b"]["is_read_only"] and not exports["a"]["is_read_only"]
    a = exports["a"]
    for can in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
        assert a[can], can
    assert listed.get("structured", True)
    assert "base:allocation" in a["contexts"]
    run("qemu-io", "-f", "raw", f"nbd:unix:{daemon.nbd_socket}:exportname=a", "-c", "write -P 1 8M 4M", "-c", "flush")
    extents = json.loads(run("nbdinfo", "--map", "--json", daemon.nbd("a")).stdout)
    assert sum(e["length"] for e in extents) == SIZE
    at = 0
    for e in extents:
        assert e["offset"] == at, "extents follow one another"
        at += e["length"]
        overlaps = e["offset"] < 12 * images.MIB and e["offset"] + e["length"] > 8 * images.MIB
        assert not overlaps or e["type"] & 2 == 0, "what was written must not be said to read as zeroes"


def test_unknown_export_is_refused(serve, scratch):
    """A name that is not there gets an error, and the listener goes on."""
    need("nbdinfo")
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", SIZE), "raw")])
    done = run("nbdinfo", daemon.nbd("nothing"), check=False)
    assert done.returncode != 0
    assert run("nbdinfo", "--size", daemon.nbd("a")).stdout.strip() == str(SIZE)


@pytest.mark.parametrize("extra", [[], ["--simple-replies"], ["--queues", "4"], ["--fua"]])
def test_own_client_checks_every_byte(serve, scratch, extra):
    """The driver's own client: simple and structured replies, several connections, FUA; every answer is checked."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = serve([Disk("a", image, "raw", {"size": '"16MiB"'})], memory="32MiB")
    journal = scratch / "journal"
    load = ["--journal", journal, "--block-max", "64KiB", "--block", "512", "--depth", "16", "--ops", "4000"]
    mix = ["--write-percent", "40", "--zero-percent", "5", "--discard-percent", "5", "--flush-every", "50"]
    driver("run", daemon.nbd("a"), *load, *mix, *extra)
    daemon.stop()
    findings = driver("audit", "--journal", journal, "--image", image, "--strict")
    assert findings["ok"] and findings["totals"]["durable"] > 500
