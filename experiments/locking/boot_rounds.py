"""What happens in one arm of the experiment with clones that boot at once.

Owns the order: all clones boot (the first round), each reads something of its own and ends; the other disk is read
through, and read at random; all clones boot again (the second round), while the other disk is read at a fixed pace.
Never judges a result. Invariant: what is counted of a round is from when the first guest is started until the last one
is up, and every arm begins with an empty cache.
"""

import concurrent.futures
import contextlib
import json
import os
import time

from exclusive.measure import busy_seconds, difference
from rig import guest as guests
from rig.process import Stopped

from . import boot_images, boot_other, boot_serving
from .boot_arms import ARMS, MIB

BOOT_SECONDS = 900


def say(text):
    """Says how far it is."""
    print(text, flush=True)


def recorded(pins, sizes):
    """What is in a recorded boot set.

    Stopped: it lacks some of what a boot reads.
    """
    ranges = json.loads(pins.read_text())["ranges"]
    found = sum(count for _, count in ranges) * boot_images.BLOCK
    if found < sizes.boot_mib * MIB:
        raise Stopped(f"{found} bytes of a boot were recorded, and it reads {sizes.boot_mib} MiB")
    return {"ranges": len(ranges), "bytes": found}


class Rounds:
    """What a cell works with; `pins` is the file of what was recorded."""

    def __init__(self, sizes, disks, work, driver, accel):
        self.sizes, self.disks, self.work, self.driver, self.accel = sizes, disks, work, driver, accel
        self.pins = work / "boot.pins"

    def record(self):
        """Records the boot set on one clone."""
        say("recording what one clone reads when it boots")
        overlay = self.disks.overlays()[0]
        boot_serving.record(
            self.sizes, overlay, self.work, self.pins, lambda way, stack: self.boot(way, stack, count=1)
        )
        return recorded(self.pins, self.sizes)

    def measured(self, key):
        """One arm, from an empty cache."""
        arm, overlays = ARMS[key], self.disks.overlays()
        self.disks.fill()
        found = {"load_average": os.getloadavg()[0]}
        with boot_serving.way(key, self.sizes, self.work, self.pins) as way:
            way.start(overlays)
            other = boot_other.Other(self.driver, way.socket(self.sizes.clones), self.sizes)
            if arm.is_fetched:
                found["fetched_first"] = fetched = self.between(way, way.fetch)
                # Nothing else is in the store, and pins are no more than each has of it.
                if fetched["missing_bytes"]:
                    raise Stopped(f"{fetched['missing_bytes']} bytes of a clone's pins were not fetched")
            found["first"] = self.round(way, works=True)
            found["held_first"] = self.held(way)
            found["scan"] = self.between(way, other.scan)
            found["random"] = self.between(way, other.random)
            if arm.is_fetched:
                found["fetched_again"] = self.between(way, way.fetch)
            found["held_again"] = self.held(way)
            before = self.counts(way)
            with boot_other.Beside(other) as beside:
                found["again"] = self.round(way)
            found["beside"] = beside.done() | {"counted": difference(self.counts(way), before)}
            found["memory_bytes"], found["peak_bytes"] = way.memory_used(), way.group.peak_bytes()
            self.disks.check_filled()
            return found

    @staticmethod
    def held(way):
        """What the disks have of the store, of a daemon that says it."""
        return way.held() if isinstance(way, boot_serving.Clones) else None

    def counts(self, way):
        """All counters now."""
        daemon = way.counted() if isinstance(way, boot_serving.Clones) else {}
        return {"disks": self.disks.counts(), "daemon": daemon, "busy_seconds": busy_seconds()}

    def between(self, way, load):
        """A load of the other disk, with what was counted meanwhile."""
        before = self.counts(way)
        done = load()
        return done | {"counted": difference(self.counts(way), before)}

    def round(self, way, works=False):
        """All clones boot at once, each works if that is wanted, and all end. What is counted is the boots alone."""
        with contextlib.ExitStack() as stack:
            before = self.counts(way)
            running, up = self.boot(way, stack, self.sizes.clones)
            counted = difference(self.counts(way), before)
            read = [read_seconds(guest) for guest in running]
            together(running, lambda n, guest: self.finish(n, guest, works))
        return {"up_seconds": up, "read_seconds": read, "counted": counted}

    def boot(self, way, stack, count):
        """Starts guests on the first `count` clones at once, and waits until all are up: the guests, and how long each
        took."""
        running, began = [], []
        for n in range(count):
            began.append(time.monotonic())
            guest = guests.Guest(
                f"clone-{n + 1}", way.disk_args(n), self.work, self.sizes.guest_mib, self.accel,
                append=f"boot_list={boot_images.LIST}", check=way.check,
            )  # fmt: skip
            running.append(stack.enter_context(guest))

        def wait(n, guest):
            guest.wait_ready(BOOT_SECONDS)
            return round(time.monotonic() - began[n], 3)

        return running, together(running, wait)

    @staticmethod
    def finish(n, guest, works):
        """The clone reads what is its own, if it works, and ends."""
        if works:
            guest.run(f"cat /mnt/work/{n + 1} >/dev/null", seconds=BOOT_SECONDS)
        guest.run("umount /mnt")
        guest.power_off(seconds=120)


def together(running, what):
    """Does something with all guests at once, each given its number."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(running))) as pool:
        try:
            return list(pool.map(what, range(len(running)), running))
        except BaseException:
            # Those that are still running would keep the pool waiting.
            for guest in running:
                guest.close()
            raise


def read_seconds(guest):
    """How long a guest that is up took to read what a boot reads, by its own clock."""
    began, ended, status = guest.run("cat /tmp/booted")[1].split()
    if status != "0":
        raise Stopped(f"{guest.name}: it could not read its disk when it booted")
    return round(float(ended) - float(began), 2)
