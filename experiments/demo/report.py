"""What came out: a table for the terminal and a picture.

Owns the arithmetic from raw numbers to what is shown. Never hides a number that is worse.
"""

MIB = 1 << 20


def summary(run):
    """The figures of one workload on one way, from its raw numbers; None where there is nothing to divide by."""
    guests = run["guests"]
    asked = sum(g["device"]["read_bytes"] for g in guests)
    read = run["disk"]["process_bytes"]
    weight = sum(g["read_disk"]["count"] for g in guests)

    def mean(field):
        """Over the guests, weighted by how many reads each sent to its disk."""
        return sum(g["read_disk"][field] * g["read_disk"]["count"] for g in guests) / weight if weight else None

    return {
        "asked_bytes": asked,
        "asked_ops": sum(g["device"]["read_ios"] for g in guests),
        "disk_bytes": read,
        "disk_ops": disk_ops(run["disk"]),
        "hit_ratio": 1 - read / asked if asked else None,
        "ops_per_s": sum((g["reads"] + g["writes"]) / g["seconds"] for g in guests),
        "bytes_per_s": sum(g["read_bytes"] / g["seconds"] for g in guests),
        "p50_us": mean("p50_us"),
        "p99_us": mean("p99_us"),
        "memory_bytes": run["memory_bytes"],
        "own_ram_share": sum(g["cached_bytes"] for g in guests) / sum(g["read_bytes"] for g in guests),
    }


def disk_ops(disk):
    """Reads that the disk did: by the control group's count, else the whole device's if nothing else read from it."""
    if disk.get("group_ops"):
        return disk["group_ops"]
    if "device_ops" in disk and abs(disk["device_bytes"] - disk["process_bytes"]) <= max(
        MIB, disk["process_bytes"] * 0.05
    ):
        return disk["device_ops"]
    return None


def _show(value, form):
    return "-" if value is None else form.format(value)


ROWS = [
    ("guests asked their disks for", lambda s: _show(s["asked_bytes"] / MIB, "{:,.0f} MiB")),
    ("read from the disk", lambda s: _show(s["disk_bytes"] / MIB, "{:,.0f} MiB")),
    ("  in reads", lambda s: _show(s["disk_ops"], "{:,}")),
    # Adding 0 turns -0.0 into 0.0.
    ("host hit ratio", lambda s: _show(s["hit_ratio"] and round(s["hit_ratio"], 3) + 0, "{:.1%}")),
    ("guest I/O rate", lambda s: f"{s['ops_per_s']:,.0f}/s"),
    ("guest read rate", lambda s: f"{s['bytes_per_s'] / MIB:,.1f} MiB/s"),
    ("read latency, p50", lambda s: _show(s["p50_us"], "{:,.0f} us")),
    ("read latency, p99", lambda s: _show(s["p99_us"], "{:,.0f} us")),
    ("host memory used", lambda s: _show(s["memory_bytes"] / MIB, "{:,.0f} MiB")),
]


def table(results):
    """The comparison as text: one block per workload, one column per way."""
    ways = results["ways"]
    lines = []
    head = max(len(name) for name, _ in ROWS) + 2
    for name, text in results["workloads"].items():
        sums = [summary(way["workloads"][name]) for way in ways.values()]
        widths = [max(16, len(way["title"]) + 2) for way in ways.values()]
        lines.append(text)
        lines.append(" " * head + "".join(f"{w['title']:>{n}}" for w, n in zip(ways.values(), widths)))
        lines.append("-" * (head + sum(widths)))
        for label, show in ROWS:
            lines.append(f"{label:{head}}" + "".join(f"{show(s):>{n}}" for s, n in zip(sums, widths)))
        lines.append("")
    lines.append(
        "Latency is of reads that the guest's own RAM could not answer. \"Read from the disk\" is the kernel's"
    )
    lines.append(
        "count for the serving processes, the same for all. A hit ratio below 0 is read-ahead that nobody used."
    )
    for note in cross_checks(results):
        lines.append(note)
    return "\n".join(lines) + "\n"


def cross_checks(results):
    """Where two measures of the same thing disagree by more than 2 % and 1 MiB: said, not hidden."""
    notes = []
    for way in results["ways"].values():
        for name, run in way["workloads"].items():
            disk = run["disk"]
            for other, what in (("group_bytes", "its control group"), ("own_bytes", "its own counters")):
                if disk.get(other) and abs(disk[other] - disk["process_bytes"]) > max(
                    MIB, disk["process_bytes"] * 0.02
                ):
                    notes.append(
                        f"note: {way['title']}, {name}: {disk['process_bytes'] / MIB:,.0f} MiB read by the process, but"
                        f" {disk[other] / MIB:,.0f} MiB by {what}"
                    )
    return notes


def plot(results, out):
    """Draws the comparison as SVG and PNG in the folder `out` and returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams |= {
        "font.family": "DejaVu Sans", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "svg.hashsalt": "undercroft",
    }  # fmt: skip
    colours = {"none": "#9aa0a6", "pagecache": "#e8a33d", "undercroft": "#2a6f97"}
    panels = [
        ("Read from the disk, MiB", lambda s: s["disk_bytes"] / MIB, "less is better"),
        ("Host hit ratio, %", lambda s: 100 * (s["hit_ratio"] or 0), "more is better"),
        ("Read rate of all guests, MiB/s", lambda s: s["bytes_per_s"] / MIB, "more is better"),
        ("Read latency, us: p50 and p99", None, "less is better"),
    ]
    ways, names = results["ways"], list(results["workloads"])
    titles = {"zipf": "Zipf", "seq": "sequential"}
    figure, axes = plt.subplots(1, len(panels), figsize=(12.5, 4.1), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.9))
    width = 0.8 / len(ways)
    for axis, (title, value, direction) in zip(axes, panels):
        for k, (key, way) in enumerate(ways.items()):
            sums = [summary(way["workloads"][name]) for name in names]
            at = [i + (k - (len(ways) - 1) / 2) * width for i in range(len(names))]
            colour = colours.get(key, "#666")
            if value:
                bars = axis.bar(at, [value(s) for s in sums], width * 0.92, color=colour, label=way["title"])
                axis.bar_label(bars, labels=[f"{round(value(s)) + 0:,}" for s in sums], fontsize=7, padding=2)
                continue
            for x, s in zip(at, sums):
                if s["p50_us"] and s["p99_us"]:
                    axis.vlines(x, s["p50_us"], s["p99_us"], color=colour, linewidth=3)
                    axis.plot([x, x], [s["p50_us"], s["p99_us"]], "o", color=colour, markersize=6)
                    for quantile, away in (("p50_us", -12), ("p99_us", 6)):
                        axis.annotate(
                            f"{s[quantile]:,.0f}", (x, s[quantile]), (0, away), textcoords="offset points",
                            ha="center", fontsize=7,
                        )  # fmt: skip
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.set_title(title)
        axis.set_xticks(range(len(names)), [titles.get(n, n) for n in names])
        axis.set_xlim(-0.55, len(names) - 0.35)
        axis.set_xlabel(direction, fontsize=8, color="#555")
        axis.margins(y=0.12)
        if value:
            axis.axhline(0, color="#333", linewidth=0.8)
    figure.text(0.008, 0.95, results["heading"], ha="left", va="center", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="center right", bbox_to_anchor=(1, 0.95), ncols=len(ways), frameon=False, fontsize=9
    )
    paths = [out / "demo.svg", out / "demo.png"]
    for path in paths:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths
