#!/usr/bin/env python3
"""How fast caches of processors are simulated: `undercroft lab cores` beside cachegrind and pycachesim.

One run, in turns; what counts is references a second: ours of four cores with caches of their own over one that they
share, on as many threads as there are processors; cachegrind's of one core with two levels, which runs the program
meanwhile, long enough for its start not to count; pycachesim's of one core with two levels, with the loads of the trace
in memory, handed over in one call. All on what `gzip -6` does. Never compares what they find: only ours has cores.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNDERCROFT = ROOT / "target" / "release" / "undercroft"
VENV = ROOT / "build" / "pycachesim"
VERSION = "0.3.1"
# Of the trace; and how often the text that cachegrind sees compressed is repeated.
ACCESSES, REPEATED = 8_000_000, 40
LINE = 64
L1, L2, WAYS = 32 << 10, 1 << 20, 8

# Runs in an environment with pycachesim: loads and stores of a trace, and how long they took.
PEER = f"""
import sys, time
from array import array
from cachesim import Cache, CacheSimulator, MainMemory
memory = MainMemory()
second = Cache("L2", {L2 // LINE // WAYS}, {WAYS}, {LINE}, "LRU")
memory.load_to(second), memory.store_from(second)
first = Cache("L1", {L1 // LINE // WAYS}, {WAYS}, {LINE}, "LRU", store_to=second, load_from=second)
simulator = CacheSimulator(first, memory)
words = array("Q", sys.stdin.buffer.read())
loads = [word & (1 << 48) - 1 for word in words if word >> 56 == 1]
began = time.perf_counter()
simulator.load(loads, length=1)
print(len(loads) / (time.perf_counter() - began))
"""


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--turns", type=int, default=5, help="turns of every arm (5)")
    p.add_argument("--file", type=Path, default=ROOT / "SPECIFICATION.md", help="what gzip compresses")
    args = p.parse_args()
    if args.turns < 1:
        p.error("--turns is at least 1")
    if not args.file.is_file():
        p.error(f"--file: there is no file {args.file}")
    return args


def run(*words: object, **more) -> subprocess.CompletedProcess:
    """A program that has to succeed."""
    done = subprocess.run([str(w) for w in words], capture_output=True, check=False, **more)
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stderr.decode(errors='replace')[-1000:]}")
    return done


def environment() -> Path:
    """A Python that has pycachesim."""
    python, installed = VENV / "bin" / "python", VENV / f"installed-{VERSION}"
    if not installed.exists():
        run(os.environ.get("PYTHON", "/usr/bin/python3"), "-m", "venv", VENV)
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"pycachesim=={VERSION}")
        installed.touch()
    return python


def ours(*traces: object) -> float:
    """References a second, as the program says: traces are read before."""
    sizes = ["--core-size", L1, "--line", LINE, "--shared", L2, "--shared-line", LINE]
    said = run(UNDERCROFT, "lab", "cores", *traces, *sizes, "--strategy", "none", "--repeat", 4).stdout.decode()
    return float(re.search(r" at ([\d,.]+) M/s", said)[1].replace(",", "")) * 1e6


def cachegrind(file: Path, scratch: Path) -> float:
    """References a second, of the whole run."""
    caches = [f"--I1={L1},{WAYS},{LINE}", f"--D1={L1},{WAYS},{LINE}", f"--LL={L2},{WAYS},{LINE}"]
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={scratch / 'cachegrind'}"]
    began = time.perf_counter()
    said = run(*tool, *caches, "gzip", "-6", "--stdout", file).stderr.decode()
    took = time.perf_counter() - began
    counts = [re.search(rf"{kind}\s+refs:\s+([\d,]+)", said)[1] for kind in ("I  ", "D  ")]
    return sum(int(n.replace(",", "")) for n in counts) / took


def main() -> int:
    """Measures, and prints a table."""
    a = options()
    scratch = ROOT / "build" / "bench-lab"
    scratch.mkdir(parents=True, exist_ok=True)
    trace = scratch / "gzip.memory.zst"
    long = scratch / "text"
    long.write_bytes(a.file.read_bytes() * REPEATED)
    run(UNDERCROFT, "lab", "trace", "--force", trace, "--limit", ACCESSES, "--", "gzip", "-6", "--stdout", long)
    words = run("zstd", "-dc", trace).stdout
    python = environment()
    arms = {
        "undercroft lab cores (4 cores, 2 levels)": lambda: ours(trace),
        "cachegrind (1 core, 2 levels)": lambda: cachegrind(long, scratch),
        "pycachesim (1 core, 2 levels)": lambda: float(run(python, "-c", PEER, input=words).stdout),
    }
    turns = [{name: arm() for name, arm in arms.items()} for _ in range(a.turns)]
    print(f"{len(words) // 8:,} accesses of `gzip -6`; {os.cpu_count()} processors; {a.turns} turns\n")
    print("| | M references/s | of turns | ours is so many times that |")
    print("|---|---:|---|---:|")
    first = next(iter(arms))
    for name in arms:
        rates = sorted(turn[name] / 1e6 for turn in turns)
        ratio = statistics.median(turn[first] / turn[name] for turn in turns)
        print(f"| {name} | {statistics.median(rates):.1f} | {rates[0]:.1f} to {rates[-1]:.1f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
