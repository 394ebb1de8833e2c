"""The report: docs/results/shares.md, from stored results alone.

Owns its layout. Never measures. Invariant: every arm of the raw results is in it, losses are said, and every figure is
computed from the raw results or stands in a paper.
"""

from exclusive.experiments import show, table

from . import derive, reach
from .derive import MIB
from .reach import signed

# Figures of the thesis on thin provisioning, section 7.4, and of the one on per-file caches, tables 5.2 to 5.5.
PER_FILE_PAPER = (
    "The thesis (tables 5.2 to 5.5; 400 MB of memory): 40 MB of cache instead of 372; random 388 requests a second"
    " instead of 390, sequential 4668 instead of 4488; hit ratio 0.714 instead of 0.622; a kernel's compilation 268 s"
    " instead of 293 s."
)

PER_FILE_MIX = (
    "Reads ahead of the sequential reader count as hits when they are asked for, so it always hits, in every arm. Both"
    " readers ask equally often: the thesis says nothing of that, and 0.622 for one cache is about the hit ratio of"
    " equal numbers. **With four sequential requests for each random one, as this experiment had it first, the gain in"
    " hits of both over one LRU was 6.7 %**: the less the random reader asks, the less there is to gain, as the"
    " sequential one's hits are the same everywhere."
)
TENTH = (
    "In the thesis a tenth of the cache keeps the rate because a random read hardly ever hits in 400 MB either. Here"
    " the whole store does hit for the random reader, and a tenth of it hardly: its misses say what that costs, its"
    " rate what a miss is worth on this machine."
)
KERNEL_PAPER = (
    "The thesis (table 5.5 and below; Linux 3.0, three threads): 268 s instead of 293 s, 100 MB of cache instead of 120"
    " MB, hit ratio 0.984792 instead of 0.989283. Its cache is the page cache itself. Here there is a page cache above"
    " Undercroft's, so that is emptied all the time, and headers that are read again are read from Undercroft; how"
    " often it is emptied differs a little between runs, and with it the number of hits: misses say more than the hit"
    " ratio. Cached are blocks alone: metadata and what operations may take come out of the same store. A miss here"
    " takes well under a millisecond, and a compiler far longer: what the arms differ by in misses cannot change the"
    " compile time by much, and what else the machine does can."
)


# Fewer misses than this are not compared.
FEW = 100


def full(cells, pictures):
    """The whole report as Markdown."""
    cells = dict(sorted(cells.items()))
    lines = [
        "# Shares that follow the load",
        "",
        "Written by `make lab-shares` from `shares.json.xz`; no number is typed in by hand but those of the papers.",
        "",
        *machine(cells),
        *reached(cells),
        *losses(cells),
        *complaints(cells),
    ]
    for name, cell in cells.items():
        lines += [f"## ({name[0]}) {cell['title']}", "", f"{first_up(cell['explains'])}.", ""]
        lines += [f"![{p}]({p})\n" for p in pictures if p.startswith(f"shares-{name[2:]}.")]
        for prefix, section in SECTIONS.items():
            if name.startswith(prefix):
                lines += section(cell)
        lines += absences(cell)
    return "\n".join(lines).rstrip() + "\n"


def absences(cell):
    """The arms that were not run, by reason."""
    by_reason = {}
    for record in cell["arms"].values():
        if "absent" in record:
            by_reason.setdefault((record.get("where", "in this build"), record["absent"]), []).append(record["title"])
    return [f"Not {where}: {'; '.join(titles)}: {reason}.\n" for (where, reason), titles in by_reason.items()]


