"""Figures from raw results.

Owns the arithmetic. Never reads a file, never prints. Invariant: what cannot be computed from a record is None; nothing
is made up, and nothing is left out because of what it says.
"""

MIB = 1 << 20
GIB = 1 << 30
BLOCK = 4096
# Undercroft's own count against the kernel's: more than this apart, and the report says so.
CHECK_WITHIN = 0.02
SECONDS_AN_ARM = {False: 60, True: 25}


def ratio(part, whole):
    """`part` of `whole`, or None."""
    return part / whole if whole else None


def asked_bytes(record):
    """Bytes that the guests' block layers read."""
    return sum(guest["device"]["read_bytes"] for guest in record["guests"])


def backend_bytes(record):
    """Bytes that the disk delivered."""
    return sum(record["measured"]["read_bytes"])


def process_bytes(record):
    """The same by the kernel's count of the serving processes."""
    return record["measured"]["own"].get("process_read_bytes", backend_bytes(record))


def saved(record):
    """Of the bytes that the guests read, those that the disk did not have to deliver: 1 is all, below 0 is read-ahead
    that brought nothing."""
    asked = asked_bytes(record)
    return 1 - process_bytes(record) / asked if asked else None


def hit_blocks(record):
    """Of the blocks that the guests read, those that the host's cache had."""
    disks = record["measured"]["own"].get("disks")
    if disks:
        counters = [disk["counters"] for disk in disks]
        hits = sum(c["hit_blocks"] for c in counters)
        return ratio(hits, hits + sum(c["miss_blocks"] + c["joined_blocks"] for c in counters))
    hits = record.get("hits")
    if not hits or None in hits:
        return None
    return ratio(sum(hit for _, hit in hits), sum(blocks for blocks, _ in hits))


def figures(record):
    """All figures of one arm in one cell."""
    measured, guests = record["measured"], record["guests"]
    asked = asked_bytes(record)
    mean = record["mean"] or {}
    seconds = measured["time"]
    reclaim = measured["reclaim"] or {}
    group = measured["group"]
    scanned = reclaim.get("scanned", group.get("pgscan"))
    reclaimed = reclaim.get("reclaimed", group.get("pgsteal"))
    twice = record.get("twice") or {"twice": 0, "cached": 0}
    weight = sum(guest["read_disk"]["count"] for guest in guests)
    return {
        "asked_bytes": asked,
        "backend_bytes": process_bytes(record),
        "saved": saved(record),
        "hit_blocks": hit_blocks(record),
        "ops_per_s": sum((guest["reads"] + guest["writes"]) / guest["seconds"] for guest in guests),
        "read_us": ratio(sum(guest["read_disk"]["mean_us"] * guest["read_disk"]["count"] for guest in guests), weight),
        "guest_hits": ratio(
            sum(guest["cached_bytes"] for guest in guests), sum(guest["read_bytes"] for guest in guests)
        ),
        "cached_bytes": mean.get("cached_bytes"),
        "memory_bytes": mean.get("memory_bytes"),
        "cpu_share": ratio(measured["cpu"]["seconds"], seconds),
        "cpu_s_per_gib": ratio(measured["cpu"]["seconds"], asked / GIB),
        "p99_us": max((guest["read_all"]["p99_us"] for guest in guests if "read_all" in guest), default=None),
        "daemon_us_per_op": per_operation(record, measured["cpu"]["seconds"]),
        "emulator_us_per_op": per_operation(record, measured.get("emulator_seconds")),
        "copying_us_per_op": per_operation(record, measured["own"].get("copying_seconds")),
        "kb_per_s": sum(guest["read_bytes"] / guest["seconds"] for guest in guests) / 1024,
        "scanner_share": ratio(sum(s for name, s in measured["cpu"]["threads"].items() if "scan" in name), seconds),
        "scanned": scanned,
        "reclaimed": reclaimed,
        "scanned_per_s": None if scanned is None else ratio(scanned, seconds),
        "scan_efficiency": None if reclaimed is None else ratio(reclaimed, scanned),
        "swapped": sum(measured["vmstat"].get(name, 0) for name in ("pswpin", "pswpout")),
        "own_bytes": backend_bytes(record) if "process_read_bytes" in measured["own"] else None,
        "seconds": seconds,
        "twice_share": ratio(twice["twice"], twice["cached"]),
        "scrubbed": scan(record).get("cooled_blocks"),
    } | job(record)


