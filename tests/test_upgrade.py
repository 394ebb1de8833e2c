"""`undercroft upgrade` under load: the drivers of two disks, which know no reconnecting, notice a pause and no more.

Owns nothing that lasts. The longest pause is printed; nothing is asserted of times.
"""

import os
import shutil
import threading
import time

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.programs import built, driver, finish_driver, start_driver

SIZE = 64 * images.MIB
WORK = 16 * images.MIB
LONG = bool(os.environ.get("UNDERCROFT_LONG"))


@pytest.fixture
def daemon(scratch):
    """A daemon with two disks, whose program can be replaced: it is a copy."""
    program = scratch / "undercroft"
    shutil.copy(built("undercroft"), program)
    disks = [
        Disk("a", images.raw(scratch / "a.raw", SIZE), "raw"),
        Disk("b", images.make(scratch, "b", "qcow2", SIZE), "qcow2"),
    ]
    daemon = Daemon(scratch / "d", disks, store="keep = true", wrap=lambda words: [program, *words[1:]])
    daemon.program = program
    daemon.start()
    yield daemon
    daemon.stop()


class Load:
    """A load on a disk that writes, checks what it reads, and ends with the first error."""

    def __init__(self, daemon, disk, seconds, seed=1, *more):
        self.disk, self.image = disk, daemon.directory.parent / f"{disk}.{'raw' if disk == 'a' else 'qcow2'}"
        self.journal = daemon.directory / f"journal-{disk}-{seed}"
        mix = ["--write-percent", 30, "--zero-percent", 2, "--discard-percent", 1, "--flush-every", 50]
        where = ["--length", WORK, "--block", "512", "--block-max", "16KiB", "--depth", 8, "--seed", seed]
        self.running = start_driver(
            "run", daemon.vhost(disk), "--journal", self.journal, *mix, *where, *more, "--seconds", seconds
        )

    def finish(self):
        """Its report; all of its promises are held to the image as it is served."""
        report = finish_driver(self.running)
        assert report["exit"] == 0 and not report["errors"], report
        print(f"disk {self.disk}: longest wait {report['latency_us']['max'] / 1000:.0f} ms")
        return report


def audit(daemon, *loads):
    """What was promised is on the images, without any daemon."""
    daemon.stop()
    for load in loads:
        at_rest = load.image
        if load.disk == "b":
            images.check_qcow2(load.image)
            at_rest = images.flattened(load.image, "qcow2", daemon.directory / "flat.raw")
        findings = driver("audit", "--journal", load.journal, "--image", at_rest, "--strict", check=False)
        assert findings.get("ok"), findings


def hits(daemon, disk):
    """Blocks read from the cache, and all that were read, of the process that serves."""
    c = daemon.disk(disk)["counters"]
    return c["hit_blocks"], c["hit_blocks"] + c["miss_blocks"]


def test_twice_under_load(daemon):
    """Two upgrades: no error, nothing lost, nothing cached twice or lost."""
    # Read in order first: at random, a slow machine has not read most of it while the load lasts.
    loads = [Load(daemon, disk, 12, 1, "--prefill") for disk in "ab"]
    cached = lambda: min(daemon.disk(d)["cache"]["cached_bytes"] for d in "ab")  # noqa: E731
    until(lambda: cached() > WORK * 0.9, "most of it is cached")
    for _ in range(2):
        before = {d: daemon.disk(d)["cache"]["cached_bytes"] for d in "ab"}
        pid = daemon.pid
        daemon.upgrade()
        assert daemon.pid != pid
        for d in "ab":
            disk = daemon.disk(d)
            assert disk["cache"]["cached_bytes"] >= before[d] * 0.95, "what was cached is"
            assert len(disk["frontends"]) == 1, "its front end is connected"
        time.sleep(1)
        for d in "ab":
            had, all_reads = hits(daemon, d)
            # As often as of all that is asked for something is cached.
            part = before[d] / WORK - 0.05
            assert all_reads > 100 and had > part * all_reads, f"disk {d}: {had} of {all_reads}, {part}"
    assert "has changed meanwhile" not in daemon.log()
    for load in loads:
        load.finish()
    audit(daemon, *loads)


def test_a_program_that_does_not_run_changes_nothing(daemon):
    """The next version ends at once, or says nothing and does not end: all is served on by the process that was."""
    load = Load(daemon, "a", 6 if LONG else 4)
    pid = daemon.pid
    daemon.program.rename(daemon.program.with_name("old"))
    for text in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\nhead -c 100 >/dev/null\necho nonsense >&0\n"):
        daemon.program.write_text(text)
        daemon.program.chmod(0o755)
        said = daemon.call("upgrade", check=False)
        assert said.returncode == 1 and "everything is served on" in said.stderr, said
    daemon.program.unlink()
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "was not started" in said.stderr, said
    assert daemon.pid == pid and daemon.status()["pid"] == pid
    load.finish()
    driver("probe", daemon.nbd("b"))
    audit(daemon, load)


def test_a_program_that_fails_when_nobody_serves_gives_all_of_it_back(daemon):
    """The new process makes ready and then cannot serve: an image that it is to open is gone from its place."""
    load = Load(daemon, "a", 6)
    time.sleep(1)
    image = daemon.directory.parent / "b.qcow2"
    aside = image.with_name("aside")
    pid = daemon.pid
    # It is opened by its name: only the process that has it open can serve it.
    image.rename(aside)
    threading.Timer(4, lambda: aside.rename(image)).start()
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "does not serve" in said.stderr, said
    until(image.exists, "it is back")
    assert daemon.status()["pid"] == pid
    report = load.finish()
    assert report["operations"] > 0
    until(lambda: driver("probe", daemon.nbd("b"), check=False).get("exit") == 0, "the other disk is served, too")
    other = Load(daemon, "b", 2)
    other.finish()
    audit(daemon, load, other)


def test_what_cannot_go_along_is_refused(daemon, scratch):
    """A disk that is not in the configuration would be gone."""
    image = images.raw(scratch / "c.raw", SIZE)
    daemon.call("attach", "c", image, "--socket", scratch / "c.sock")
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and 'disk "c" is served, but is not in the configuration' in said.stderr
    daemon.call("detach", "c")
    daemon.upgrade()
    assert [d["name"] for d in daemon.status()["disks"]] == ["a", "b"]


def test_what_is_read_after_an_upgrade_comes_from_the_cache(daemon):
    """All that was cached is served from RAM by the new process, and the socket is where it was."""
    driver("run", daemon.vhost("a"), "--ops", 200, "--prefill", "--length", WORK)
    daemon.upgrade()
    before = hits(daemon, "a")
    driver("run", daemon.vhost("a"), "--ops", 500, "--length", WORK)
    after = hits(daemon, "a")
    assert after[0] - before[0] == after[1] - before[1] > 0, "all of it from the cache"
    assert os.path.exists(daemon.vhost("a"))
