"""Write storms through both front ends at once, while the cache is resized and its policy switched."""

import os
import random
import threading

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, finish_driver, need, run, start_driver

SIZE = 64 * images.MIB
# How long the storm takes.
SECONDS = "6" if os.environ.get("UNDERCROFT_LONG") else "3"
POLICIES = ["fifo", "lru", "clock", "arc", "car", "s3-fifo", "sieve", "w-tinylfu"]


class Meddler:
    """Resizes disks and switches their policies until told to stop; counts what it did."""

    def __init__(self, daemon, disks: list[str]):
        self.daemon, self.disks = daemon, disks
        self.done = 0
        self.problem = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.meddle)

    def meddle(self) -> None:
        dice = random.Random(5)
        try:
            while not self.stopping.is_set():
                disk = dice.choice(self.disks)
                if dice.random() < 0.5:
                    self.daemon.set(disk, size=f"{dice.choice([16, 20, 24, 32])}MiB")
                else:
                    self.daemon.set(disk, policy=dice.choice(POLICIES))
                self.done += 1
                self.stopping.wait(0.05)
        except (Exception, pytest.fail.Exception) as e:  # noqa: BLE001 - whatever it is, the test must show it
            self.problem = e

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


def test_storm_over_both_front_ends(serve, scratch, nbdkit):
    """Raw, qcow2 with a backing chain and an upstream server, each under its own storm; then everything is compared."""
    need("qemu-img", "nbdkit")
    base = images.raw(scratch / "base.raw", SIZE, seed=4)
    middle = images.qcow2(scratch / "middle.qcow2", SIZE, base)
    overlay = images.qcow2(scratch / "overlay.qcow2", SIZE, middle, "qcow2")
    plain = images.raw(scratch / "plain.raw", SIZE)
    far = images.raw(scratch / "far.raw", SIZE)
    upstream = nbdkit("file", far)
    daemon = serve(
        [
            Disk("plain", plain, "raw", {"size": '"32MiB"'}),
            Disk("chain", overlay, "qcow2", {"size": '"32MiB"'}),
            Disk("far", upstream.uri, "nbd", {"size": '"32MiB"'}),
        ],
        memory="128MiB",
    )
    mix = ["--write-percent", "50", "--zero-percent", "3", "--discard-percent", "3", "--flush-every", "64"]
    common = ["--block", "512", "--block-max", "64KiB", "--depth", "8", "--seconds", SECONDS, *mix]
    half = str(SIZE // 2)
    loads = {
        # The same disk through both front ends, each in its half.
        "plain-vhost": ["run", daemon.vhost("plain"), "--length", half],
        "plain-nbd": ["run", daemon.nbd("plain"), "--offset", half, "--length", half],
        "chain": ["run", daemon.vhost("chain"), "--queues", "2", "--base", base],
        "far": ["run", daemon.nbd("far")],
    }
    with Meddler(daemon, ["plain", "chain", "far"]) as meddler:
        running = {k: start_driver(*words, *common, "--journal", scratch / k) for k, words in loads.items()}
        reports = {k: finish_driver(p) for k, p in running.items()}
    assert meddler.problem is None, meddler.problem
    assert meddler.done > 10, "the cache was hardly touched"
    assert all(r["journal"]["acknowledged"] > 200 for r in reports.values()), reports
    through = {}
    for name in ("plain", "chain", "far"):
        through[name] = scratch / f"{name}.through"
        run(
            "qemu-img",
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            f"nbd:unix:{daemon.nbd_socket}:exportname={name}",
            through[name],
        )
    daemon.stop()
    upstream.stop()
    at_rest = {"plain": (plain, "raw"), "chain": (overlay, "qcow2"), "far": (far, "raw")}
    for name, (image, image_format) in at_rest.items():
        # Bytes, not only equality of guest-visible zeroes: qemu-img compare reads both sides to the end.
        run("qemu-img", "compare", "-f", "raw", "-F", image_format, through[name], image)
    images.check_qcow2(overlay)
    assert images.digest(base) == images.digest(
        images.raw(scratch / "again.raw", SIZE, seed=4)
    ), "the base was written to"
    chain = images.flattened(overlay, "qcow2", scratch / "chain.raw")
    assert driver("audit", "--journal", scratch / "chain", "--image", chain, "--base", base, "--strict")["ok"]
    assert driver("audit", "--journal", scratch / "far", "--image", far, "--strict")["ok"]


def test_every_policy_serves_the_same_bytes(serve, scratch):
    """One stamped load after the other on one disk, each under another policy, the cache never emptied."""
    image = images.raw(scratch / "a.raw", SIZE)
    daemon = serve([Disk("a", image, "raw", {"size": '"16MiB"'})], memory="32MiB")
    load = ["--journal", scratch / "journal", "--block-max", "32KiB", "--depth", "8", "--ops", "1500"]
    for i, policy in enumerate(POLICIES):
        daemon.set("a", policy=policy)
        assert daemon.disk("a")["cache"]["policy"] == policy
        mix = ["--pattern", "zipf" if i % 2 else "rand", "--seed", i + 1] if i % 2 == 0 else ["--seed", i + 1]
        driver("run", daemon.vhost("a"), *load, "--write-percent", "30", "--flush-every", "50", *mix)
    daemon.stop()
    findings = driver("audit", "--journal", scratch / "journal", "--image", image, "--strict")
    assert findings["ok"]