def first_up(text):
    return text[:1].upper() + text[1:]


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def machine(cells):
    """On what, and how."""
    live = [cell for name, cell in cells.items() if not name.startswith("e-")]
    words = sorted(
        {
            f"{c['machine']['cpu']}, {c['machine']['cpus']} processors, Linux {c['machine']['kernel'].split('-')[0]}"
            for c in live
        }
    )
    builds = sorted({c["build"] for c in live})
    lines = [f"Machine: {'; '.join(words) or 'nothing has been measured yet'}. Build: {', '.join(builds)}."]
    lines += [
        "",
        (
            "A live `undercroft serve` with O_DIRECT raw images in each run, deduplication off. **The loads come from"
            " the benchmark's driver over NBD, or from a compiler on this machine, not from guests**: this machine has"
            " two processors and no hardware virtualization, so a guest would measure its emulation. What a guest's own"
            " page cache would keep away from the host is therefore in these loads. Where arms are compared they ran"
            " one after the other, again and again; figures are medians over the repetitions, changes are medians of"
            " the changes within one repetition. In (a), (c) and the readers of (d) the loads take turns, as in the"
            " paper, so that hits can be counted by load in one unpartitioned cache too, and every arm gets the same"
            " requests in the same order. Response times are those of a disk that answers in well under a millisecond,"
            " on a machine that did other work too: hits and misses say more. A disk's share includes its metadata and"
            " what its operations may take, a few MiB: one unpartitioned disk has that once, several have it each."
            " Shares are decided once a second."
        ),
        "",
    ]
    if any(cell["quick"] for cell in cells.values()):
        lines += ["**Quick**: small stores and short runs. Controllers have hardly had time to decide.", ""]
    return lines


def reached(cells):
    """Every criterion."""
    words = {True: "reached", False: "**not reached**", None: "not measured"}
    rows = [
        [where, criterion, wanted, measured, words[ok]]
        for where, criterion, wanted, measured, ok in reach.verdicts(cells)
    ]
    lines = table(["", "criterion", "wanted", "measured", ""], rows)
    return ["## What was to be reached", "", lines[0], "|---|---|---|---|---|", *lines[2:]]


def losses(cells):
    """Whatever did worse than static shares, by any margin."""
    found = []
    for name, cell in cells.items():
        for arm in cell["arms"]:
            if name.startswith("d-kernel"):
                found += build_losses(cell, arm)
                continue
            if name.startswith("d-tenth"):
                change = derive.compared(cell, arm, "unified", derive.turn_misses)
                if change is not None and change > 1.005:
                    found.append(
                        f"- {cell['title']}: {cell['arms'][arm]['title']} has {signed(change - 1)} misses against one"
                        " LRU with all of it."
                    )
                continue
            if arm not in reach.DYNAMIC or not derive.runs(cell, arm):
                continue
            if name.startswith("c-"):
                change = derive.server_change(cell, arm, "misses")
                parts = {server: derive.server_change(cell, arm, "misses", server) for server in cell["servers"]}
                many = dict.fromkeys(parts, True)
            else:
                change = derive.compared(cell, arm, "static", derive.turn_misses)
                change = None if change is None else change - 1
                parts = {
                    load: derive.compared(cell, arm, "static", lambda run, one=load: derive.of_load(run, one)["misses"])
                    for load in derive.loads(cell)
                }
                parts = {load: None if c is None else c - 1 for load, c in parts.items()}
                many = {load: derive.figure(cell, arm, load, "misses") >= FEW for load in parts}
            worse = [f"{part} {signed(c)}" for part, c in parts.items() if c is not None and c > 0.005 and many[part]]
            if (change or 0) > 0.005 or worse:
                by_part = f"; by load: {', '.join(worse)}" if worse else ""
                found.append(
                    f"- {cell['title']}: `{arm}` has {signed(change)} misses against `static` in all{by_part}."
                )
    lines = ["## Where shares that follow the load lose", ""]
    return [*lines, *(found or ["- Against static shares: nowhere in these runs, by more than .5 % of misses."]), ""]


def build_losses(cell, arm):
    """Whatever a build lost to static shares, or to one LRU."""
    found = []
    for base, words in (("static", "`static`"), ("unified", "one LRU")):
        for key, what in (("misses", "misses"), ("seconds", "compile time")):
            change = derive.build_change(cell, arm, key, base)
            if arm not in ("unified", "static", base) and change is not None and change > 0.005:
                found.append(f"{signed(change)} {what} against {words}")
    return [f"- {cell['title']}: {cell['arms'][arm]['title']} has {', '.join(found)}."] if found else []


def complaints(cells):
    """Errors that the daemons logged."""
    rows = []
    for cell in cells.values():
        for arm, record in cell["arms"].items():
            found = [run["errors"] for run in derive.runs(cell, arm) if "errors" in run]
            if any(e["count"] for e in found):
                first = next(e["first"] for e in found if e["first"])
                rows.append(
                    f"- {cell['title']}, {record['title']}: {', '.join(str(e['count']) for e in found)} in a run; the"
                    f" first: {first}"
                )
    return ["## Errors that the daemon logged", "", *(rows or ["None."]), ""]


