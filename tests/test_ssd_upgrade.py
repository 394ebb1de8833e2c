"""The SSD store goes along: over `undercroft upgrade`, over a restart by a service manager, and to the same worker.

Owns nothing that lasts. Nothing is asserted of times.
"""

import shutil
import threading
import time

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.programs import built, driver, finish_driver, need, run, start_driver
from harness.ssd import fill, have_shares, read_all, section, ssd, write

SIZE = 48 * images.MIB


@pytest.fixture
def make(scratch):
    """Makes daemons whose program can be replaced, with an SSD store and little RAM. All are stopped."""
    made: list[Daemon] = []

    def daemon(name, disks, **options):
        program = scratch / f"undercroft-{name}"
        shutil.copy(built("undercroft"), program)
        options = {"memory": "16MiB", "extra": section(scratch), "workers": 2, **options}
        made.append(Daemon(scratch / name, disks, wrap=lambda words: [program, *words[1:]], **options))
        made[-1].program = program
        return made[-1]

    yield daemon
    for daemon in made:
        daemon.stop()


def disk_hits(daemon, disk="a"):
    return next(d["hits"] for d in ssd(daemon)["disks"] if d["disk"] == disk)


@pytest.mark.parametrize("keep", ["", "keep = true"])
def test_what_is_in_the_store_is_there_after_an_upgrade_under_load(make, scratch, keep):
    """Disks are written and read meanwhile: nearly all of what was in the store is, all bytes are what was written,
    blocks are found and admitted; so after a second one, a kill and a stop."""
    need("nbdcopy")
    quiet = images.raw(scratch / "quiet.raw", SIZE, seed=1)
    busy = images.raw(scratch / "busy.raw", SIZE)
    daemon = make("d", [Disk("quiet", quiet, "raw"), Disk("busy", busy, "raw")], store=keep)
    daemon.start()
    have_shares(daemon)
    fill(daemon, quiet, "quiet")
    mix = ["--write-percent", 20, "--zero-percent", 1, "--discard-percent", 1, "--flush-every", 50]
    where = ["--block", "4KiB", "--block-max", "16KiB", "--depth", 8]
    journal = scratch / "journal"
    load = start_driver("run", daemon.vhost("busy"), "--journal", journal, *mix, *where, "--seconds", 10)
    time.sleep(3)
    for _ in range(2):
        before = ssd(daemon)
        pid = daemon.pid
        daemon.upgrade()
        assert daemon.pid != pid and "goes on with" in daemon.log()
        after = ssd(daemon)
        assert after["in_service"] and after["made"] is None, after
        assert after["cached_bytes"] > before["cached_bytes"] * 9 // 10 > SIZE // 3, (before, after)
        assert images.digest(quiet) == read_all(daemon, "quiet")
        assert disk_hits(daemon, "quiet") * 4096 > SIZE // 3, ssd(daemon)
        time.sleep(1.5)
        assert disk_hits(daemon, "busy") > 0, "what was there of a disk that is written is found"
    counters = ssd(daemon)["counters"]
    assert counters["mismatches"] == 0 and counters["admitted"] > 0, counters
    report = finish_driver(load)
    assert report["exit"] == 0 and not report["errors"], report
    daemon.kill()
    daemon.start()
    have_shares(daemon)
    fill(daemon, quiet, "quiet")
    daemon.stop()
    daemon.start()
    assert ssd(daemon)["cached_bytes"] > SIZE // 3
    assert images.digest(quiet) == read_all(daemon, "quiet")
    daemon.stop()
    findings = driver("audit", "--journal", journal, "--image", busy, "--strict", check=False)
    assert findings.get("ok"), findings


def test_what_clones_have_in_common_goes_along_once(make, scratch):
    """The base of three clones is one owner before and after; one that was written has its own blocks."""
    need("nbdcopy", "qemu-img", "qemu-io")
    base = images.raw(scratch / "base.raw", SIZE, seed=4)
    tops = {name: images.qcow2(scratch / f"{name}.qcow2", SIZE, base, "raw") for name in "abc"}
    disks = [Disk(name, top, "qcow2") for name, top in tops.items()]
    daemon = make("d", disks, workers=1, memory="20MiB")
    daemon.start()
    want = images.digest(base)
    for _ in range(8):
        assert read_all(daemon, "a") == want
    write(daemon, 3 << 20, 90)
    changed = read_all(daemon, "a")
    assert changed != want
    before = ssd(daemon)["cached_bytes"]
    assert before > SIZE * 2 // 3
    daemon.upgrade()
    assert ssd(daemon)["cached_bytes"] > before * 9 // 10, ssd(daemon)
    for name in "bc":
        assert read_all(daemon, name) == want, name
    assert read_all(daemon, "a") == changed
    assert sum(daemon.disk(name)["counters"]["backend_read_bytes"] for name in "bc") < SIZE // 2
    assert ssd(daemon)["cached_bytes"] < SIZE * 5 // 4, "each block of the base is there once"


