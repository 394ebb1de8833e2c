"""The part of the report about time: operations a second, delays, processor time, and what exclusive costs where it
costs time.

Owns its layout and what was to be reached. Never measures. Invariant: every cell of the grid is in it, and a cell in
which the exclusive arm is slower than it is to be is named, with what was counted of its costs.
"""

from . import cells as cell_module, derive
from .derive import percent
from .experiments import table

OURS, INCLUSIVE, LINUX = "undercroft-auto", "undercroft-off", "default-128"
# Of the inclusive cache's operations a second: at least so much on the host's own disk, and on one behind a network.
LOCAL_LEAST, SERVED_LEAST = 0.98, 1.5
# Of those of the host page cache with Linux's read-ahead, on a disk behind a network.
SERVED_LEAST_OF_PAGE_CACHE = 2.0
# What else a table shows of each arm, with its spread.
COSTS = ("p99_us", "daemon_us_per_op", "copying_us_per_op", "emulator_us_per_op")
SERVED_LOADS, SERVED_N = ("uniform", "zipf"), 0.5


def times(found, digits=2):
    """How many times as fast, as text."""
    if found is None:
        return "-"
    median, least, most = (f"{value:.{digits}f}" for value in found)
    return f"{median}x" if least == most else f"{median}x ({least} to {most})"


def shown(form):
    """A form for figures that may be missing."""
    return lambda value: "-" if value is None else form.format(value)


def verdicts(cell):
    """(criterion, wanted, measured or None) of a cell."""
    arms = derive.measured_arms(cell)
    if OURS not in arms:
        return []

    def of(key):
        return derive.faster(arms[OURS], arms[key]) if key in arms else None

    if cell.get("wait_us") is None:
        return [("of the inclusive cache's operations a second", LOCAL_LEAST, of(INCLUSIVE))]
    if not cell["wait_us"] or cell["load"] not in SERVED_LOADS or cell["n"] != SERVED_N:
        return []
    return [
        ("of the inclusive cache's operations a second", SERVED_LEAST, of(INCLUSIVE)),
        ("of those of the page cache with Linux's read-ahead", SERVED_LEAST_OF_PAGE_CACHE, of(LINUX)),
    ]


def section(cells, kind):
    """All of it; `kind` says what a cell's guest is."""
    lines = ["## Time", ""]
    lines += [
        (
            "**Operations a second** are the guest's, those answered by its own RAM among them; **p99** is of all its"
            " reads. **Processor time** is of the serving processes and of the emulator (QEMU), for each of the guest's"
            " operations; **copying** is what the exclusive cache takes of the former to copy and hash guests' pages."
            " Under software emulation a guest needs a core for itself and most of the time goes into emulating it. A"
            " disk with a wait is behind a network: nbdkit waits so long before every transfer, nbdfuse makes a file of"
            " the export, and the loop device of that file, with direct I/O, is what all arms are given; caches were"
            " filled without the wait. *NBD image* reads the export itself. [0187](../decisions/0187-bytes-and-time.md)"
            " says more."
        ),
        "",
    ]
    head = [
        "guest",
        "N",
        "disk",
        "a read of it, us",
        "arm",
        "operations a second",
        "of inclusive",
        "p99, us",
        "serving, us",
        "of it copying, us",
        "emulator, us",
    ]
    titles = {}
    for cell in cells.values():
        titles.setdefault(cell["title"], []).append(cell)
    for title, group in titles.items():
        rows = []
        for cell in group:
            arms = derive.measured_arms(cell)
            for key, record in arms.items():
                base = derive.faster(record, arms[INCLUSIVE]) if INCLUSIVE in arms and key != INCLUSIVE else None
                latency = record.get("disk_latency_us") or cell["machine"].get("read_latency_us")
                rows.append(
                    [
                        kind(cell), f"{cell['n']:g}", cell_module.disk(cell), shown("{:,.0f}")(latency),
                        record["title"],
                        *(derive.with_spread(record, name, shown("{:,.0f}")) for name in ("ops_per_s",)), times(base),
                        *(derive.with_spread(record, name, shown("{:,.0f}")) for name in COSTS),
                    ]
                )  # fmt: skip
        lines += [f"### Time: {title}", "", *table(head, rows)]
    return [*lines, *reached(cells, kind), *costs(cells, kind)]


def reached(cells, kind):
    """The list of what was to be reached."""
    rows = []
    for cell in cells.values():
        for criterion, wanted, found in verdicts(cell):
            verdict = "not judged" if found is None else "reached" if found[0] >= wanted else "**not reached**"
            rows.append(
                [
                    f"{cell['title']}, {kind(cell)}",
                    f"{cell['n']:g}",
                    cell_module.disk(cell),
                    criterion,
                    f"{wanted:g}x",
                    times(found),
                    verdict,
                ]
            )
    if not rows:
        return []
    return [
        "### Time: what was to be reached",
        "",
        *table(["cell", "N", "disk", "criterion", "at least", "exclusive", "verdict"], rows),
    ]


def slower(cells):
    """Cells of the host's own disk in which the exclusive arm does less than it is to, with (median, smallest, largest)
    of how many times the inclusive arm's operations a second it does."""
    for cell in cells.values():
        for _, wanted, found in verdicts(cell):
            if cell.get("wait_us") is None and found is not None and found[0] < wanted:
                yield cell, found


def costs(cells, kind):
    """Where exclusive costs time, and what."""
    lines = []
    for cell, found in slower(cells):
        arms = derive.measured_arms(cell)
        ours, base = derive.figures(arms[OURS]), derive.figures(arms[INCLUSIVE])

        def more(name, ours=ours, base=base):
            return None if None in (ours[name], base[name]) else ours[name] - base[name]

        parts = [f"{shown('{:+.1f}')(more('daemon_us_per_op'))} us of processor time for each operation in the daemon"]
        if ours["copying_us_per_op"] is not None:
            parts.append(f"{ours['copying_us_per_op']:.1f} us of it are copying and hashing guests' pages")
        if more("emulator_us_per_op") is not None:
            parts.append(f"{more('emulator_us_per_op'):+.1f} us in the emulator")
        parts.append(f"saved {percent(ours['saved'])}, inclusive {percent(base['saved'])}")
        runs = "" if len(arms[OURS].get("runs", ())) > 1 else " in one run"
        lines.append(
            f"- {cell['title']}, {kind(cell)}, N = {cell['n']:g}: {times(found)}{runs} of the inclusive cache's"
            f" operations a second; {'; '.join(parts)}."
        )
    if not any(OURS in derive.measured_arms(cell) for cell in cells.values()):
        return []
    if lines:
        lines.insert(
            0,
            "A guest under emulation is disturbed by whatever else the machine does: a ratio of one run says little"
            " where processor time per operation does not say the same.\n",
        )
    return [
        "### Where exclusive costs time, and what",
        "",
        *(lines or ["Nowhere by more than two per cent of the inclusive cache's operations a second."]),
        "",
    ]
