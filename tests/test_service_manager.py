"""What is cached stays over an orderly restart by a service manager that keeps descriptors. The manager is
`harness.manager`.

Owns nothing that lasts.
"""

import os
import signal

import pytest
from harness import images
from harness.daemon import Daemon, Disk
from harness.manager import wrap
from harness.programs import driver, need
from harness.ssd import fill, have_shares, read_all, section, ssd

SIZE = 32 * images.MIB
WORK = 8 * images.MIB


@pytest.fixture
def daemon(scratch, manager):
    """A daemon with a disk of each kind, filled and read."""
    disks = [
        Disk("a", images.raw(scratch / "a.raw", SIZE, seed=1), "raw"),
        Disk("b", images.make(scratch, "b", "qcow2", SIZE), "qcow2"),
    ]
    daemon = Daemon(scratch / "d", disks, store="keep = true", wrap=wrap)
    manager.start(daemon)
    for disk in "ab":
        driver("run", daemon.vhost(disk), "--ops", 2000, "--write-percent", 50, "--length", WORK, "--depth", 4)
    yield daemon
    if daemon.process:
        daemon.stop()


def misses(daemon, disk, *options):
    """Blocks that a reader of all that was used before does not find in the cache."""
    before = daemon.disk(disk)["counters"]["miss_blocks"]
    driver("run", daemon.nbd(disk), "--ops", 1, "--prefill", "--length", WORK, *options)
    return daemon.disk(disk)["counters"]["miss_blocks"] - before


def test_what_is_cached_is_after_a_restart(daemon, manager):
    """An orderly stop leaves it, the next start has it, and nothing is left with the manager."""
    for disk in "ab":
        print(disk, daemon.disk(disk)["cache"]["cached_bytes"], misses(daemon, disk), misses(daemon, disk))
    cached = {d: daemon.disk(d)["cache"]["cached_bytes"] for d in "ab"}
    print(cached)
    daemon.stop()
    manager.hear()
    assert "undercroft-list" in manager.kept and len(manager.kept) == 3, manager.kept
    manager.start(daemon)
    assert manager.kept == {}, "it would be used again after a crash"
    for disk in "ab":
        assert daemon.disk(disk)["cache"]["cached_bytes"] >= cached[disk] > WORK // 2
        assert misses(daemon, disk) == 0
    daemon.stop()
    images.check_qcow2(daemon.directory.parent / "b.qcow2")


def test_it_is_used_once_even_if_the_manager_passes_it_on_again(daemon, manager):
    """A process that is started after a crash finds a list that somebody has used."""
    daemon.stop()
    manager.hear()
    again = {name: [os.dup(fd) for fd in fds] for name, fds in manager.kept.items()}
    manager.start(daemon)
    driver("run", daemon.vhost("a"), "--ops", 500, "--write-percent", 100, "--length", WORK)
    daemon.kill()
    manager.hear()
    manager.kept = again
    daemon.expect_death = True
    manager.start(daemon)
    assert "is not used: it is damaged" in daemon.log()
    assert daemon.disk("a")["cache"]["cached_bytes"] == 0


@pytest.mark.parametrize("what", ["image", "store", "list"])
def test_what_does_not_match_is_dropped(daemon, manager, scratch, what):
    """The image was written meanwhile, the store is another, or the list is damaged: it starts cold, and serves what
    the image holds."""
    daemon.stop()
    manager.hear()
    if what == "image":
        with open(scratch / "a.raw", "r+b") as f:
            f.write(b"x" * WORK)
    elif what == "store":
        daemon.memory = "64MiB"
        daemon.write_config([Disk("a", scratch / "a.raw", "raw"), Disk("b", scratch / "b.qcow2", "qcow2")])
    else:
        os.pwrite(manager.kept["undercroft-list"][0], b"\xff", 200)
    manager.start(daemon)
    assert "is not used" in daemon.log()
    assert daemon.disk("a")["cache"]["cached_bytes"] == 0
    assert (daemon.disk("b")["cache"]["cached_bytes"] > 0) == (what == "image")
    driver("run", daemon.vhost("a"), "--ops", 300, "--length", WORK, "--verify", scratch / "a.raw")


def test_a_killed_daemon_leaves_nothing(daemon, manager):
    """What it had written may differ from what its list would say, if it had one."""
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()
    daemon.expect_death = True
    manager.hear()
    assert manager.kept == {}
    manager.start(daemon)
    assert daemon.disk("a")["cache"]["cached_bytes"] == 0


def test_an_ssd_store_is_left_in_order_besides(scratch, manager):
    """With `keep` and an SSD store: what is in RAM and what is below are both there after a restart, also of a disk
    that was written until the end."""
    need("nbdcopy")
    image = images.raw(scratch / "c.raw", SIZE, seed=3)
    more = {"store": "keep = true", "extra": section(scratch), "memory": "16MiB", "workers": 1}
    daemon = Daemon(scratch / "d", [Disk("a", image, "raw")], wrap=wrap, **more)
    manager.start(daemon)
    try:
        have_shares(daemon)
        fill(daemon, image)
        driver("run", daemon.vhost("a"), "--ops", 200, "--write-percent", 100, "--length", WORK)
        cached, below = daemon.disk("a")["cache"]["cached_bytes"], ssd(daemon)["cached_bytes"]
        daemon.stop()
        manager.start(daemon)
        assert daemon.disk("a")["cache"]["cached_bytes"] > cached * 9 // 10 > 0
        assert ssd(daemon)["cached_bytes"] > below * 8 // 10 > 0, ssd(daemon)
        assert read_all(daemon) == images.digest(image)
    finally:
        daemon.stop()
