"""The tables of docs/results/stores-sim.md.

Owns their words. Never simulates. Invariant: no number is typed in by hand.
"""

MIB = 1 << 20


def ratio(row):
    """Misses, in percent of reads."""
    return 100 * row["miss_ratio"]


def table(header, rows):
    """A table of Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]) + "\n"


def without(results, row):
    """The row of the same RAM and policy with no SSD."""
    return next(r for r in results if r["admit"] is None and (r["policy"], r["size"]) == (row["policy"], row["size"]))


def per_day(row):
    """GiB written in a day of the trace's time, if it has times."""
    return "-" if row["written_bytes_per_day"] is None else f"{row['written_bytes_per_day'] / 1024 / MIB:.1f}"


def refused(row):
    """Blocks refused, by reason."""
    return ", ".join(f"{why} {blocks:,}" for why, blocks in sorted(row["refused"].items())) or "-"


def grid(name, done):
    """One trace over all sizes and rules."""
    rows = []
    for r in done["results"]:
        saved = without(done["results"], r)["misses"] - r["misses"]
        cost = "-" if not r["written_bytes"] else f"{saved * 4096 / r['written_bytes']:.2f}"
        rows.append(
            [r["policy"], r["size"], r["ssd"], r["admit"] or "-", f"{100 * r['ram_hits'] / max(r['reads'], 1):.1f}",
             f"{100 * r['ssd_hits'] / max(r['reads'], 1):.1f}", f"{ratio(r):.2f}", f"{r['written_bytes'] / MIB:,.0f}",
             f"{r['write_amplification']:.3f}", per_day(r), cost, refused(r)]
        )  # fmt: skip
    header = [
        "policy", "RAM", "SSD", "admits", "RAM hits %", "SSD hits %", "misses %", "written MiB", "amplification",
        "GiB a day", "misses saved a block written", "refused blocks",
    ]  # fmt: skip
    first = done["results"][0]
    head = f"### {name}\n\n{done['accesses']:,} accesses ({first['reads']:,} reads, {first['writes']:,} writes)"
    return f"{head} to {done['footprint_blocks']:,} blocks.\n\n{table(header, rows)}"


def rules(data):
    """What the other rules cost and win against `all`, over all traces."""
    rows = []
    for name, done in data["grid"].items():
        by = {(r["policy"], r["size"], r["ssd"], r["admit"]): r for r in done["results"]}
        for (policy, size, ssd, admit), r in by.items():
            if admit != "all":
                continue
            row = [name, policy, size, ssd, f"{ratio(without(done['results'], r)):.2f}", f"{ratio(r):.2f}"]
            saved = without(done["results"], r)["misses"] - r["misses"]
            for other in (by.get((policy, size, ssd, rule)) for rule in ("second", "measured")):
                if other is None:
                    row += ["-"] * 3
                    continue
                of_other = without(done["results"], r)["misses"] - other["misses"]
                kept = f"{100 * of_other / saved:.0f}" if saved > 0 else "-"
                less = 100 * other["written_bytes"] / r["written_bytes"] if r["written_bytes"] else 0
                row += [f"{ratio(other):.2f}", kept, f"{less:.0f}"]
            rows.append(row)
    header = [
        "trace", "policy", "RAM", "SSD", "misses % without", "`all`",
        *(f"`{rule}`{what}" for rule in ("second", "measured") for what in ("", ": saved %", ": written %")),
    ]  # fmt: skip
    return table(header, rows)


def sums(data):
    """What each rule saves and writes of all traces together, each trace with the same weight."""
    found = {}
    for done in data["grid"].values():
        for r in (r for r in done["results"] if r["admit"]):
            saved = (without(done["results"], r)["misses"] - r["misses"]) / max(r["reads"], 1)
            written = r["written_bytes"] / 4096 / done["footprint_blocks"]
            found.setdefault((r["policy"], r["ssd"], r["admit"]), []).append((saved, written))
    rows = [
        [*key, f"{100 * sum(s for s, _ in of) / len(of):.1f}", f"{sum(w for _, w in of) / len(of):.2f}"]
        for key, of in sorted(found.items())
    ]
    return table(["policy", "SSD", "admits", "misses saved, % of reads", "written, footprints"], rows)


def restarts(data):
    """Hits after a restart, with what the SSD had and without."""
    rows = []
    for name, done in data["restarts"].items():
        for r in (r for r in done["results"] if r["restart"]):
            after = r["restart"]
            row = [name, r["policy"], r["admit"], f"{after['recovered_blocks']:,}"]
            for part in (slice(0, 2), slice(None)):
                for side in ("warm", "cold"):
                    counts = after[side][part]
                    hits = sum(c["ram_hits"] + c["ssd_hits"] for c in counts)
                    row.append(f"{100 * hits / max(sum(c['reads'] for c in counts), 1):.1f}")
            rows.append(row)
    header = [
        "trace", "policy", "admits", "blocks recovered",
        "warm: hits %, first tenth", "cold", "warm: hits %, all", "cold",
    ]  # fmt: skip
    return table(header, rows)


