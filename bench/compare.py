#!/usr/bin/env python3
"""Compares Undercroft with its peers, side by side in one run: `make bench`.

Every server of a cell is started and warmed, then they take turns (A B C A B C ...), so that whatever else the machine
does hits all of them; what counts are the ratios within a repetition, and their spread. Servers run on one core, the
driver on another, for all alike. Writes bench/results/latest.json.xz and latest.md, and the table in README.md.
"""

import argparse
import contextlib
import json
import lzma
import os
import platform
import re
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers
import table
from cells import MIB, Cell, Sizes, cells

RESULTS = peers.ROOT / "bench" / "results"
DRIVER = peers.ROOT / "target" / "release" / "undercroft-driver"
FULL = Sizes(image=512 * MIB, hot=256 * MIB, memory=384 * MIB)
QUICK = Sizes(image=128 * MIB, hot=64 * MIB, memory=128 * MIB)


def say(text: str) -> None:
    """Progress, on the standard error: the results may go to the standard output."""
    print(text, file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--quick", action="store_true", help="small and short: shows that it works, not how fast it is")
    p.add_argument("--repetitions", type=int, help="turns of each server on each cell (5; quick: 2)")
    p.add_argument("--seconds", type=float, help="seconds of each turn (1.5; quick: 0.3)")
    p.add_argument("--only", metavar="REGEX", help="cells whose key matches, such as vhost/hits/rand4k/qd1")
    p.add_argument("--servers", metavar="REGEX", help="servers whose name matches; the reference is always there")
    p.add_argument("--list", action="store_true", help="list the cells and stop")
    p.add_argument("--json", action="store_true", help="print the results as JSON too")
    p.add_argument("--no-realtime", action="store_true", help="leave the priority as it is")
    p.add_argument("--directory", type=Path, default=peers.ROOT / "build" / "bench", help="where the images go")
    p.add_argument("--no-save", action="store_true", help="leave bench/results and README.md as they are")
    a = p.parse_args()
    a.repetitions = a.repetitions or (2 if a.quick else 5)
    a.seconds = a.seconds or (0.3 if a.quick else 1.5)
    return a


def first_line(*command: str) -> str:
    """What a program says of its version."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "missing"
    found = re.search(r"\d+\.\d+(\.\d+)?", out.stdout + out.stderr)
    return found.group(0) if found else "unknown"


def can_be_realtime() -> bool:
    """Whether chrt works here."""
    if not shutil.which("chrt"):
        return False
    return subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True, check=False).returncode == 0


def describe_machine(a: argparse.Namespace, placement: peers.Placement) -> dict:
    """CPU, kernel and versions; no names of hosts or paths."""
    cpu = "unknown CPU"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30)),
        "kernel": platform.release().split("-")[0],
        "versions": {
            "undercroft": first_line(peers.UNDERCROFT, "--version"),
            "QEMU": first_line("qemu-storage-daemon", "--version"),
            "nbdkit": first_line("nbdkit", "--version"),
        },
        "server_core": placement.server_core,
        "driver_core": placement.driver_core,
        "realtime": placement.realtime,
        "repetitions": a.repetitions,
        "seconds": a.seconds,
        "quick": a.quick,
    }


def make_image(path: Path, size: int) -> None:
    """An image without holes or zeroes, on the disk."""
    with open(path, "wb") as f:
        for _ in range(size // MIB):
            f.write(os.urandom(MIB))
        f.flush()
        os.fsync(f.fileno())
    forget(path)


def forget(path: Path) -> None:
    """Drops a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def page_cache_bytes(pid: int, image: Path) -> int:
    """The page cache of the image, and of other regular files that the server has open (a cache file, say)."""
    seen, files = set(), []
    for path in [image, *Path(f"/proc/{pid}/fd").iterdir()]:
        with contextlib.suppress(OSError):
            s = path.stat()
            if stat.S_ISREG(s.st_mode) and (s.st_dev, s.st_ino) not in seen:
                seen.add((s.st_dev, s.st_ino))
                files.append(str(path))
    out = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", *files], capture_output=True, text=True, check=False
    )
    return sum(int(n) for n in out.stdout.split())


