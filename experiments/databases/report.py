"""The tables of docs/results/stores.md.

Owns their words. Never measures. Invariant: no number is typed in by hand, and every table says how slow the disk was.
"""

from . import below, derive
from .below import ARMS
from .engines import ENGINES

MIB = 1 << 20
OURS = [key for key, arm in ARMS.items() if issubclass(arm, below.Undercroft)]
GOALS = {"iops": 1.15, "p99": 1.3}
RECOVERY_S, KILL_S, AMPLIFICATION, GOAL_GIB = 2, 1, 1.1, 10


def table(header, rows):
    """A table of Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def spread(values, digits=0, factor=1):
    """`median (least to most)`."""
    found = derive.middle(values)
    if found is None:
        return "-"
    of = [f"{factor * value:,.{digits}f}" for value in found]
    return of[0] if len(values) < 2 else f"{of[0]} ({of[1]} to {of[2]})"


def only(values, digits=1, factor=1):
    """The median."""
    found = derive.middle(values)
    return "-" if found is None else f"{factor * found[0]:,.{digits}f}"


def reached(is_so):
    """In words."""
    return "reached" if is_so else "**not reached**"


def memory(cell, arm):
    """MiB of host memory: containers, cache and programs; MiB of SSD."""
    base = sum(cell["base_bytes"][key] for key in cell["engines"])
    if arm != "none":
        kind = ARMS[arm]
        is_ssd = issubclass(kind, below.Undercroft) and set(kind.stores) == {"ssd"}
        cache = below.SSD_ONLY_BYTES if is_ssd else below.LEAST_BYTES if arm == "least" else cell["ram_bytes"]
        base += cache + cell["program_bytes"]
    return base // MIB, cell["ssd_bytes"] // MIB if ARMS[arm].has_ssd else "-"


def rows(cell, wait):
    """A row for each arm and database."""
    found = []
    for arm, record in cell["arms"].items():
        for n, engine in enumerate(cell["engines"]):
            each = [lambda m, name=name, n=n: derive.hits(m, n, name) for name in ("hit_blocks", "ssd_hit_blocks")]
            row = [record["title"], *([ENGINES[engine].title] if len(cell["engines"]) > 1 else [])]
            row += [*memory(cell, arm), spread(derive.loads(cell, arm, wait, n, "tps"))]
            row.append(spread(derive.ratios(cell, arm, "pagecache", wait, n), 2))
            row += [only(derive.loads(cell, arm, wait, n, name)) for name in ("mean_ms", "p95_ms", "p99_ms")]
            row += [only(derive.counts(cell, arm, wait, what), 1, 100) for what in each]
            row.append(only(derive.counts(cell, arm, wait, lambda m, n=n: derive.disk_reads(m, n)), 1, 1 / 1024))
            row.append(only(derive.counts(cell, arm, wait, derive.cpu_ms), 2))
            cpus = cell["machine"]["cpus"]
            row.append(only(derive.counts(cell, arm, wait, lambda m: derive.machine_part(m, cpus)), 0, 100))
            row.append(only(derive.counts(cell, arm, wait, derive.ssd_written), 1, 1 / MIB))
            found.append(row)
    return found


def of_cell(cell):
    """The tables of a cell, one for each wait."""
    header = [
        "arm", *(["database"] if len(cell["engines"]) > 1 else []), "host memory MiB", "SSD MiB", "transactions/s",
        "to page cache", "mean ms", "p95 ms", "p99 ms", "RAM hits %", "SSD hits %", "disk KiB read a transaction",
        "CPU ms a transaction", "machine busy %", "written to SSD MiB",
    ]  # fmt: skip
    parts = [f"### {cell['title']}\n"]
    for wait in derive.waits(cell):
        parts.append(f"**A disk that waits {int(wait) // 1000} ms before every transfer**, {facts(cell)}:\n")
        parts.append(table(header, rows(cell, wait)))
    return "\n".join(parts)


def facts(cell):
    """How it was measured, in words."""
    busy = derive.middle([run["load_average"] for arm in cell["arms"].values() for run in arm["runs"]])
    load = f"; load average {busy[1]:.1f} to {busy[2]:.1f}, its own load among it" if busy else ""
    return (
        f"databases of {cell['data_mib']} MiB, {cell['repeat']} repetitions of {cell['seconds']:g} s after"
        f" {cell['warm_up']:g} s of warming without wait, nbdfuse with {cell.get('connections', 4)} connections,"
        f" {cell['program_bytes'] // MIB // len(cell['engines'])} MiB for the programs of each, commit"
        f" {cell['commit']}{load}"
    )


def losses(cells):
    """Where the page cache or the peer has more throughput than an arm of ours."""
    found = []
    for cell in cells:
        for wait in derive.waits(cell):
            for n, engine in enumerate(cell["engines"]):
                for arm in (key for key in cell["arms"] if key in OURS):
                    for other in ("pagecache", "peer"):
                        ratios = derive.ratios(cell, arm, other, wait, n)
                        middle = derive.middle(ratios)
                        if middle and middle[0] < 1:
                            sizes = f"{cell['ram_bytes'] // MIB}/{cell['ssd_bytes'] // MIB}"
                            with_what = " beside another" if len(cell["engines"]) > 1 else ""
                            found.append(
                                [ENGINES[engine].title + with_what, sizes, f"{int(wait) // 1000} ms",
                                 cell.get("connections", 4), ARMS[arm].title, ARMS[other].title, spread(ratios, 2)]
                            )  # fmt: skip
    compared = sum(
        bool(derive.ratios(cell, arm, other, wait, n))
        for cell in cells for wait in derive.waits(cell) for n in range(len(cell["engines"]))
        for arm in cell["arms"] if arm in OURS for other in ("pagecache", "peer")
    )  # fmt: skip
    header = ["database", "RAM/SSD MiB", "disk", "connections", "ours", "ahead of it", "our throughput to its"]
    return f"Of {compared} comparisons we lose {len(found)}, by the median:\n\n{table(header, found)}"


def of_devices(found):
    """Hits beside raw reads, and kills."""
    devices = found["runs"][-1]
    ratios = derive.turns(devices)
    names = {"iops": "throughput, raw to hits", "p99": "time at p99, hits to raw"}
    lines = []
    for key, name in names.items():
        median = derive.middle(ratios[key])[0]
        lines.append([name, spread(ratios[key], 2), f"at most {GOALS[key]}", reached(median <= GOALS[key])])
    peers = {
        "peer_iops": "throughput, qemu-storage-daemon to hits",
        "peer_p99": "time at p99, hits to qemu-storage-daemon",
    }
    for key, name in peers.items():
        if ratios[key]:
            lines.append([name, spread(ratios[key], 2), "-", "no cache, the same way to the device"])
    kills = [kill["seconds"] for kill in devices["kills"]]
    lines.append(
        ["kill -9 until a read is answered, s", spread(kills, 2), f"at most {KILL_S}", reached(max(kills) <= KILL_S)]
    )
    hits = [pair["hits"] for pair in devices["turns"]]
    raws = [pair["raw"] for pair in devices["turns"]]
    load = derive.middle([hit["load_average"] for hit in hits])
    kept = devices["kills"][-1]["cached_bytes"] / MIB
    priority = ", all of them with realtime priority" if devices["is_realtime"] else ""
    says = (
        f"An image of {devices['image_mib']} MiB, {100 * devices['on_ssd_part']:.0f} % of it on the SSD; reads of 4 KiB"
        f" at depth 32, `undercroft-driver` over vhost-user beside fio with io_uring and O_DIRECT on the store's own"
        f" file, in turns, {len(hits)} of each; the store has one processor, driver and fio the other{priority}."
        " Hits:"
        f" {spread([h['iops'] for h in hits])} a second, p99 {spread([h['p99_us'] for h in hits])} us,"
        f" {only([h['cpu_us'] for h in hits])} us of the daemon's processor each,"
        f" {only([h['ssd_hit_part'] for h in hits], 1, 100)} % of them from the SSD and"
        f" {only([h['ram_hit_part'] for h in hits], 1, 100)} % from RAM. Raw: {spread([r['iops'] for r in raws])} a"
        f" second, p99 {spread([r['p99_us'] for r in raws])} us. Load average {load[1]:.1f} to {load[2]:.1f}. After the"
        f" last kill {kept:,.0f} MiB were recovered."
    )
    return f"{says}\n\n{table(['', 'measured', 'wanted', ''], lines)}"


def of_recovery(found):
    """A store that is recovered."""
    runs = found["runs"]
    gib = runs[-1]["gib"]
    seconds = [ms / 1000 for run in runs for ms in run["ms"]]
    verdict = reached(max(seconds) <= RECOVERY_S) if gib >= GOAL_GIB else f"wanted for {GOAL_GIB} GiB: not measured"
    amplification = [run["amplification"] for run in runs]
    lines = [
        [f"recovery of {gib} GiB, direct I/O, s", spread(seconds, 2), f"at most {RECOVERY_S}", verdict],
        ["bytes of RAM for a block", only([run["bytes_per_block"] for run in runs], 2), "at most 12",
         reached(max(run["bytes_per_block"] for run in runs) <= 12)],
        ["bytes written for a byte admitted", only(amplification, 3), f"at most {AMPLIFICATION}",
         reached(max(amplification) <= AMPLIFICATION)],
    ]  # fmt: skip
    load = ", ".join(f"{run['load_average']:.1f}" for run in runs)
    return f"By the example `ssd_cost`; load average {load}.\n\n" + table(["", "measured", "wanted", ""], lines)


def machine(facts):
    """The machine and the versions, in words."""
    named = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    latency = facts["read_latency_us"]
    return (
        f"{facts['cpu']}, {facts['cpus']} processors, {facts['memory_gib']} GiB, Linux {facts['kernel'].split('-')[0]},"
        f" machine {facts['machine_type']}; **memory control groups v{facts['cgroup']} were run**; governor"
        f" {facts['governor'] or 'none'}, huge pages {facts['thp']}, the machine's disk with the SSD store and the"
        f" images: read-ahead {facts['read_ahead_kb']} KiB, a 4 KiB read {latency} us. Every loop device has a"
        f" read-ahead of {below.READ_AHEAD_KB} KiB. {named}. {facts['peers']}"
    )


HEAD = """# Databases over the stores, measured