def test_a_store_that_cannot_go_along_is_refused(make, scratch):
    """The configuration has another size of it by now, or other workers; or none. The process serves on, with it."""
    need("nbdcopy")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = make("d", [Disk("a", image, "raw")])
    daemon.start()
    have_shares(daemon)
    kept = fill(daemon, image)
    good = daemon.config.read_text()
    for change, says in [
        (('size = "128MiB"', 'size = "64MiB"'), "names other files or sizes for the SSD store"),
        (('segment = "256KiB"', 'segment = "512KiB"'), "names other files or sizes for the SSD store"),
        (("workers = 2", "workers = 1"), "made for another number of workers"),
        ((section(scratch), ""), "names other files or sizes for the SSD store"),
    ]:
        assert change[0] in good
        daemon.config.write_text(good.replace(*change))
        said = daemon.call("upgrade", check=False)
        assert said.returncode == 1 and says in said.stderr, said
    daemon.config.write_text(good)
    assert ssd(daemon)["cached_bytes"] >= kept * 9 // 10
    assert read_all(daemon) == images.digest(image)
    daemon.upgrade()
    assert ssd(daemon)["cached_bytes"] > kept * 9 // 10


def test_an_upgrade_that_fails_leaves_the_store_in_service(make, scratch):
    """The new process cannot open an image when nobody serves: the old one goes on, and so does its store."""
    need("nbdcopy")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = make("d", [Disk("a", image, "raw")])
    daemon.start()
    have_shares(daemon)
    fill(daemon, image)
    aside = scratch / "aside"
    image.rename(aside)
    threading.Timer(4, lambda: aside.rename(image)).start()
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "does not serve" in said.stderr, said
    until(image.exists, "it is back")
    until(lambda: driver("probe", daemon.nbd("a"), check=False).get("exit") == 0, "the disk is served")
    assert ssd(daemon)["in_service"]
    fill(daemon, image)
    found = disk_hits(daemon)
    assert read_all(daemon) == images.digest(image) and disk_hits(daemon) > found
    other = make("other", [], workers=2)
    other.start()
    assert not ssd(other)["in_service"] and "in use" in ssd(other)["reason"], "the files are locked still"


def test_a_disk_that_an_upgrade_left_behind_has_its_blocks_written_down(make, scratch):
    """The new process cannot open one of the images: what the store then gets of the other disks, and of the base of
    two clones, is found after the next start."""
    need("nbdcopy", "qemu-img", "qemu-io")
    image, base = (images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate(("a", "base"), 5))
    away = images.raw(scratch / "away.raw", 16 * images.MIB, seed=7)
    tops = {name: images.qcow2(scratch / f"{name}.qcow2", SIZE, base, "raw") for name in "xy"}
    disks = [Disk("a", image, "raw"), Disk("away", away, "raw")]
    disks += [Disk(name, top, "qcow2") for name, top in tops.items()]
    daemon = make("d", disks, workers=1, memory="24MiB")
    daemon.start()
    aside = scratch / "aside"
    away.rename(aside)
    threading.Timer(4, lambda: aside.rename(away)).start()
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "does not serve" in said.stderr, said
    until(lambda: driver("probe", daemon.nbd("away"), check=False).get("exit") == 0, "the disk is served")
    have_shares(daemon)
    want = {"a": images.digest(image), "x": images.digest(base), "y": images.digest(base)}
    for name in "xa" * 6:
        assert read_all(daemon, name) == want[name]
    write(daemon, 3 << 20, 90)
    want["a"] = read_all(daemon, "a")
    had = ssd(daemon)["cached_bytes"]
    assert had > 3 * SIZE // 2
    daemon.stop()
    daemon.start()
    assert ssd(daemon)["cached_bytes"] > had * 3 // 4, "it was written down"
    for name, bytes_ in want.items():
        assert read_all(daemon, name) == bytes_, name
    read = sum(daemon.disk(name)["counters"]["backend_read_bytes"] for name in want)
    assert read < SIZE, "that of the disk, and of the base for both of its clones"


def test_disks_come_back_to_the_worker_that_has_their_blocks(make, scratch):
    """Stopped, and started with the disks in another order; and upgraded so."""
    need("nbdcopy")
    paths = {name: images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate("abc")}
    disks = {name: Disk(name, path, "raw") for name, path in paths.items()}
    daemon = make("d", [disks["a"], disks["b"]], memory="24MiB")
    daemon.start()
    have_shares(daemon)
    for name in "ab":
        fill(daemon, paths[name], name)
    for how in ("stopped", "upgraded"):
        kept = ssd(daemon)["cached_bytes"]
        if how == "stopped":
            daemon.stop()
        daemon.write_config([disks[name] for name in ("bac" if how == "stopped" else "bca")])
        if how == "stopped":
            daemon.start()
        else:
            daemon.upgrade()
        assert ssd(daemon)["cached_bytes"] > kept * 9 // 10, (how, ssd(daemon))
        for name in "ab":
            assert read_all(daemon, name) == images.digest(paths[name])
            assert disk_hits(daemon, name) * 4096 > SIZE // 4, (how, ssd(daemon))
