"""The tables of docs/results/locking.md.

Owns their words. Never simulates. Invariant: no number is typed in by hand but those of the thesis and of the design
page, which are beside ours.
"""

from stores.report import table

from .cells import POLICIES, REFERENCE, WAYS

KIB = 1024
# The page's misses in percent: none, and the points that lock 5 % and lock with an added victim buffer change.
PAGE = {
    "sortB": [(21.38, -.48, -7.64), (9.80, -.26, -2.41), (6.41, 1.00, -.58),
        (4.91, -.09, -.17), (4.23, -.07, -.08), (3.83, -.04, -.06)],
    "sortH": [(15.68, -.30, -3.04), (10.52, -.19, -1.46), (6.61, .01, -.63),
        (3.34, .82, -.18), (.97, .20, -.04), (.52, 0, -.01)],
    "sortQ": [(3.30, .01, -.25), (2.78, .01, -.10), (2.40, 0, -.03),
        (2.03, .01, -.01), (1.76, .01, 0), (1.41, 0, 0)],
    "fft": [(26.71, 1.86, -7.61), (25.16, 2.43, -8.56), (15.77, 3.18, -5.18),
        (5.77, 7.08, -2.87), (.04, .23, 0), (.04, 0, 0)],
    "gzip": [(41.68, -.52, -2.11), (38.71, -.88, -1.72), (35.00, -.75, -1.39),
        (28.61, -.40, -.96), (20.27, -.03, -.45), (9.53, .05, -.19)],
    "mp3": [(9.00, -.17, -1.43), (5.34, -.13, -1.44), (1.78, .01, -.43),
        (1.13, -.02, -.05), (.51, .01, -.05), (.11, -.01, -.03)],
}  # fmt: skip
# The page's online rule at 4 KiB.
PAGE_ONLINE = {"sortH": 9.74, "gzip": 36.64, "mp3": 4.89, "fft": 25.28, "sortQ": 2.78}


def row(cell, size, way):
    """One row of a cell."""
    return next(r for r in cell["rows"] if r["size_bytes"] == size and r["way"] == way)


def sizes(cell):
    """Sizes of a cell, in order."""
    return list(dict.fromkeys(r["size_bytes"] for r in cell["rows"]))


def kib(size):
    """A size, for people."""
    return f"{size // KIB} KiB"


def signed(points):
    """Points, with their sign."""
    return f"{points:+.2f}"


def reference(data):
    """The page's table, reproduced; how far off the worst cell is."""
    rows, worst = [], 0.0
    for name in REFERENCE:
        cell = data[f"sizes-{name}"]
        line = [name]
        for size, (plain, lock, both) in zip(sizes(cell), PAGE[name], strict=True):
            of = [row(cell, size, way) for way in ("none", "lock", "lock and victim buffer (extra)")]
            got = (of[0]["miss_percent"], of[1]["change"], of[2]["change"])
            worst = max([worst, *(abs(g - w) for g, w in zip(got, (plain, lock, both), strict=True))])
            line.append(f"{got[0]:.2f} ({signed(got[1])}/{signed(got[2])})")
        rows.append(line)
    header = ["", *(kib(size) for size in sizes(data[f"sizes-{REFERENCE[0]}"]))]
    return table(header, rows), worst


def ways_of(data, prefix, names, size, ways):
    """One size, all ways: points of change."""
    rows = []
    for name in names:
        cell = data[f"{prefix}{name}"]
        plain = row(cell, size, "none")
        got = {r["way"]: r for r in cell["rows"] if r["size_bytes"] == size}
        changes = [signed(got[way]["change"]) if way in got else "-" for way in ways]
        rows.append([name, f"{plain['miss_percent']:.2f}", *changes])
    return table(["", "none", *ways], rows)


def online(data, prefix, names):
    """The online rule: misses at each size, beside LRU."""
    rows, worst = [], -100.0
    for name in names:
        cell = data[f"{prefix}{name}"]
        changes = [row(cell, size, "online lock")["change"] for size in sizes(cell)]
        worst = max(worst, *changes)
        rows.append([name, *map(signed, changes)])
    return table(["", *(kib(size) for size in sizes(data[f"{prefix}{names[0]}"]))], rows), worst


def associativity(data):
    """Locks by associativity at 4 KiB."""
    arms = ("none", "lock", "lock and victim buffer (extra)", "lock and victim buffer (carved)")
    rows = []
    for name in REFERENCE:
        line = [name]
        for ways in WAYS:
            cell = data[f"ways{ways}-{name}"]
            of = [row(cell, 4096, way) for way in arms]
            line.append(f"{of[0]['miss_percent']:.2f} ({'/'.join(signed(r['change']) for r in of[1:])})")
        rows.append(line)
    return table(["", *(f"{ways} ways" for ways in WAYS)], rows)