Written by `make lab-stores` from `stores.json.xz`; no number is typed in by hand (decision 0206). PostgreSQL and
MariaDB run in containers of Podman with a memory limit, each on a file system of its own on a slow disk: nbdkit over an
image, which waits before every transfer. Undercroft reads that disk over NBD, `undercroft mount` makes it a folder; the
others have it through nbdfuse and a loop device. What the figures of the paper show in kind (2.2, 4.1 to 4.26):
throughput, latency and hits over sizes of RAM and SSD.

- *Equal memory*: what Undercroft and the peer have for a cache, and what each table says for programs, the arm
  `page cache` has as a higher limit of its container. Undercroft with `store = "ssd"` has 24 MiB of RAM instead.
- *Two ways to the disk*: Undercroft has an NBD client of its own, the others nbdfuse, which has one request under way
  on each connection. **Tables of 4 connections are unfair to the others**: eight clients of a database waited for them.
  What Undercroft's way is worth without a cache, the arm `least RAM` (8 MiB) shows where it was run.
- *Side by side*, each database has half of the page cache arm's memory; Undercroft's shares follow the load.
- *Cached twice*: the file system above Undercroft and the peer has a page cache, too, with what the container has.
- *CPU*: processes between file system and slow disk; the slow disk itself (nbdkit) and kernel threads are in `machine
  busy` alone, which is of the whole machine and whatever else ran on it.
