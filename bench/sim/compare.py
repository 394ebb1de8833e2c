#!/usr/bin/env python3
"""Compares the engine's replay with libCacheSim's simulator, side by side in one run: `make bench-sim`.

Both read the same file of oracleGeneral records (libCacheSim maps it, ours reads it in pieces; reading is part of the
time on both sides), unit sizes, one thread. They take turns (A B A B ...); what counts is the ratio of process CPU
times within a repetition, and the median of the ratios. Memory is the peak of anonymous pages: those of the mapped
trace do not count. Of it what a cache of 16 blocks takes on the same trace is fixed: libCacheSim reserves a hash table
for millions of objects at once. What is compared is the rest, beside it divided by the blocks. Writes
bench/results/sim.json and sim.md.
"""

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
OURS = ROOT / "target" / "release" / "examples" / "sim_bench"
VERSION = "0.3.5"
# policy of ours, libCacheSim's name, the ratio wanted (None: shown, not promised)
POLICIES = [
    ("fifo", "fifo", 3.5),
    ("lru", "lru", 3.5),
    ("clock", "clock", 3.5),
    ("sieve", "sieve", 3.5),
    ("arc", "arc", 2.5),
    ("s3-fifo", "s3fifo", 2.5),
    ("2q", "twoq", 2.5),
    ("lfu", "lfu", 2.5),
    ("w-tinylfu", "wtinylfu", 2.5),
    ("lirs", "lirs", 2.5),
    ("slru", "slru", None),
    ("mq", "mq", None),
    ("random", "random", None),
    ("mru", "mru", None),
    ("lfu-da", "lfuda", None),
    ("lecar", "lecar", None),
    ("cacheus", "cacheus", None),
    ("clock-pro", "clockpro", None),
    ("clock2q+", "clock2qplus", None),
    ("gdsf", "gdsf", None),
    ("hyperbolic", "hyperbolic", None),
    ("lhd", "lhd", None),
    ("lru-2", "lru-k", None),
]
# trace, 1 % and 10 % of its footprint
SIZES = [("zipf", 10_000), ("zipf", 100_000), ("arc-P6", 7_737), ("arc-P6", 77_377)]
MEMORY_WANTED = 0.5
# A cache whose memory is what the program takes whatever the size.
SMALLEST = 16
# More seconds of a processor than any cell takes: libCacheSim's lfuda with few blocks comes to no end.
LONGEST_S = 300
# A load average that is more than the one process of a run.
BUSY_ABOVE = 1.5
# what the table says where the load average was above 1.5: one process at a time is ours
BUSY = "Other programs kept the machine busy meanwhile: single figures move by a quarter and more."


def say(text: str) -> None:
    """Progress, on the standard error."""
    print(text, file=sys.stderr, flush=True)


def stop(text: str) -> None:
    """One sentence, and the end."""
    sys.exit(f"compare: {text}")


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--repetitions", type=int, default=5, help="turns of each side on each cell (5)")
    p.add_argument(
        "--only", default="", metavar="REGEX", help="cells that match, such as '^lru zipf'; others keep their figures"
    )
    p.add_argument(
        "--directory", type=Path, default=ROOT / "build" / "bench-sim", help="traces and libCacheSim's build"
    )
    p.add_argument("--peer", type=Path, help="a cachesim that is built already")
    p.add_argument("--ours", type=Path, default=OURS, help="another build of our side")
    p.add_argument(
        "--memory", action="store_true", help="measure memory alone, which no other load disturbs; times stay"
    )
    p.add_argument("--no-save", action="store_true", help="leave bench/results as it is")
    return p.parse_args()


