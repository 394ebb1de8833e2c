"""The picture: misses against bytes written, and hits after a restart, warm against cold; a column for each trace.

Owns its layout. Never simulates. Invariant: drawn from raw results alone.
"""

from exclusive.plots import save, setup

COLOURS = {"none": "#8a8f98", "all": "#e8a33d", "second": "#1b4f72", "measured": "#3a8f5c"}
POLICY = "s3-fifo"


def draw(data, out):
    """stores-sim.svg and .png; returns their paths. Nothing, if there was no trace."""
    names = list(data["grid"])
    if not names:
        return []
    plt = setup()
    figure, axes = plt.subplots(2, len(names), figsize=(3.2 * len(names), 5.8), layout="constrained", squeeze=False)
    for column, name in enumerate(names):
        written(axes[0][column], name, data["grid"][name])
        after(axes[1][column], data["restarts"][name])
    axes[0][0].set_ylabel("misses, % of reads")
    axes[1][0].set_ylabel("hits after a restart, % of reads")
    axes[0][0].legend(fontsize=7, frameon=False)
    axes[1][0].legend(fontsize=7, frameon=False)
    return save(plt, figure, out, "stores-sim", dpi=100)


def written(axis, name, grid):
    """Misses against bytes written for each byte of the footprint: a line for each rule and size of RAM."""
    footprint = grid["footprint_blocks"] * 4096
    rows = [r for r in grid["results"] if r["policy"] == POLICY]
    for size, style in zip(dict.fromkeys(r["size"] for r in rows), ("o-", "s--"), strict=False):
        for rule in ("all", "second", "measured"):
            points = [r for r in rows if r["size"] == size and r["admit"] in (rule, None)]
            x = [r["written_bytes"] / footprint for r in points]
            y = [100 * r["miss_ratio"] for r in points]
            axis.plot(x, y, style, color=COLOURS[rule], markersize=3.5, linewidth=1, label=f"{rule}, RAM {size}")
    axis.set_title(name)
    axis.set_xlabel("written to the SSD, footprints")


def after(axis, restart):
    """Hits in each interval after a restart."""
    for r in (r for r in restart["results"] if r["policy"] == POLICY and r["restart"]):
        for side, style in (("warm", "-"), ("cold", ":")):
            counts = [c for c in r["restart"][side] if c["reads"]]
            y = [100 * (c["ram_hits"] + c["ssd_hits"]) / c["reads"] for c in counts]
            x = [(n + 1) * 5 for n in range(len(y))]
            axis.plot(x, y, style, color=COLOURS[r["admit"]], linewidth=1.3, label=f"{r['admit']}, {side}")
    axis.set_xlabel("thousands of accesses after it")
