"""The section of docs/results/locking.md about guests that read for a while when they have booted.

Owns its words, and what is derived from the figures for it. Never measures. Invariant: as that of boot_report.py.
"""

import re
import statistics

from rig import machine
from stores.report import table

from .boot_derive import MIB, arms_of, base_mib, cells_by_wait, hits, locked_mib, rank_p
from .boot_report import paragraph, rule, settings_words, verdict
from .steady import ARMS

CELL = re.compile(r"steady-(\d+)ms-(\d+)")
# What verdicts are on: what was read from storage, and what a guest waits for a read of its disk.
MAIN = ("base_mib", "disk_us")
PAIRS = (("online", "plain"), ("static", "plain"), ("buffer", "plain"))
VERDICTS = {
    "base_mib": (
        "less is read of the base", "what is read of the base is not told apart", "more is read of the base",
    ),
    "disk_us": (
        "reads of the disk take less", "what they take is not told apart", "reads of the disk take longer",
    ),
}  # fmt: skip
COLUMNS = {
    "base_mib": ("MiB read of the base", "{:,.1f}"), "hits": ("hits %", "{:.2f}"),
    "disk_us": ("a read of the disk, us", "{:,.0f}"), "all_us": ("any read, us", "{:,.0f}"),
    "p99_us": ("p99 of the disk's", "{:,.0f}"), "seconds": ("all of it, s", "{:.1f}"),
    "locked_mib": ("locked of a clone, MiB", "{:,.1f}"), "chosen": ("locks of the rule", "{:,.0f}"),
    "busy": ("processors busy, s", "{:,.0f}"), "load": ("load before the arm", "{:.1f}"),
    "peak_mib": ("memory at most, MiB", "{:,.0f}"),
}  # fmt: skip


def figures(found):
    """The figures of one arm in one repetition; those of guests are means over all reads."""
    guests, online = found["guests"], found["held"]["locks"].get("online")

    def mean(name):
        count = sum(guest[name]["count"] for guest in guests)
        return sum(guest[name]["mean_us"] * guest[name]["count"] for guest in guests) / max(count, 1)

    return {
        "base_mib": base_mib(found), "hits": hits(found["counted"]), "disk_us": mean("read_disk"),
        "all_us": mean("read_all"), "p99_us": max(guest["read_disk"]["p99_us"] for guest in guests),
        "seconds": found["seconds"], "locked_mib": locked_mib(found["held"]),
        "chosen": online and online["locks"], "busy": found["counted"]["busy_seconds"], "load": found["load_average"],
        "peak_mib": found["peak_bytes"] and found["peak_bytes"] / MIB,
    }  # fmt: skip


def over(cells, arm, name):
    """A figure of an arm in each repetition; empty if one has it not."""
    found = [figures(cell["arms"][arm])[name] for cell in cells]
    return [] if None in found else found


def told(cells, arm, against, name):
    """As in boot_derive.py."""
    a, b = over(cells, arm, name), over(cells, against, name)
    first, other = statistics.median(a), statistics.median(b)
    return (first > other) - (first < other), rank_p(a, b)


def shown(cells, arm, name):
    """The median of a figure, and the least and the most."""
    found, form = over(cells, arm, name), COLUMNS[name][1].format
    if not found:
        return "-"
    return f"{form(statistics.median(found))} ({form(min(found))} to {form(max(found))})"


def of_wait(wait, cells):
    """All about disks with one wait."""
    rows = [[ARMS[arm].title, *(shown(cells, arm, name) for name in COLUMNS)] for arm in arms_of(cells, ARMS)]
    commits = ", ".join(sorted({str(cell["facts"]["commit"]) for cell in cells}))
    named = [count for cell in cells for count in cell["facts"]["recorded"]]
    about = (
        f"{len(cells)} repetitions of all arms, each in another order; the median (the least to the most). A profile"
        f" names {min(named):,} to {max(named):,} blocks. Measured on"
        f" {machine.words(cells[0]['facts']['machine'])}; commit {commits}."
    )
    parts = [
        f"### Guests that read for a while: each transfer waits {wait} ms",
        paragraph(verdict(cells, PAIRS, MAIN, VERDICTS, ARMS, told)), paragraph(about),
        table(["", *(title for title, _ in COLUMNS.values())], rows).rstrip(),
    ]  # fmt: skip
    return "\n\n".join(parts)


def section(data):
    """The section, or nothing."""
    found = cells_by_wait(data, CELL)
    if not found:
        return ""
    cells = next(iter(found.values()))
    facts, sizes = cells[0]["facts"], cells[0]["facts"]["sizes"]
    about = (
        f"{sizes['clones']} guests of {sizes['guest_mib']} MiB boot from overlays of one image, and then each reads a"
        f" file of {sizes['work_mib']} MiB, a block at a time by Zipf's law ({facts['alpha']}): {facts['warm']:,} reads"
        f" that its own latencies leave out, and {facts['reads']:,} that they have; what is counted at the disk is of"
        f" all of them. The store has {sizes['store_mib']} MiB, of which shares are divided anew every"
        f" {facts['shares_interval']}. The configuration has {settings_words(facts['settings'])}; all else is as it is"
        " by default. The stand-in for the storage runs on the same processors as the guests."
    )
    arms = "\n".join(f"- *{ARMS[key].title}*: {ARMS[key].explains}." for key in arms_of(cells, ARMS))
    parts = [of_wait(wait, found[wait]) for wait in sorted(found, reverse=True)]
    head = "## Locks below guests that read for a while"
    return "\n" + "\n\n".join([head, paragraph(about), arms, paragraph(rule(PAIRS, MAIN)), *parts]) + "\n"
