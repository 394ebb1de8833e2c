"""The report: docs/results/exclusive.md, from stored results alone.

Owns its layout. Never measures. Invariant: every cell and arm of the raw results is in it, losses are marked, every
figure is computed from the raw results or stands in `reference`, and no table has figures of two types of machine, or
of cells measured anew beside older ones.
"""

import re
import tomllib
from pathlib import Path

from rig import machine as machines, serving

from . import arms, cells as cell_module, derive, experiments, reach, reference, scanned, times
from .arms import ARMS
from .cells import USUAL_GUEST_MIB, usual
from .derive import MIB, percent
from .experiments import table

WHY = Path(__file__).with_name("why.toml")
# What counts as worse: saved bytes of two runs of one arm differ by less.
WORSE_BY = 0.01
COLUMNS = [
    "direct", "default", "default-128", "default-off", "fadvise", "undercroft-lru", "undercroft-off",
    "undercroft-auto", "undercroft-capture", "undercroft-delayed",
    "upstream", "scan-vhost", "nbd", "scan-nbd",
]  # fmt: skip
PAGE_CACHE = {ARMS[key].title for key in (*arms.PAGE_CACHE, "fadvise")}
OLD = (
    "**Old**: measured before commit, day and all of the machine were recorded with each cell, once each, so without a"
    " spread; the scanner was off in every arm, and the host process beside a guest had all of its file in the page"
    " cache."
)


def full(data, pictures, why=None):
    """The whole report as Markdown."""
    cells, found = data["cells"], parts(data["cells"])
    lines = [
        "# Exclusive of the guests: what it saves",
        "",
        "Written by `make lab-exclusive` from `exclusive.json.xz`; no number is typed in by hand.",
        "",
        *introduction(cells),
    ]
    for n, part in enumerate(found, 1):
        if len(found) > 1:
            lines += [f"# Part {n} of {len(found)}: {part_title(part)}", ""]
        lines += about_part(part)
        if part.keys() == pictured(cells).keys():
            lines += [*(f"![{name}]({name})" for name in pictures), ""]
        grid = {name: cell for name, cell in part.items() if cell.get("kind", "grid") == "grid"}
        lines += [
            *bytes_tables(grid),
            *times.section(grid, guest_kind),
            *scanned.section(part),
            *reached(grid),
            *losses(grid, reasons() if why is None else why),
            *beside_paper(grid, part),
            *experiments.sections(part),
            *ways(grid),
            *details(grid),
            *checks(part),
        ]
    return "\n".join(lines).rstrip() + "\n"


def is_old(cell):
    """Whether a cell is of before commits and machines were recorded."""
    return "commit" not in cell


def parts(cells):
    """Cells by type of machine, those measured anew apart from older ones: newer parts first, then larger ones. A list
    of tables of cells; one empty one, if there are none."""
    found = {}
    for name, cell in cells.items():
        found.setdefault((is_old(cell), machines.kind(cell["machine"])), {})[name] = cell
    return [part for _, part in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))] or [{}]


def pictured(cells):
    """The part that pictures are drawn of: the newest one that has cells of the grid. An old one says more, of another
    program."""
    found = parts(cells)
    return next((part for part in found if any(c.get("kind", "grid") == "grid" for c in part.values())), found[0])


def part_title(part):
    """A part in a few words."""
    cell = next(iter(part.values()))
    return f"{cell['machine']['cpu']}, {'old' if is_old(cell) else 'measured anew'}"


def reasons():
    """What why.toml says."""
    return tomllib.loads(WHY.read_text(encoding="utf-8")).get("why", [])


