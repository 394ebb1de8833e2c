"""Figures of runs: medians with their spread, ratios within a repetition, hits, and what a transaction costs.

Owns the arithmetic. Never measures. Invariant: what was not measured is None, and ratios are of runs of one
repetition, so that whatever else the machine did hits both.
"""

import statistics

MIB = 1 << 20


def waits(cell):
    """The waits of a cell's disks that were measured, in us."""
    found = {key for arm in cell["arms"].values() for run in arm["runs"] for key in run if key.isdigit()}
    return sorted(found, key=int)


def middle(values):
    """(median, least, most) of values without None, or None."""
    values = [value for value in values if value is not None]
    return (statistics.median(values), min(values), max(values)) if values else None


def loads(cell, arm, wait, n, name):
    """A figure of database `n` on an arm, of each repetition."""
    return [run[wait]["loads"][n][name] for run in cell["arms"][arm]["runs"] if wait in run]


def counts(cell, arm, wait, what):
    """`what` of everything that was measured, of each repetition."""
    return [what(run[wait]) for run in cell["arms"][arm]["runs"] if wait in run]


def ratios(cell, arm, other, wait, n):
    """Throughput of one arm to that of another, of each repetition."""
    if other not in cell["arms"] or arm not in cell["arms"]:
        return []
    both = (loads(cell, key, wait, n, "tps") for key in (arm, other))
    return [a / b for a, b in zip(*both, strict=False) if b]


def hits(measured, n, name):
    """Of the blocks asked for below the page cache, the part in RAM (`hit_blocks`) or on the SSD (`ssd_hit_blocks`)."""
    if "caches" not in measured["counted"]:
        return None
    cache = measured["counted"]["caches"][n]
    asked = cache["hit_blocks"] + cache["miss_blocks"] + cache["joined_blocks"]
    return min(1.0, cache[name] / asked) if asked else None


def transactions(measured):
    """Of all databases."""
    return max(1, sum(load["transactions"] for load in measured["loads"]))


def disk_reads(measured, n):
    """Bytes that the slow disk delivered for a transaction."""
    return measured["counted"]["disks"][n]["read_bytes"] / max(1, measured["loads"][n]["transactions"])


def cpu_ms(measured):
    """Processor time between file system and slow disk for a transaction, in ms."""
    return 1000 * measured["counted"]["cpu_seconds"] / transactions(measured)


def machine_part(measured, cpus):
    """Part of the machine's processor time that somebody used, whoever it was."""
    return measured["counted"]["machine_cpu_seconds"] / (cpus * measured["counted"]["time"])


def ssd_written(measured):
    """Bytes written to the SSD, or None."""
    return measured["counted"].get("ssd_written_bytes")


def turns(devices):
    """Of each turn, raw reads to hits: throughput, and time at the 99th percentile; the same of the peer to hits, where
    there was one."""
    pairs = devices["turns"]
    beside = [pair for pair in pairs if "peer" in pair]
    return {
        "peer_iops": [pair["peer"]["iops"] / pair["hits"]["iops"] for pair in beside],
        "peer_p99": [pair["hits"]["p99_us"] / pair["peer"]["p99_us"] for pair in beside],
        "iops": [pair["raw"]["iops"] / pair["hits"]["iops"] for pair in pairs],
        "p99": [pair["hits"]["p99_us"] / pair["raw"]["p99_us"] for pair in pairs],
    }
