"""Results as tables: bench/table.py RESULTS.json.xz writes the tables of a run anew, and with --readme the README's.

Owns the layout of latest.md and of the README's table, and the arithmetic of ratios. Never measures.
Invariant: losses are shown and marked; which rows the README has is said here, whatever they say.
"""

import argparse
import json
import lzma
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "<!-- bench:start (five rows, written by bench/table.py) -->"
END = "<!-- bench:end -->"
# The README's rows: each kind of load once, hits at both ends of what guests ask for at a time.
README_ROWS = (
    "vhost/hits/rand4k/qd1",
    "vhost/hits/rand4k/qd32",
    "vhost/hits/seq256k/qd8",
    "vhost/misses/rand4k/qd8",
    "vhost/mixed/rand4k/qd1",
)
# What counts as worse, given that repetitions of one server differ by about as much.
WORSE_BY = 0.05


def ratios(ours: list[float], theirs: list[float]) -> tuple[float, float, float] | None:
    """Smallest, median and largest of the per-repetition ratios; None if a value is missing or 0."""
    pairs = list(zip(ours, theirs, strict=True))
    if not pairs or any(t <= 0 for _, t in pairs):
        return None
    r = sorted(o / t for o, t in pairs)
    return r[0], statistics.median(r), r[-1]


def spread(r: tuple[float, float, float] | None) -> str:
    """A ratio with its spread."""
    return "" if r is None else f"{r[1]:.2f} ({r[0]:.2f}-{r[2]:.2f})"


def count(n: float) -> str:
    """A count with three digits: 123k."""
    if n >= 1e6:
        return f"{n / 1e6:.2f}M"
    return f"{n / 1e3:.1f}k" if n >= 1e3 else f"{n:.0f}"


def mib(n: float) -> str:
    """Bytes as MiB."""
    return f"{n / (1 << 20):.0f}"


def marked(text: str, r: tuple[float, float, float] | None, more_is_better: bool) -> str:
    """Marks a loss, and sets a gain in bold."""
    if r is None:
        return text
    gain = r[1] if more_is_better else 1 / r[1] if r[1] > 0 else 1.0
    if gain < 1 - WORSE_BY:
        return f"▼ {text}"
    return f"**{text}**" if gain > 1 + WORSE_BY else text


def column(rows: list[dict], key: str) -> list[float]:
    """A measured value of all repetitions."""
    return [r[key] for r in rows]