def peer(directory: Path) -> Path:
    """libCacheSim's command-line simulator, fetched and built if it is not there."""
    binary = directory / "libcachesim-build" / "bin" / "cachesim"
    if binary.exists():
        return binary
    archive = directory / f"libcachesim-{VERSION}.tar.gz"
    if not archive.exists():
        say(f"fetching libcachesim {VERSION}")
        fetch = [sys.executable, "-m", "pip", "download", "--no-binary", "libcachesim", "--no-deps"]
        run = subprocess.run([*fetch, f"libcachesim=={VERSION}", "-d", str(directory)], capture_output=True, text=True)
        if not archive.exists():
            stop(f"libcachesim {VERSION} cannot be fetched; put {archive.name} into {directory}\n{run.stderr[-1500:]}")
    with tarfile.open(archive) as tar:
        # Debian 12's Python (3.11.2) has no filters of archives yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(directory, **safe)
    source = directory / f"libcachesim-{VERSION}" / "src" / "libCacheSim"
    build = binary.parents[1]
    say("building libCacheSim (cmake, Release)")
    configure = ["cmake", "-S", str(source), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DENABLE_TESTS=OFF"]
    make = ["cmake", "--build", str(build), "--target", "cachesim", f"-j{os.cpu_count()}"]
    for command in (configure, make):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            stop(f"libCacheSim does not build; install what `scripts/setup.sh bench-sim` names\n{run.stderr[-3000:]}")
    return binary


def traces(directory: Path, ours: Path) -> dict[str, Path]:
    """The two traces as oracleGeneral records."""
    zipf, p6 = directory / "zipf.oracleGeneral", directory / "arc-P6.oracleGeneral"
    found = {}
    if not zipf.exists():
        say("making the Zipf trace (480 MB)")
        subprocess.run([ours, "zipf", zipf], check=True)
    found["zipf"] = zipf
    source = ROOT.parent / "shared" / "traces" / "block" / "arc-P6.lis.zst"
    if not p6.exists() and source.exists():
        say("converting arc-P6 (304 MB)")
        subprocess.run([ours, "convert", source, p6], check=True)
    if p6.exists():
        found["arc-P6"] = p6
    else:
        say(f"SKIPPED: arc-P6 is neither at {source} nor at {p6}")
    return found


def run(command: list) -> tuple[float, int, str]:
    """CPU seconds of a process (user and system), the most bytes of anonymous memory it had (looked at every 20 ms),
    and what it printed. One that takes longer than `LONGEST_S` is killed, and has failed."""
    with tempfile.TemporaryFile("w+") as out:
        most = lambda: resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))  # noqa: E731
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, preexec_fn=most)
        status, peak = Path(f"/proc/{child.pid}/status"), 0
        while True:
            pid, code, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if found := re.search(r"RssAnon:\s+(\d+) kB", status.read_text()):
                peak = max(peak, int(found[1]) * 1024)
            time.sleep(0.02)
        child.returncode = os.waitstatus_to_exitcode(code)
        if child.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {child.returncode}")
        out.seek(0)
        return usage.ru_utime + usage.ru_stime, peak, out.read()


def measure(ours: list, theirs: list, repetitions: int) -> dict:
    """One cell: both sides in turns."""
    times, peaks, ratios, misses, theirs_miss = ([], []), ([], []), [], None, None
    for _ in range(repetitions):
        for side, command in enumerate((ours, theirs)):
            seconds, peak, out = run(command)
            times[side].append(seconds)
            peaks[side].append(peak)
            if side == 0:
                result = json.loads(out)
                misses = result["misses"] / result["requests"]
            elif found := re.search(r"miss ratio ([0-9.]+)", out):
                theirs_miss = float(found[1])
        ratios.append(times[1][-1] / times[0][-1])
    return {
        "seconds": [statistics.median(t) for t in times],
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "anonymous_bytes": [max(p) for p in peaks],
        "miss_ratio": [misses, theirs_miss],
    }


def fixed(ours: list, theirs: list) -> list:
    """The peaks of both sides with the smallest cache; None of a side that does not finish."""
    peaks = []
    for command in (ours, theirs):
        try:
            peaks.append(run(command)[1])
        except RuntimeError as e:
            say(f"with {SMALLEST} blocks: {e}")
            peaks.append(None)
    return peaks