def load_table(cell, extra=None):
    """A row per load and arm of an experiment with turns."""
    head = ["load", "arm", "hit ratio", "misses", "against static", "mean, us", "p99, us", "reads/s"]
    rows = []
    for load in derive.loads(cell):
        for arm, record in cell["arms"].items():
            if not derive.runs(cell, arm):
                continue
            f = {
                key: derive.figure(cell, arm, load, key) for key in ("hit_ratio", "misses", "mean_us", "p99_us", "iops")
            }
            change = derive.compared(cell, arm, "static", lambda run, one=load: derive.of_load(run, one)["misses"])
            rows.append(
                [
                    load, record["title"], percent(f["hit_ratio"]), show(f["misses"], "{:,.0f}"),
                    signed(None if change is None else change - 1),
                    show(f["mean_us"], "{:,.0f}"), show(f["p99_us"], "{:,.0f}"), show(f["iops"], "{:,.0f}"),
                    *((extra(arm, load),) if extra else ()),
                ]
            )  # fmt: skip
    return table(head + (["cached, MiB"] if extra else []), rows)


def spread(cell):
    """How far repetitions were apart."""
    widest = None
    for arm in cell["arms"]:
        for load in derive.loads(cell):
            ratios = [derive.of_load(run, load)["hit_ratio"] for run in derive.runs(cell, arm)]
            ratios = [r for r in ratios if r is not None]
            if len(ratios) > 1 and (widest is None or max(ratios) - min(ratios) > widest[0]):
                widest = (max(ratios) - min(ratios), arm, load)
    if not widest:
        return []
    return [
        (
            f"{cell['repeat']} repetitions; hit ratios of one arm differed most for `{widest[1]}`, {widest[2]}: by"
            f" {100 * widest[0]:.1f} points."
        ),
        "",
    ]


def locality(cell):
    return load_table(
        cell, lambda arm, load: cached(cell, arm, {"low locality": "low:root", "high locality": "high:root"}[load])
    ) + spread(cell)


def cached(cell, arm, disk):
    """Mean of what a disk had cached, or of what one disk for all had."""
    values = [derive.mean_cached(run, disk) for run in derive.runs(cell, arm)]
    if derive.middle(values) is None:
        return show(
            mib(derive.middle(derive.mean_cached(run, "both:root") for run in derive.runs(cell, arm))), "{:,.0f} (both)"
        )
    return show(mib(derive.middle(values)), "{:,.1f}")


def mib(value):
    return None if value is None else value / MIB


def per_file(cell):
    disks = {"random": "files:random", "sequential": "files:sequential"}
    lines = load_table(cell, lambda arm, load: cached(cell, arm, disks[load])) + spread(cell)
    return [*lines, *rates_apart(cell), PER_FILE_PAPER, "", PER_FILE_MIX, ""]


def rates_apart(cell):
    """How far rates of one arm were apart: what else the machine did."""
    widest = 0.0
    for arm in cell["arms"]:
        for load in derive.loads(cell):
            rates = [derive.of_load(run, load)["iops"] for run in derive.runs(cell, arm)]
            widest = max(widest, max(rates) / min(rates) - 1) if rates else widest
    return (
        [
            (
                f"Rates of one arm differed by up to {100 * widest:.0f} % between repetitions: arms whose rates differ"
                " by less are not told apart."
            ),
            "",
        ]
        if widest
        else []
    )


def tenth(cell):
    disks = {"random": "files:random", "sequential": "files:sequential"}
    lines = load_table(cell, lambda arm, load: cached(cell, arm, disks[load]))
    more = derive.compared(cell, "utility", "unified", lambda run: derive.of_load(run, "random")["misses"])
    words = (
        f"The random reader misses {signed(None if more is None else more - 1)} against one LRU with the whole store. "
    )
    return [*lines, *spread(cell), *rates_apart(cell), PER_FILE_PAPER, "", words + TENTH, ""]


