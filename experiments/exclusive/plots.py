"""The pictures: saved bytes per load and arm, bytes and speed side by side, and memory over time.

Owns their layout. Never measures. Invariant: drawn from stored results alone; the same results make the same SVG.
"""

import textwrap

from . import cells as cell_module, derive, times
from .arms import ARMS
from .cells import usual
from .derive import MIB

COLOURS = {
    "direct": "#c9cdd2",
    "default": "#e8a33d",
    "default-128": "#f0c274",
    "default-off": "#f7e0b5",
    "fadvise": "#b5651d",
    "undercroft-lru": "#a9cce3",
    "undercroft-off": "#5d9cc4",
    "undercroft-auto": "#1b4f72",
    "undercroft-capture": "#48a999",
    "undercroft-delayed": "#7d5ba6",
    "upstream": "#117a65",
}
# Loads and the size of the host cache in the picture of bytes and speed.
SPEED_LOADS, SPEED_N = ("uniform", "zipf"), 0.5


def setup():
    """matplotlib, for files only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams |= {
        "font.family": "DejaVu Sans", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "svg.hashsalt": "undercroft",
    }  # fmt: skip
    return plt


def save(plt, figure, out, name, dpi=130):
    """Writes a figure as SVG and PNG, the latter with `dpi` dots an inch, and returns their paths."""
    paths = [out / f"{name}.svg", out / f"{name}.png"]
    for path in paths:
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths


def draw(data, out, name="exclusive"):
    """All pictures that the results are enough for, as NAME-*.svg and .png; returns their paths."""
    cells = {name: cell for name, cell in data["cells"].items() if cell.get("kind", "grid") == "grid"}
    if not cells:
        return []
    plt = setup()
    chosen = {
        n: c
        for n, c in cells.items()
        if c["load"] in SPEED_LOADS and c["n"] == SPEED_N and c["zeroing"] and not c["mglru"] and not c["quick"]
    }
    paths = speed(plt, chosen, out, f"{name}-speed")
    cells = usual(cells)
    for zeroing, word in ((True, "zeroing"), (False, "plain")):
        chosen = {n: c for n, c in cells.items() if c["zeroing"] == zeroing and not c["mglru"]}
        if chosen:
            paths += saved_bars(
                plt,
                chosen,
                out,
                f"{name}-saved-{word}",
                "guests that zero pages" if zeroing else "guests that do not zero pages",
            )
    paths += memory_over_time(plt, cells, out, f"{name}-memory")
    return paths


BUSY = "This machine was busy with other work while it measured: the speeds say little, the bytes are right."


def speed(plt, cells, out, name, arms=None, heading=None, busy=None):
    """Bytes and speed: a row for each load; in it the bytes that each arm saved, and the guest's operations a second on
    each disk. An arm of `arms` that was not measured in a cell says so, and so does the picture of a machine that was
    `busy` with other work.

    """
    groups = {}
    for cell in cells.values():
        groups.setdefault((cell["load"], cell["guest_mib"]), []).append(cell)
    if not groups:
        return []
    disks = sorted({cell.get("wait_us") for cell in cells.values()}, key=lambda wait: -1 if wait is None else wait)
    found = {key for cell in cells.values() for key in derive.measured_arms(cell)}
    arms = [key for key in COLOURS if key in (found if arms is None else arms)]
    columns = 1 + len(disks)
    height = 0.26 * len(arms) + 1.0
    figure, axes = plt.subplots(
        len(groups),
        columns,
        figsize=(3.0 * columns + 2.2, height * len(groups) + 0.5),
        layout="constrained",
        squeeze=False,
    )
    for row, group in zip(axes, groups.values(), strict=True):
        # Bytes hardly depend on the disk: those of the first one stand for all.
        group = sorted(group, key=lambda cell: disks.index(cell.get("wait_us")))
        perfect = derive.perfect(group[0])
        bytes_saved = {
            key: 100 * v for key, r in derive.measured_arms(group[0]).items() if (v := derive.saved(r)) is not None
        }
        bars(row[0], arms, bytes_saved, "{:.0f} %", most=max(100 * (perfect or 0), 60))
        if perfect is not None:
            row[0].axvline(100 * perfect, color="#c0392b", linestyle="--", linewidth=1)
            row[0].text(100 * perfect, -0.55, " perfect", fontsize=7, color="#c0392b", va="center")
        row[0].set_title(f"{group[0]['title']}\nbytes saved", fontsize=9)
        row[0].set_yticks(range(len(arms)), [ARMS[key].title for key in arms])
        for axis, wait in zip(row[1:], disks, strict=True):
            cell = next((cell for cell in group if cell.get("wait_us") == wait), None)
            records = derive.measured_arms(cell) if cell else {}
            rates = {key: value for key, r in records.items() if (value := rate(r))}
            bars(axis, arms, rates, "{:,.0f}", ratios(records))
            axis.set_yticks(range(len(arms)), [""] * len(arms))
            latency = next((r["disk_latency_us"] for r in records.values() if r.get("disk_latency_us")), None)
            if wait is None and cell:
                latency = cell["machine"].get("read_latency_us")
            axis.set_title(
                f"{disk_name(wait)}: operations a second"
                + (f"\n(a read of it: {latency / 1000:.2g} ms)" if latency else ""),
                fontsize=9,
            )
    figure.suptitle(
        heading or "Bytes that the disk did not deliver, and the guest's operations a second",
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    if any(derive.busy(cells)) if busy is None else busy:
        figure.supxlabel(BUSY, x=0.01, ha="left", fontsize=8, color="#c0392b")
    return save(plt, figure, out, name, dpi=100)


def disk_name(wait):
    """A disk, for the title of a panel."""
    if wait is None:
        return "local disk"
    return f"disk with {wait / 1000:g} ms" if wait else "fast disk"


def rate(record):
    """Operations a second: the median, if an arm was run several times."""
    found = derive.spread(record, "ops_per_s")
    return found[0] if found else derive.figures(record)["ops_per_s"]


def ratios(records):
    """Beside the exclusive arm's bar: how many times the inclusive arm's operations a second it does, and whether that
    is less than it is to be."""
    if not {times.OURS, times.INCLUSIVE} <= records.keys():
        return {}
    found = derive.faster(records[times.OURS], records[times.INCLUSIVE])
    return {times.OURS: (f"{found[0]:.2f}x inclusive", found[0] < times.LOCAL_LEAST)} if found else {}


def bars(axis, arms, values, form, notes=None, most=0.01):
    """Horizontal bars, the first arm on top; what was not measured says so."""
    for at, key in enumerate(arms):
        if key not in values:
            axis.text(0, at, " not run", va="center", fontsize=7, color="#777", style="italic")
            continue
        over = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # above the line of perfect, where they meet
        drawn = axis.barh(at, values[key], 0.78, color=COLOURS[key])
        text, bad = (notes or {}).get(key, ("", False))
        label = form.format(round(values[key]) + 0) + (f"  {text}" if text else "")
        axis.bar_label(
            drawn,
            labels=[label],
            fontsize=7,
            padding=3,
            color="#c0392b" if bad else "black",
            fontweight="bold" if text else "normal",
            zorder=5,
            bbox=over,
        )
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.axvline(0, color="#333", linewidth=0.8)
    most, least = max([*values.values(), most]), min([*values.values(), 0])
    width = most - least
    axis.set_xlim(least - 0.2 * width if least < 0 else 0, most + 0.5 * width)
    axis.tick_params(axis="x", labelsize=7)
    axis.tick_params(axis="y", length=0)


def ordered_arms(cells):
    """Arms with something to draw, in their order; O_DIRECT is 0 by definition."""
    found = {k: ARMS[k].title for c in cells.values() for k in derive.measured_arms(c) if k in ARMS and k != "direct"}
    return {k: found[k] for k in COLOURS if k in found}


def saved_bars(plt, cells, out, name, guests):
    """Bars: a panel per N, a group per load, a bar per arm, and a mark where perfect exclusive is."""
    ns = sorted({c["n"] for c in cells.values()})
    loads = list(dict.fromkeys(c["load"] for c in cells.values()))
    arms = ordered_arms(cells)
    if not arms:
        return []
    figure, axes = plt.subplots(
        len(ns), 1, figsize=(10.5, 0.6 + 2.5 * len(ns)), layout="constrained", squeeze=False, sharex=True
    )
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.85 / figure.get_figheight()))
    width = 0.84 / len(arms)
    for axis, n in zip(axes[:, 0], ns, strict=True):
        titles = []
        for i, load in enumerate(loads):
            cell = next((c for c in cells.values() if c["load"] == load and c["n"] == n), None)
            titles.append(next(c["title"] for c in cells.values() if c["load"] == load))
            if not cell:
                continue
            records = derive.measured_arms(cell)
            for k, arm in enumerate(arms):
                value = derive.saved(records[arm]) if arm in records else None
                if value is None:
                    continue
                at = i + (k - (len(arms) - 1) / 2) * width
                bars = axis.bar(at, 100 * value, width * 0.92, color=COLOURS[arm])
                # Above the line of perfect, where they meet.
                over = {"facecolor": "white", "edgecolor": "none", "pad": 2}
                axis.bar_label(
                    bars, labels=[f"{round(100 * value) + 0:.0f}"], fontsize=7, padding=2, zorder=5, bbox=over
                )
            perfect = derive.perfect(cell)
            if perfect is not None:
                axis.hlines(100 * perfect, i - 0.44, i + 0.44, color="#c0392b", linewidth=1.2, linestyle="--")
        axis.set_title(f"host cache {n:g} of guest RAM")
        axis.set_ylabel("bytes saved, %")
        axis.set_xticks(range(len(loads)), [textwrap.fill(title, 16) for title in titles])
        axis.axhline(0, color="#333", linewidth=0.8)
        axis.margins(y=0.15)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[arm]) for arm in arms]
    handles.append(plt.Line2D([], [], color="#c0392b", linestyle="--"))
    figure.legend(
        handles,
        [*arms.values(), "perfect exclusive, computed"],
        loc="upper center",
        ncols=4,
        frameon=False,
        title=f"Bytes that the disk did not deliver, of what {guests} read",
        title_fontsize=10,
    )
    return save(plt, figure, out, name)


def memory_over_time(plt, cells, out, name):
    """Lines: data that each arm keeps, over one run of the uniform load."""
    cell = next(
        (
            c
            for n in (0.5, 0.25, 1)
            for c in cells.values()
            if c["load"] == "uniform" and c["n"] == n and not c["mglru"]
        ),
        None,
    )
    if not cell:
        return []
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for key, record in derive.measured_arms(cell).items():
        samples = record.get("samples") or []
        if key in COLOURS and samples:
            axis.plot(
                [s[0] for s in samples],
                [s[2] / MIB for s in samples],
                color=COLOURS[key],
                label=ARMS[key].title,
                linewidth=1.6,
            )
    axis.axhline(cell["cache_bytes"] / MIB, color="#c0392b", linestyle=":", linewidth=1, label="the host cache's size")
    axis.set_title(f"Cached by the host, {cell['title']}, host cache {cell['n']:g} of guest RAM")
    axis.set_xlabel("seconds since the guest had booted")
    axis.set_ylabel("MiB")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, ncols=2, fontsize=8)
    return save(plt, figure, out, name)
