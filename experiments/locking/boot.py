#!/usr/bin/python3
"""Ten clones of one image that boot at once: what it brings to pin what a boot reads.

Owns the cells: each is one repetition of all arms, in an order of its own, on disks that wait before each transfer
(what happens in an arm: `boot_rounds.py`). Never judges a result. Invariants: a cell's id says the wait of its disks
and its repetition; the boot set is recorded once in a cell, for all of its arms; when a cell ends, however it does,
nothing of it is left running.

By itself (`experiments/locking/boot.py`) it tries all of this with few clones and a small store, and stores nothing.
"""

import argparse
import datetime
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locking import boot_images, boot_other, boot_serving  # noqa: E402
from locking.boot_arms import ARMS, BUDGET, INTERVAL, MIB, QUICK, REPETITIONS, USUAL, order  # noqa: E402
from locking.boot_rounds import Rounds, say  # noqa: E402
from rig import cgroup, guest as guests, machine, slowdisk  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402

WAITS_MS = (2, 0)
# More than a second for each transfer, and nothing comes up.
WAIT_MAX_MS = 1000


class Boot:
    """One cell: all arms once, on disks that wait so many milliseconds before each transfer."""

    def __init__(self, wait_ms, repetition, sizes=USUAL, arms=tuple(ARMS)):
        self.id = f"boot-{wait_ms}ms-{repetition}"
        self.wait_ms, self.repetition, self.sizes, self.arms = wait_ms, repetition, sizes, arms

    def run(self, undercroft, work):
        """What all arms have measured, and what it was measured with."""
        try:
            return self._run(undercroft.resolve(), (work / "boot").resolve())
        except cgroup.Unavailable as e:
            raise Stopped(str(e)) from e

    def _run(self, undercroft, work):
        began = time.monotonic()
        if missing := slowdisk.lacks():
            raise Stopped(f"disks of clones cannot be made here: {'; '.join(missing)}")
        driver = undercroft.with_name("undercroft-driver")
        if not driver.exists():
            raise Stopped(f"{driver} is missing: cargo build --release -p undercroft -p undercroft-bench-driver")
        boot_serving.Clones.binary = undercroft
        work.mkdir(parents=True, exist_ok=True)
        guests.build()
        images = boot_images.Images(work / "images", self.sizes, say)
        images.prepare()
        keys, arms = order(self.arms, self.repetition), {}
        with boot_images.Disks(images, 1000 * self.wait_ms) as disks:
            rounds = Rounds(self.sizes, disks, work, driver, guests.accelerator())
            recorded = rounds.record()
            for key in keys:
                arms[key] = rounds.measured(key)
                say(f"  {ARMS[key].title:28} {line(arms[key])}")
        facts = self.facts(work, rounds.accel) | {"order": keys, "recorded": recorded}
        seconds = round(time.monotonic() - began, 1)
        return {"words": ["boot", self.id], "facts": facts, "arms": arms, "seconds": seconds}

    def facts(self, work, accel):
        """Every setting that may decide the figures."""
        return {
            "wait_ms": self.wait_ms, "sizes": asdict(self.sizes), "machine": machine.facts(work, accel),
            "commit": machine.commit(guests.ROOT), "lock_budget": BUDGET, "shares_interval": INTERVAL,
            "read_ahead_kb": boot_images.READ_AHEAD_KB, "random_kib": boot_other.RANDOM_KIB,
            "settings": boot_serving.SAID_SETTINGS, "limit_mib": boot_serving.limit_bytes(self.sizes) // MIB,
            "scan_kib": boot_other.SCAN_KIB, "passes": boot_other.PASSES, "beside_reads": boot_other.BESIDE_READS,
            "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        }  # fmt: skip


def line(found):
    """An arm in a few words, while it runs."""
    up = sorted(found["again"]["up_seconds"])
    mib = found["again"]["counted"]["disks"]["base"]["read_bytes"] >> 20
    return (
        f"second round: the last one up after {up[-1]:.1f} s, {mib} MiB read of the base; other disk:"
        f" {found['random']['counted']['disks']['other']['read_bytes'] >> 20} MiB in {found['random']['seconds']:.1f} s"
    )


def boot_cells():
    """All cells."""
    return [Boot(wait, n + 1) for wait in WAITS_MS for n in range(REPETITIONS)]


def wait_ms(text):
    """Milliseconds that disks can wait."""
    if not text.isdecimal() or int(text) > WAIT_MAX_MS:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of milliseconds from 0 to {WAIT_MAX_MS}")
    return int(text)


def main():
    """A trial: see the head of the file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arms", default=",".join(ARMS), help="which arms, in order (default: %(default)s)")
    p.add_argument("--wait", type=wait_ms, default=2, help="milliseconds before each transfer (default: %(default)s)")
    p.add_argument("--undercroft", type=Path, default=guests.ROOT / "target" / "release" / "undercroft")
    p.add_argument("--work", type=Path, default=guests.ROOT / "build" / "lab" / "boot-trial")
    a = p.parse_args()
    arms = tuple(a.arms.split(","))
    if unknown := [key for key in arms if key not in ARMS]:
        p.error(f"--arms: there is no '{unknown[0]}'; choose from {', '.join(ARMS)}")
    become_root("boot", "control groups and disks that wait")
    end_in_order()
    try:
        found = Boot(a.wait, 1, QUICK, arms).run(a.undercroft, a.work)
        print(json.dumps(found, indent=1))
    except KeyboardInterrupt:
        return 130
    except Stopped as e:
        print(f"boot: {e}", file=sys.stderr)
        return 1
    finally:
        give_back(a.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
