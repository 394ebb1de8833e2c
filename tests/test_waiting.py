"""Disks that cannot be served: they wait and are tried again, and the others are served all the time."""

import json
import os
import time

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import driver, need, run, start_driver

SIZE = 16 * images.MIB


def others_go_on(daemon, image) -> None:
    """The disk `good` serves a checked load now."""
    assert driver("run", daemon.vhost("good"), "--ops", "300", "--depth", "4", "--verify", image)["operations"] == 300


def test_missing_image_waits(serve, scratch):
    """One of two images is missing: the other is served, the status says what is missing, and once it is there it is
    served."""
    need("qemu-io")
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    late = scratch / "late.raw"
    daemon = serve([Disk("late", late, "raw"), Disk("good", good, "raw")])
    others_go_on(daemon, good)
    disk = daemon.disk("late")
    assert disk["state"] == "waiting" and str(late) in disk["reason"] and "again in" in disk["reason"], disk
    assert [d["name"] for d in daemon.status()["disks"]] == ["late", "good"], "in the order of the file"
    assert "waiting" in daemon.call("status").stdout
    # No socket and no export: a guest finds no disk, rather than one that fails.
    assert not os.path.exists(daemon.vhost("late"))
    assert run("qemu-io", "-f", "raw", "-c", "read 0 4k", daemon.nbd("late"), check=False).returncode != 0
    assert daemon.call("drop-cache", "late", check=False).returncode == 1
    images.raw(late, SIZE, seed=2)
    until(lambda: daemon.disk("late")["state"] == "serving", "it is served")
    driver("run", daemon.vhost("late"), "--ops", "300", "--depth", "4", "--verify", late)
    others_go_on(daemon, good)


def test_upstream_down_waits(serve, scratch, nbdkit):
    """An upstream server that comes later than the daemon."""
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    far = images.raw(scratch / "far.raw", SIZE, seed=2)
    upstream = nbdkit("file", far)
    upstream.stop()
    daemon = serve([Disk("up", upstream.uri, "nbd"), Disk("good", good, "raw")])
    others_go_on(daemon, good)
    assert daemon.disk("up")["state"] == "waiting"
    assert "1 wait" in daemon.call("status").stdout or "waiting" in daemon.call("status").stdout
    upstream.start()
    until(lambda: daemon.disk("up")["state"] == "serving", "it is served")
    driver("run", daemon.vhost("up"), "--ops", "300", "--depth", "4", "--verify", far)


def test_reload_with_a_missing_image(serve, scratch):
    """A reload that adds a disk without an image serves the rest; a disk that waits can be corrected, and taken
    away."""
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    other = images.raw(scratch / "other.raw", SIZE, seed=2)
    daemon = serve([Disk("good", good, "raw")])
    daemon.write_config([Disk("good", good, "raw"), Disk("new", scratch / "typo.raw", "raw")])
    done = daemon.call("reload", check=False)
    assert done.returncode == 1 and "typo.raw" in done.stdout and "waits" in done.stdout, done.stdout
    assert daemon.disk("new")["state"] == "waiting"
    others_go_on(daemon, good)
    daemon.write_config([Disk("good", good, "raw"), Disk("new", other, "raw")])
    daemon.call("reload")
    assert daemon.disk("new")["state"] == "serving"
    driver("run", daemon.vhost("new"), "--ops", "300", "--verify", other)
    daemon.write_config([Disk("good", good, "raw"), Disk("third", scratch / "typo.raw", "raw")])
    daemon.call("reload", check=False)
    assert daemon.disk("third")["state"] == "waiting"
    assert daemon.api("DELETE", "/v1/disks/third")[0] == 204
    assert [d["name"] for d in daemon.status()["disks"]] == ["good"]
    others_go_on(daemon, good)


def test_emptied_file_detaches_nothing(serve, scratch):
    """A configuration file that was emptied, or lost most of its disks, needs --yes; SIGHUP changes nothing."""
    paths = {n: images.raw(scratch / f"{n}.raw", SIZE, seed=1) for n in ("good", "b", "c")}
    disks = [Disk(n, p, "raw") for n, p in paths.items()]
    daemon = serve(disks)
    for left in ([], disks[:1]):
        daemon.write_config(left)
        done = daemon.call("reload", check=False)
        assert done.returncode == 1, done.stdout
        gone = [d.name for d in disks if d not in left]
        assert all(n in done.stderr for n in gone) and "--yes" in done.stderr, done.stderr
        daemon.reload()
        until(lambda: f"no longer has {len(gone)} of the 3" in daemon.log(), "SIGHUP is refused, too")  # noqa: B023
        assert len(daemon.status()["disks"]) == 3
        others_go_on(daemon, paths["good"])
    daemon.config.write_text("")
    assert daemon.call("reload", check=False).returncode == 1
    assert len(daemon.status()["disks"]) == 3
    daemon.write_config(disks[:1])
    daemon.call("reload", "--yes")
    assert [d["name"] for d in daemon.status()["disks"]] == ["good"]
    others_go_on(daemon, paths["good"])


