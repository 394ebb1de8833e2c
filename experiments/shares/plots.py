"""The pictures: shares over time, and what each way of dividing does for hits and times.

Owns their layout. Never measures. Invariant: drawn from stored results alone; the same results make the same SVG.
"""

from exclusive.plots import save, setup

from . import derive
from .derive import MIB

COLOURS = {
    "unified": "#c9cdd2", "fixed": "#f3d9a4", "static": "#e8a33d", "donor": "#b5651d", "utility": "#1b4f72",
    "target": "#48a999", "paper": "#7d5ba6",
    "less": "#5d9cc4",
}  # fmt: skip
SERVERS = {"file": "#5d9cc4", "web": "#48a999", "database": "#b5651d"}
CONTAINERS = {"one/c1": "#f3c67f", "one/c2": "#e8a33d", "two/c1": "#a9cce3", "two/c2": "#5d9cc4", "two/c3": "#1b4f72"}


def draw(cells, out):
    """All pictures that the results are enough for, as shares-*.svg and .png; returns their paths."""
    plt = setup()
    paths = []
    for name, cell in cells.items():
        for prefix, picture in (
            ("a-locality", bars),
            ("d-per-file", bars),
            ("d-tenth", bars),
            ("d-kernel", build),
            ("b-derivative", time_line),
            ("c-phased", phased),
        ):
            if name.startswith(prefix) and any(derive.runs(cell, arm) for arm in cell["arms"]):
                paths += picture(plt, cell, out, f"shares-{name[2:]}")
    return paths


def bars(plt, cell, out, name):
    """Bars: hit ratio and mean response time, a group per load, a bar per arm."""
    arms = {arm: record["title"] for arm, record in cell["arms"].items() if derive.runs(cell, arm)}
    loads = derive.loads(cell)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.86))
    width = 0.8 / len(arms)
    for axis, key, title, factor in (
        (axes[0], "hit_ratio", "hit ratio, %", 100),
        (axes[1], "mean_us", "mean response time, us", 1),
    ):
        for k, (arm, label) in enumerate(arms.items()):
            at = [i + (k - (len(arms) - 1) / 2) * width for i in range(len(loads))]
            values = [factor * derive.figure(cell, arm, load, key) for load in loads]
            drawn = axis.bar(at, values, width * 0.92, color=COLOURS[arm], label=label)
            axis.bar_label(drawn, labels=[f"{v:.0f}" for v in values], fontsize=7, padding=2)
        axis.set_title(title)
        axis.set_xticks(range(len(loads)), loads)
        axis.margins(y=0.15)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper center",
        ncols=len(arms),
        frameon=False,
        fontsize=8,
        title=cell["title"],
        title_fontsize=10,
    )
    return save(plt, figure, out, name)


def time_line(plt, cell, out, name):
    """Stacked areas: who has what of the store, and lines: what each has cached."""
    run = derive.runs(cell, "static")[0]
    at = [s["at"] for s in run["samples"]]
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), layout="constrained", sharex=True)
    stacks = [[100 * s["parts"][node] for s in run["samples"]] for node in CONTAINERS]
    axes[0].stackplot(at, stacks, labels=CONTAINERS, colors=CONTAINERS.values())
    axes[0].set_title("shares, % of the store; dashed: by weight")
    for step in run["steps"]:
        level = 0
        for node in CONTAINERS:
            level += 100 * step["wanted"][node]
            if "lent" not in step:
                axes[0].hlines(level, step["began"], step["ended"], color="#333", linewidth=0.9, linestyle="--")
        for axis in axes:
            axis.axvline(step["began"], color="#888", linewidth=0.8, linestyle=":")
        axes[0].text(step["began"], 103, f" {step['title']}", fontsize=7)
    axes[0].set_ylim(0, 110)
    for node, colour in CONTAINERS.items():
        disk = node.replace("/", ":")
        axes[1].plot(at, [s["cached"].get(disk, 0) / MIB for s in run["samples"]], color=colour, linewidth=1.4)
    axes[1].set_title("cached, MiB")
    axes[1].set_xlabel("seconds")
    axes[0].legend(frameon=False, ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.02))
    return save(plt, figure, out, name)