def about_part(cells):
    """On what the cells of a part were measured, and when."""
    on = sorted({machines.words(cell["machine"]) for cell in cells.values()})
    kernels = sorted({r["guest"]["kernel"] for c in cells.values() for r in c["arms"].values() if "guest" in r})
    usable = sorted(
        {r["guest"]["available_bytes"] // MIB for c in cells.values() for r in c["arms"].values() if "guest" in r}
    )
    lines = [f"Machine: {'; '.join(on)}." if on else "Nothing has been measured yet."]
    if any(map(is_old, cells.values())):
        lines.append(OLD)
    elif cells:
        days, commits = (sorted({str(cell[name]) for cell in cells.values()}) for name in ("day", "commit"))
        lines.append(f"Measured on {', '.join(days)}, at commit {', '.join(commits)}.")
    if kernels:
        span = f"{usable[0]}" if usable[0] == usable[-1] else f"{usable[0]} to {usable[-1]}"
        lines.append(
            f"Guests: Debian's kernel {', '.join(kernels)}, with {span} MiB available to page cache and programs after"
            " boot."
        )
    return [*lines, ""]


def introduction(cells):
    """What the figures are, and how they came about."""
    quick = any(cell["quick"] for cell in cells.values())
    lines = [
        (
            "**Saved** is 1 - (bytes that the disk delivered / bytes that the guest's block layer read), in the"
            " measured part of a run: the kernel's count for the serving process over the guest's own count for its"
            " disk. Read-ahead that brings nothing makes it negative. N is the host cache over guest RAM; every arm of"
            f" a row had that much host memory, and the same {serving.PROGRAM_BYTES // MIB} MiB more for its program (4"
            " MiB in cells marked *old*). All arms of a row ran one after the other, in one run. Where an arm ran"
            " several times, the median stands first and the smallest and the largest behind it; a figure without"
            " those is of one run. **The host page cache** is measured with the read-ahead that the host's disk has"
            " (which the machine's line says), with Linux's 128 KiB, and without. **Perfect** is computed from a log"
            " of the O_DIRECT arm's transfers: a host cache that takes every block at the moment when the guest's page"
            " is seen with another one, for nothing, and keeps the youngest. [0100](../decisions/0100-laboratory.md),"
            " [0154](../decisions/0154-scanner-arms.md) and [0187](../decisions/0187-bytes-and-time.md) say more. No"
            " table has figures of two types of machine."
        ),
        "",
    ]
    if quick:
        lines += ["Cells marked *quick* are short runs: caches had less time to settle.", ""]
    return lines


def shown_n(cell):
    return f"{cell['n']:g}"


def guest_kind(cell):
    """The guest's kernel settings, in words."""
    text = "zeroing" if cell["zeroing"] else "not zeroing"
    size = "" if cell["guest_mib"] == USUAL_GUEST_MIB else f", {cell['guest_mib']} MiB"
    if cell.get("wait_us") is not None:
        size += f", disk with {cell_module.disk(cell)}"
    return text + size + (", MGLRU" if cell["mglru"] else "") + (", *quick*" if cell["quick"] else "")


def titles(cells):
    """Arms that occur, in their order, with titles."""
    found = {}
    for cell in cells.values():
        for key, record in cell["arms"].items():
            found.setdefault(key, record["title"])
    return {key: found[key] for key in COLUMNS if key in found}


def by_load(cells):
    """Cells grouped by load, in the order of the results."""
    groups = {}
    for name, cell in cells.items():
        groups.setdefault(cell["load"], {})[name] = cell
    return groups


def bytes_tables(cells):
    """Saved bytes: one table per load."""
    lines = ["## Bytes saved", ""]
    for group in by_load(cells).values():
        first = next(iter(group.values()))
        arms = titles(group)
        head = ["guest", "N", *arms.values(), "perfect", "exclusive of perfect"]
        rows = []
        for cell in group.values():
            values = {}
            for key in arms:
                record = cell["arms"].get(key)
                if record is None:
                    values[key] = ""
                elif "absent" in record:
                    values[key] = "not in this build"
                else:
                    values[key] = derive.with_spread(record, "saved", percent)
            numbers = {k: derive.saved(r) for k, r in derive.measured_arms(cell).items()}
            best = max((k for k in numbers if numbers[k] is not None), key=lambda k: numbers[k], default=None)
            if best and numbers[best] > 0:
                values[best] = f"**{values[best]}**"
            ours = numbers.get(reach.ARM)
            perfect = derive.perfect(cell)
            # It keeps the youngest: of a loop that is larger than both caches together that is nothing to be measured
            # by.
            of = derive.ratio(ours, perfect) if ours is not None and perfect is not None and perfect > 0.1 else None
            rows.append([guest_kind(cell), shown_n(cell), *values.values(), percent(perfect), percent(of, 0)])
        lines += [
            f"### {first['title']}",
            "",
            first["explains"][0].upper() + first["explains"][1:] + ".",
            "",
            *table(head, rows),
        ]
    return lines


def reached(cells):
    """The list of what was to be reached."""
    rows, counts = [], [0, 0, 0]
    for cell in cells.values():
        perfect = derive.perfect(cell)
        for criterion, wanted, ours, ok in reach.verdicts(cell):
            counts[2 if ok is None else 0 if ok else 1] += 1
            verdict = "not judged" if ok is None else "reached" if ok else "**not reached**"
            if ok is False and perfect is not None and perfect < wanted:
                verdict += f"; perfect: {percent(perfect)}"
            rows.append(
                [
                    f"{cell['title']}, {guest_kind(cell)}",
                    shown_n(cell),
                    criterion,
                    percent(wanted),
                    percent(ours),
                    verdict,
                ]
            )
    lines = ["## What was to be reached", ""]
    if not rows:
        return [*lines, "The exclusive arm was not measured: there is nothing to judge.", ""]
    lines += [f"{counts[0]} reached, {counts[1]} not reached, {counts[2]} not judged.", ""]
    return lines + table(["cell", "N", "criterion", "wanted", "exclusive saved", "verdict"], rows)


def losses(cells, whys):
    """Where another arm saved more than the exclusive one, and why."""
    lines = ["## Where exclusive is worse, and why", ""]
    any_measured = False
    for name, cell in cells.items():
        numbers = {k: derive.saved(r) for k, r in derive.measured_arms(cell).items()}
        ours = numbers.get(reach.ARM)
        if ours is None:
            continue
        any_measured = True
        for key, value in numbers.items():
            if value is None or value <= ours + WORSE_BY or key in derive.EXCLUSIVE:
                continue
            reasons = [w["text"] for w in whys if re.search(w["cells"], name) and key in w["against"]]
            lines.append(
                f"- {cell['title']}, {guest_kind(cell)}, N = {shown_n(cell)}: {cell['arms'][key]['title']} saved"
                f" {percent(value)}, exclusive {percent(ours)}. {' '.join(reasons) or '*Not explained yet.*'}"
            )
    if len(lines) == 2:
        lines.append("Nowhere by more than a point." if any_measured else "The exclusive arm was not measured.")
    return [*lines, ""]


def pick(cells, load, n=0.5):
    """The cell of a load that stands for it beside the paper: zeroing, no MGLRU, N as near to `n` as there is."""
    found = [c for c in usual(cells).values() if c["load"] == load and not c["mglru"]]
    found = [c for c in found if c["zeroing"]] or found
    return min(found, key=lambda c: (abs(c["n"] - n), c["quick"]), default=None)


def three(cells, load, figure, show):
    """A figure of the three arms that the paper has, for a load."""
    cell = pick(cells, load)
    if not cell:
        return "not measured"
    arms = derive.measured_arms(cell)
    parts = [show(derive.figures(arms[k])[figure]) if k in arms else "-" for k in ("default", "fadvise", reach.ARM)]
    return ", ".join(parts) + f" (N = {shown_n(cell)})"


def paper_hits(cells):
    """Rows of the table beside the paper: hits, and what guests get of them."""
    rows = []
    r = reference.HIT_RATIO_SEQUENTIAL
    rows.append(
        [
            "host hit ratio, sequential",
            ", ".join(percent(r[k], 0) for k in ("default", "fadvise", "exclusive")),
            three(cells, "seq", "hit_blocks", percent),
            r["where"],
        ]
    )
    r = reference.HIT_RATIO_RANDOM
    rows.append(
        [
            "host hit ratio, random",
            f"exclusive {r['gain']:g}x the default",
            three(cells, "uniform", "hit_blocks", percent),
            r["where"],
        ]
    )
    for load, title in (("seq", "sequential"), ("uniform", "random"), ("zipf", "Zipf")):
        r = reference.THROUGHPUT_KB[load]
        rows.append(
            [
                f"guest throughput, {title}, KB/s",
                ", ".join(f"{r[k]:,}" for k in ("default", "fadvise", "exclusive")),
                three(cells, load, "kb_per_s", lambda v: "-" if v is None else f"{v:,.0f}"),
                r["where"],
            ]
        )
    if cell := pick(cells, "seq"):
        r, arms = reference.DIRECT_BLOCK_READ, derive.measured_arms(cell)
        named = (("direct", "direct"), ("default", "cached"), (reach.ARM, "exclusive"))
        ours = ", ".join(f"{derive.figures(arms[k])['kb_per_s']:,.0f} {word}" for k, word in named if k in arms)
        theirs = f"{r['direct']:,} direct, {r['default']:,} cached"
        rows.append(
            ["block reads in order, KB/s, direct and cached", theirs, f"{ours} (N = {shown_n(cell)})", r["where"]]
        )
    return rows


def paper_costs(cells, all_cells):
    """Rows of the table beside the paper: the host's memory and processors."""
    rows = []
    r = reference.CACHE_SIZE_SMALLER
    rows.append(
        [
            "mean cache size, random",
            f"Singleton's {r['least']} to {r['most']} times smaller",
            three(cells, "uniform", "cached_bytes", lambda v: "-" if v is None else f"{v / MIB:,.0f} MiB"),
            r["where"],
        ]
    )
    r = reference.RECLAIM
    rows.append(
        [
            "pages scanned by reclaim a second, random",
            f"{r['default']['scanned_per_s']:,}, -, {r['exclusive']['scanned_per_s']}",
            three(cells, "uniform", "scanned_per_s", lambda v: "-" if v is None else f"{v:,.0f}"),
            r["where"],
        ]
    )
    rows.append(
        [
            "scan efficiency (dropped of scanned)",
            f"{percent(r['default']['efficiency'], 2)}, -, {percent(r['exclusive']['efficiency'], 2)}",
            three(cells, "uniform", "scan_efficiency", percent),
            r["where"],
        ]
    )
    rows.append(
        [
            "swap traffic of the host, pages, random",
            "default swaps, Singleton and fadvise (nearly) not",
            three(cells, "uniform", "swapped", lambda v: f"{v:,}"),
            "Figure 4.8",
        ]
    )
    for load, title in (("seq", "sequential"), ("uniform", "random"), ("zipf", "Zipf")):
        r = reference.CPU_SHARE
        rows.append(
            [
                f"CPU of a core, {title}",
                f"-, -, {percent(r[load])} (its scanner)",
                three(cells, load, "cpu_share", percent) + "; all of serving",
                r["where"],
            ]
        )
    rows.append(
        [
            "CPU of a core, scanner alone, random",
            f"-, -, {percent(reference.CPU_SHARE['uniform'])}",
            scanned.shares(all_cells, "uniform"),
            r["where"],
        ]
    )
    return rows


def beside_paper(cells, all_cells):
    """Singleton's tables and figures, with ours."""
    head = ["what", "Singleton: default, fadvise, Singleton", "ours: default, fadvise, exclusive", "where"]
    rows = [*paper_hits(cells), *paper_costs(cells, all_cells), *experiments.paper_rows(all_cells)]
    lines = ["## Beside Singleton's figures", ""]
    lines += table(head, rows)
    lines += [
        (
            "Theirs: four guests of 1 GiB with hardware virtualization over one disk with a spindle, no limit on the"
            " page cache. Ours: one guest under software emulation, a host cache of bounded size over a fast disk. So"
            " hit ratios and bytes can be compared, throughput hardly: a read that the disk answers costs our guests"
            " little more than one that RAM answers, for most of the time goes into emulating the guest."
        ),
        "",
    ]
    return lines


def ways(cells):
    """What Undercroft found out about each guest, and how its copies fared."""
    rows = []
    for name, cell in cells.items():
        for key, record in derive.measured_arms(cell).items():
            if key not in derive.EXCLUSIVE:
                continue
            now = record["end"]["own"]["disks"][0]["exclusive"]
            done = record["measured"]["own"]["disks"][0]["exclusive"]
            copying = record["measured"]["own"]["copying_seconds"]
            rows.append(
                [
                    name, record["title"], now["state"], f"{done['evictions']:,}", f"{done['evictions_cached']:,}",
                    of(done["captures"], done["captures_tried"]), of(done["early"], done["early_tried"]),
                    f"{done['early_lapsed']:,}", f"{now['age_read']:,} / {now['age_write']:,}",
                    " / ".join(f"{now[f'{tier}_blocks']:,}" for tier in ("hot", "probation", "cold")),
                    percent(derive.ratio(copying, record["measured"]["time"])),
                ]
            )  # fmt: skip
    if not rows:
        return []
    head = [
        "cell", "arm", "state at the end", "evictions seen", "of blocks cached already", "captures that held the block",
        "early copies that did", "lapsed", "age: read / write", "blocks hot / on probation / cold",
        "CPU of a core for copying",
    ]  # fmt: skip
    return [
        "## How it went about it",
        "",
        "In the measured part of each run; tiers and ages at its end.",
        "",
        *table(head, rows),
    ]


def of(part, whole):
    """`part` of `whole`, in numbers and per cent."""
    return f"{part:,} of {whole:,} ({percent(derive.ratio(part, whole), 0)})"


def details(cells):
    """Everything else, one row per arm and cell."""
    head = [
        "cell", "arm", "saved", "hits by blocks", "ops/s", "disk read, us", "cached, MiB", "host memory, MiB",
        "CPU of a core",
        "CPU s per GiB", "scanned", "reclaimed", "swapped", "read-ahead, KiB",
    ]  # fmt: skip
    rows = []

    def show(value, form):
        return "-" if value is None else form.format(value)

    for name, cell in cells.items():
        for record in derive.measured_arms(cell).values():
            f = derive.figures(record)
            rows.append(
                [
                    name, record["title"], percent(f["saved"]), percent(f["hit_blocks"]),
                    show(f["ops_per_s"], "{:,.0f}"),
                    show(f["read_us"], "{:,.0f}"), show(f["cached_bytes"] and f["cached_bytes"] / MIB, "{:,.1f}"),
                    show(f["memory_bytes"] and f["memory_bytes"] / MIB, "{:,.1f}"), percent(f["cpu_share"]),
                    show(f["cpu_s_per_gib"], "{:,.2f}"), show(f["scanned"], "{:,}"), show(f["reclaimed"], "{:,}"),
                    show(f["swapped"], "{:,}"), ahead(cell, record),
                ]
            )  # fmt: skip
    lines = [
        "## All figures",
        "",
        (
            "Hits by blocks: for the page cache, what cachestat(2) said before each read; for Undercroft, its own"
            " count. Scanned and reclaimed: pages, on behalf of the serving process. Throughput and CPU depend on what"
            " else the machine did."
        ),
        "",
    ]
    return lines + table(head, rows)


def ahead(cell, record):
    """The read-ahead that an arm on the page cache had, and what the kernel was seen to read ahead."""
    if record["title"] not in PAGE_CACHE:
        return "-"
    if record.get("read_ahead_kb") is None:
        return show_or_dash(cell["machine"].get("read_ahead_kb"))
    return f"{record['read_ahead_kb']} (seen: {show_or_dash(record['read_ahead_seen_kb'])})"


def show_or_dash(value):
    """A number that may be missing."""
    return "-" if value is None else f"{value}"


def checks(cells):
    """Where two measures of one thing disagree, and how far computed and measured LRU are apart."""
    lines = ["## Checks", ""]
    notes = derive.disagreements(cells)
    lines += [f"- {note}" for note in notes] or [
        "- Undercroft's own count of bytes read and the kernel's agree within 2 % in every run; O_DIRECT read what its"
        " guest read."
    ]
    lines += [
        f"- {name}, {title}: the machine was busy with other work ({cores:.1f} of its cores): times of it say little."
        for name, title, cores in derive.busy(cells)
    ]
    lines += [
        f"- {name}, {title}: {faults} page faults read its own program from the disk, up to the disk's read-ahead each;"
        " that is in its bytes."
        for name, title, faults in derive.program_reads(cells)
    ]
    apart = []
    for name, cell in cells.items():
        record, computed = cell["arms"].get("undercroft-lru"), derive.computed_lru(cell)
        if record and "absent" not in record and computed is not None:
            hits = derive.hit_blocks(record)
            if hits is not None:
                apart.append((abs(hits - computed), name, hits, computed))
    if apart:
        _, name, hits, computed = max(apart)
        lines.append(
            "- Undercroft's LRU arm against an LRU cache computed from the O_DIRECT arm's log: furthest apart in"
            f" {name}, {percent(hits)} measured, {percent(computed)} computed."
        )
    return [*lines, ""]