def kernel(cell):
    """A row per arm: what the build took, and what Undercroft did for it."""
    if not derive.runs(cell, "unified"):
        return []
    head = [
        "arm", "compile time, s", "against one LRU", "CPU of the build, s", "of the daemon, s", "of nbdfuse, s",
        "hit ratio", "hits", "misses", "against one LRU", "against static", "read from the disk, MiB",
        "cached, mean MiB", "largest", "page cache of the build, MiB", "emptied",
    ]  # fmt: skip
    rows, parts = [], []
    for arm, record in cell["arms"].items():
        if not derive.runs(cell, arm):
            continue
        f = {key: derive.build_figure(cell, arm, key) for key in derive.of_build(derive.runs(cell, arm)[0])}
        rows.append(
            [
                record["title"], show(f["seconds"], "{:,.1f}"), signed(derive.build_change(cell, arm, "seconds")),
                show(f["cpu_seconds"], "{:,.1f}"),
                show(f["daemon_cpu_seconds"], "{:,.1f}"), show(f["glue_cpu_seconds"], "{:,.1f}"),
                percent(f["hit_ratio"]), show(f["hits"], "{:,.0f}"),
                show(f["misses"], "{:,.0f}"), signed(derive.build_change(cell, arm, "misses")),
                signed(derive.build_change(cell, arm, "misses", "static")), show(mib(f["read_bytes"]), "{:,.0f}"),
                show(mib(f["cached_mean"]), "{:,.1f}"), show(mib(f["cached_max"]), "{:,.1f}"),
                show(mib(f["page_cache_mean"]), "{:,.1f}"), show(f["emptied"], "{:,.0f} times"),
            ]
        )  # fmt: skip
        for disk in derive.runs(cell, arm)[0]["disks"]:
            met = [run["disks"][disk] for run in derive.runs(cell, arm)]
            misses = derive.middle(m["miss_blocks"] + m["joined_blocks"] for m in met)
            cached = derive.middle(
                derive.mean_cached({"samples": [s["disks"] for s in run["samples"]]}, disk)
                for run in derive.runs(cell, arm)
            )
            parts.append(
                [
                    record["title"],
                    disk.partition(":")[2].replace("root", "both"),
                    f"{derive.middle(m['hit_blocks'] for m in met):,.0f}",
                    f"{misses:,.0f}",
                    show(mib(cached), "{:,.1f}"),
                ]
            )
    return [
        *table(head, rows), "By disk:", "", *table(["arm", "disk", "hits", "misses", "cached, MiB"], parts),
        runs_of(cell), "", KERNEL_PAPER, "",
    ]  # fmt: skip


def runs_of(cell):
    """How often, and how far compile times of one arm were apart."""
    widest = 0.0
    for arm in cell["arms"]:
        seconds = [run["build"]["seconds"] for run in derive.runs(cell, arm)]
        widest = max(widest, max(seconds) / min(seconds) - 1) if seconds else widest
    count = max(len(derive.runs(cell, arm)) for arm in cell["arms"])
    if count > 1:
        return f"{count} runs of each arm; compile times of one arm differed by at most {percent(widest)}."
    return (
        "One run of each arm: compile times within a few percent of each other are equal, as the compiler's own work"
        " takes most of them."
    )


def derivative(cell):
    lines = []
    for run in derive.runs(cell, "static"):
        first = run["steps"][0]
        cold = [s for s in run["samples"] if s["at"] <= first["began"]]
        off = max(
            ((s["parts"][node] / part - 1, node, s["at"]) for s in cold for node, part in first["wanted"].items()),
            key=lambda o: abs(o[0]),
            default=None,
        )
        if off:
            lines += [
                (
                    f"Warming up took {first['began']:.0f} s; meanwhile a share was at most {abs(100 * off[0]):.0f} %"
                    f" off its weight ({off[1]}, at {off[2]:.0f} s): a disk whose misses are first reads has no demand"
                    " yet, and what it does not demand is lent."
                ),
                "",
            ]
        for step in run["steps"]:
            rows = []
            for node, part in step["wanted"].items():
                measured = step["measured"][node]
                error = "lent" if "lent" in step else signed(measured / part - 1)
                rows.append(
                    [
                        node,
                        percent(part),
                        percent(measured),
                        error,
                        "-" if "lent" in step else signed(step["worst"][node]),
                    ]
                )
            settled = step["settled_seconds"]
            lines += [
                f"### {step['title']}",
                "",
                (
                    f"Settled {'not' if settled is None else f'after {settled:.1f} s'}; measured for"
                    f" {step['ended'] - step['began'] - (settled or 0):.0f} s from then."
                ),
                "",
                *table(["node", "by weight", "measured", "error", "largest in a sample"], rows),
            ]
    return lines


