"""What the laboratory runs on block traces: `undercroft lab blocks`, the daemon's cache with locked blocks.

Owns the cells `blocks-...`, and what is kept of one. Never judges a result. Invariants: all that a cell counts is the
same each time that it is run with the same seed, and without chance with every seed, or it is an error; what differs
is processor time, which is a ratio within one run; a cell says on which machine, from which commit and when.
"""

import datetime
import os
import time

from rig import machine
from rig.process import Stopped

from . import cells

# Those of the reference data, by the names that tables have for them.
TRACES = {
    "OLTP": "arc-OLTP.lis.zst",
    "P6": "arc-P6.lis.zst",
    "CloudPhysics": "cloudPhysicsIO.vscsi",
    "w106": "cloudphysics-w106.u32le.xz",
}
# The default policy among others; sizes are parts of all blocks of a trace.
POLICIES = ("lru", "s3-fifo", "arc", "sieve")
SIZES = ("1%", "5%", "20%")
STATIC = ("static:5%", "static:10%", "static:20%", "static:30%")
RULE = ("online:30%", "online:90%")
BUFFER, BOTH = "buffer:12", "online:30%+12"
CONTROLS = ("random:10%", "hits:10%")
LOCKS = (*STATIC, *RULE, BUFFER, BOTH, *CONTROLS)
# Seeds of the runs of a cell: of what is locked by chance, and of the sample that the rule's guard looks at. The first
# is run twice, to see that it counts the same; processor time is the median of all runs.
SEEDS = (1, 1, 2, 3, 4, 5)
# What may differ from seed to seed.
CHANCE = ("random", "online")
TIMES = ("cpu_ns", "cpu_ratio")
# What follows from the others is not kept.
KEPT = (
    "policy", "size", "capacity_blocks", "lock", "reads", "read_misses", "locked_blocks", "budget_blocks",
    "locked_read_hits", "buffer_hits", "online", "lock_bytes", "limit_blocks",
)  # fmt: skip


class Blocks:
    """One trace under all policies, at all sizes, with all locks; `half`: locked by what its first half says, on the
    second."""

    def __init__(self, name, trace, half=False):
        self.id = f"blocks-half-{name}" if half else f"blocks-{name}"
        words = ["blocks", trace, "--policy", ",".join(POLICIES), "--size", ",".join(SIZES), "--lock", ",".join(LOCKS)]
        # One after the other: they would take each other's room in the processor's caches.
        words += ["--jobs", 1, *(["--first-run", "first-half"] if half else [])]
        self.words = [str(word) for word in words]

    def run(self, undercroft, _work):
        """Its rows, how long it took, and what on."""
        began, load, runs = time.monotonic(), os.getloadavg()[0], []
        for n, seed in enumerate(SEEDS, 1):
            runs.append(cells.asked(undercroft, [*self.words, "--seed", str(seed)]))
            print(f"  run {n} of {len(SEEDS)} after {time.monotonic() - began:.0f} s", flush=True)
        rows = [self.joined(rows) for rows in zip(*(run["results"] for run in runs), strict=True)]
        words = [cells.portable(word) for word in self.words]
        known = {name: runs[0][name] for name in ("accesses", "footprint_blocks")}
        facts = {
            "machine": machine.processor_facts(), "commit": machine.commit(cells.ROOT), "load_average": load,
            "seeds": SEEDS, "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        }  # fmt: skip
        return {"words": words, "facts": facts, "seconds": round(time.monotonic() - began, 2), **known, "rows": rows}

    def joined(self, rows):
        """One row of those of the runs: the counts of the first, and of all seeds the reads that missed."""
        counted = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
        first = counted[0]
        by_chance = first["lock"].startswith(CHANCE)
        for seed, one in zip(SEEDS, counted, strict=True):
            if one != first and (seed == SEEDS[0] or not by_chance):
                raise Stopped(f"{self.id}: {first['policy']} with {first['lock']} has not counted the same twice")
        misses = dict(zip(SEEDS, (one["read_misses"] for one in counted), strict=True))
        times = {name: [round(row[name], 3) for row in rows] for name in TIMES}
        chance = {"misses_by_seed": list(misses.values())} if by_chance else {}
        return {name: first[name] for name in KEPT} | chance | times


def block_cells(folder):
    """All of them."""
    both = (False, True)
    return [Blocks(name, folder / file, half) for half in both for name, file in TRACES.items()]