@pytest.mark.parametrize("way", ["attach", "reload"])
def test_a_disk_that_comes_when_the_store_is_full(serve, scratch, way):
    """The others have filled the store: they give way first. Attached and detached, or written into the configuration
    and taken out again, eight times."""
    paths = [images.raw(scratch / f"{i}.raw", 3 * SIZE, seed=i) for i in range(4)]
    disks = [Disk(n, p, "raw") for n, p in zip(["good", "b", "c", "new"], paths, strict=True)]
    daemon = serve(disks[:3], memory="64MiB", workers=1)

    def fill():
        for disk in disks[:3]:
            run("nbdcopy", daemon.nbd(disk.name), scratch / "out.raw")

    def comes():
        if way == "attach":
            code, text = daemon.api("POST", "/v1/disks", {"name": "new", "image": str(paths[3]), "format": "raw"})
            assert code == 201, text
            return json.loads(text)["socket"]
        daemon.write_config(disks)
        done = daemon.call("reload", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return daemon.vhost("new")

    def goes():
        if way == "attach":
            assert daemon.api("DELETE", "/v1/disks/new")[0] == 204
            return
        daemon.write_config(disks[:3])
        daemon.call("reload")
        assert [d["name"] for d in daemon.status()["disks"]] == ["good", "b", "c"]

    fill()
    full = sum(d["cache"]["cached_bytes"] for d in daemon.status()["disks"])
    assert full > 45 * images.MIB, f"the store is not full: {full}"
    for _ in range(8):
        driver("run", comes(), "--ops", "200", "--depth", "4", "--verify", paths[3])
        others_go_on(daemon, paths[0])
        goes()
        fill()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_waiting_disk_keeps_its_share(serve, scratch, workers):
    """While one disk is busy and the other waits for its image, what is the waiting one's is lent to nobody: at every
    look shares are within the store, and the disk is served soon after its image is there, under load as before."""
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    late = scratch / "late.raw"
    disks = [Disk("good", good, "raw"), Disk("late", late, "raw")]
    daemon = serve(disks, memory="16MiB", workers=workers, extra='[shares]\ninterval = "1s"\n')
    load = start_driver("run", daemon.nbd("good"), "--seconds", "120", "--depth", "8")

    def look() -> dict:
        status = daemon.status()
        caches = {d["name"]: d for d in status["disks"]}
        sum_of_shares = sum(d["cache"]["share_bytes"] for d in caches.values())
        assert sum_of_shares <= status["store"]["memory_bytes"], caches
        return caches

    try:
        for _ in range(12):
            assert look()["late"]["cache"]["share_bytes"] >= 4 * images.MIB
            time.sleep(0.5)
        images.raw(late, SIZE, seed=2)
        end = time.monotonic() + 30
        while look()["late"]["state"] != "serving":
            assert time.monotonic() < end, daemon.disk("late")
            time.sleep(0.2)
        assert load.poll() is None, "the load goes on"
        driver("run", daemon.vhost("late"), "--ops", "300", "--depth", "4", "--verify", late)
        look()
    finally:
        load.kill()
        load.communicate()


def test_a_reload_that_does_not_fit_keeps_those_that_wait(serve, scratch):
    """A file whose sizes do not fit the memory that runs changes nothing: a disk that waits still does, and is served
    once its image is there; what was set by hand stays."""
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    late = scratch / "late.raw"
    daemon = serve([Disk("good", good, "raw"), Disk("late", late, "raw")], memory="16MiB")
    daemon.call("set", "--memory", "12MiB")
    text = daemon.config.read_text()
    assert 'memory = "16MiB"' in text
    daemon.write_config([Disk("good", good, "raw", {"size": '"32MiB"'}), Disk("late", late, "raw")])
    daemon.config.write_text(daemon.config.read_text().replace('memory = "16MiB"', 'memory = "64MiB"'))
    said = daemon.call("reload", check=False)
    assert "everything" in said.stdout, said.stdout
    assert {d["name"]: d["state"] for d in daemon.status()["disks"]} == {"good": "serving", "late": "waiting"}
    assert daemon.status()["store"]["limit_bytes"] == 12 * images.MIB
    images.raw(late, SIZE, seed=2)
    until(lambda: daemon.disk("late")["state"] == "serving", "it is served")
    driver("run", daemon.vhost("late"), "--ops", "300", "--depth", "4", "--verify", late)
    others_go_on(daemon, good)


def test_a_size_between_units_leaves_room_for_the_others(serve, scratch):
    """A size that is no multiple of what shares are counted in takes no more than it says from the others: both disks
    are served at once."""
    one, other = (images.raw(scratch / f"{n}.raw", SIZE, seed=n) for n in (1, 2))
    disks = [Disk("one", one, "raw", {"size": '"20MB"'}), Disk("other", other, "raw")]
    daemon = serve(disks, memory="64MiB", workers=1)
    status = daemon.status()
    assert [d["state"] for d in status["disks"]] == ["serving"] * 2, status["disks"]
    assert sum(d["cache"]["share_bytes"] for d in status["disks"]) <= status["store"]["memory_bytes"]


def test_deleted_image_is_said(serve, scratch):
    """An image that is deleted while it is served: said in the log and the status, and served on."""
    good = images.raw(scratch / "good.raw", SIZE, seed=1)
    gone = images.raw(scratch / "gone.raw", SIZE, seed=2)
    copy = scratch / "copy.raw"
    copy.write_bytes(gone.read_bytes())
    daemon = serve([Disk("good", good, "raw"), Disk("gone", gone, "raw")])
    gone.unlink()
    until(lambda: daemon.disk("gone")["reason"] is not None, "it is noticed")
    assert "deleted" in daemon.disk("gone")["reason"] and daemon.disk("gone")["state"] == "serving"
    until(lambda: str(gone) in daemon.log(), "it is said, too")
    assert daemon.disk("good")["reason"] is None
    driver("run", daemon.vhost("gone"), "--ops", "300", "--depth", "4", "--verify", copy)
    others_go_on(daemon, good)