def percents(data):
    """How much to lock at 4 KiB."""
    rows = []
    for name in REFERENCE:
        cell = data[f"percents-{name}"]
        for way in ("lock", "lock and victim buffer (extra)", "lock and victim buffer (carved)"):
            of = [r for r in cell["rows"] if r["way"] == way]
            best = min(of, key=lambda r: r["misses"])
            rows.append([name, way, *(signed(r["change"]) for r in of), f"{best['lock_percent']:g} %"])
    first = data[f"percents-{REFERENCE[0]}"]
    header = [f"{r['lock_percent']:g} % ({r['locked_percent']:.1f})" for r in first["rows"] if r["way"] == "lock"]
    return table(["", "", *header, "fewest"], rows)


def cores(data):
    """Several cores: mean delay by strategy."""
    parts = []
    for name, what in (("all", "All programs profiled"), ("new", "One of them new")):
        cell = data[f"cores-{name}"]["rows"]
        first = [r for r in cell if r["core_bytes"] == cell[0]["core_bytes"]]
        locks = [f"locked {r['lock_percent']:g} %" for r in first if r["strategy"] == "random"]
        rows = []
        for size in dict.fromkeys(r["core_bytes"] for r in cell):
            of = [r for r in cell if r["core_bytes"] == size]
            none = next(r for r in of if r["strategy"] == "none")
            for strategy in ("random", "static", "dynamic", "hybrid"):
                shown = [beside(r, none) for r in of if r["strategy"] == strategy]
                rows.append([kib(size), f"{none['mean_delay']:.4f}", strategy, *shown])
        parts.append(f"**{what}**\n\n" + table(["L1", "mean delay without", "strategy", *locks], rows))
    return "\n".join(parts)


def beside(r, none):
    """Less delay than without locks, and more misses."""
    more = 100 * (r["core_misses"] - none["core_misses"]) / none["core_misses"]
    return f"{r['better_percent']:+.1f} % ({more:+.1f})"


def markdown(data, pictures):
    """The whole page."""
    reproduced, worst = reference(data)
    own = sorted(cell.removeprefix("own-") for cell in data if cell.startswith("own-"))
    rule, above = online(data, "sizes-", REFERENCE)
    rule_own, above_own = online(data, "own-", own)
    rule_second, above_second = online(data, "second-", own)
    here = {name: row(data[f"sizes-{name}"], 4096, "online lock")["miss_percent"] for name in PAGE_ONLINE}
    page = ", ".join(f"{name} {here[name]:.2f} ({wanted})" for name, wanted in PAGE_ONLINE.items())
    ways = [
        "lock", "victim buffer (extra)", "victim buffer (carved)", "lock and victim buffer (extra)",
        "lock and victim buffer (carved)", "lock by hits", "random lock", "online lock", "probability-literal",
        "probability-aged", *POLICIES.split(","), "optimum",
    ]  # fmt: skip
    others = [
        "lock", "lock by another input's profile", "lock by hits", "random lock", "victim buffer (extra)",
        "victim buffer (carved)", "online lock", "optimum",
    ]  # fmt: skip
    shown = "\n".join(f"![{name}]({name})" for name in pictures if name.endswith(".svg"))
    return f"""# Locked lines and victim buffers in processor caches

`make lab-locking`; rules: [processor-caches.md](../processor-caches.md). Loads, lines of 64 bytes, 4 ways and LRU
unless said. Misses in percent of the references, and in brackets or tables the points by which they change: what is
below 0 is better. Nothing here depends on the machine, but for what its libraries do in the traces that are made here.

{shown}

## The design page's table

Without locks (lock 5 % / lock 5 % and an added victim buffer). The cell that differs most from the page is {worst:.3f}
points off.

{reproduced}

## Everything at 4 KiB

{ways_of(data, "sizes-", REFERENCE, 4096, ways)}

## How much to lock

4 KiB, asked for (and locked, as the table of 20 entries and whole lines allow).

{percents(data)}

## By associativity

4 KiB (lock 5 % / and an added victim buffer / and one carved out).

{associativity(data)}

## Locks that follow the phase

At 4 KiB, beside the page's own rule: {page}. Points beside LRU at each size; at worst {above:+.2f}.

{rule}

Programs that are traced here and that the rule was not tuned on; at worst {above_own:+.2f}, and with their other input
{above_second:+.2f}.

{rule_own}

{rule_second}

## Programs traced here, 4 KiB

The profile of another input is that of the same program.

{ways_of(data, "own-", own, 4096, others)}

## Several cores

Four cores, 128-byte lines, 8 ways, 1 MiB shared. Less mean delay than without locks (and more misses of the cores'
caches, in percent). All but *random* load the shared cache by profile, and random at random; without locks nothing is
loaded. So what *hybrid* has with as many misses as without is what loading brings, not locking. *static* and *dynamic*
are hardly told apart by how much they lock: of the lines that are not locked the one with the fewest misses in the
profile goes first (4.1.2 of the thesis), so that blocks which missed often stay whether they are used or not. That
rule costs them what the table shows, not the locks.

{cores(data)}
"""