def per_operation(record, seconds):
    """Microseconds for each operation of the guests; None where they were not counted."""
    operations = sum(guest["reads"] + guest["writes"] for guest in record["guests"])
    return None if seconds is None else ratio(1e6 * seconds, operations)


RUN = (
    "saved", "hit_blocks", "ops_per_s", "p99_us", "daemon_us_per_op", "emulator_us_per_op", "copying_us_per_op",
    "kb_per_s", "read_us", "cached_bytes", "cpu_share", "cpu_s_per_gib", "scanner_share",
    "twice_share", "scrubbed", "job_alone_s", "job_beside_s", "job_slowdown",
)  # fmt: skip


def together(records):
    """One record of several runs of an arm: that of the run whose saved bytes are the median, with what each run came
    to."""
    ordered = sorted(records, key=lambda r: (saved(r) is None, saved(r) or 0))
    runs = [{name: round(v, 6) for name, v in figures(r).items() if name in RUN and v is not None} for r in records]
    return ordered[(len(ordered) - 1) // 2] | {"runs": runs}


def spread(record, name):
    """(median, smallest, largest) of a figure over the runs of an arm; None with fewer than two."""
    values = sorted(run[name] for run in record.get("runs", []) if name in run)
    if len(values) < 2:
        return None
    half = len(values) // 2
    median = values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
    return median, values[0], values[-1]


def with_spread(record, name, form):
    """A figure as text: its median and, behind it, the smallest and the largest of several runs."""
    found = spread(record, name)
    if found is None:
        value = figures(record)[name]
        return "-" if value is None else form(value)
    return f"{form(found[0])} ({form(found[1])} to {form(found[2])})"


def others_cores(record):
    """Processor cores that the machine spent meanwhile on what has nothing to do with this run; None where it was not
    counted."""
    measured = record["measured"]
    if measured.get("machine_cpu_seconds") is None:
        return None
    ours = measured["cpu"]["seconds"] + measured["emulator_seconds"] + measured["disk_cpu_seconds"]
    return ratio(max(0.0, measured["machine_cpu_seconds"] - ours), measured["time"])


BUSY_CORES = 0.4


def busy(cells):
    """Arms during which the machine did something else besides, so that their times say little: (cell, title,
    cores)."""
    for name, cell in cells.items():
        for record in measured_arms(cell).values():
            cores = others_cores(record)
            if cores is not None and cores > BUSY_CORES:
                yield name, record["title"], cores


def program_reads(cells):
    """Arms whose own program was read from the disk again while they were measured, which the kernel counts as read by
    them: (cell, title, page faults)."""
    for name, cell in cells.items():
        for record in measured_arms(cell).values():
            if faults := record["measured"].get("major_faults"):
                yield name, record["title"], faults


def faster(record, base):
    """(median, smallest, largest) of how many times the operations a second of `base` an arm's are, run by run: those
    of one turn are beside each other in time. None where there is nothing to divide by."""
    pairs = list(
        zip(*([run.get("ops_per_s") for run in r.get("runs") or [figures(r)]] for r in (record, base)), strict=False)
    )
    ratios = sorted(ours / theirs for ours, theirs in pairs if ours and theirs)
    if not ratios:
        return None
    half = len(ratios) // 2
    return ratios[half] if len(ratios) % 2 else (ratios[half - 1] + ratios[half]) / 2, ratios[0], ratios[-1]


def job(record):
    """Mean seconds of the host process's passes, alone and beside the guest, and how many times as long the latter
    take; None where there was no such process."""
    passes = record["extra"].get("job")
    if not passes or not passes["alone"] or not passes["beside"]:
        return {"job_alone_s": None, "job_beside_s": None, "job_slowdown": None}
    alone, beside = (sum(p["seconds"] for p in passes[when]) / len(passes[when]) for when in ("alone", "beside"))
    return {"job_alone_s": alone, "job_beside_s": beside, "job_slowdown": ratio(beside, alone)}


def scan(record):
    """What the scanner did in the measured part; {} where it was off."""
    return record["measured"]["own"].get("scan") or {}


def measured_arms(cell):
    """The arms of a cell that were measured, in their order."""
    return {key: record for key, record in cell["arms"].items() if "absent" not in record}


def perfect(cell):
    """What a perfectly exclusive cache would have saved, computed from the O_DIRECT arm; None without it."""
    found = cell["arms"].get("direct", {}).get("perfect")
    return ratio(sum(s for _, s in found), sum(n for n, _ in found)) if found else None


def computed_lru(cell):
    """The same for an inclusive LRU cache."""
    found = cell["arms"].get("direct", {}).get("inclusive_lru")
    return ratio(sum(s for _, s in found), sum(n for n, _ in found)) if found else None


INCLUSIVE = ("undercroft-lru", "undercroft-off")
EXCLUSIVE = ("undercroft-auto", "undercroft-capture", "undercroft-delayed", "upstream", "scan-vhost")


def best_inclusive(cell):
    """What the better of the inclusive policies saved."""
    values = [saved(record) for key, record in measured_arms(cell).items() if key in INCLUSIVE]
    return max((v for v in values if v is not None), default=None)


def disagreements(cells):
    """Where two counts of the same bytes are more than 2 % and 1 MiB apart, and where O_DIRECT was not what it must
    be."""
    notes = []
    for name, cell in cells.items():
        for key, record in measured_arms(cell).items():
            f = figures(record)
            own = f["own_bytes"]
            if own is not None and abs(own - f["backend_bytes"]) > max(MIB, CHECK_WITHIN * f["backend_bytes"]):
                notes.append(
                    f"{name}, {record['title']}: {own / MIB:.1f} MiB by its own count, {f['backend_bytes'] / MIB:.1f}"
                    " MiB by the kernel's"
                )
            delivered = sum(disk["read_bytes"] for disk in record["measured"].get("disk", []))
            if delivered and abs(delivered - f["backend_bytes"]) > max(MIB, CHECK_WITHIN * delivered):
                notes.append(
                    f"{name}, {record['title']}: {f['backend_bytes'] / MIB:.1f} MiB asked for, {delivered / MIB:.1f}"
                    " MiB by the disk's own count"
                )
            if key == "direct" and abs(f["asked_bytes"] - f["backend_bytes"]) > max(
                MIB, CHECK_WITHIN * f["asked_bytes"]
            ):
                notes.append(
                    f"{name}: O_DIRECT read {f['backend_bytes'] / MIB:.1f} MiB where the guest read"
                    f" {f['asked_bytes'] / MIB:.1f} MiB"
                )
    return notes


def percent(value, digits=1):
    """A share as a percentage; a dash for None."""
    # Adding 0 turns -0.0 into 0.0.
    return "-" if value is None else f"{round(100 * value, digits) + 0:.{digits}f} %"


def line(cell, key):
    """One arm in one line, for the terminal."""
    f = figures(cell["arms"][key])
    text = f"saved {percent(f['saved']):>8}, hits {percent(f['hit_blocks']):>7}, {f['ops_per_s']:7,.0f} ops/s"
    if f["cached_bytes"] is not None:
        text += f", {f['cached_bytes'] / MIB:5.1f} MiB cached"
    if f["twice_share"] is not None:
        text += f", {percent(f['twice_share'])} of it twice"
    if scan(cell["arms"][key]):
        text += f", {f['scrubbed']:,} scrubbed, scanner {percent(f['scanner_share'])} of a core"
    if key == "direct" and perfect(cell) is not None:
        text += f"; computed: perfect exclusive {percent(perfect(cell))}, inclusive LRU {percent(computed_lru(cell))}"
    return text


def minutes(data, cells, arms):
    """How long `cells` will take, from what the stored ones took."""
    total = 0.0
    for cell in cells:
        took = [
            record["seconds"]
            for known in data["cells"].values()
            if known["load"] == cell.load and known["quick"] == cell.quick and known["guest_mib"] == cell.guest_mib
            for record in known["arms"].values()
            if "seconds" in record
        ]
        total += arms * (sum(took) / len(took) if took else SECONDS_AN_ARM[cell.quick])
    return total / 60
