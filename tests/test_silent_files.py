"""Files on a file system that does not answer any more: who uses them waits, and nobody else."""

import concurrent.futures

from harness import images
from harness.daemon import Disk, until
from harness.programs import driver

SIZE = 4 * images.MIB


def states(daemon):
    """What each disk does."""
    return {d["name"]: d["state"] for d in daemon.status()["disks"]}


def test_a_disk_whose_file_system_does_not_answer_keeps_nobody_from_changing_others(serve, scratch, stalling):
    """Its image is looked at whenever a disk is attached, or the file read again. What else is on that file system is
    refused, or waits."""
    by, other, third = (images.raw(scratch / f"{name}.raw", SIZE, seed=3) for name in ("by", "other", "third"))
    share = {"size": '"4MiB"'}
    disks = [Disk("far", stalling.path, "raw", share), Disk("by", by, "raw", share)]
    daemon = serve(disks, memory="64MiB")
    assert states(daemon) == {"far": "serving", "by": "serving"}
    stalling.stall()
    daemon.call("attach", "other", other, "--format", "raw", "--nbd")
    driver("run", daemon.nbd("other"), "--ops", "50", "--verify", other)
    daemon.call("detach", "other")
    # By the API: a command would look at the path itself.
    status, refusal = daemon.api("POST", "/v1/disks", {"name": "again", "image": str(stalling.path), "nbd": True})
    assert status == 400 and "does not answer" in refusal, refusal
    daemon.write_config([*disks, Disk("third", third, "raw", share), Disk("again", stalling.where / "other", "raw")])
    said = daemon.call("reload", check=False)
    assert "attached: third" in said.stdout and "again: its image is not open" in said.stdout + said.stderr, said
    assert states(daemon) == {"far": "serving", "by": "serving", "third": "serving", "again": "waiting"}


def test_a_recording_into_a_silent_file_system_keeps_nobody(serve, scratch, stalling):
    """The file is opened, emptied and filled where nothing else waits for it; a second recording is refused."""
    by, other = (images.raw(scratch / f"{name}.raw", SIZE, seed=3) for name in ("by", "other"))
    daemon = serve([Disk("by", by, "raw", {"size": '"4MiB"'})], memory="64MiB")
    stalling.stall()
    with concurrent.futures.ThreadPoolExecutor() as others:
        order = {"path": str(stalling.path), "force": True}
        asks = others.submit(daemon.api, "POST", "/v1/recordings", order)

        def refusal() -> str:
            return daemon.call("record", scratch / "second.parquet", "--duration", "1s", check=False).stderr

        until(lambda: "is not open yet" in refusal(), "it waits for its file")
        daemon.call("attach", "other", other, "--format", "raw", "--nbd")
        daemon.set("by", policy="arc")
        daemon.call("detach", "other")
        assert not asks.done(), f"it waits all the time: {asks.result()}"
        stalling.go_on()
        # What nbdfuse shows cannot be emptied, so this fails, soon.
        status, said = asks.result(60)
    assert status >= 400, said
    daemon.call("record", scratch / "second.parquet", "--force", "--duration", "1s")


def test_a_disk_whose_file_system_does_not_answer_is_served_when_it_does(serve, scratch, stalling):
    """The daemon starts without it."""
    by = images.raw(scratch / "by.raw", SIZE, seed=3)
    stalling.stall()
    share = {"size": '"4MiB"'}
    daemon = serve([Disk("far", stalling.path, "raw", share), Disk("by", by, "raw", share)], memory="64MiB")
    assert states(daemon) == {"far": "waiting", "by": "serving"}
    assert "its image does not answer" in daemon.log()
    driver("run", daemon.nbd("by"), "--ops", "50", "--verify", by)
    stalling.go_on()
    until(lambda: states(daemon)["far"] == "serving", "it is served")
    driver("run", daemon.nbd("far"), "--ops", "50", "--write-percent", "0")
