#!/usr/bin/python3
"""Ten clones of one image that boot at once: what it brings to pin what a boot reads.

Owns the cells `boot-...` (what such cells have in common: `clone_cells.py`; what happens in an arm: `boot_rounds.py`).
Never judges a result. Invariant: the boot set is recorded once in a cell, for all of its arms.

By itself (`experiments/locking/boot.py`) it tries all of this with few clones and a small store, and stores nothing.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locking import boot_other  # noqa: E402
from locking.boot_arms import ARMS, BUDGET, QUICK, REPETITIONS, USUAL  # noqa: E402
from locking.clone_cells import Cell  # noqa: E402
from rig import guest as guests  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402

WAITS_MS = (2, 0)
# More than a second for each transfer, and nothing comes up.
WAIT_MAX_MS = 1000


class Boot(Cell):
    """One cell of clones that boot."""

    name, known = "boot", ARMS
    settings = {
        "lock_budget": BUDGET, "random_kib": boot_other.RANDOM_KIB, "scan_kib": boot_other.SCAN_KIB,
        "passes": boot_other.PASSES, "beside_reads": boot_other.BESIDE_READS,
    }  # fmt: skip

    def __init__(self, wait_ms, repetition, sizes=USUAL, arms=tuple(ARMS)):
        super().__init__(wait_ms, repetition, sizes, arms)

    def driver(self, undercroft):
        driver = undercroft.with_name("undercroft-driver")
        if not driver.exists():
            raise Stopped(f"{driver} is missing: cargo build --release -p undercroft -p undercroft-bench-driver")
        return driver

    def prepare(self, rounds):
        return rounds.record()

    def measured(self, rounds, key):
        return rounds.measured(key)

    def line(self, found):
        up = sorted(found["again"]["up_seconds"])
        mib = found["again"]["counted"]["disks"]["base"]["read_bytes"] >> 20
        other = found["random"]["counted"]["disks"]["other"]["read_bytes"] >> 20
        return (
            f"second round: the last one up after {up[-1]:.1f} s, {mib} MiB read of the base; other disk:"
            f" {other} MiB in {found['random']['seconds']:.1f} s"
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
