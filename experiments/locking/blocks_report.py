"""The section of docs/results/locking.md about locks in the daemon's cache of blocks.

Owns its words and what is derived from counts for it. Never simulates. Invariants: no number is typed in by hand; what
is said of an arm is said of all caches that were simulated, those among them that it does harm to.
"""

import statistics
from dataclasses import dataclass

from rig import machine
from stores.report import table

from .blocks import BOTH, BUFFER, CONTROLS, LOCKS, POLICIES, RULE, SEEDS, STATIC, TRACES

WHOLE, HALF = "blocks-", "blocks-half-"
# An arm of these is shown by policy.
SHOWN = ("static:10%", *RULE, BUFFER, BOTH, *CONTROLS)
# Bytes of a block.
BLOCK = 4096
# Less than this many points, either way, is told as neither better nor worse.
SAME = 0.005


@dataclass
class Compared:
    """One cache with locks, beside the same without."""

    trace: str
    none: dict
    row: dict

    @property
    def by_seed(self):
        """Points of misses more, in percent of reads, for each seed; one if nothing of it is chance."""
        misses = self.row.get("misses_by_seed") or [self.row["read_misses"]]
        return [100 * (n - self.none["read_misses"]) / max(self.none["reads"], 1) for n in misses]

    @property
    def points(self):
        """The median of these."""
        return statistics.median(self.by_seed)

    @property
    def said(self):
        """The points, and the least and the most of all seeds if they differ."""
        least, most = signed(min(self.by_seed)), signed(max(self.by_seed))
        return signed(self.points) if least == most else f"{signed(self.points)} ({least} to {most})"

    @property
    def time(self):
        """Processor time, as a ratio to that without locks in the same run: the median of the runs."""
        return statistics.median(self.row["cpu_ratio"])

    @property
    def name(self):
        """Which cache it is."""
        return f"{self.trace}, {self.row['policy']}, {self.row['size']}"


def compared(data, prefix):
    """All caches with locks, in order."""
    found = []
    for trace in TRACES:
        none = None
        for row in data.get(f"{prefix}{trace}", {"rows": []})["rows"]:
            if row["lock"] == "none":
                none = row
            else:
                found.append(Compared(trace, none, row))
    return found


def of(all_of, *locks):
    """Those with these locks."""
    return [c for c in all_of if c.row["lock"] in locks]


def signed(points):
    """Points, with their sign."""
    return f"{points:+.2f}"


def each(all_of):
    """Every cache: misses without locks, and the points that each arm changes of them."""
    by = {}
    for c in all_of:
        by.setdefault((c.trace, c.row["policy"], c.row["size"]), {})[c.row["lock"]] = c
    rows, said = [], (None, None)
    for (trace, policy, size), arms in by.items():
        none = next(iter(arms.values())).none
        shown = [trace if trace != said[0] else "", policy if (trace, policy) != said else "", size]
        said = (trace, policy)
        misses = f"{100 * none['read_misses'] / max(none['reads'], 1):.2f}"
        changes = [arms[lock].said if lock in arms else "-" for lock in LOCKS]
        rows.append([*shown, none["capacity_blocks"], misses, *changes])
    return table(["", "", "", "blocks", "none", *LOCKS], rows)


def better_and_worse(some):
    """How many caches have fewer misses, and how many more."""
    return sum(c.points <= -SAME for c in some), sum(c.points >= SAME for c in some)


def summary(all_of):
    """Each arm over all caches: where it helps and where it does not, at best and at worst, and what it takes."""
    rows = []
    for lock in LOCKS:
        some = of(all_of, lock)
        if not some:
            continue
        fewer, more = better_and_worse(some)
        best, worst = min(some, key=lambda c: min(c.by_seed)), max(some, key=lambda c: max(c.by_seed))
        mean = statistics.mean(c.points for c in some)
        times = [c.time for c in some]
        time = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        ends = [f"{signed(choose(c.by_seed))} ({c.name})" for choose, c in ((min, best), (max, worst))]
        rows.append([lock, fewer, len(some) - fewer - more, more, signed(mean), *ends, time])
    return table(["", "fewer", "as many", "more", "mean", "best", "worst", "processor time"], rows)


def by_policy(all_of, locks=SHOWN):
    """Caches with fewer misses / with more, and the points at best and at worst, for each policy."""
    rows = []
    for policy in POLICIES:
        line = [policy]
        for lock in locks:
            some = [c for c in of(all_of, lock) if c.row["policy"] == policy]
            if not some:
                line.append("-")
                continue
            fewer, more = better_and_worse(some)
            ends = [signed(choose(choose(c.by_seed) for c in some)) for choose in (min, max)]
            line.append(f"{fewer}/{more} ({ends[0]} to {ends[1]})")
        rows.append(line)
    return table(["", *locks], rows)