def backups(data):
    """What a backup costs the load's hit ratio."""
    rows, worst = [], {}
    found = data["backups"]
    for n, alone in enumerate(found["alone"]["results"]):
        row = [alone["policy"], alone["ssd"], alone["admit"] or "-"]
        base = None
        for name in ("alone", "after", "beside"):
            r = found[name]["results"][n]
            # Beside the load, no block of the backup was found: all hits are the load's.
            hits = 100 * (r["ram_hits"] + r["ssd_hits"]) / found[name]["accesses"]
            base = hits if base is None else base
            row += [f"{hits:.2f}"] if name == "alone" else [f"{hits:.2f}", f"{base - hits:+.2f}"]
            if name != "alone" and alone["admit"]:
                key = (alone["admit"], name)
                cost = 100 * (base - hits) / base
                worst[key] = max(worst.get(key, (-100, "")), (cost, alone["policy"]))
        row.append(f"{found['beside']['results'][n]['written_bytes'] / MIB:,.0f}")
        rows.append(row)
    header = [
        "policy", "SSD", "admits", "hits %, alone", "after a backup", "lost", "beside a backup", "lost",
        "written MiB beside it",
    ]  # fmt: skip
    said = "; ".join(
        f"`{rule}` {name} a backup {cost:.1f} %, {policy} ({'reached' if cost <= 2 else '**not reached**'})"
        for (rule, name), (cost, policy) in sorted(worst.items())
    )
    return f"{table(header, rows)}\nWanted: at most 2 % of the hits lost. The worst of both policies: {said}.\n"


def memory(data):
    """What the simulation takes."""
    m = data["memory"]
    data_bytes = (m["ram_blocks"] + m["ssd_blocks"]) * 4096
    return (
        f"{m['pairs']} pairs of full stores with {m['ram_blocks']:,} blocks of RAM and {m['ssd_blocks']:,} of SSD, "
        f"which stand for {data_bytes / 1024 / MIB:.1f} GiB of data each, took {m['bytes'] / MIB:.0f} MiB of memory in "
        f"all; of each, {m['of']['memory_bytes'] / MIB:.1f} MiB are the tables of the SSD store, and "
        f"{m['of']['device_memory_bytes'] / MIB:.1f} MiB the summaries that it wrote.\n"
    )


def full(data, pictures):
    """All of it."""
    limit = f"**The first {data['limit']:,} accesses of each trace.**\n" if data["limit"] else ""
    missing = f" Not there: {', '.join(data['missing'])}." if data["missing"] else ""
    parts = [
        "# RAM over an SSD, simulated\n",
        "Written by `make lab-stores-sim` from `stores-sim.json.xz`; no number is typed in by hand. `undercroft sim "
        "--ssd` runs the traces of ../shared/traces/block through the daemon's own RAM store and SSD store, without "
        "data and one request at a time (docs/simulator.md). Sizes are parts of each trace's footprint; an access is a "
        f"block of 4 KiB.{missing}\n",
        limit,
        "## What the rules of admission cost and win\n",
        "`all` writes every block that leaves RAM unchanged and is not on the SSD; `second` only one that left RAM "
        "before, not long ago, or was used again there; `measured`, the default, what a sample of all evictions says "
        "is asked for again in time (docs/decisions/0205). `saved` is part of the misses that `all` saves, `written` "
        "part of the bytes that `all` writes.\n",
        rules(data),
        "The mean over the traces, both sizes of RAM together:\n",
        sums(data),
        *(f"![misses against bytes written, and hits after a restart]({name})\n" for name in pictures),
        "The picture is of S3-FIFO. Points of a line are no SSD, and SSDs of 10, 30 and 60 % of the footprint.\n",
        "## After a restart\n",
        "RAM of 2 % and an SSD of 30 % of the footprint, stopped in order in the middle of the trace. `cold` is the "
        "same with an empty SSD. Counted in the next 100,000 accesses.\n",
        restarts(data),
        "## A backup\n",
        "A load by Zipf's law (exponent 0.9, 200,000 blocks of a disk of 1,000,000), RAM of 10,000 and an SSD of "
        "60,000 blocks. `after`: the whole disk is read once, then the load goes on. `beside`: blocks of the disk that "
        "the load does not use are read in turn with the load.\n",
        backups(data),
        "What is lost without an SSD is lost in RAM: under LRU a backup beside the load takes RAM from it whatever the "
        "SSD does.\n",
        "## Memory\n",
        memory(data),
        "## All sizes\n",
        *(grid(name, done) for name, done in data["grid"].items()),
    ]
    return "\n".join(parts)