def build(plt, cell, out, name):
    """Bars: compile time and misses; lines: what is cached of source and output over time."""
    arms = {arm: record["title"] for arm, record in cell["arms"].items() if derive.runs(cell, arm)}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained", width_ratios=(1, 1, 2))
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.84))
    for axis, key, title, factor in (
        (axes[0], "seconds", "compile time, s", 1),
        (axes[1], "misses", "misses, thousands", 1e-3),
    ):
        for k, (arm, label) in enumerate(arms.items()):
            value = factor * derive.build_figure(cell, arm, key)
            drawn = axis.bar(k, value, 0.8, color=COLOURS[arm], label=label)
            axis.bar_label(drawn, labels=[f"{value:.1f}"], fontsize=7, padding=2)
        axis.set_title(title)
        axis.set_xticks([])
        axis.margins(y=0.15)
    for arm in arms:
        samples = derive.runs(cell, arm)[0]["samples"]
        for disk in samples[0]["disks"] if samples else []:
            style = ":" if disk.endswith(":output") else "-"
            axes[2].plot(
                [s["at"] for s in samples],
                [s["disks"][disk][1] / MIB for s in samples],
                color=COLOURS[arm],
                linestyle=style,
                linewidth=1.3,
            )
    axes[2].set_title("cached, MiB: source or both; dotted: output")
    axes[2].set_xlabel("seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper center", ncols=3, frameon=False, fontsize=8, title=cell["title"], title_fontsize=10
    )
    return save(plt, figure, out, name)


def phased(plt, cell, out, name):
    """A panel per arm: shares and cached bytes of each server over time, with its hit ratio in the panel beside it."""
    arms = {arm: record["title"] for arm, record in cell["arms"].items() if derive.runs(cell, arm)}
    figure, axes = plt.subplots(
        len(arms), 2, figsize=(11, 0.6 + 1.9 * len(arms)), layout="constrained", squeeze=False, sharex=True
    )
    for (left, right), (arm, title) in zip(axes, arms.items(), strict=True):
        seconds = derive.runs(cell, arm)[0]["seconds"]
        at = range(len(seconds))
        if arm == "unified":
            left.plot(
                at, [s["disks"]["all:root"][1] / MIB for s in seconds], color="#333", linewidth=1.4, label="cached, all"
            )
        for server, colour in SERVERS.items():
            if arm != "unified":
                for k, (style, what) in enumerate((("-", "share"), (":", "cached"))):
                    line = [s["disks"][f"{server}:root"][k] / MIB for s in seconds]
                    left.plot(at, line, color=colour, linestyle=style, linewidth=1.4, label=f"{server}, {what}")
            met = [s["servers"][server] for s in seconds]
            right.plot(
                at,
                [100 * m["hits"] / max(m["hits"] + m["misses"], 1) for m in met],
                color=colour,
                linewidth=1.2,
                label=server,
            )
        left.set_title(f"{title}: MiB")
        right.set_title(f"{title}: hit ratio, %")
        left.set_ylim(0, cell["store_mib"])
        right.set_ylim(0, 102)
        for axis in (left, right):
            for p in range(1, len(cell["phases"])):
                axis.axvline(p * cell["phase_seconds"], color="#888", linewidth=0.8, linestyle=":")
    for axis, ncols in ((axes[-1][0], 3), (axes[-1][1], 3)):
        axis.set_xlabel(f"seconds; phases: {', '.join(cell['phases'])}")
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(
            handles, labels, frameon=False, fontsize=7, ncols=ncols, loc="upper center", bbox_to_anchor=(0.5, -0.35)
        )
    # Long: many panels, with a line for every second.
    return save(plt, figure, out, name, dpi=70)
