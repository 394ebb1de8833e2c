"""The pictures of docs/results/stores.md: throughput, time and hits of each arm, over the sizes.

Owns their layout. Never measures. Invariant: drawn from stored results alone; the same results make the same SVG.
"""

from exclusive.plots import save, setup

from . import derive
from .engines import ENGINES

COLOURS = {
    "none": "#c9cdd2", "least": "#8d949c", "pagecache": "#e8a33d", "ram": "#a9cce3", "ssd": "#48a999",
    "ssd-second": "#a3d5c9", "both": "#1b4f72", "both-second": "#5d9cc4", "both-measured": "#9b59b6",
    "peer": "#b5651d", "ram-ssd": "#7d5ba6", "ssd-ram": "#c3aed6",
}  # fmt: skip
PICTURES = (("throughput", "transactions/s"), ("latency", "mean ms"), ("hits", "hits %: RAM, above it SSD"))


def draw(data, out):
    """All pictures that the results are enough for, as stores-*.svg and .png; returns their paths."""
    cells = [cell for cell in data["cells"].values() if "engines" in cell and cell["arms"]]
    alone = [cell for cell in cells if len(cell["engines"]) == 1]
    mixed = [cell for cell in cells if len(cell["engines"]) > 1]
    plt, paths = setup(), []
    for name, label in PICTURES:
        if alone:
            paths += bars(plt, alone, out, name, label)
    if mixed:
        paths += bars(plt, mixed, out, "throughput", "transactions/s", "mix-")
    return paths


def panels(cells):
    """(engine, wait) of each panel, in order."""
    engines = list(dict.fromkeys(key for cell in cells for key in cell["engines"]))
    waits = sorted({wait for cell in cells for wait in derive.waits(cell)}, key=int)
    return [(engine, wait) for engine in engines for wait in waits]


def bars(plt, cells, out, name, label, prefix=""):
    """A panel for each database and wait, a group for each size, a bar for each arm."""
    arms = {arm: record["title"] for cell in cells for arm, record in cell["arms"].items()}
    places = panels(cells)
    columns = max(1, len({wait for _, wait in places}))
    lines = -(-len(places) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(10, 0.9 + 2.6 * lines), layout="constrained", squeeze=False)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.8 / figure.get_figheight()))
    for axis, (engine, wait) in zip(axes.flat, places, strict=False):
        of = [cell for cell in cells if engine in cell["engines"] and wait in derive.waits(cell)]
        for k, arm in enumerate(arms):
            width = 0.84 / len(arms)
            at = [i + (k - (len(arms) - 1) / 2) * width for i in range(len(of))]
            one(axis, of, arm, engine, wait, name, at, width * 0.92, arms[arm])
        axis.set_title(f"{ENGINES[engine].title}, disk of {int(wait) // 1000} ms")
        axis.set_ylabel(label)
        axis.set_xticks(range(len(of)), [f"{c['ram_bytes'] >> 20} MiB RAM, {c['ssd_bytes'] >> 20} SSD" for c in of])
        axis.margins(y=0.12)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False, fontsize=8)
    return save(plt, figure, out, f"stores-{prefix}{name}")


def one(axis, cells, arm, engine, wait, name, at, width, title):
    """The bars of an arm."""
    values = [of_picture(cell, arm, engine, wait, name) if arm in cell["arms"] else None for cell in cells]
    middles = [value[0] if value else 0 for value in values]
    style = {"color": COLOURS[arm], "label": title}
    if name == "hits":
        ram = [100 * part for part in middles]
        axis.bar(at, ram, width, **style)
        both = [of_picture(cell, arm, engine, wait, "ssd") if arm in cell["arms"] else None for cell in cells]
        ssd = [100 * value[0] if value else 0 for value in both]
        axis.bar(at, ssd, width, bottom=ram, color=COLOURS[arm], alpha=0.55, hatch="//")
        return
    low = [value[0] - value[1] if value else 0 for value in values]
    high = [value[2] - value[0] if value else 0 for value in values]
    axis.bar(at, middles, width, yerr=[low, high], error_kw={"linewidth": 0.8}, **style)


def of_picture(cell, arm, engine, wait, name):
    """(median, least, most) of what a picture shows."""
    n = cell["engines"].index(engine)
    if name in ("hits", "ssd"):
        counter = "hit_blocks" if name == "hits" else "ssd_hit_blocks"
        return derive.middle(derive.counts(cell, arm, wait, lambda m: derive.hits(m, n, counter)))
    return derive.middle(derive.loads(cell, arm, wait, n, {"throughput": "tps", "latency": "mean_ms"}[name]))
