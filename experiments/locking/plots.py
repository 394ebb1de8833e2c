"""The pictures of docs/results/locking.md: misses by size for each trace, mean delay by what is locked, and what locks
change in the daemon's cache of blocks.

Owns their layout. Never simulates. Invariant: drawn from stored results alone.
"""

from exclusive.plots import save, setup

from . import blocks_report
from .blocks import BOTH, BUFFER, POLICIES, SIZES, TRACES
from .cells import REFERENCE
from .report import better

LINES = {
    "none": ("#8a8f98", "o-"),
    "lock": ("#e8a33d", "s--"),
    "lock and victim buffer (carved)": ("#b35c00", "^--"),
    "lock and victim buffer (extra)": ("#c0392b", "v-"),
    "online lock": ("#1b4f72", "D-"),
    "optimum": ("#3a8f5c", ":"),
}
STRATEGIES = {"random": "#8a8f98", "static": "#e8a33d", "dynamic": "#1b4f72", "hybrid": "#3a8f5c"}

ARMS = {
    "static:10%": ("#e8a33d", "s--"),
    "static:30%": ("#b35c00", "^--"),
    "online:30%": ("#1b4f72", "D-"),
    BUFFER: ("#c0392b", "v-"),
    BOTH: ("#3a8f5c", "o-"),
    "random:10%": ("#8a8f98", ":"),
}


def names(data):
    """The drawings that the results are enough for."""
    drawn = {
        "locking.svg": all(f"sizes-{name}" in data for name in REFERENCE),
        "locking-cores.svg": "cores-all" in data,
        "locking-blocks.svg": all(f"{blocks_report.WHOLE}{trace}" in data for trace in TRACES),
    }
    return [name for name, is_drawn in drawn.items() if is_drawn]


def draw(data, out):
    """All of them; returns their paths."""
    plt, wanted, found = setup(), names(data), []
    for name, drawing in (("locking", sizes), ("locking-cores", cores), ("locking-blocks", blocks)):
        if f"{name}.svg" in wanted:
            found += save(plt, drawing(plt, data), out, name, dpi=100)
    return found


def sizes(plt, data):
    """Misses by size for each trace of memory accesses."""
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6), layout="constrained")
    for axis, name in zip(axes.flat, REFERENCE, strict=True):
        rows = data[f"sizes-{name}"]["rows"]
        for way, (colour, style) in LINES.items():
            of = [r for r in rows if r["way"] == way]
            x, y = [r["size_bytes"] // 1024 for r in of], [r["miss_percent"] for r in of]
            axis.plot(x, y, style, color=colour, markersize=3.5, linewidth=1.2, label=way)
        axis.set_xscale("log", base=2)
        axis.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
        axis.set_title(name)
        axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("KiB")
    for axis in axes[:, 0]:
        axis.set_ylabel("misses, % of loads")
    axes[0][0].legend(fontsize=7, frameon=False)
    return figure


def cores(plt, data):
    """Mean delay by what is locked, at each size of the cores' caches."""
    rows = data["cores-all"]["rows"]
    chosen = list(dict.fromkeys(r["core_bytes"] for r in rows))
    figure, axes = plt.subplots(1, len(chosen), figsize=(2.4 * len(chosen), 2.8), layout="constrained", sharey=True)
    for axis, size in zip(axes, chosen, strict=True):
        for strategy, colour in STRATEGIES.items():
            of = [r for r in rows if r["core_bytes"] == size and r["strategy"] == strategy]
            loaded = next(r for r in rows if r["core_bytes"] == size and r["strategy"] == "loaded")
            x, y = [0] + [r["lock_percent"] for r in of], [0] + [better(r, loaded) for r in of]
            axis.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.2, label=strategy)
        axis.axhline(0, color="#8a8f98", linewidth=0.6)
        axis.set_title(f"L1 {size // 1024} KiB")
        axis.set_xlabel("ways locked, %")
    axes[0].set_ylabel("less mean delay than loaded, %")
    axes[0].legend(fontsize=7, frameon=False)
    return figure


def blocks(plt, data):
    """Points that locks change in the daemon's cache: a row for each policy, a column for each trace."""
    all_of = blocks_report.compared(data, blocks_report.WHOLE)
    shape = (len(POLICIES), len(TRACES))
    figure, axes = plt.subplots(*shape, figsize=(10.5, 8.5), layout="constrained", sharex=True, sharey="col")
    for across, policy in zip(axes, POLICIES, strict=True):
        for axis, trace in zip(across, TRACES, strict=True):
            for lock, (colour, style) in ARMS.items():
                some = blocks_report.of(all_of, lock)
                y = [c.points for c in some if (c.trace, c.row["policy"]) == (trace, policy)]
                axis.plot(range(len(y)), y, style, color=colour, markersize=3.5, linewidth=1.2, label=lock)
            axis.axhline(0, color="#8a8f98", linewidth=0.6)
            axis.set_xticks(range(len(SIZES)), SIZES)
            axis.set_title(f"{trace}, {policy}")
        across[0].set_ylabel("misses: points more")
    for axis in axes[-1]:
        axis.set_xlabel("of all blocks")
    axes[0][0].legend(fontsize=7, frameon=False)
    return figure
