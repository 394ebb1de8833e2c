"""The section of docs/results/locking.md about clones that boot at once.

Owns its words. Never measures. Invariants: no number and no judgement is typed in by hand; a verdict has its p beside
it; without stored cells there is no section.
"""

import statistics
import textwrap

from rig import machine
from stores.report import table

from .boot_arms import ARMS
from .boot_derive import FALSE, MAIN, MIB, PAIRS, arms_of, cells_by_wait, least_p, level, over, told

# How a figure is shown.
FORMS = {
    "first_median": "{:.1f}", "first_worst": "{:.1f}", "first_mib": "{:,.1f}", "first_hits": "{:.1f}",
    "first_fetched": "{:,.1f}", "up_median": "{:.1f}", "up_worst": "{:.1f}", "reading": "{:.1f}",
    "base_mib": "{:,.1f}", "base_reads": "{:,.0f}", "hits": "{:.1f}", "fetched_mib": "{:,.1f}",
    "random_seconds": "{:.1f}", "random_missed": "{:.1f}", "beside_us": "{:,.0f}", "beside_missed": "{:.1f}",
    "clones_mib": "{:,.0f}", "other_mib": "{:,.0f}", "locked_mib": "{:,.1f}", "memory_mib": "{:,.0f}",
    "first_all_mib": "{:,.1f}", "all_mib": "{:,.1f}", "fetched_seconds": "{:.1f}", "lacking_mib": "{:,.1f}",
    "busy": "{:,.0f}", "load": "{:.1f}", "beside_rate": "{:.1f}", "peak_mib": "{:,.0f}",
}  # fmt: skip
SECOND = {
    "up_median": "up, s: median of the clones", "up_worst": "the last one", "reading": "of it reading, s",
    "base_mib": "MiB read of the base", "fetched_mib": "fetched before, MiB", "fetched_seconds": "in, s",
    "base_reads": "reads", "hits": "hits %", "busy": "processors busy, s", "load": "load before the arm",
}  # fmt: skip
FIRST = {
    "first_median": "up, s: median of the clones", "first_worst": "the last one", "first_mib": "MiB read of the base",
    "first_hits": "hits %", "first_fetched": "fetched before, MiB",
}  # fmt: skip
OTHER = {
    "random_seconds": "the other disk's reads, s", "random_missed": "of their bytes from the disk, %",
    "beside_us": "beside the boots, us a read", "beside_rate": "reads a second",
    "beside_missed": "of their bytes from the disk, %",
    "clones_mib": "the clones' share, MiB", "other_mib": "the other's", "locked_mib": "locked of a clone, MiB",
    "lacking_mib": "not there after fetching, MiB a clone", "memory_mib": "memory, MiB", "peak_mib": "at most",
}  # fmt: skip
# What is said of one arm beside another.
SAID = {
    "all_mib": ("read of the base, fetching included,", "MiB"), "up_median": ("half of the clones up after", "s"),
    "up_worst": ("the last one after", "s"), "reading": ("of it reading", "s"),
    "random_missed": ("of the other disk's bytes from its disk", "%"), "random_seconds": ("which took", "s"),
    "first_all_mib": ("in the first round, fetching included,", "MiB"),
}  # fmt: skip
BESIDE = [
    ("pinned", "none"), ("held", "pinned"), ("held", "none"), ("floor", "none"), ("kept", "none"), ("kept", "floor"),
    ("fetched", "kept"), ("none", "page-cache"), ("kept", "page-cache"),
]  # fmt: skip
# What a verdict says: less of a figure, as much, more.
VERDICTS = {
    "all_mib": (
        "less is read of the base in the second round, fetching included", "what is read of the base is not told apart",
        "more is read of the base in the second round, fetching included",
    ),
    "up_worst": (
        "the last clone is up sooner", "when the last clone is up is not told apart", "the last clone is up later",
    ),
}  # fmt: skip


def shown(cells, arm, name):
    """The median of a figure, and the least and the most."""
    found = over(cells, arm, name)
    if not found:
        return "-"
    form = FORMS[name].format
    middle = form(statistics.median(found))
    return middle if len(found) == 1 else f"{middle} ({form(min(found))} to {form(max(found))})"


def tabled(cells, columns):
    """A table of figures by arm."""
    rows = [[ARMS[arm].title, *(shown(cells, arm, name) for name in columns)] for arm in arms_of(cells)]
    return table(["", *columns.values()], rows)


def beside(cells, arm, against):
    """One arm beside another, in words."""
    parts = []
    for name, (what, unit) in SAID.items():
        if found := told(cells, arm, against, name):
            a, b = (FORMS[name].format(statistics.median(over(cells, key, name))) for key in (arm, against))
            parts.append(f"{what} {a} and {b} {unit} (p = {found[1]:.3f})")
    return f"- *{ARMS[arm].title}* beside *{ARMS[against].title}*: {'; '.join(parts)}."