def phased(cell):
    head = [
        "arm",
        "server",
        "misses",
        "against equal",
        "against `static`",
        "hit ratio",
        "mean, us",
        "time against equal",
        "by hits",
        "the thesis",
    ]
    rows = []
    for arm, record in cell["arms"].items():
        for server in [None, *cell["servers"]] if derive.runs(cell, arm) else []:
            f = {key: derive.server_figure(cell, arm, key, server) for key in ("misses", "hit_ratio", "mean_us")}
            change = {
                key: signed(derive.server_change(cell, arm, key, server, "fixed"))
                for key in ("misses", "mean_us", "computed_us")
            }
            lent = signed(derive.server_change(cell, arm, "misses", server))
            thesis = f"{100 * reach.THESIS[server]:.0f} %" if server and arm in reach.DYNAMIC else ""
            rows.append(
                [
                    "" if server else f"**{record['title']}**", server or "all", show(f["misses"], "{:,.0f}"),
                    change["misses"], lent,
                    percent(f["hit_ratio"]), show(f["mean_us"], "{:,.0f}"), change["mean_us"], change["computed_us"],
                    thesis,
                ]
            )  # fmt: skip
        if not derive.runs(cell, arm):
            rows.append([f"**{record['title']}**", "not in this build", *[""] * (len(head) - 2)])
    lines = table(head, rows)
    lines += [
        (
            f"By hits: how the mean response time would change if every hit took {derive.HIT_US:.0f} us and every miss"
            f" {derive.MISS_US:.0f}, as in the simulator; what else this machine did is not in it."
        ),
        "",
    ]
    rows = []
    for arm, record in cell["arms"].items():
        if derive.runs(cell, arm):
            rows.append(
                [
                    record["title"],
                    *(
                        f"{derive.middle(derive.phase_misses(r, p) for r in derive.runs(cell, arm)):,.0f}"
                        for p in cell["phases"]
                    ),
                ]
            )
    lines += ["Misses by phase:", "", *table(["arm", *cell["phases"]], rows)]
    return lines + no_room(cell)


def no_room(cell):
    """How long servers had a share and hardly a block in it."""
    rows = []
    for arm, record in cell["arms"].items():
        for run in derive.runs(cell, arm)[:1]:
            found = {server: derive.seconds_without_room(run, server) for server in cell["servers"]}
            if None not in found.values():
                rows.append(
                    [
                        record["title"],
                        *(
                            f"{seconds} s, {mib(share):,.1f} MiB" if seconds else "none"
                            for seconds, share in found.values()
                        ),
                    ]
                )
    if not rows:
        return []
    return [
        (
            "Seconds in which less than 1 MiB of a server's blocks was cached, and its mean share then: all of it went"
            " to what its operations may take, to metadata and to measuring. Its hits are lost meanwhile, whatever its"
            " share says."
        ),
        "",
        *table(["arm", *cell["servers"]], rows),
    ]


def simulated(cell):
    lines = []
    for policy in cell["arms"]:
        found = derive.simulated(cell, policy)
        if not found:
            continue
        arms = list(dict.fromkeys(arm for row in found.values() for arm in row))
        rows = []
        for arm in arms:
            row = [arm]
            for misses in found.values():
                base = misses["equal static shares"]
                row.append(f"{misses[arm]:,}" if arm == "equal static shares" else signed(misses[arm] / base - 1))
            rows.append(row)
        lines += [
            f"### {policy}",
            "",
            "Misses, and how many more or fewer than with equal static shares:",
            "",
            *table(["arm", *found], rows),
        ]
    return lines


def many_disks(cell):
    lines = []
    for run in derive.runs(cell, "hits"):
        rows = [
            [
                row["case"],
                f"{row['ns']:.0f}",
                f"{row['ratio']:.3f}",
                f"{row['prefetched_ns']:.0f}",
                f"{row['prefetched_ratio']:.3f}",
                row["beside"],
            ]
            for row in run["rows"]
        ]
        lines += [
            f"### {cell['arms']['hits']['title']}",
            "",
            *table(["disks", "ns", "ratio", "ns, prefetched", "ratio", "to"], rows),
        ]
    return lines + [
        "",
        "Medians, and medians of the ratios within a round; the second row says what chance makes of two equal cases.",
    ]


SECTIONS = {
    "a-locality": locality,
    "b-derivative": derivative,
    "c-phased": phased,
    "d-per-file": per_file,
    "d-tenth": tenth,
    "d-kernel": kernel,
    "e-simulated": simulated,
    "f-many-disks": many_disks,
}