def cell_table(cell: dict) -> list[str]:
    """All servers on one cell."""
    reference = cell["servers"].get(cell["reference"], {}).get("runs", [])
    lines = [
        f"### {cell['work']}",
        "",
        f"| server | IOPS | ratio to {cell['reference']} | MB/s | p50 us | p99 us | CPU s per million | ratio |"
        " memory MiB | disk reads per I/O |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, server in cell["servers"].items():
        rows = server["runs"]
        if not rows:
            lines.append(f"| {name} | not measured: {server['missing']} | | | | | | | | |")
            continue
        med = {k: statistics.median(column(rows, k)) for k in rows[0]}
        iops = cpu = None
        if reference and name != cell["reference"]:
            iops = ratios(column(rows, "iops"), column(reference, "iops"))
            cpu = ratios(column(rows, "cpu_s_per_million"), column(reference, "cpu_s_per_million"))
        mark = server["ours"]
        lines.append(
            f"| {name} | {count(med['iops'])} | {marked(spread(iops), iops, True) if mark else spread(iops)}"
            f" | {med['mb_per_s']:.0f} | {med['p50_us']:.1f} | {med['p99_us']:.1f} | {med['cpu_s_per_million']:.2f}"
            f" | {marked(spread(cpu), cpu, False) if mark else spread(cpu)} | {mib(med['memory_bytes'])}"
            f" | {med['disk_reads_per_io']:.2f} |"
        )
    return [*lines, ""]


def machine_lines(machine: dict) -> list[str]:
    """What it was measured on."""
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    realtime = ", both at real-time priority, for all servers alike" if machine["realtime"] else ""
    return [
        (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Linux {machine['kernel']};"
            f" {versions}."
        ),
        "",
        (
            f"Each server alone on core {machine['server_core']}, the driver on core"
            f" {machine['driver_core']}{realtime};"
            f" {machine['repetitions']} repetitions of {machine['seconds']} s, servers interleaved (A B C A B C ...)."
            " Ratios: median (smallest-largest) of the per-repetition ratios. A gain of more than 5 % is bold, a loss"
            " of more than 5 % is marked ▼. Memory: the server's own pages and the page cache of the files that it has"
            " open. Undercroft writes through to the disk; the writeback peers acknowledge writes once they are in the"
            " page cache."
        ),
        "",
    ]


def full(results: dict) -> str:
    """latest.md."""
    titles = {"vhost": "vhost-user-blk", "nbd": "NBD"}
    lines = ["# Undercroft against its peers", "", *machine_lines(results["machine"])]
    lines += [
        "## In short",
        "",
        '"Polling" is with up to 50 us of polling before a worker sleeps, which is the default.',
        "",
    ]
    lines += [*short(results["cells"]), ""]
    for protocol, title in titles.items():
        chosen = [c for c in results["cells"] if c["protocol"] == protocol]
        if chosen:
            lines += [f"## {title}", ""]
            for cell in chosen:
                lines += cell_table(cell)
    return "\n".join(lines)


def short(cells: list[dict]) -> list[str]:
    """A row for each cell: ratios only, losses included."""
    lines = [
        "| work | Undercroft to | IOPS | IOPS, polling | p99 | CPU per I/O | IOPS of both |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for cell in cells:
        theirs = cell["servers"].get(cell["reference"], {}).get("runs", [])
        ours = cell["servers"].get("undercroft", {}).get("runs", [])
        polling = cell["servers"].get("undercroft, polling 50us", {}).get("runs", [])
        if not theirs or not ours:
            continue

        def shown(rows: list[dict], key: str, more_is_better: bool, theirs: list[dict] = theirs) -> str:
            if not rows:
                return ""
            r = ratios(column(rows, key), column(theirs, key))
            return marked(spread(r), r, more_is_better)

        both = " / ".join(count(statistics.median(column(rows, "iops"))) for rows in (ours, theirs))
        protocol = "vhost-user" if cell["protocol"] == "vhost" else "NBD"
        lines.append(
            f"| {protocol}: {cell['work']} | {cell['reference']} | {shown(ours, 'iops', True)}"
            f" | {shown(polling, 'iops', True)} | {shown(ours, 'p99_us', False)}"
            f" | {shown(ours, 'cpu_s_per_million', False)} | {both} |"
        )
    return lines


def for_readme(results: dict) -> str:
    """The README's rows, and what they were measured on."""
    rows = short([c for c in results["cells"] if c["key"] in README_ROWS])
    return "\n".join([*rows, "", *machine_lines(results["machine"])]).rstrip()


def put_into(readme: Path, results: dict) -> bool:
    """Replaces what stands between the markers; False if they are not there."""
    if not readme.exists():
        return False
    text = readme.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return False
    readme.write_text(f"{before}{START}\n{for_readme(results)}\n{END}{after}", encoding="utf-8")
    return True


def main() -> None:
    """Writes the tables of results that there are."""
    p = argparse.ArgumentParser(description="Tables of a run of make bench, from its JSON.")
    p.add_argument("results", type=Path, help="bench/results/NAME.json.xz; its tables go to NAME.md beside it")
    p.add_argument("--readme", action="store_true", help="put the README's rows into it, too")
    a = p.parse_args()
    results = json.loads(lzma.decompress(a.results.read_bytes()))
    a.results.with_suffix("").with_suffix(".md").write_text(full(results), encoding="utf-8")
    if a.readme and not put_into(ROOT / "README.md", results):
        raise SystemExit(f"README.md has no line {START}")


if __name__ == "__main__":
    main()
