"""The memory ceiling, and the host page cache that must stay out of it."""

import os
import time

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, finish_driver, need, run, start_driver

SIZE = 128 * images.MIB
# How long the store is full and looked at.
SECONDS = "6" if os.environ.get("UNDERCROFT_LONG") else "3"
MEMORY = 48 * images.MIB
# What a process needs besides the store: stacks, sockets, rings, allocator; measured when idle and added to.
SLACK = 16 * images.MIB


def cached_pages(path: object) -> int:
    """Bytes of a file in the page cache."""
    done = run("fincore", "--bytes", "--noheadings", "--output", "RES", path)
    return int(done.stdout.split()[0])


def forget(path: object) -> None:
    """Drops a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_memory_stays_under_the_ceiling(serve, scratch):
    """Full load on two disks and both front ends, reads, writes and streams: resident memory grows by the store at
    most."""
    first = images.raw(scratch / "a.raw", SIZE, seed=1)
    second = images.raw(scratch / "b.raw", SIZE, seed=2)
    daemon = serve([Disk("a", first, "raw"), Disk("b", second, "raw")], memory="48MiB")
    # Anonymous memory: shared memory is the drivers', and the program's own file is not the store's.
    idle = daemon.rss("RssAnon")
    loads = [
        start_driver(
            "run", daemon.vhost("a"), "--seconds", SECONDS, "--depth", "64", "--queues", "4", "--write-percent", "30"
        ),
        start_driver(
            "run", daemon.nbd("a"), "--seconds", SECONDS, "--depth", "32", "--block", "256KiB", "--pattern", "seq"
        ),
        start_driver(
            "run", daemon.vhost("b"), "--seconds", SECONDS, "--depth", "32", "--block", "64KiB", "--pattern", "seq"
        ),
        start_driver(
            "run", daemon.nbd("b"), "--seconds", SECONDS, "--depth", "32", "--pattern", "zipf", "--write-percent", "30"
        ),
    ]
    most = looks = 0
    while any(p.poll() is None for p in loads):
        most, looks = max(most, daemon.rss("RssAnon")), looks + 1
        store = daemon.status()["store"]
        assert store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"] <= store["memory_bytes"] == MEMORY
        time.sleep(0.01)
    assert looks > 5, "the store was hardly looked at while it served"
    for load in loads:
        assert finish_driver(load)["operations"] > 100
    grown = most - idle
    assert grown <= MEMORY + SLACK, f"{grown >> 20} MiB above idle, with a store of {MEMORY >> 20} MiB"


def test_metadata_is_at_most_112_bytes_a_block(serve, scratch):
    """What the store keeps about each 4 KiB block, measured by what more memory costs: what is there once does not
    count."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    metadata = []
    sizes = [64, 192]
    for size in sizes:
        daemon = serve([Disk("a", image, "raw")], memory=f"{size}MiB")
        driver("run", daemon.vhost("a"), "--ops", "100", "--prefill", "--depth", "4")
        store = daemon.status()["store"]
        assert store["data_bytes"] > min(size, SIZE // images.MIB) * images.MIB * 0.8, "the cache is full"
        metadata.append(store["metadata_bytes"])
        daemon.stop()
    blocks = (sizes[1] - sizes[0]) * images.MIB / 4096
    # 64 for the block, 48 for what is known of its content.
    assert (metadata[1] - metadata[0]) / blocks <= 64 + 48, metadata


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_host_page_cache_is_not_used(serve, scratch, image_format):
    """After a disk was read and written through the daemon, its image is not in the host's page cache."""
    need("fincore", "qemu-img")
    source = images.raw(scratch / "source.raw", 32 * images.MIB, seed=3)
    image = source
    if image_format == "qcow2":
        image = scratch / "a.qcow2"
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", source, image)
    daemon = serve([Disk("a", image, image_format)])
    if "O_DIRECT" not in daemon.disk("a")["backend"]:
        pytest.skip(f"no O_DIRECT on this file system: {daemon.disk('a')['backend']}")
    forget(image)
    driver("run", daemon.vhost("a"), "--ops", "2000", "--depth", "8", "--prefill")
    driver("run", daemon.nbd("a"), "--ops", "2000", "--depth", "8", "--write-percent", "30")
    # The header of a qcow2 image may be read by its format probe; its data may not.
    assert cached_pages(image) <= images.MIB // 4
