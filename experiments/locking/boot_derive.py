"""What the figures of clones that boot at once say: of each arm over all repetitions, and of one arm beside another.

Owns what is told apart. Never measures, never words anything. Invariants: figures of different programs, settings or
types of machine are never put together; a verdict is on figures and pairs that stand here before anything is measured,
and the chance that any of a wait's verdicts is false is `FALSE` at most.
"""

import bisect
import itertools
import re
import statistics

from rig import machine
from rig.process import Stopped

from .boot_arms import ARMS

MIB = 1 << 20
OTHER = "other:root"
CELL = re.compile(r"boot-(\d+)ms-(\d+)")
# What verdicts are on: what was read from storage, fetching included, and when the last clone is up.
MAIN = ("all_mib", "up_worst")
PAIRS = (("pinned", "none"), ("kept", "none"), ("kept", "floor"))
# The chance that any of them is false, which each has its part of.
FALSE = 0.05
# What may differ from cell to cell: the rest are settings.
OWN = ("wait_ms", "day", "order", "recorded", "machine", "load_average")


def level(pairs=PAIRS, names=MAIN):
    """The p up to which two arms are told apart in one of so many comparisons."""
    return FALSE / (len(pairs) * len(names))


def cells_by_wait(data, pattern=CELL):
    """The stored cells by the wait of their disks in milliseconds, each with its repetitions in order.

    Stopped: they were not measured alike.
    """
    found = {}
    numbers = {name: [int(n) for n in matched.groups()] for name in data if (matched := pattern.fullmatch(name))}
    firsts = {}
    for name in sorted(numbers, key=numbers.get):
        wait = numbers[name][0]
        for other in (next(iter(firsts.values()), name), firsts.setdefault(wait, name)):
            if differs := difference(data[name], data[other]):
                raise Stopped(
                    f"{name} and {other} cannot be reported together: {differs}. Measure again what is old (--only)"
                )
        found.setdefault(wait, []).append(data[name])
    return found


def difference(cell, other):
    """In what two cells were not measured alike, in words; empty if in nothing."""
    a, b = cell["facts"], other["facts"]
    found = [f"{name} is {a.get(name)} and {b.get(name)}" for name in sorted({*a, *b} - {*OWN})
             if a.get(name) != b.get(name)]  # fmt: skip
    kinds = [machine.kind(facts["machine"]) for facts in (a, b)]
    if kinds[0] != kinds[1]:
        found.append(f"the machine is {kinds[0]} and {kinds[1]}")
    if {*cell["arms"]} != {*other["arms"]} and a["wait_ms"] == b["wait_ms"]:
        found.append(f"only one has {', '.join(sorted({*cell['arms']} ^ {*other['arms']}))}")
    return "; ".join(found)


def arms_of(cells, arms=ARMS):
    """The arms that all of these cells have."""
    return [key for key in arms if all(key in cell["arms"] for cell in cells)]


def part(value, of):
    """In percent; None of nothing."""
    return 100 * value / of if of else None


def hits(counted):
    """Percent of the blocks that clones asked for that were in RAM, by the daemon's count; None without a daemon."""
    clones = counted["daemon"].get("clones")
    if not clones:
        return None
    return part(clones["hit_blocks"], sum(clones[name] for name in ("hit_blocks", "miss_blocks", "joined_blocks")))


def missed(load, kib):
    """Percent of what a load of the other disk asked for that came from the disk."""
    return part(load["counted"]["disks"]["other"]["read_bytes"], load["reads"] * kib * 1024)


def locked_mib(held):
    """What is locked of a clone: the median of all of them; None without a daemon."""
    if not held:
        return None
    return statistics.median(d["locked_bytes"] for name, d in held["disks"].items() if name != OTHER) / MIB


def shares(held):
    """MiB of the store that all clones have, and that the other disk has; None without a daemon."""
    if not held:
        return None, None
    of = {name: disk["share_bytes"] / MIB for name, disk in held["disks"].items()}
    other = of.pop(OTHER)
    return sum(of.values()), other


def base_mib(part_of_run):
    """MiB that the disk of the base has delivered."""
    return part_of_run["counted"]["disks"]["base"]["read_bytes"] / MIB


def figures(found, kib):
    """The figures of one arm in one repetition."""
    first, again = found["first"], found["again"]
    clones, other = shares(found["held_again"])
    fetched = {when: found.get(f"fetched_{when}") for when in ("first", "again")}
    fetched_mib = {when: of and base_mib(of) for when, of in fetched.items()}
    lacking = [of["missing_bytes"] / MIB for of in fetched.values() if of]
    return {
        "first_median": statistics.median(first["up_seconds"]), "first_worst": max(first["up_seconds"]),
        "first_mib": base_mib(first), "first_hits": hits(first["counted"]),
        "first_all_mib": base_mib(first) + (fetched_mib["first"] or 0),
        "up_median": statistics.median(again["up_seconds"]), "up_worst": max(again["up_seconds"]),
        "reading": statistics.median(again["read_seconds"]),
        "base_mib": base_mib(again), "all_mib": base_mib(again) + (fetched_mib["again"] or 0),
        "base_reads": again["counted"]["disks"]["base"]["reads"], "hits": hits(again["counted"]),
        "first_fetched": fetched_mib["first"], "fetched_mib": fetched_mib["again"],
        "fetched_seconds": fetched["again"] and fetched["again"]["seconds"],
        "lacking_mib": max(lacking) if lacking else None,
        "busy": again["counted"]["busy_seconds"], "load": found["load_average"],
        "random_seconds": found["random"]["seconds"], "random_missed": missed(found["random"], kib),
        "beside_us": found["beside"]["mean_us"], "beside_rate": found["beside"]["rate"],
        "beside_missed": missed(found["beside"], kib),
        "clones_mib": clones, "other_mib": other, "locked_mib": locked_mib(found["held_again"]),
        "memory_mib": found["memory_bytes"] and found["memory_bytes"] / MIB,
        "peak_mib": found["peak_bytes"] and found["peak_bytes"] / MIB,
    }  # fmt: skip


def over(cells, arm, name):
    """A figure of an arm in each repetition; empty if one has it not."""
    found = [figures(cell["arms"][arm], cell["facts"]["random_kib"])[name] for cell in cells]
    return [] if None in found else found


def rank_p(a, b):
    """The p of the exact rank test (Mann and Whitney, both sides): of all ways to call so many of these figures the
    first ones, the part in which the ranks are as far apart or farther."""
    pooled = sorted([*a, *b])
    ranks = [bisect.bisect_left(pooled, n) + (pooled.count(n) + 1) / 2 for n in (*a, *b)]
    mean = len(a) * (len(ranks) + 1) / 2
    apart = abs(sum(ranks[: len(a)]) - mean)
    ways = [abs(sum(way) - mean) >= apart - 1e-9 for way in itertools.combinations(ranks, len(a))]
    return sum(ways) / len(ways)


def least_p(count):
    """The least p that there can be with so many repetitions of each."""
    return rank_p(range(count), range(count, 2 * count))


def told(cells, arm, against, name, over_cells=over):
    """Which of two arms has less of a figure (-1 the first one, 1 the other one, 0 neither), and the p of it; None if
    there is nothing to compare."""
    a, b = over_cells(cells, arm, name), over_cells(cells, against, name)
    if not a or not b:
        return None
    first, other = statistics.median(a), statistics.median(b)
    return (first > other) - (first < other), rank_p(a, b)
