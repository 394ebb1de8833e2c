"""The tables of docs/results/locking.md.

Owns their words. Never simulates. Invariant: no number is typed in by hand but those of the thesis and of the design
page, which are beside ours.
"""

import statistics

from stores.report import table

from . import blocks_report, boot_report, measured, measured_locks, steady_report
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


RULES = ("probability-literal", "probability-aged")
WITH = (
    "", ", lock", ", victim buffer (extra)", ", lock and victim buffer (extra)", ", lock and victim buffer (carved)",
)  # fmt: skip


def probability(data, sizes_shown):
    """Replacement by probability, alone and with locks and victim buffer, beside the same under LRU: points of change
    against LRU alone."""
    rows = []
    for name in REFERENCE:
        cell = data[f"sizes-{name}"]
        for size in sizes_shown:
            lru = [row(cell, size, way.removeprefix(", ") or "none")["change"] for way in WITH]
            rows.append([name, kib(size), "LRU", *map(signed, lru)])
            for rule in RULES:
                changes = [row(cell, size, rule + way)["change"] for way in WITH]
                rows.append(["", "", rule, *map(signed, changes)])
    return table(["", "", "", *(way.removeprefix(", ") or "alone" for way in WITH)], rows)


def whole(data, names, prefix):
    """All of the cache locked, beside 5 % of it: points of change at each size."""
    rows = []
    for name in names:
        cell = data[f"{prefix}{name}"]
        pairs = [[row(cell, size, way)["change"] for way in ("whole cache locked", "lock")] for size in sizes(cell)]
        rows.append([name, *("/".join(map(signed, pair)) for pair in pairs)])
    return table(["", *(kib(size) for size in sizes(data[f"{prefix}{names[0]}"]))], rows)


def response(data):
    """Response times through the daemon, measured / by the model; and how far apart misses and times are at worst."""
    rows, worst, apart, hits = [], 1.0, 0, {wait: [] for wait in measured.WAITS}
    for name in measured.TRACES:
        cell = data[f"measured-{name}"]["rows"]
        for size in measured.SIZES:
            of = [r for r in cell if r["size"] == size]
            apart = max([apart, *(abs(r["misses"] - r["simulated_misses"]) for r in of)])
            misses = of[0]["simulated_misses"] / of[0]["references"]
            line = [name, str(of[0]["capacity_blocks"]), f"{100 * misses:.2f}"]
            for wait in measured.WAITS:
                waited = [r for r in of if r["wait_ms"] == wait]
                got = sorted(r["mean_us"] for r in waited)
                hits[wait].append(statistics.median(measured.hit_among_misses(r) for r in waited))
                said = measured.model(cell, wait)(misses)
                worst = max(worst, statistics.median(got) / said, said / statistics.median(got))
                line.append(f"{statistics.median(got):.1f} ({got[0]:.1f} to {got[-1]:.1f}) / {said:.1f}")
            rows.append(line)
    header = ["", "blocks", "misses %", *(f"{wait} ms" if wait else "no wait" for wait in measured.WAITS)]
    among = ", ".join(f"{min(of):.0f} to {max(of):.0f} ({wait} ms)" for wait, of in hits.items())
    in_a_row = statistics.median(r["hit_us"] for name in measured.TRACES for r in data[f"measured-{name}"]["rows"])
    return table(header, rows), worst, apart, f"{among}, and {in_a_row:.0f} in a row of hits"


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
            none, loaded = (next(r for r in of if r["strategy"] == name) for name in ("none", "loaded"))
            for strategy in ("random", "static", "dynamic", "hybrid"):
                shown = [beside(r, loaded) for r in of if r["strategy"] == strategy]
                delays = f"{none['mean_delay']:.4f}", f"{loaded['mean_delay']:.4f}"
                rows.append([kib(size), *delays, strategy, *shown])
        header = ["L1", "mean delay without", "loaded", "strategy", *locks]
        parts.append(f"**{what}**\n\n" + table(header, rows))
    return "\n".join(parts)


def better(r, than):
    """How much less the mean delay is, in percent."""
    return 100 * (than["mean_delay"] - r["mean_delay"]) / than["mean_delay"]


def beside(r, loaded):
    """Less delay than without locks, and more misses."""
    more = 100 * (r["core_misses"] - loaded["core_misses"]) / loaded["core_misses"]
    return f"{better(r, loaded):+.1f} % ({more:+.1f})"


def replacement_part(data):
    """The sections about the thesis's rule of replacement, and about a cache that is locked whole."""
    return f"""## Replacement by probability

The thesis's rule to the letter, and with ageing, alone and with locks (5 %) and a victim buffer, beside the same under
LRU. Points against LRU alone.

{probability(data, (2048, 4096))}

## The whole cache locked

Points when every line is locked (/ and 5 % of them): the lines that miss most, and nothing else is ever cached.

{whole(data, REFERENCE, "sizes-")}"""


def response_part(data):
    """The section about measured times."""
    times, worst_time, apart, hits = response(data)
    return f"""## Response times, measured

The first {measured.REFERENCES:,} loads of three traces as reads of 4 KiB, one after the other, through the daemon (NBD,
LRU, no read-ahead) on an export of nbdkit that waits before each read: the mean of a reference in microseconds
(least to most of {measured.REPEATS} runs) / by equation 3, with the misses that the simulator counts in as many lines
of one set, what a hit takes, and for a miss what it takes without a wait and the wait (equation 4 with the wait for
the disk). Between misses counted by the daemon and by the simulator there are at most {apart} references: measuring
takes a few blocks of the cache. Between the medians and the model there is at most a factor of {worst_time:.2f},
because hits do not all take the same: among the misses of a trace, what these took by themselves left off, a hit took
{hits} (microseconds). A worker that has waited for its disk is to be woken, and finds its memory cold.

{times}"""


def cores_part(data):
    """The section about several cores."""
    return f"""## Several cores

Four cores, 128-byte lines, 8 ways, 1 MiB shared. *Loaded* is without locks, with the shared cache loaded by profile as
all but *random* load it, which loads at random: what locking brings is what there is beside it. Less mean delay than
*loaded* (and more misses of the cores' caches, in percent). *static* and *dynamic*
are hardly told apart by how much they lock: of the lines that are not locked the one with the fewest misses in the
profile goes first (4.1.2 of the thesis), so that blocks which missed often stay whether they are used or not. That
rule costs them what the table shows, not the locks.

{cores(data)}"""


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
below 0 is better. Counts do not depend on the machine, but for what its libraries do in the traces that are made here;
response times, processor time and all that guests do are those of one machine.

{shown}

## The design page's table

Without locks (lock 5 % / lock 5 % and an added victim buffer). The cell that differs most from the page is {worst:.3f}
points off.

{reproduced}

## Everything at 4 KiB

{ways_of(data, "sizes-", REFERENCE, 4096, ways)}

{replacement_part(data)}

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

{response_part(data)}
{measured_locks.section(data)}
{cores_part(data)}
{blocks_report.part(data)}{boot_report.section(data)}{steady_report.section(data)}"""
