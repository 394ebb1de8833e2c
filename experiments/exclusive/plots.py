"""The pictures: saved bytes per load and arm, and memory over time.

Owns their layout. Never measures. Invariant: drawn from stored results alone; the same results make the same SVG.
"""

import textwrap

from . import derive
from .cells import usual
from .derive import MIB

COLOURS = {
    "direct": "#c9cdd2",
    "default": "#e8a33d",
    "fadvise": "#b5651d",
    "undercroft-lru": "#a9cce3",
    "undercroft-off": "#5d9cc4",
    "undercroft-auto": "#1b4f72",
    "undercroft-capture": "#48a999",
    "undercroft-delayed": "#7d5ba6",
}


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
    cells = usual(cells)
    plt = setup()
    paths = []
    for zeroing, word in ((True, "zeroing"), (False, "plain")):
        chosen = {n: c for n, c in cells.items() if c["zeroing"] == zeroing and not c["mglru"]}
        if chosen:
            paths += saved_bars(plt, chosen, out, f"{name}-saved-{word}", "guests that zero pages" if zeroing else "guests that do not zero pages")
    paths += memory_over_time(plt, cells, out, f"{name}-memory")
    return paths


def ordered_arms(cells):
    """Arms with something to draw, in their order; O_DIRECT is 0 by definition."""
    found = {k: r["title"] for c in cells.values() for k, r in derive.measured_arms(c).items() if k != "direct"}
    return {k: found[k] for k in COLOURS if k in found}


def saved_bars(plt, cells, out, name, guests):
    """Bars: a panel per N, a group per load, a bar per arm, and a mark where perfect exclusive is."""
    ns = sorted({c["n"] for c in cells.values()})
    loads = list(dict.fromkeys(c["load"] for c in cells.values()))
    arms = ordered_arms(cells)
    if not arms:
        return []
    figure, axes = plt.subplots(len(ns), 1, figsize=(10.5, 0.6 + 2.5 * len(ns)), layout="constrained", squeeze=False, sharex=True)
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
                axis.bar_label(bars, labels=[f"{round(100 * value) + 0:.0f}"], fontsize=7, padding=2, zorder=5, bbox=over)
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
    figure.legend(handles, [*arms.values(), "perfect exclusive, computed"], loc="upper center", ncols=4, frameon=False, title=f"Bytes that the disk did not deliver, of what {guests} read", title_fontsize=10)
    return save(plt, figure, out, name)


def memory_over_time(plt, cells, out, name):
    """Lines: data that each arm keeps, over one run of the uniform load."""
    cell = next((c for n in (0.5, 0.25, 1) for c in cells.values() if c["load"] == "uniform" and c["n"] == n and not c["mglru"]), None)
    if not cell:
        return []
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for key, record in derive.measured_arms(cell).items():
        samples = record.get("samples") or []
        if key in COLOURS and samples:
            axis.plot([s[0] for s in samples], [s[2] / MIB for s in samples], color=COLOURS[key], label=record["title"], linewidth=1.6)
    axis.axhline(cell["cache_bytes"] / MIB, color="#c0392b", linestyle=":", linewidth=1, label="the host cache's size")
    axis.set_title(f"Cached by the host, {cell['title']}, host cache {cell['n']:g} of guest RAM")
    axis.set_xlabel("seconds since the guest had booted")
    axis.set_ylabel("MiB")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, ncols=2, fontsize=8)
    return save(plt, figure, out, name)
