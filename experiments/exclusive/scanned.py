"""The part of the report about the scanner: what it finds held twice, what it does about it, what it costs.

Owns the layout of that part. Never measures. Invariant: where the scanner was off it is said to be off; no figure of
another arm stands for it.
"""

from . import derive
from .derive import percent
from .experiments import table

# Arms with a scanner, and those that differ from them by nothing else.
BESIDE = {"scan-vhost": "undercroft-auto", "scan-nbd": "nbd"}
SHOWN = (
    "direct",
    "default",
    "fadvise",
    "undercroft-lru",
    "undercroft-off",
    "undercroft-auto",
    "scan-vhost",
    "nbd",
    "scan-nbd",
)


def longest(cells):
    """Of cells that differ by the length of their load alone, the long ones."""
    long = {cell["load"].removesuffix("-long") for cell in cells.values() if cell["load"].endswith("-long")}
    return {name: cell for name, cell in cells.items() if cell["load"] not in long}


def cost(record):
    """The scanner's part of a core, and in how many runs it did not run while was measured: what is measured may be
    shorter than the time between two scans."""
    runs = [run["scanner_share"] for run in record.get("runs", [derive.figures(record)])]
    idle = sum(1 for share in runs if not share)
    if idle == len(runs):
        return "no scan in what was measured"
    text = derive.with_spread(record, "scanner_share", lambda v: percent(v, 2))
    return f"{text}, none in {idle} of {len(runs)} runs" if idle else text


def section(cells):
    """Pages held twice, by arm, and what the scanner did and cost, of all cells that have such an arm."""
    lines = []
    for name, cell in cells.items():
        arms = derive.measured_arms(cell)
        if not BESIDE.keys() & arms.keys():
            continue
        rows = []
        for key in (k for k in SHOWN if k in arms):
            record, done = arms[key], derive.scan(arms[key])
            twice = record.get("twice")
            on = key in BESIDE
            rows.append(
                [
                    record["title"],
                    derive.with_spread(record, "saved", percent),
                    f"{twice['cached']:,}" if twice else "-",
                    f"{twice['twice']:,}" if twice else "-",
                    derive.with_spread(record, "twice_share", percent),
                    derive.with_spread(record, "scrubbed", lambda v: f"{v:,.0f}") if on else "off",
                    f"{done.get('passes', 0):,}" if on else "off",
                    cost(record) if on else "off",
                    derive.with_spread(record, "cpu_share", percent),
                ]
            )  # fmt: skip
        head = [
            "arm", "saved", "blocks cached", "held twice", "of those cached", "scrubbed", "scans",
            "scanner, CPU of a core",
            "serving, CPU of a core",
        ]  # fmt: skip
        lines += [f"### {name}", "", f"{cell['explains'][0].upper()}{cell['explains'][1:]}.", "", *table(head, rows)]
    if not lines:
        return []
    return [
        "## Held twice, and the scanner",
        "",
        (
            "**Held twice**: different blocks that the host's cache holds at the end of the run and that are in the"
            " guest's RAM, too, read from the memory of both (and from the page cache), in the same way for all arms;"
            " pages that a guest has freed and not yet used again count as long as their content is there. Of a"
            " program's memory a few hundred pages are no blocks. **Scrubbed**: cached blocks that the scanner found in"
            " the guest and made the first to leave, in the measured part, as its scans and its share of a core are."
            " Every arm with a scanner gives 4 MiB of its store for the scanner's index. Loads whose names end in"
            " *-long* are measured for a minute, since scans are 5 to 20 s apart."
        ),
        "",
        *lines,
    ]


def shares(cells, load):
    """The scanner's part of a core on a load, for the table beside Singleton's figures."""
    found = []
    for cell in longest(cells).values():
        if cell["load"].removesuffix("-long") == load and cell["zeroing"] and not cell["mglru"]:
            for key in BESIDE:
                record = derive.measured_arms(cell).get(key)
                if record:
                    found.append(f"{record['title']} {cost(record)} (N = {cell['n']:g})")
    return "; ".join(found) or "not measured: the scanner was off in every arm"