def verdict(cells, pairs=PAIRS, names=MAIN, words=VERDICTS, titles=ARMS, compare=told):
    """What is to be said of figures and pairs that were chosen before."""
    most = level(pairs, names)
    if (least := least_p(len(cells))) > most:
        return (
            f"With {len(cells)} repetitions p is {least:.3f} at least, and arms are told apart up to {most:.4f}: there"
            " is no verdict."
        )
    said = []
    for arm, against in pairs:
        parts = []
        for name in names:
            if {arm, against} <= {*arms_of(cells, titles)} and (found := compare(cells, arm, against, name)):
                side, p = found
                parts.append(f"{words[name][1 + (side if p <= most else 0)]} (p = {p:.3f})")
        if parts:
            said.append(f"*{titles[arm].title}* beside *{titles[against].title}*: {', '.join(parts)}.")
    return " ".join(said)


def rule(pairs=PAIRS, names=MAIN):
    """How verdicts come about, in words."""
    count = len(pairs) * len(names)
    return (
        f"Verdicts are on {len(pairs)} pairs of arms and {len(names)} figures that were named before anything was"
        f" measured: {count} comparisons for each wait. p is that of the exact rank test (both sides); arms are told"
        f" apart up to {level(pairs, names):.4f}, so that the chance of any false verdict among the {count} is"
        f" {100 * FALSE:.0f} % at most. What is below the verdicts is of other figures and pairs, which are many: one"
        " in twenty of them has p < 0.05 by chance."
    )


def extent(values, form):
    """The least and the most of what was found, or both in one if they are equal."""
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


def paragraph(text):
    """Words in lines of the width of the page."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def settings_words(settings):
    """Lines of configuration in words."""
    return ", ".join(f"`{line}`" for line in settings)


def of_wait(wait, cells):
    """All about disks with one wait."""
    recorded = [cell["facts"]["recorded"] for cell in cells]
    commits = ", ".join(sorted({str(cell["facts"]["commit"]) for cell in cells}))
    about = (
        f"Recorded: {extent([r['bytes'] / MIB for r in recorded], '{:.1f}')} MiB in"
        f" {extent([r['ranges'] for r in recorded], '{:,}')} ranges. {len(cells)} repetitions of all arms, each in"
        " another order; the median (the least to the most). Measured on"
        f" {machine.words(cells[0]['facts']['machine'])}; commit {commits}."
    )
    pairs = [beside(cells, *pair) for pair in BESIDE if {*pair} <= {*arms_of(cells)}]
    tables = [
        ("The second round:", SECOND),
        ("The first round, in which nothing was cached but what had been fetched:", FIRST),
        ("The other disk, and what there was of the store before the second round:", OTHER),
    ]
    head = f"### Each transfer of the disks waits {wait} ms" if wait else "### Disks without a wait"
    parts = [head, paragraph(verdict(cells)), "\n".join(pairs), paragraph(about)]
    parts += [f"{title}\n\n{tabled(cells, columns).rstrip()}" for title, columns in tables]
    return "\n\n".join(part for part in parts if part)


def section(data):
    """The section, or nothing."""
    found = cells_by_wait(data)
    if not found:
        return ""
    cells = next(iter(found.values()))
    facts, sizes = cells[0]["facts"], cells[0]["facts"]["sizes"]
    store = sizes["store_mib"]
    about = (
        f"{sizes['clones']} guests of {sizes['guest_mib']} MiB on overlays of one image boot at once: each reads"
        f" {sizes['boot_mib']} MiB of it, in files of 4 KiB to 1 MiB, and is up. What one of them reads was recorded"
        f" before (`undercroft pin --boot`). They boot twice. After the first round each reads {sizes['work_mib']} MiB"
        f" of its own and ends; then another disk is read, {sizes['other_stores'] * store:,} MiB once in order, and"
        f" {facts['passes'] * store:,} MiB at random in as much of it as the store has ({store:,} MiB). Beside the"
        f" second round {facts['beside_reads']} of these reads are made each second, of {facts['random_kib']} KiB,"
        " one at a time. What the disks below the images deliver is counted where it is delivered."
        f" `lock_budget` is {facts['lock_budget']}, a floor {sizes['floor_mib']} MiB, the interval of shares"
        f" {facts['shares_interval']}, the page cache's read-ahead {facts['read_ahead_kb']} KiB. Beside that the"
        f" configuration has {settings_words(facts['settings'])}; all else is as it is by default. Every arm is served"
        f" under the same limit of memory, {facts['limit_mib']:,} MiB. The stand-in for the storage (nbdkit, nbdfuse)"
        " runs on the same processors as the guests and what serves them: an arm that reads more leaves them less, so"
        " times differ by more than the waits; *processors busy* is of all of these together."
    )
    if facts["machine"].get("takes_idle_pages"):
        about += (
            " This machine's kernel takes pages of files back that nobody has used for a while, however much memory is"
            " free (DAMON): *page cache* may have less than its limit for that; memory of programs stays."
        )
    arms = "\n".join(f"- *{ARMS[key].title}*: {ARMS[key].explains}." for key in arms_of(cells))
    parts = [of_wait(wait, found[wait]) for wait in sorted(found, reverse=True)]
    return "\n" + "\n\n".join(["## Clones that boot at once", paragraph(about), arms, paragraph(rule()), *parts]) + "\n"
