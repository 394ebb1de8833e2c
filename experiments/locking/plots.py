"""The pictures of docs/results/locking.md: misses by size for each trace, and mean delay by what is locked.

Owns their layout. Never simulates. Invariant: drawn from stored results alone.
"""

from exclusive.plots import save, setup

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


def draw(data, out):
    """Both; returns their paths."""
    plt = setup()
    found = []
    if all(f"sizes-{name}" in data for name in REFERENCE):
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
        found += save(plt, figure, out, "locking", dpi=100)
    if "cores-all" in data:
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
        found += save(plt, figure, out, "locking-cores", dpi=100)
    return found