def disk_reads(pid: int) -> int:
    """Bytes that a process had the disk read, page cache or not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as f:
        for line in f:
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return 0


def drive(placement: peers.Placement, server: peers.Server, extra: list[str]) -> dict:
    """One run of the driver."""
    command = [*placement.command(placement.driver_core), str(DRIVER), "run", server.target, *extra]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if out.returncode != 0:
        raise peers.Missing(f"the driver failed on {server.name}: {out.stderr.strip() or out.stdout.strip()}")
    return json.loads(out.stdout)


def measure(
    placement: peers.Placement, server: peers.Server, cell: Cell, sizes: Sizes, seconds: float, turn: int
) -> dict:
    """One turn of one server."""
    if cell.state == "misses":
        forget(server.image)
    before = disk_reads(server.pid)
    extra = [*cell.driver_options(sizes), "--seconds", str(seconds), "--pid", str(server.pid), "--seed", str(turn + 1)]
    r = drive(placement, server, extra)
    read_bytes = disk_reads(server.pid) - before
    resident = r["server"]["resident_bytes"]
    return {
        "iops": r["iops"],
        "mb_per_s": r["mb_per_s"],
        "p50_us": r["latency_us"]["p50"],
        "p99_us": r["latency_us"]["p99"],
        "p99_9_us": r["latency_us"]["p99_9"],
        "cpu_s_per_million": r["server"]["cpu_s_per_million"],
        "user_s_per_million": r["server"]["user_s_per_million"],
        "system_s_per_million": r["server"]["system_s_per_million"],
        # Shared memory is the driver's; file pages are counted with the page cache.
        "memory_bytes": resident["anonymous"] + page_cache_bytes(server.pid, server.image),
        "disk_reads_per_io": read_bytes / (cell.block_kib * 1024) / max(r["operations"], 1),
        "kicks_per_io": r["kicks_per_io"],
        "wakes_per_io": r["wakes_per_io"],
    }


def run_cell(
    a: argparse.Namespace, placement: peers.Placement, cell: Cell, sizes: Sizes, images: dict[str, Path]
) -> dict:
    """All servers on one cell, taking turns."""
    chosen = [
        p
        for p in peers.PEERS
        if p.protocol == cell.protocol
        and not (p.direct and cell.state == "hits")
        and (not a.servers or p.name == cell.reference or re.search(a.servers, p.name))
    ]
    found = {p.name: {"ours": p.ours, "missing": "", "runs": []} for p in chosen}
    with contextlib.ExitStack() as stack:
        running: list[peers.Server] = []
        for i, p in enumerate(chosen):
            memory = sizes.memory_cold if cell.state == "misses" else sizes.memory
            try:
                forget(images[p.name])
                server = p.start(placement, images[p.name], memory, a.directory / f"server{i}")
                stack.callback(server.stop)
                if cell.state != "misses":
                    # Twice: policies that want a block to be asked for again before they keep it get that.
                    for _ in range(2):
                        warm = ["--prefill", "--length", str(sizes.hot), "--ops", "1", "--depth", "4"]
                        drive(placement, server, warm)
                running.append(server)
            except peers.Missing as why:
                found[p.name]["missing"] = str(why)
                say(f"    {p.name}: {why}")
        for turn in range(a.repetitions):
            for server in running:
                try:
                    r = measure(placement, server, cell, sizes, a.seconds, turn)
                    found[server.name]["runs"].append(r)
                except peers.Missing as why:
                    # Half a series has no ratios: the server is out of this cell, and the table says why.
                    found[server.name].update(missing=str(why), runs=[])
                    say(f"    {server.name}: {why}")
            running = [s for s in running if not found[s.name]["missing"]]
    for name, server in found.items():
        if server["runs"]:
            med = {k: statistics.median(r[k] for r in server["runs"]) for k in server["runs"][0]}
            say(
                f"    {name:32} {med['iops']:>9.0f} IOPS  p50 {med['p50_us']:>7.1f}  p99 {med['p99_us']:>8.1f} us"
                f"  CPU {med['cpu_s_per_million']:>6.2f} s/M  {med['memory_bytes'] / MIB:>5.0f} MiB"
                f"  {med['disk_reads_per_io']:.2f} disk reads/IO"
            )
    return {
        "key": cell.key,
        "work": cell.work,
        "protocol": cell.protocol,
        "reference": cell.reference,
        "servers": found,
    }


def main() -> int:
    a = options()
    chosen = [c for c in cells() if not a.only or re.search(a.only, c.key)]
    if a.list:
        print("\n".join(c.key for c in chosen))
        return 0
    if not chosen:
        say(f"compare: no cell matches {a.only}; see --list")
        return 1
    if not DRIVER.exists():
        say("compare: the driver is not built: make bench does it, or cargo build --release -p undercroft-bench-driver")
        return 1
    if not shutil.which("fincore"):
        say("compare: fincore is missing, which measures the page cache: it is in Debian's util-linux")
        return 1
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("compare: two cores are needed, one for the server and one for the driver")
        return 1
    placement = peers.Placement(cores[0], cores[1], not a.no_realtime and can_be_realtime())
    sizes = QUICK if a.quick else FULL
    names = sorted({p.name for p in peers.PEERS})
    room = shutil.disk_usage(a.directory.parent if a.directory.parent.exists() else peers.ROOT).free
    if room < (len(names) + 1) * sizes.image:
        say(f"compare: {len(names) * sizes.image // MIB} MiB are needed for images under {a.directory}")
        return 1
    a.directory.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="run", dir=a.directory) as scratch:
        a.directory = Path(scratch)
        # One image each: what one server writes must not push another's pages out of the page cache.
        images = {name: a.directory / f"image{i}.raw" for i, name in enumerate(names)}
        say(f"compare: writing {len(images)} images of {sizes.image // MIB} MiB")
        for path in images.values():
            make_image(path, sizes.image)
        results = {"machine": describe_machine(a, placement), "cells": []}
        for i, cell in enumerate(chosen):
            say(f"[{i + 1}/{len(chosen)}, {time.monotonic() - begin:.0f} s] {cell.key}: {cell.work}")
            results["cells"].append(run_cell(a, placement, cell, sizes, images))
    if not a.no_save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = "quick" if a.quick or a.only or a.servers else "latest"
        (RESULTS / f"{name}.json.xz").write_bytes(lzma.compress((json.dumps(results, indent=1) + "\n").encode()))
        (RESULTS / f"{name}.md").write_text(table.full(results), encoding="utf-8")
        say(f"compare: bench/results/{name}.md and .json.xz are written")
        # A short or partial run shows that it works; it must not stand in the README as a result.
        if name == "latest" and table.put_into(peers.ROOT / "README.md", results):
            say("compare: the table in README.md is renewed")
    if a.json:
        print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
