"""Figures, from raw results.

Owns the arithmetic. Never measures. Invariant: arms are compared within one repetition, and the median of that over all
repetitions is what is shown; None where there is nothing to compare.
"""

from statistics import median

MIB = 1 << 20


def runs(cell, arm):
    """The repetitions of an arm; none if this build does not have it."""
    return cell["arms"].get(arm, {}).get("runs", [])


def middle(values):
    """The median of what is known."""
    known = [v for v in values if v is not None]
    return median(known) if known else None


def ratio(part, whole):
    """A quotient, if there is one."""
    return part / whole if whole else None


def of_load(run, load):
    """What a load met in one repetition that has turns."""
    turns = [t for t in run["turns"] if t["load"] == load]
    operations = sum(t["operations"] for t in turns)
    hits = sum(t["hit_blocks"] for t in turns)
    misses = sum(t["miss_blocks"] + t["joined_blocks"] for t in turns)
    return {
        "misses": misses,
        "hit_ratio": ratio(hits, hits + misses),
        "mean_us": ratio(sum(t["mean_us"] * t["operations"] for t in turns), operations),
        "p99_us": median(t["p99_us"] for t in turns),
        "iops": ratio(operations, sum(t["seconds"] for t in turns)),
    }


def loads(cell):
    """The loads of an experiment with turns."""
    return list(dict.fromkeys(t["load"] for arm in cell["arms"] for run in runs(cell, arm) for t in run["turns"]))


def figure(cell, arm, load, key):
    """The median of a figure of a load."""
    return middle(of_load(run, load)[key] for run in runs(cell, arm))


def compared(cell, arm, base, value):
    """The median over the repetitions of `value` of an arm over `value` of another one."""
    return middle(ratio(value(a), value(b)) for a, b in zip(runs(cell, arm), runs(cell, base), strict=False))


def turn_misses(run):
    """All misses of a repetition that has turns."""
    return sum(t["miss_blocks"] + t["joined_blocks"] for t in run["turns"])


def mean_cached(run, disk):
    """Mean of what a disk had cached while it was measured, in bytes."""
    values = [sample[disk][1] for sample in run["samples"] if disk in sample]
    return sum(values) / len(values) if values else None


def cached_of_all(run):
    """Mean of what all disks had cached while they were measured, in bytes."""
    values = [sum(disk[1] for disk in sample.values()) for sample in run["samples"]]
    return ratio(sum(values), len(values))


def overall_hits(run):
    """Hit ratio of all loads of a repetition together."""
    hits = sum(t["hit_blocks"] for t in run["turns"])
    return ratio(hits, hits + turn_misses(run))


# --- The phased load

# What a hit and a miss take in the simulator (shares_table): a copy from RAM, a read of an SSD behind a network.
HIT_US, MISS_US = 20.0, 500.0


def of_server(run, server=None, busy=None):
    """What a server (or all of them) met in one repetition; `busy`: in these phases only."""
    picked = [
        s["servers"][name]
        for s in run["seconds"]
        for name in s["servers"]
        if server in (None, name) and (busy is None or s["phase"] in busy)
    ]
    reads, hits = (sum(s[key] for s in picked) for key in ("reads", "hits"))
    misses, us = (sum(s[key] for s in picked) for key in ("misses", "us"))
    hit_ratio = ratio(hits, hits + misses)
    computed = None if hit_ratio is None else MISS_US + (HIT_US - MISS_US) * hit_ratio
    return {
        "reads": reads,
        "misses": misses,
        "hit_ratio": hit_ratio,
        "mean_us": ratio(us, reads),
        "computed_us": computed,
    }


def server_figure(cell, arm, key, server=None):
    """The median of a figure of a server, or of all."""
    return middle(of_server(run, server)[key] for run in runs(cell, arm))


def server_change(cell, arm, key, server=None, base="static"):
    """How much a figure differs from the static arm's: -0.25 is a quarter less."""
    change = compared(cell, arm, base, lambda run: of_server(run, server)[key])
    return None if change is None else change - 1


def phase_misses(run, phase):
    """Misses of all servers in a phase."""
    return sum(s["misses"] for second in run["seconds"] if second["phase"] == phase for s in second["servers"].values())


# A server that has begun has cached this much, if it may.
BEGUN_SECONDS = 5


def seconds_without_room(run, server):
    """(seconds in which less than 1 MiB of a server's blocks was cached, its mean share then), from when it had time to
    read that much; None where it has no disk of its own."""
    shown = [second["disks"].get(f"{server}:root") for second in run["seconds"] if second["at"] > BEGUN_SECONDS]
    if None in shown:
        return None
    shares = [s[0] for s in shown if s[1] < MIB]
    return len(shares), sum(shares) / len(shares) if shares else 0


# --- The kernel build


def of_build(run):
    """What a build took and met: compile time, CPU, hit ratio, transfers, and what was cached of all its disks."""
    def total(key):
        return sum(disk[key] for disk in run["disks"].values())

    hits, misses = total("hit_blocks"), total("miss_blocks") + total("joined_blocks")
    cached = [sum(disk[1] for disk in sample["disks"].values()) for sample in run["samples"]]
    pages = [sample["page_cache"] for sample in run["samples"]]
    return run["build"] | {
        "hits": hits,
        "misses": misses,
        "hit_ratio": ratio(hits, hits + misses),
        "read_bytes": total("backend_read_bytes"),
        "cached_mean": ratio(sum(cached), len(cached)),
        "cached_max": max(cached, default=None),
        "page_cache_mean": ratio(sum(pages), len(pages)),
    }


def build_figure(cell, arm, key):
    """The median of a figure of the build."""
    return middle(of_build(run)[key] for run in runs(cell, arm))


def build_change(cell, arm, key, base="unified"):
    """How much a figure of the build differs from another arm's: -0.25 is a quarter less."""
    change = compared(cell, arm, base, lambda run: of_build(run)[key])
    return None if change is None else change - 1


# --- Simulated


def simulated(cell, policy):
    """{load: {arm: misses}} of the simulator under a policy."""
    table = {}
    for run in runs(cell, policy):
        for row in run["rows"]:
            table.setdefault(row["load"], {})[row["arm"]] = row["misses"]
    return table
