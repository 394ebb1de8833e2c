#!/usr/bin/env python3
"""Compares the engine's replay with Caffeine's simulator, side by side in one run: `make bench-caffeine`.

Both read the same blocks, ours as oracleGeneral records, theirs as 8-byte numbers (its `corda` format, the quickest it
has). One policy at a time, in turns (A B A B ...). Two ratios are shown: of the CPU time of whole processes, which on
their side has the start of the Java machine and its compiler in it; and of their own clock for the policy alone,
without reading, over our whole process. Writes bench/results/caffeine.json and caffeine.md.
"""

import argparse
import array
import csv
import json
import re
import shutil
import statistics
import subprocess
from pathlib import Path

from compare import BUSY, OURS, RESULTS, ROOT, SIZES, circumstances, merged, run, say, show, stop, traces

VERSION = "3.2.0"
POM = Path(__file__).resolve().parent / "caffeine" / "pom.xml"
MAIN = "com.github.benmanes.caffeine.cache.simulator.Simulator"
UNDERCROFT = ROOT / "target" / "release" / "undercroft"
# policy of ours, Caffeine's name
POLICIES = [
    ("fifo", "linked.Fifo"),
    ("lru", "linked.Lru"),
    ("clock", "linked.Clock"),
    ("sieve", "linked.Sieve"),
    ("mru", "linked.Mru"),
    ("lfu", "linked.Lfu"),
    ("slru", "linked.SegmentedLru"),
    ("mq", "linked.MultiQueue"),
    ("2q", "two-queue.TwoQueue"),
    ("s3-fifo", "two-queue.S3Fifo"),
    ("w-tinylfu", "sketch.WindowTinyLfu"),
    ("arc", "adaptive.Arc"),
    ("car", "adaptive.Car"),
    ("lirs", "irr.Lirs"),
    ("clock-pro", "irr.ClockPro"),
    ("hyperbolic", "sampled.Hyperbolic"),
    ("random", "sampled.Random"),
    ("gdsf", "greedy-dual.Gdsf"),
    ("opt", "opt.Clairvoyant"),
]
RECORD = 24


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--repetitions", type=int, default=3, help="turns of each side on each cell (3)")
    p.add_argument(
        "--only", default="", metavar="REGEX", help="cells that match, such as '^lru zipf'; others keep their figures"
    )
    p.add_argument("--directory", type=Path, default=ROOT / "build" / "bench-sim", help="traces and what is fetched")
    p.add_argument("--no-save", action="store_true", help="leave bench/results as it is")
    return p.parse_args()


def peer(directory: Path) -> list[str]:
    """The command that runs Caffeine's simulator, which is fetched if it is not there."""
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if not shutil.which(program):
            stop(f"{program} is not here: install {package} (scripts/setup.sh bench-caffeine does)")
    library = directory / f"caffeine-simulator-{VERSION}"
    if not library.exists():
        say(f"fetching Caffeine's simulator {VERSION} (170 MB)")
        partial = directory / "caffeine-simulator.part"
        shutil.rmtree(partial, ignore_errors=True)
        copy = ["mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={partial.resolve()}"]
        fetched = subprocess.run([*copy, "-DincludeScope=runtime"], capture_output=True, text=True)
        if fetched.returncode:
            stop(f"Maven cannot fetch Caffeine's simulator; is there a network?\n{fetched.stdout[-1500:]}")
        partial.rename(library)
    return ["java", "-cp", f"{library}/*"]