- *Hits* are of blocks that the file system asked for, below its own page cache, whose own hits are not counted.
- *To page cache*: ratios of runs of one repetition; median, least and most.
"""


def full(data, pictures):
    """All of it."""
    cells = [cell for cell in data["cells"].values() if "engines" in cell and cell["arms"]]
    some = next(iter(data["cells"].values()))
    parts = [HEAD, f"{machine(some['machine'])}\n", f"Run with: {some['options']}\n"]
    if any(cell.get("quick") for cell in data["cells"].values()):
        parts.append("**Quick: few and short runs.**\n")
    parts.append(busy(data))
    for key in dict.fromkeys(key for cell in cells for key in cell["engines"]):
        parts.append(f"- *{ENGINES[key].title}*: {ENGINES[key].explains()}\n")
    if cells:
        parts += ["## Where we lose\n", losses(cells)]
        parts += [f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})\n" for name in pictures]
        parts += ["## All arms\n", *(of_cell(cell) for cell in cells)]
    devices = data["cells"].get("devices", {}).get("arms", {})
    parts.append("## The SSD store by itself\n")
    if "hits" in devices:
        parts.append(of_devices(devices["hits"]))
    if "recovery" in devices:
        parts.append(of_recovery(devices["recovery"]))
    return "\n".join(parts)


def busy(data):
    """Says so, if the machine was busy with something else."""
    before = [cell["load_before"] for cell in data["cells"].values()]
    if max(before) < 0.5:
        return ""
    return (
        f"**The machine was busy with something else**: its load average was {min(before):.1f} to {max(before):.1f}"
        " before experiments began. Ratios within a repetition say more than single figures.\n"
    )
