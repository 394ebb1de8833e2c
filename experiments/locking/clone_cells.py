"""A cell of the laboratory that measures clones of one image: all arms once, on disks that wait.

Owns what such cells have in common: their disks, the order of their arms, and the settings that may decide their
figures. Never judges a result. Invariants: a cell's id says the wait of its disks and its repetition; when a cell ends,
however it does, nothing of it is left running.
"""

import datetime
import time
from dataclasses import asdict

from rig import cgroup, guest as guests, machine, slowdisk
from rig.process import Stopped

from . import boot_images, boot_serving
from .boot_arms import INTERVAL, MIB, order
from .boot_rounds import Rounds, say


class Cell:
    """One cell: all arms once, on disks that wait so many milliseconds before each transfer."""

    # What its id begins with, its arms by their keys, and the settings that it alone has.
    name, known, settings = "", {}, {}

    def __init__(self, wait_ms, repetition, sizes, arms):
        self.id = f"{self.name}-{wait_ms}ms-{repetition}"
        self.wait_ms, self.repetition, self.sizes, self.arms = wait_ms, repetition, sizes, arms

    def driver(self, undercroft):  # noqa: ARG002
        """The program that reads beside the guests, if it needs one."""
        return None

    def prepare(self, rounds):
        """What comes before all arms: what was recorded for them."""
        raise NotImplementedError

    def measured(self, rounds, key):
        """One arm."""
        raise NotImplementedError

    def line(self, found):
        """An arm in a few words, while it runs."""
        raise NotImplementedError

    def run(self, undercroft, work):
        """What all arms have measured, and what it was measured with."""
        try:
            return self._run(undercroft.resolve(), (work / self.name).resolve())
        except cgroup.Unavailable as e:
            raise Stopped(str(e)) from e

    def _run(self, undercroft, work):
        began = time.monotonic()
        if missing := slowdisk.lacks():
            raise Stopped(f"disks of clones cannot be made here: {'; '.join(missing)}")
        driver = self.driver(undercroft)
        boot_serving.Clones.binary = undercroft
        work.mkdir(parents=True, exist_ok=True)
        guests.build()
        images = boot_images.Images(work / "images", self.sizes, say)
        images.prepare()
        keys, arms = order(self.arms, self.repetition), {}
        with boot_images.Disks(images, 1000 * self.wait_ms) as disks:
            rounds = Rounds(self.sizes, disks, work, driver, guests.accelerator())
            recorded = self.prepare(rounds)
            for key in keys:
                arms[key] = self.measured(rounds, key)
                say(f"  {self.known[key].title:28} {self.line(arms[key])}")
        facts = self.facts(work, rounds.accel) | {"order": keys, "recorded": recorded}
        seconds = round(time.monotonic() - began, 1)
        return {"words": [self.name, self.id], "facts": facts, "arms": arms, "seconds": seconds}

    def facts(self, work, accel):
        """Every setting that may decide the figures."""
        return {
            "wait_ms": self.wait_ms, "sizes": asdict(self.sizes), "machine": machine.facts(work, accel),
            "commit": machine.commit(guests.ROOT), "shares_interval": INTERVAL,
            "read_ahead_kb": boot_images.READ_AHEAD_KB, "settings": boot_serving.SAID_SETTINGS,
            "limit_mib": boot_serving.limit_bytes(self.sizes) // MIB,
            "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), **self.settings,
        }  # fmt: skip
