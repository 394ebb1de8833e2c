"""Guests that have booted and then read for a while: what locks and a victim buffer bring beside the same policy.

Owns the cells `steady-...`: each is one repetition of all arms, in an order of its own, on disks that wait before each
transfer. Never judges a result. Invariants: arms differ in nothing but what `ARMS` has of them; the profile of the arm
that locks by one is of an earlier run of the same load with other chances; what is counted of the load is from when the
first guest begins until the last one has ended.
"""

import contextlib
import json
import os
import time

from exclusive.measure import difference
from rig import process
from rig.process import Stopped

from . import boot_images, boot_serving
from .boot_arms import MIB, REPETITIONS, Arm, Sizes
from .boot_rounds import say, together
from .clone_cells import Cell

WAITS_MS = (2,)
# A clone's file is twice as large as its part of the store and what its guest has for pages together.
SIZES = Sizes(clones=3, guest_mib=128, store_mib=256, work_mib=256, other_stores=1)
# Reads of a block at a time by Zipf's law: not counted at first, then counted.
WARM, READS, ALPHA = 40_000, 60_000, 0.9
LOAD_SECONDS = 1800
BUDGET, BUFFER = "30%", 12
# The largest table of misses that there can be.
TABLE = 4096
# The rule hears nothing of a disk whose guest's pages are followed (0210): the policy is alone in all arms but one.
OFF = 'exclusive = "off"\n'
ONLINE = f'lock = "online"\nlock_budget = "{BUDGET}"\n'
VICTIMS = f"victim_buffer = {BUFFER}\n"
ARMS = {
    "plain": Arm("no locks", "the default policy, `exclusive` off", set=OFF),
    "online": Arm("online", f"the same with `lock = \"online\"`, at most {BUDGET}", set=OFF + ONLINE),
    "static": Arm(
        "static", f"the same with `lock = \"static\"`, at most {BUDGET}, and a profile: the blocks, at most {TABLE:,},"
        " that an earlier run of the same load, with other chances, has missed most",
        has_profile=True, set=f'{OFF}lock = "static"\nlock_budget = "{BUDGET}"\n',
    ),
    "buffer": Arm("victim buffer", f"no locks, and a victim buffer of {BUFFER} blocks", set=OFF + VICTIMS),
    "both": Arm("online and buffer", "both", set=OFF + ONLINE + VICTIMS),
    "default": Arm("exclusive", "all as it is by default: the cache is kept exclusive of the guests'"),
}  # fmt: skip
PROFILE = Arm("profile", "the earlier run", set=f"{OFF}miss_table = {TABLE}\n")


class Profiled(boot_serving.Clones):
    """Each clone has a profile of its own: the folder `pins` has them."""

    def pins_of(self, index):
        return profile(self.pins, index)


def profile(folder, index):
    """The file of the profile of a clone."""
    return folder / f"clone-{index + 1}.profile"


def blocks_of(said):
    """Ranges of blocks, those beside each other as one, of what `undercroft misses --json` has said."""
    ranges = []
    for block in sorted({missed["offset_bytes"] // boot_images.BLOCK for missed in said["blocks"]}):
        if ranges and sum(ranges[-1]) == block:
            ranges[-1][1] += 1
        else:
            ranges.append([block, 1])
    return ranges


class Steady(Cell):
    """One cell of clones that read."""

    name, known = "steady", ARMS
    settings = {"warm": WARM, "reads": READS, "alpha": ALPHA, "budget": BUDGET, "buffer": BUFFER, "table": TABLE}

    def __init__(self, wait_ms, repetition, sizes=SIZES, arms=tuple(ARMS)):
        super().__init__(wait_ms, repetition, sizes, arms)

    def measured(self, rounds, key):
        return self.run_arm(rounds, ARMS[key], 1 + self.repetition)

    def prepare(self, rounds):
        """Runs the load once with large tables of misses, and writes what they have as each clone's profile: how many
        blocks these name."""

        def write(way):
            found = []
            command = ["qemu-img", "info", "-U", "--output", "json", way.disks[0]]
            info = json.loads(process.run(command, "qemu-img info"))
            for n in range(self.sizes.clones):
                ranges = blocks_of(json.loads(way.ctl("misses", ":".join(way.names(n)), "--json")))
                text = json.dumps({"size_bytes": info["virtual-size"], "ranges": ranges})
                profile(rounds.work, n).write_text(text)
                found.append(sum(count for _, count in ranges))
            return found

        say("an earlier run, whose misses are the profile")
        return self.run_arm(rounds, PROFILE, 1, write)["said"]

    def run_arm(self, rounds, arm, chance, ask=None):
        """One arm, from an empty cache; `ask(way)` asks the daemon for more when the load is over."""
        overlays = rounds.disks.overlays()
        rounds.disks.fill()
        found = {"load_average": os.getloadavg()[0]}
        with Profiled(arm, self.sizes, rounds.work, rounds.work) as way, contextlib.ExitStack() as stack:
            way.start(overlays)
            running, found["up_seconds"] = rounds.boot(way, stack, self.sizes.clones)
            before, began = rounds.counts(way), time.monotonic()
            found["guests"] = together(running, lambda n, guest: self.load(n, guest, chance))
            found["seconds"] = round(time.monotonic() - began, 2)
            found["counted"] = difference(rounds.counts(way), before)
            found["held"] = way.held()
            found["said"] = ask(way) if ask else None
            together(running, lambda n, guest: rounds.finish(n, guest, False))
            found["memory_bytes"], found["peak_bytes"] = way.memory_used(), way.group.peak_bytes()
        rounds.disks.check_filled()
        return found

    def load(self, n, guest, chance):
        """The load of one guest: what it says of it. Which blocks are popular is the same for each chance."""
        size = self.sizes.work_mib * MIB
        command = (
            f"workload zipf /mnt/work/{n + 1} --seed {boot_images.work_seed(n)} --bytes {size} --warm {WARM}"
            f" --ops {READS} --alpha {ALPHA} --write-percent 0 --layout {n + 1} --rng {100 * chance + n} --device vda"
        )
        done = [event for event in guest.events(command, LOAD_SECONDS) if event["event"] == "done"]
        if len(done) != 1 or done[0]["reads"] < READS:
            raise Stopped(f"{guest.name}: the load has not done its {READS} reads: {done}")
        kept = ("seconds", "reads", "read_bytes", "cached_bytes", "read_all", "read_disk")
        return {name: done[0][name] for name in kept}

    def line(self, found):
        mib = found["counted"]["disks"]["base"]["read_bytes"] >> 20
        return f"{mib} MiB read of the base in {found['seconds']:.1f} s"


def steady_cells():
    """All cells."""
    return [Steady(wait, n + 1) for wait in WAITS_MS for n in range(REPETITIONS)]