def against_controls(all_of):
    """In how many caches locking by misses has fewer misses than each control."""
    ours = {c.name: c.points for c in of(all_of, "static:10%")}
    parts = []
    for control in CONTROLS:
        some = of(all_of, control)
        wins = sum(ours[c.name] <= c.points - SAME for c in some)
        losses = sum(ours[c.name] >= c.points + SAME for c in some)
        parts.append(f"than `{control}` in {wins} of {len(some)}, and more in {losses}")
    return "; ".join(parts)


def spread(all_of):
    """By how many points the seeds of one cache differ at most, for each kind of chance."""
    parts = []
    for kind, locks in (("`random`", CONTROLS[:1]), ("the rule", (*RULE, BOTH))):
        some = of(all_of, *locks)
        if some:
            widest = max(max(c.by_seed) - min(c.by_seed) for c in some)
            parts.append(f"{kind} by {widest:.2f} points")
    return ", ".join(parts)


def at_worst(worst):
    """What the rule does to a cache at worst, in words."""
    points = max(worst.by_seed)
    if abs(points) < SAME:
        return "At worst the rule changes nothing"
    return f"At worst the rule {'costs' if points > 0 else 'still saves'} **{signed(points)} points**"


def rule_part(all_of):
    """What the rule costs at worst, how often it did something, and its memory."""
    some = of(all_of, *RULE, BOTH)
    worst = max(some, key=lambda c: max(c.by_seed))
    idle = sum(c.row["online"]["locks"] == 0 for c in some)
    rested = sum(c.row["online"]["rests"] > 0 for c in some)
    held = [100 * c.row["lock_bytes"] / (BLOCK * c.row["capacity_blocks"]) for c in some]
    return (
        f"{at_worst(worst)} against the same cache without locks "
        f"({worst.name}, `{worst.row['lock']}`).\n"
        f"In {idle} of {len(some)} caches it never locked anything, and in {rested} its guard gave all "
        f"locks up at least once.\nWhat it has to remember comes out of the cache, as in the daemon: "
        f"{min(held):.1f} to {max(held):.1f} % of these caches."
    )


def measured_on(data, prefix):
    """Machines, commits and days of the cells, in words."""
    facts = [data[f"{prefix}{trace}"]["facts"] for trace in TRACES if f"{prefix}{trace}" in data]
    machines = "; ".join(sorted({machine.processor_words(one["machine"]) for one in facts}))
    commits, days = (", ".join(sorted({str(one[name]) for one in facts})) for name in ("commit", "day"))
    load = max(one["load_average"] for one in facts)
    return f"Run on {machines}; commit {commits}; {days}; load average before a cell at most {load:.1f}."


def part(data):
    """The section, if there is something to say."""
    whole, half = compared(data, WHOLE), compared(data, HALF)
    if not whole:
        return ""
    # What depends on a first run, and the rule beside it.
    profiled = (*STATIC, "online:30%", *CONTROLS)
    halves = f"""
### Profiles that do not know what comes

The first run is over the first half of each trace, and the caches are tried on the second, from empty ones.

{summary(half)}
{by_policy(half, profiled)}
{rule_part(half)}
""" if half else ""  # fmt: skip
    return f"""
## Locks in a block cache

The daemon's own index and rule on block traces (`undercroft lab blocks`, [simulator.md](../simulator.md)), under four
policies at three sizes (parts of all blocks of a trace): misses in percent of the reads, and the points by which locks
change them against the same policy and size without. All arms have the same memory: the rule's tables and the list of
what a first run names come out of the cache. `static:10%` locks the tenth of the cache that a first run over
the very same trace missed most, so it knows what comes; `online:30%` is the daemon's rule, which locks at most so much
and knows nothing; `buffer:12` keeps the last 12 evicted blocks a little longer, in room that the cache gives;
`random` and `hits` are controls. What `random` locks is chance, and so is the sample of the blocks that the guard of
the rule looks at in a cache of more than 4,096: both are run with {len(set(SEEDS))} seeds, the points are the median
(the least to the most), and what is called best and worst is that of all seeds. At most, seeds differ for
{spread(whole)}. All other counts are the same each time. *Processor time* is that of the accesses, the median of
{len(SEEDS)} runs as a ratio to the cache without locks in the same run: the median of all caches (and the least and
the most).

{measured_on(data, WHOLE)}

### Where it helps and where it does not

Caches with fewer misses, as many (less than {SAME} points either way), and more.

{summary(whole)}
The same by policy: caches with fewer / with more misses (and the points at best and at worst).

{by_policy(whole)}
{rule_part(whole)}

Locked by misses (`static:10%`), there are fewer misses {against_controls(whole)}.

### All of them

{each(whole)}{halves}"""