def memory_columns(cell: dict) -> str:
    """MiB of both, what of them is fixed, bytes for each block without that, and the share of ours in theirs."""
    (m, n), blocks = cell["anonymous_bytes"], cell["blocks"]
    a, b = cell.get("fixed_bytes", [None, None])
    mib = lambda x: "" if x is None else f"{x / 2**20:.1f}"  # noqa: E731
    # pages come by 4 KiB, and whole arenas: a little less than nothing is nothing
    net = [None if base is None else max(0, peak - base) for peak, base in ((m, a), (n, b))]
    per = ["" if x is None else f"{x / blocks:.0f}" for x in net]
    if net[0] is None or not net[1]:
        share = ""
    else:
        part = net[0] / net[1]
        share = f"**{part:.2f}**" if part > MEMORY_WANTED else f"{part:.2f}"
    return f"{mib(m)} | {mib(a)} | {mib(n)} | {mib(b)} | {per[0]} | {per[1]} | {share}"


def markdown(cells: list[dict], about: dict) -> str:
    """The table."""
    turns = sorted({c["repetitions"] for c in cells})
    busy = list(dict.fromkeys(c["policy"] for c in cells if c["busy"]))
    lines = [
        "# The engine's replay beside libCacheSim's simulator",
        "",
        (
            f"`make bench-sim`, {about['date']}: {about['cpu']}, libCacheSim {VERSION}"
            f" (Release{', tcmalloc' if about['tcmalloc'] else ''}), one thread, {' or '.join(map(str, turns))}"
            " repetitions in turns."
        ),
        f"Of {', '.join(busy)}: {BUSY[0].lower()}{BUSY[1:]}" if busy else "",
        "",
        (
            "CPU seconds of the whole process, reading the trace (oracleGeneral, from the page cache) included on both"
            " sides;"
        ),
        "the ratio is the median over repetitions, theirs / ours, so above 1 is faster.",
        (
            f'Memory: peak of anonymous pages, in MiB; "fixed" is the peak with a cache of {SMALLEST} blocks on the'
            " same trace: what the"
        ),
        (
            "program reserves whatever the size (libCacheSim: a hash table for millions of objects). Bytes for each"
            " block, and the share of ours"
        ),
        f"in theirs, are without it. {about.get('memory', '')}".rstrip(),
        "A policy whose miss ratios differ is explained in docs/decisions/0118-more-policies.md.",
        "",
        (
            "| policy | trace | blocks | ours s | theirs s | faster | wanted | ours MiB | fixed | theirs MiB | fixed "
            "| ours B/block | theirs | ours / theirs | misses | theirs |"
        ),
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for c in cells:
        (a, b), (x, y) = c["seconds"], c["miss_ratio"]
        wanted = f"{c['wanted']}" if c["wanted"] else ""
        lost = c["ratio"] < (c["wanted"] or 1)
        faster = f"**{c['ratio']:.2f}**" if lost else f"{c['ratio']:.2f}"
        theirs = "" if y is None else f"{y:.4f}"
        lines.append(
            f"| {c['policy']} | {c['trace']} | {c['blocks']} | {a:.2f} | {b:.2f} | {faster} | {wanted} "
            f"| {memory_columns(c)} | {x:.4f} | {theirs} |"
        )
    missed = [c for c in cells if c["wanted"] and c["ratio"] < c["wanted"]]
    promised = [c for c in cells if c["wanted"]]
    lines += [
        "",
        f"Bold: less than wanted. {len(promised) - len(missed)} of {len(promised)} promised ratios are reached.",
    ]
    if about["failed"]:
        lines += ["", "libCacheSim did not finish: " + "; ".join(about["failed"]) + "."]
    return "\n".join(lines) + "\n"


def merged(cells: list[dict], saved: Path, policies: list[str], memory: bool = False) -> list[dict]:
    """Cells that were not measured now keep their last figures; with `memory`, what was measured now is no more than
    that."""
    if not saved.exists():
        return cells
    key = lambda c: (c["policy"], c["trace"], c["blocks"])  # noqa: E731
    before = {key(c): c for c in json.loads(saved.read_text())["cells"]}
    if memory:
        fields = ("anonymous_bytes", "fixed_bytes")
        cells = [before[key(c)] | {f: c[f] for f in fields} if key(c) in before else c for c in cells]
    all_cells = before | {key(c): c for c in cells}
    order = [(policy, trace, blocks) for policy in policies for trace, blocks in SIZES]
    return [all_cells[k] for k in order if k in all_cells]


def failures(saved: Path) -> list[str]:
    """Which cells libCacheSim did not finish when they were last measured."""
    return json.loads(saved.read_text())["about"]["failed"] if saved.exists() else []


def circumstances(args: argparse.Namespace, failed: list[str], busy_above: float) -> dict:
    """On what the figures were made, and how; a load average above `busy_above` is more than the processes of a run."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": found[1] if found else platform.machine(),
        "repetitions": args.repetitions,
        "failed": failed,
        "busy": os.getloadavg()[1] > busy_above,
    }


def show(args: argparse.Namespace, name: str, text: str, about: dict, cells: list[dict]) -> None:
    """Prints the table; keeps it and its figures, unless that is not wanted."""
    print(text)
    if not args.no_save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "cells": cells}, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(text)


def main() -> None:
    """See the head of the file."""
    args = options()
    if args.memory:
        args.repetitions = 1
    args.directory.mkdir(parents=True, exist_ok=True)
    if not args.ours.exists():
        stop(f"{args.ours} is not built: cargo build --release -p undercroft-study --example sim_bench")
    binary = args.peer or peer(args.directory)
    files = traces(args.directory, args.ours)
    linked = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
    cells, failed = [], []
    bases: dict[tuple[str, str], list] = {}
    interrupted = False
    try:
        for ours, theirs, wanted in POLICIES:
            for trace, blocks in SIZES:
                if trace not in files or not re.search(args.only, f"{ours} {trace} {blocks}"):
                    continue
                output = str(args.directory / "cachesim.out")

                def commands(blocks: int) -> tuple[list, list]:
                    peers = [binary, files[trace], "oracleGeneral", theirs, str(blocks), "--ignore-obj-size", "1"]
                    peers += ["--num-thread", "1", "--report-interval", "1000000000", "-o", output]
                    return [args.ours, "run", ours, str(blocks), files[trace]], peers

                try:
                    cell = measure(*commands(blocks), args.repetitions)
                    if (ours, trace) not in bases:
                        bases[ours, trace] = fixed(*commands(SMALLEST))
                    cell["fixed_bytes"] = bases[ours, trace]
                except RuntimeError as e:
                    failed.append(str(e) if "sim_bench" in str(e) else f"{theirs} on {trace} with {blocks} blocks")
                    say(f"{ours} {trace} {blocks}: {e}")
                    continue
                cell |= {"repetitions": args.repetitions, "busy": os.getloadavg()[1] > BUSY_ABOVE}
                cells.append(
                    {"policy": ours, "theirs": theirs, "trace": trace, "blocks": blocks, "wanted": wanted, **cell}
                )
                (a, b), (m, n), (x, y) = cell["seconds"], cell["anonymous_bytes"], cell["miss_ratio"]
                say(
                    f"{ours:10} {trace:7} {blocks:7}: {a:.2f} s, theirs {b:.2f} s, {cell['ratio']:.2f} times as fast; "
                    f"{m / 2**20:.1f} of {n / 2**20:.1f} MiB; misses {x:.4f}, theirs {y}"
                )
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted; what was measured is kept, other cells keep their figures")
    if not cells:
        stop(f"no cell matches '{args.only}'")
    if args.only or interrupted or args.memory:
        cells = merged(cells, RESULTS / "sim.json", [ours for ours, _, _ in POLICIES], args.memory)
        failed += [f for f in failures(RESULTS / "sim.json") if f not in failed]
    about = circumstances(args, failed, BUSY_ABOVE) | {"tcmalloc": "tcmalloc" in linked}
    if args.memory and (RESULTS / "sim.json").exists():
        # the times are of another day
        measured = (
            f"Memory was measured on {about['date']}, apart from the times; where \"fixed\" is missing it was not."
        )
        about = json.loads((RESULTS / "sim.json").read_text())["about"] | {"memory": measured, "failed": failed}
    show(args, "sim", markdown(cells, about), about, cells)
    if interrupted:
        sys.exit(130)


if __name__ == "__main__":
    main()