def corda(trace: Path) -> Path:
    """The blocks of an oracleGeneral file as Caffeine reads them quickest: 8 bytes each, the highest first."""
    out = trace.with_suffix(".corda")
    if not out.exists():
        partial = out.with_suffix(".part")
        with trace.open("rb") as records, partial.open("wb") as file:
            while piece := records.read(RECORD << 18):
                words = array.array("I", piece)
                blocks = array.array("I", bytes(len(piece) // 3))
                blocks[0::2], blocks[1::2] = words[2::6], words[1::6]
                blocks.byteswap()
                file.write(blocks.tobytes())
        partial.rename(out)
    return out


def ours(policy: str, blocks: int, trace: Path) -> list:
    """The command that runs one cell of ours."""
    if policy == "opt":
        return [UNDERCROFT, "sim", trace, "-p", policy, "-s", f"{blocks}blocks", "--jobs", "1", "--json"]
    return [OURS, "run", policy, str(blocks), trace]


def theirs(java: list[str], policy: str, blocks: int, trace: Path, report: Path) -> list:
    """The command that runs one cell of theirs."""
    settings = {
        "maximum-size": blocks,
        "policies.0": policy,
        "admission.0": "Always",
        "files.paths.0": f"corda:{trace}",
        "report.format": "csv",
        "report.output": report,
    }
    return [*java, *(f"-Dcaffeine.simulator.{key}={value}" for key, value in settings.items()), MAIN]


def measure(mine: list, peers: list, report: Path, repetitions: int) -> dict:
    """One cell: both sides in turns."""
    times, peaks, clocks, ratios = ([], []), ([], []), [], []
    for _ in range(repetitions):
        seconds, peak, out = run(mine)
        times[0].append(seconds)
        peaks[0].append(peak)
        result = json.loads(out)
        result = result["results"][0] if "results" in result else result
        report.unlink(missing_ok=True)
        seconds, peak, _ = run(peers)
        times[1].append(seconds)
        peaks[1].append(peak)
        (row,) = csv.DictReader(report.open())
        clocks.append(float(row["Time"]) / 1000)
        ratios.append(times[1][-1] / times[0][-1])
    requests = result.get("requests") or result["accesses"]
    return {
        "seconds": [statistics.median(t) for t in times],
        "ratio": statistics.median(ratios),
        "their_clock": statistics.median(clocks),
        "clock_ratio": statistics.median(c / t for c, t in zip(clocks, times[0])),
        "anonymous_bytes": [max(p) for p in peaks],
        "miss_ratio": [result["misses"] / requests, int(row["Misses"]) / int(row["Requests"])],
    }


def markdown(cells: list[dict], about: dict) -> str:
    """The table."""
    lines = [
        "# The engine's replay beside Caffeine's simulator",
        "",
        f"`make bench-caffeine`, {about['date']}: {about['cpu']}, Caffeine's simulator {VERSION} on {about['java']},",
        f"{about['repetitions']} repetitions in turns.",
        BUSY if about["busy"] else "",
        "",
        (
            "CPU seconds of whole processes, and the ratio theirs / ours (above 1 is faster), medians. *Their clock* is"
            " what their report"
        ),
        (
            "says of the policy alone, without reading and without what the Java machine takes to start; its ratio is"
            " to our whole"
        ),
        "process, reading included. Misses are shown for what they are: several names stand for variants, see",
        "docs/decisions/0118-more-policies.md.",
        "",
        (
            "| policy | theirs | trace | blocks | ours s | theirs s | faster | their clock s | to it | ours MiB |"
            " theirs MiB | misses | theirs |"
        ),
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for c in cells:
        (a, b), (m, n), (x, y) = c["seconds"], c["anonymous_bytes"], c["miss_ratio"]
        bold = lambda ratio: f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"  # noqa: E731
        lines.append(
            f"| {c['policy']} | {c['theirs']} | {c['trace']} | {c['blocks']} | {a:.2f} | {b:.2f} | {bold(c['ratio'])} |"
            f" {c['their_clock']:.2f} | {bold(c['clock_ratio'])} | {m / 2**20:.1f} | {n / 2**20:.0f} | {x:.4f} |"
            f" {y:.4f} |"
        )
    slower = sum(1 for c in cells if min(c["ratio"], c["clock_ratio"]) < 1)
    lines += ["", f"Bold: slower than theirs. That is {slower} of {len(cells)} cells."]
    if about["failed"]:
        lines += ["", "Did not finish: " + "; ".join(about["failed"]) + "."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the head of the file."""
    args = options()
    args.directory.mkdir(parents=True, exist_ok=True)
    for built in (OURS, UNDERCROFT):
        if not built.exists():
            stop(f"{built.relative_to(ROOT)} is not built: make bench-caffeine builds it")
    java = peer(args.directory)
    files = traces(args.directory, OURS)
    report = args.directory / "caffeine.csv"
    cells, failed = [], []
    for policy, name in POLICIES:
        for trace, blocks in SIZES:
            if trace not in files or not re.search(args.only, f"{policy} {trace} {blocks}"):
                continue
            peers = theirs(java, name, blocks, corda(files[trace]), report)
            try:
                cell = measure(ours(policy, blocks, files[trace]), peers, report, args.repetitions)
            except (RuntimeError, OSError, ValueError) as e:
                failed.append(f"{name} on {trace} with {blocks} blocks")
                say(f"{policy} {trace} {blocks}: {e}")
                continue
            cells.append({"policy": policy, "theirs": name, "trace": trace, "blocks": blocks, **cell})
            (a, b), (x, y) = cell["seconds"], cell["miss_ratio"]
            say(
                f"{policy:10} {trace:7} {blocks:7}: {a:.2f} s, theirs {b:.2f} s, {cell['ratio']:.2f} times as fast, "
                f"{cell['clock_ratio']:.2f} by their own clock; misses {x:.4f}, theirs {y:.4f}"
            )
    if not cells:
        stop(f"no cell matches '{args.only}', or none could be run")
    if args.only:
        cells = merged(cells, RESULTS / "caffeine.json", [policy for policy, _ in POLICIES])
    version = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.split("\n")[0]
    # Reading and the policy have a thread each there.
    about = circumstances(args, failed, 2.5) | {"java": version.replace('"', "")}
    show(args, "caffeine", markdown(cells, about), about, cells)


if __name__ == "__main__":
    main()
