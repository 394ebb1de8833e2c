"""kill -9 of the daemon at random moments under load: every acknowledged and flushed write is in the image."""

import itertools
import os
import random
import time

import pytest
from harness import images
from harness.daemon import Daemon, Disk
from harness.programs import driver, finish_driver, need, start_driver

SIZE = 32 * images.MIB
ROUNDS = 500 if os.environ.get("UNDERCROFT_LONG") else 50
# Rounds on one image, so that a crash also happens to a disk that was crashed before.
ROUNDS_PER_IMAGE = 5
# Images in turn: of this size, they have 1024 and 16 tables of clusters instead of one, so that kills also come between
# the making of two. Most are made in the first moments, so the more the better.
QCOW2_OPTIONS = ["cluster_size=512", "cluster_size=4096"]


def size_of(journal):
    """Its bytes; 0 before the driver has made it."""
    return journal.stat().st_size if journal.exists() else 0


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_kill_under_load(scratch, image_format):
    """Half of the rounds for each format; front ends take turns. A kill before the first flush was acknowledged, as on
    a machine that does much else, is checked like any other, but shows nothing of flushes: it is no round."""
    need("qemu-img")
    seed = int(os.environ.get("UNDERCROFT_SEED", "1"))
    dice = random.Random(f"{seed} {image_format}")
    flushed = rounds = 0
    image = journal = None
    for i in itertools.count():
        if rounds == ROUNDS // 2:
            break
        assert i < ROUNDS, f"of {i} kills {i - rounds} came before the first flush was acknowledged"
        where = f"round {i}, seed {seed}"
        if i % ROUNDS_PER_IMAGE == 0:
            options = QCOW2_OPTIONS[i // ROUNDS_PER_IMAGE % len(QCOW2_OPTIONS)]
            image = images.make(scratch, f"i{i}", image_format, SIZE, options)
            journal = scratch / f"journal{i}"
        daemon = Daemon(
            scratch / f"d{i}", [Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB"
        ).start()
        target = daemon.vhost("a") if i % 2 == 0 else daemon.nbd("a")
        load = ["--journal", journal, "--block", "512", "--block-max", "32KiB", "--depth", 8, "--seed", seed + i]
        mix = ["--write-percent", 60, "--zero-percent", 5, "--discard-percent", 2, "--flush-every", dice.randint(3, 40)]
        before = size_of(journal)
        running = start_driver("run", target, *load, *mix, "--seconds", 30)
        # What is about to be sent is in the journal first. A kill while the driver still connects shows nothing.
        while size_of(journal) == before and running.poll() is None:
            time.sleep(0.005)
        time.sleep(dice.uniform(0.1, 0.9))
        daemon.kill()
        report = finish_driver(running, check=False)
        assert report["exit"] == 3, f"{where}: the driver should find the server gone: {report}"
        rounds += report["journal"]["durable"] > 0
        at_rest = image
        if image_format == "qcow2":
            images.check_qcow2(image)
            at_rest = images.flattened(image, "qcow2", scratch / "flat.raw")
        findings = driver("audit", "--journal", journal, "--image", at_rest, check=False)
        assert findings.get("ok"), f"{where}: {findings}"
        flushed += findings["totals"]["durable"]
        if image_format == "raw":
            # Write-through: not even what was only acknowledged is lost when the process alone dies.
            assert findings["unflushed_lost"] == 0, f"{where}: {findings}"
        daemon.stop()
    assert flushed > 20 * ROUNDS, "too little was flushed for this to show anything"
