"""Response times with locks in the daemon's cache, as they are measured, beside those that equation 3 says.

Owns the cells `measured-locks-...`: the loads of a trace, one at a time, through the daemon, with each kind of lock.
Never fits anything to what it measures (measured.py). Invariant: arms differ in the lines of `ARMS` alone, and the
profile is of an earlier run of the same loads.
"""

import datetime
import itertools
import json
import random
import statistics
import time

from rig import machine, process
from stores.report import table

from . import cells
from .measured import BLOCK, MISSES, REFERENCES, TRACES, Measured, blocks_of, hit_among_misses, lines, model
from .steady import blocks_of as ranges_of

# Milliseconds; 0 says what a miss takes without.
WAITS = (0, 1)
SIZE = "6MiB"
REPEATS = 5
BUDGET, BUFFER, TABLE = "30%", 12, 256
ARMS = {
    "none": "miss_table = 0\n",
    "online": f'miss_table = 0\nlock = "online"\nlock_budget = "{BUDGET}"\n',
    "static": f'miss_table = 0\nlock = "static"\nlock_budget = "{BUDGET}"\nlock_profile = "PROFILE"\n',
    "buffer": f"miss_table = 0\nvictim_buffer = {BUFFER}\n",
}


class MeasuredLocks(Measured):
    """One cell: a trace, in one cache with each kind of lock, on disks with some waits."""

    def __init__(self, name, trace):
        super().__init__(name, trace)
        self.id = f"measured-locks-{name}"

    def run(self, undercroft, work):
        """Its rows, how long it took, and what on."""
        began = time.monotonic()
        blocks, count = blocks_of(lines(self.trace))
        image, profile = work / "measured.raw", (work / "measured.profile").resolve()
        with open(image, "wb") as f:
            f.write(random.Random(1).randbytes((count + MISSES) * BLOCK))
        rows = []
        try:
            once = self.once(undercroft, work, image, blocks, 0, SIZE, f"miss_table = {TABLE}\n", missed)
            ranges = ranges_of(once["said"])
            profile.write_text(json.dumps({"size_bytes": (count + MISSES) * BLOCK, "ranges": ranges}))
            for wait, repeat, arm in itertools.product(WAITS, range(REPEATS), ARMS):
                set_lines = ARMS[arm].replace("PROFILE", str(profile))
                row = self.once(undercroft, work, image, blocks, wait, SIZE, set_lines, locked)
                rows.append({"wait_ms": wait, "repeat": repeat, "lock": arm, **row})
        finally:
            image.unlink()
            profile.unlink(missing_ok=True)
        facts = {
            "machine": machine.processor_facts(), "commit": machine.commit(cells.ROOT),
            "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        }  # fmt: skip
        seconds = round(time.monotonic() - began, 2)
        named = sum(count for _, count in ranges)
        return {"words": ["measured", self.id], "facts": facts, "named": named, "seconds": seconds, "rows": rows}


def missed(served):
    """What the daemon has in its table of misses."""
    argv = [served.undercroft, "misses", "disk", "--json", "--control", served.control]
    return json.loads(process.run(argv, "undercroft misses"))


def locked(served):
    """Blocks that are locked."""
    return served.disk()["locks"]["locked_bytes"] // BLOCK


def section(data):
    """The section, or nothing."""
    rows, facts = [], []
    for name in TRACES:
        cell = data.get(f"measured-locks-{name}")
        if not cell:
            continue
        facts.append(cell["facts"])
        for arm in ARMS:
            of = [r for r in cell["rows"] if r["lock"] == arm]
            misses = statistics.median(r["misses"] / r["references"] for r in of)
            row = [name if arm == "none" else "", arm, max(r["said"] for r in of), f"{100 * misses:.2f}"]
            for wait in WAITS:
                waited = [r for r in of if r["wait_ms"] == wait]
                got = sorted(r["mean_us"] for r in waited)
                among = statistics.median(hit_among_misses(r) for r in waited)
                said = model(of, wait)(misses)
                row.append(f"{statistics.median(got):.1f} ({got[0]:.1f} to {got[-1]:.1f}) / {said:.1f}; {among:.1f}")
            rows.append(row)
    if not rows:
        return ""
    machines = "; ".join(sorted({machine.processor_words(one["machine"]) for one in facts}))
    commits = ", ".join(sorted({str(one["commit"]) for one in facts}))
    head = ["", "", "locked at the end", "misses %", *(f"{wait} ms" if wait else "no wait" for wait in WAITS)]
    return f"""
## Response times with locks

The first {REFERENCES:,} loads of three traces as above, through the daemon with a share of {SIZE}, LRU, and with locks:
by the rule (`online`, at most {BUDGET}), by a profile of the {TABLE} blocks that an earlier run of the same loads has
missed most (`static`, so it knows what comes), or none and a victim buffer of {BUFFER} blocks. The mean of a reference
in microseconds (least to most of {REPEATS} runs) / by equation 3, with the misses that were counted; and what a hit
took among the misses, these left off. Measured on {machines}; commit {commits}.

{table(head, rows)}"""


def measured_locks_cells(folder):
    """One for each of the traces whose response times are measured."""
    return [MeasuredLocks(name, folder / f"{name}.u64le.zst") for name in TRACES]
