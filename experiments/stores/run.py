#!/usr/bin/python3
"""`make lab-stores-sim`: what an SSD store below RAM finds, writes and keeps over a restart, on block traces.

Runs `undercroft sim --ssd`, which simulates with the daemon's own stores, over the traces of ../shared/traces/block
(those that are there) and over a load with a backup in it. Writes docs/results/stores-sim.md, plots and raw results.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rig.guest import ROOT  # noqa: E402
from stores import loads, plots, report  # noqa: E402

RAM, SSD, RULES = ["2%", "10%"], ["none", "10%", "30%", "60%"], ["all", "second", "measured"]
RESTART_FOR = 100_000


class Failed(Exception):
    """A simulation that did not run."""


def arguments(argv=None):
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--undercroft", type=Path, default=ROOT / "target" / "release" / "undercroft")
    p.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces" / "block", help="folder of traces")
    p.add_argument("--quick", action="store_true", help="the first 200,000 accesses of each; results in build/lab")
    p.add_argument("--limit", type=int, help="the first N accesses of each trace (default: all)")
    p.add_argument("--report", action="store_true", help="write table and plots again, from the raw results")
    p.add_argument("--out", type=Path, help="folder of results (default: docs/results; quick: build/lab)")
    a = p.parse_args(argv)
    a.out = a.out or ROOT / ("build/lab" if a.quick else "docs/results")
    a.limit = a.limit or (200_000 if a.quick else None)
    return a


def simulate(a, trace, *options):
    """The results of a simulation, and the most memory it had, in bytes."""
    command = [a.undercroft, "sim", trace, "--policy", "lru,s3-fifo", "--json", *map(str, options)]
    if a.limit and "--warm-up" not in options:
        command += ["--limit", str(a.limit)]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([str(word) for word in command], stdout=out, stderr=subprocess.PIPE)
        said = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise Failed(f"{trace}: {said.strip()}")
        out.seek(0)
        return json.load(out), usage.ru_maxrss * 1024


def of_traces(a, there):
    """Every trace over all sizes and rules, and started again in its middle."""
    grid, restarts = {}, {}
    for name, path in there.items():
        print(f"{name}: sizes and rules", flush=True)
        grid[name], _ = simulate(a, path, "--size", ",".join(RAM), "--ssd", ",".join(SSD), "--admit", ",".join(RULES))
        print(f"{name}: a restart", flush=True)
        again = ["--restart-at", "50%", "--restart-for", RESTART_FOR]
        restarts[name], _ = simulate(a, path, "--size", "2%", "--ssd", "30%", "--admit", ",".join(RULES), *again)
    return grid, restarts


def of_backups(a, folder):
    """The load alone, after a backup and beside one."""
    found = {}
    for name, (path, warm_up, accesses) in loads.backups(folder, 0.1 if a.quick else 1.0).items():
        print(f"backup: the load {name}", flush=True)
        sizes = ["--size", "10000blocks", "--ssd", "none,60000blocks", "--admit", ",".join(RULES)]
        done, _ = simulate(a, path, *sizes, "--warm-up", warm_up)
        found[name] = {"accesses": accesses, "results": done["results"]}
    return found


def of_memory(a, folder):
    """What the simulation of full stores takes: each block read once, so that all of both is filled."""
    ram, ssd = (10_000, 100_000) if a.quick else (262_144, 1_048_576)
    trace = folder / "fill.u64le"
    subprocess.run(
        [a.undercroft, "trace", "synth", "scan", trace, "-n", str(ram + ssd), "-k", str(ram + ssd)],
        check=True,
        capture_output=True,
    )
    with_limit = ["--warm-up", 0, "--limit", ram + ssd, "--jobs", 1]
    sizes = ["--size", f"{ram}blocks", "--ssd", f"{ssd}blocks", "--admit", "all"]
    print("memory", flush=True)
    done, most = simulate(a, trace, *sizes, *with_limit)
    results = done["results"]
    return {"ram_blocks": ram, "ssd_blocks": ssd, "bytes": most, "pairs": len(results), "of": results[0]}


def measure(a):
    """All of it."""
    there, missing = loads.shared(a.traces)
    for name in missing:
        print(f"{name}: left out, {loads.SHARED[name]} is not in {a.traces}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        grid, restarts = of_traces(a, there)
        data = {"grid": grid, "restarts": restarts, "missing": missing, "limit": a.limit}
        data["backups"] = of_backups(a, Path(folder))
        data["memory"] = of_memory(a, Path(folder))
    return data


def main():
    """Measures, or reads what was measured, and writes the results."""
    a = arguments()
    raw = a.out / "stores-sim.json.xz"
    try:
        if not a.report:
            if not a.undercroft.exists():
                raise Failed(f"{a.undercroft} is missing: cargo build --release -p undercroft")
            data = measure(a)
            a.out.mkdir(parents=True, exist_ok=True)
            raw.write_bytes(lzma.compress(json.dumps(data, sort_keys=True).encode()))
        data = json.loads(lzma.decompress(raw.read_bytes()))
    except (Failed, OSError, subprocess.CalledProcessError) as e:
        print(f"lab: {e}", file=sys.stderr)
        return 1
    pictures = plots.draw(data, a.out)
    text = a.out / "stores-sim.md"
    text.write_text(report.full(data, [p.name for p in pictures if p.suffix == ".svg"]), encoding="utf-8")
    print(f"tables: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
