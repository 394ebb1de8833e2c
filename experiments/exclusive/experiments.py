"""Sections of the report about guests in company: isolation, a host process, clones, how many guests fit.

Owns their layout and arithmetic. Never measures. Invariant: every figure comes from the raw results; what is
extrapolated says so.
"""

from . import derive, reference
from .cells import usual
from .derive import MIB, percent

COMPARED = ("default", "fadvise", "undercroft-auto")
HOST_GIB = 8
SHORT = {"default": "default", "fadvise": "fadvise", "undercroft-auto": "exclusive"}


def table(head, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def show(value, form):
    """A number, or a dash."""
    return "-" if value is None else form.format(value)


def mib(value):
    """Bytes as MiB, or None."""
    return None if value is None else value / MIB


def of_load(cells, load):
    """The cell of a load that is not part of the grid, or None; the longer run if there are two."""
    return min((c for c in cells.values() if c["load"] == load), key=lambda c: c["quick"], default=None)


def saved_by(disk_bytes, guest):
    """Saved bytes of one guest's disk."""
    asked = guest["device"]["read_bytes"]
    return 1 - disk_bytes / asked if asked else None


def ops_per_s(guest):
    """Operations of a guest's load a second."""
    return (guest["reads"] + guest["writes"]) / guest["seconds"] if guest["seconds"] else None


def isolation(record):
    """The quiet guest alone and beside the noisy one."""
    alone, beside = record["extra"]["alone"], record["guests"][0]
    return {
        "alone_saved": saved_by(alone["measured"]["read_bytes"][0], alone["guest"]),
        "beside_saved": saved_by(record["measured"]["read_bytes"][0], beside),
        "alone_ops": ops_per_s(alone["guest"]),
        "beside_ops": ops_per_s(beside),
        "noisy_saved": saved_by(record["measured"]["read_bytes"][1], record["guests"][1]),
    }


def host_job(record):
    """Mean time of the host process's passes, and what it had to read from the disk again."""
    job = record["extra"]["job"]

    def mean(passes, field):
        return sum(p[field] for p in passes) / len(passes) if passes else None

    def missed(passes):
        read = mean(passes, "read_bytes")
        return read / (4096 * job["reads"]) if "reads" in job and read is not None else None

    return {
        "alone_missed": missed(job["alone"]),
        "beside_missed": missed(job["beside"]),
        "alone_s": mean(job["alone"], "seconds"),
        "beside_s": mean(job["beside"], "seconds"),
        "alone_bytes": mean(job["alone"], "read_bytes"),
        "beside_bytes": mean(job["beside"], "read_bytes"),
        "passes": len(job["beside"]),
    }


def clones(record):
    """Memory that the host's cache takes after one clone and after all have read what they have in common."""
    found = record["extra"]["clones"]
    first, last = (found["cached_bytes"][i] - found["before"] for i in (0, -1))
    return {"one": first, "all": last, "ratio": last / first if first else None, "common": found["common_bytes"]}


def needed_n(points, wanted):
    """The smallest N at which an arm saves `wanted`, between measured points ((N, saved), ...), from (0, 0) on; None if
    it does not up to the largest measured."""
    before = (0.0, 0.0)
    for point in sorted(points):
        if point[1] >= wanted:
            rise = point[1] - before[1]
            return before[0] + (point[0] - before[0]) * ((wanted - before[1]) / rise if rise > 0 else 1)
        before = point
    return None


def fit(cells, load):
    """For each arm: guests of the measured size that fit into a host, if each is to be spared as many reads as the
    exclusive arm spares it at its smallest N. {arm: (N needed or None, guests)}; None where the exclusive arm was not
    measured.

    """
    chosen = [
        c
        for c in usual(cells).values()
        if c["load"] == load and c["zeroing"] and not c["mglru"] and c.get("kind", "grid") == "grid"
    ]
    chosen = [c for c in chosen if c["quick"] == min(c["quick"] for c in chosen)]
    points = {}
    for cell in chosen:
        for key, record in derive.measured_arms(cell).items():
            points.setdefault(key, []).append((cell["n"], derive.saved(record)))
    if not points.get("undercroft-auto"):
        return None
    smallest_n, wanted = min(points["undercroft-auto"])
    if wanted <= 0:
        return None
    guest = chosen[0]["guest_mib"] * MIB
    arms = {}
    for key, found in points.items():
        n = smallest_n if key == "undercroft-auto" else needed_n(found, wanted)
        most = max(measured for measured, _ in found)
        # Not reached: as if the largest measured were enough, which flatters that arm.
        arms[key] = (n, int(HOST_GIB * derive.GIB // (guest * (1 + (most if n is None else n)))), most)
    return {
        "wanted": wanted,
        "n": smallest_n,
        "guest_mib": chosen[0]["guest_mib"],
        "arms": arms,
        "title": chosen[0]["title"],
    }


def sections(cells):
    """All of it, as Markdown."""
    lines = []
    for load, head, row in (
        (
            "pair",
            ["arm", "quiet guest alone: saved", "beside the noisy one", "ops/s alone", "beside", "noisy guest: saved"],
            lambda r: [
                percent(r["alone_saved"]), percent(r["beside_saved"]), show(r["alone_ops"], "{:,.0f}"),
                show(r["beside_ops"], "{:,.0f}"), percent(r["noisy_saved"]),
            ],
        ),
        (
            "hostjob",
            [
                "arm", "a pass alone, s", "beside the guest, s", "times as long",
                "read from the disk in a pass alone, MiB", "beside, MiB",
                "missed alone", "missed beside", "passes", "guest: saved",
            ],
            None,
        ),
        ("clones", ["arm", "cached after one clone, MiB", "after all, MiB", "ratio", "read from the disk, MiB"], None),
    ):  # fmt: skip
        cell = of_load(cells, load)
        if not cell:
            continue
        lines += [
            f"## {cell['title'][0].upper()}{cell['title'][1:]}",
            "",
            f"{cell['explains'][0].upper()}{cell['explains'][1:]}.",
            "",
        ]
        rows = []
        for record in derive.measured_arms(cell).values():
            if load == "pair":
                values = row(isolation(record))
            elif load == "hostjob":
                j = host_job(record)
                values = [
                    *(derive.with_spread(record, name, "{:.3f}".format) for name in ("job_alone_s", "job_beside_s")),
                    derive.with_spread(record, "job_slowdown", "{:.2f}".format),
                    show(mib(j["alone_bytes"]), "{:.1f}"),
                    show(mib(j["beside_bytes"]), "{:.1f}"), percent(j["alone_missed"]), percent(j["beside_missed"]),
                    str(j["passes"]),
                    derive.with_spread(record, "saved", percent),
                ]  # fmt: skip
            else:
                c = clones(record)
                values = [
                    f"{c['one'] / MIB:.1f}", f"{c['all'] / MIB:.1f}", show(c["ratio"], "{:.2f}"),
                    f"{derive.process_bytes(record) / MIB:.1f}",
                ]  # fmt: skip
            rows.append([record["title"], *values])
        lines += table(head, rows)
        if load == "clones":
            lines += clones_verdict(cell)
        elif load == "pair":
            lines += isolation_verdict(cell)
    return lines + fit_section(cells)


def isolation_verdict(cell):
    """In words, how the quiet guest fares beside the noisy one, against the host page cache."""
    arms = derive.measured_arms(cell)
    if not {"default", "undercroft-auto"} <= arms.keys():
        return []
    default, ours = (isolation(arms[key]) for key in ("default", "undercroft-auto"))
    more = [slowdown(x) for x in (ours, default)]
    if None in more:
        return []
    worse = ours["beside_ops"] < default["beside_ops"]
    text = (
        f"In company the quiet guest does {ours['beside_ops']:,.0f} operations a second beside the exclusive cache and"
        f" {default['beside_ops']:,.0f} beside the host page cache; of its bytes {percent(ours['beside_saved'])} are"
        f" saved, {percent(default['beside_saved'])} there. Its operations take {more[0]:.2f} times as long as alone,"
        f" {more[1]:.2f} times there"
    )
    if more[0] > more[1] and not worse:
        text += ": alone it had the whole store, and was faster, so it has more to lose"
    head = "**Worse than the host page cache:** " if worse else ""
    return [f"{head}{text}. Nothing was set that would keep a part for it: no floor, equal weights.", ""]


MOST_FOR_CLONES = 1.15


def clones_verdict(cell):
    """Whether eight clones need at most 1.15 times the memory of one."""
    record = cell["arms"].get("undercroft-auto")
    if not record or "absent" in record:
        return []
    ratio = clones(record)["ratio"]
    verdict = "not judged" if ratio is None else "reached" if ratio <= MOST_FOR_CLONES else "**not reached**"
    return [
        f"To be reached: at most {MOST_FOR_CLONES} times the memory of one clone. {verdict[0].upper()}{verdict[1:]}.",
        "",
    ]


def fit_section(cells):
    """How many guests fit."""
    lines = []
    for load in ("uniform", "zipf"):
        found = fit(cells, load)
        if not found:
            continue
        rows = []
        for key, (n, guests, most) in found["arms"].items():
            title = next(r["title"] for c in cells.values() for k, r in c["arms"].items() if k == key)
            needed = f"{n:.2f}" if n is not None else f"not reached at {most:g}"
            memory = found["guest_mib"] * (1 + (n if n is not None else most))
            rows.append(
                [
                    title,
                    needed,
                    f"{'' if n is not None else 'more than '}{memory:.0f}",
                    f"{'' if n is not None else 'fewer than '}{guests}",
                ]
            )
        lines += [
            f"### {found['title']}: each guest spared {percent(found['wanted'])} of its reads",
            "",
            *table(["arm", "N needed", "host memory for one more guest, MiB", f"guests in {HOST_GIB} GiB"], rows),
        ]
    if lines:
        lines = [
            "## How many guests fit",
            "",
            (
                "Extrapolated, not run: guests of the measured size, each with the host cache that it takes to spare"
                f" it as many reads as the exclusive arm does at its smallest measured N, in {HOST_GIB} GiB. N between"
                " measured points is interpolated linearly. (Guests' RAM itself is the same for all arms: what guests"
                " on vhost-user share, they share in the host's cache.)"
            ),
            "",
            *lines,
        ]
    return lines


def paper_rows(cells):
    """Rows for the comparison with Singleton's figures."""
    rows = []

    def three(load, value):
        cell = of_load(cells, load)
        if not cell:
            return "not measured"
        arms = derive.measured_arms(cell)
        return ", ".join(value(arms[k]) if k in arms else "-" for k in COMPARED)

    r = reference.VMS_THAT_FIT
    found = fit(cells, "uniform")
    ours = "not measured"
    if found:
        parts = []
        for key in COMPARED:
            n, guests, _ = found["arms"].get(key, (None, None, None))
            parts.append("-" if guests is None else f"{'' if n is not None else 'fewer than '}{guests}")
        ours = ", ".join(parts) + " (extrapolated)"
    rows.append(
        ["guests that fit", ", ".join(str(r[k]) for k in ("default", "fadvise", "exclusive")), ours, r["where"]]
    )
    r = reference.ISOLATION_SECONDS
    rows.append([
        "slowdown of a quiet guest by noisy ones",
        ", ".join(f"{r[k]:,} s" for k in ("default", "fadvise", "exclusive")) + " for the same work",
        three("pair", lambda record: show(slowdown(isolation(record)), "{:.2f}x")) + " of its time alone", r["where"],
    ])  # fmt: skip
    r = reference.HOST_JOB_SECONDS
    rows.append([
        "host process beside a guest", ", ".join(f"{r[k]} s" for k in ("default", "fadvise", "exclusive")),
        three("hostjob", lambda record: show(host_job(record)["beside_s"], "{:.3f} s")) + " a pass", r["where"],
    ])  # fmt: skip
    r = reference.PAGES_SHARED
    rows.append([
        "memory shared between guests", f"{r['seq']:,} to {r['tree']:,} of {r['of']:,} pages of guest RAM",
        three("clones", lambda record: show(clones(record)["ratio"], "{:.2f}x")) + " of one clone's cache, for eight",
        r["where"],
    ])  # fmt: skip
    return rows


def slowdown(quiet):
    """How much longer the quiet guest's operations take in company."""
    return quiet["alone_ops"] / quiet["beside_ops"] if quiet["alone_ops"] and quiet["beside_ops"] else None
