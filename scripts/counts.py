#!/usr/bin/env python3
"""The numbers that the documents quote, from what they count: scripts/counts.py [--write | --list]

A number in a document that says how many of something there are stands between two marks, which Markdown does not show:
`<!-- n:planted-bugs -->29<!-- /n -->`. Without arguments this checks every mark and names those that are wrong,
`--write` puts in what is right, `--list` prints all names with their values. tests/test_counts.py fails while a
document is wrong.

Owns the ways to count. Never measures: a figure of a run comes from the file of that run's results. Invariant: a name
that no way to count is known for, or a source that no longer looks as expected, is an error, never an empty number.
"""

import json
import lzma
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "SPECIFICATION.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/results/*.md",
)
MARK = re.compile(r"(<!-- n:([a-z0-9-]+) -->)(.*?)(<!-- /n -->)")


class Unknown(Exception):
    """A number that cannot be told; the message names it and what to look at."""


def source(path, pattern):
    """What the first group of `pattern` matches in a file, once and only once."""
    found = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    if len(found) != 1:
        raise Unknown(f"{path} has {len(found)} places like {pattern!r}: scripts/counts.py wants one")
    return found[0]


def whole(path, pattern):
    """The same as a number; `_` may stand between digits."""
    return int(source(path, pattern).replace("_", ""))


def minutes(path, pattern):
    """The same, of seconds, which are whole minutes."""
    seconds = whole(path, pattern)
    if seconds % 60:
        raise Unknown(f"{path} has {seconds} seconds where documents speak of minutes: have them speak of seconds")
    return seconds // 60


def length(path, kind, name="ALL"):
    """The length of a Rust constant array."""
    return whole(path, rf"pub const {name}: \[{kind}; (\d+)\]")


def rows(path):
    """The rows of a table of policies."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return len(re.findall(r'^    \w+\(\w+::\w+\) = "', text, re.MULTILINE))


def ratio(results, protocol, work, row="undercroft"):
    """The median ratio of IOPS to the reference, of one row of a table of `make bench`."""
    text = (ROOT / "bench/results" / results).read_text(encoding="utf-8")
    section = (
        text.partition(f"\n## {protocol}\n")[2]
        .partition("\n## ")[0]
        .partition(f"\n### {work}\n")[2]
        .partition("\n### ")[0]
    )
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1] == row and (found := re.search(r"\d+\.\d+", cells[3])):
            return found[0]
    raise Unknown(f"bench/results/{results} has no row {row!r} for {protocol}, {work}")


def in_short(work, column):
    """The median of a column in the first table of the benchmark: a ratio to the reference."""
    text = (ROOT / "bench/results/latest.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = next(([cell.strip() for cell in line.split("|")] for line in lines if column in line), [])
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if heads and cells[1] == f"vhost-user: {work}":
            if found := re.search(r"\d+\.\d+", cells[heads.index(column)]):
                return found[0]
    raise Unknown(f"the first table of bench/results/latest.md has no {column!r} of {work!r}")


def local_operations(load):
    """What an exclusive cache does of an inclusive one's operations on a disk without delay, with its spread."""
    text = (ROOT / "docs/results/exclusive.md").read_text(encoding="utf-8")
    text = text.partition("# Part 1")[2].partition("\n# Part 2")[0]
    found = re.findall(rf"^\| {load}, zeroing \| 0.5 \| local \|.*\| ([\d.]+x \([^|]*\)) \|", text, re.MULTILINE)
    if len(found) != 1:
        raise Unknown(f"docs/results/exclusive.md has {len(found)} rows of several runs for {load} on a local disk")
    return found[0]


def requests_per_kick(cell, row):
    """Requests for each time that a server had to be notified of them, the median of its turns in `make bench`: servers
    that are awake need not be."""
    results = json.loads(lzma.decompress((ROOT / "bench/results/latest.json.xz").read_bytes()))
    for found in results["cells"]:
        if found["key"] == cell and (runs := found["servers"].get(row, {}).get("runs")):
            return f"{1 / statistics.median(r['kicks_per_io'] for r in runs):.1f}"
    raise Unknown(f"bench/results/latest.json.xz has no {row!r} in {cell}")


def saved(load, arm):
    """What an arm saved beside a zeroing guest at N = 0.5, with its spread: cells measured three times (part 1)
    only."""
    text = (ROOT / "docs/results/exclusive.md").read_text(encoding="utf-8")
    section = (
        text.partition(f"\n### {load}\n")[2].partition("\n#")[0]
        if "# Part 1" in text.partition(f"\n### {load}\n")[0]
        else ""
    )
    rows = [
        [cell.strip().strip("*") for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    if rows and arm not in rows[0]:
        return "not measured yet"
    for row in rows[1:]:
        if row[:2] == ["zeroing", "0.5"] and "(" in row[rows[0].index(arm)]:
            return row[rows[0].index(arm)]
    raise Unknown(f"docs/results/exclusive.md has no cell of several runs for {load}, {arm}, N = 0.5")


def content_bytes():
    """What is kept of a block where contents are known, besides the rest."""
    limits = "crates/cache/src/limits.rs"
    return whole(limits, r"SLOT_CONTENT_BYTES_MAX: usize = (\d+);") + whole(limits, r"SLOT_CONTENT_BYTES_MAX \+ (\d+);")


def metadata_bytes():
    """What is kept of a block but for that."""
    return whole("crates/cache/src/limits.rs", r"METADATA_BYTES_PER_BLOCK_MAX: usize = (\d+);")


def kill_rounds(which):
    """Rounds of kill -9, and of those at length."""
    return int(source("tests/test_kill.py", r"^ROUNDS = (.*)$").split()[0 if which == "long" else -1])


def shown(number):
    """A number as people write it."""
    return f"{number:,}" if isinstance(number, int) else str(number)


# Numbers where a mark would be seen: (file, what stands around it, name).
PLAIN = (
    ("CHANGELOG.md", r"synth; (\d+) formats\)", "trace-formats"),
    ("CONTRIBUTING.md", r"(\d+) seeds of the simulation", "seeds-check"),
    ("CONTRIBUTING.md", r"(\d+) kill -9, ", "kill-rounds-long"),
    ("CONTRIBUTING.md", r"(\d+) minutes of fuzzing a target", "fuzz-minutes-long"),
    ("Makefile", r"(\d+) seeds of the simulation", "seeds-check"),
    ("Makefile", r"(\d+) kill -9, ", "kill-rounds-long"),
    ("Makefile", r"(\d+) min of fuzzing a target", "fuzz-minutes-long"),
)
VHOST, WIDE = "vhost-user-blk", "{} KiB sequential, depth 8, read, all hits"
RANDOM = "4 KiB random, depth {}, read, all hits"
COUNTS = {
    "seeds": lambda: whole("crates/testkit/tests/simulation.rs", r'"SEEDS"\)\.unwrap_or\((\d+)\)'),
    "seeds-check": lambda: whole("Makefile", r"^\tSEEDS=(\d+) \$\(CARGO\) test "),
    "steps": lambda: whole("crates/testkit/tests/simulation.rs", r'"STEPS"\)\.unwrap_or\(([\d_]+)\)'),
    "planted-bugs": lambda: length("crates/cache/src/fault_injection.rs", "Bug"),
    "planted-bugs-ports": lambda: length("crates/frontend/src/faults.rs", "PortBug"),
    "seeds-ports": lambda: whole("crates/porttest/src/sim/tests.rs", r"^const SEEDS: u64 = (\d+);$"),
    "steps-ports": lambda: whole("crates/porttest/src/sim/tests.rs", r"^const STEPS: u64 = (\d+);$"),
    "planted-bugs-elsewhere": lambda: (
        whole("crates/testkit/tests/planted.rs", r"ELSEWHERE: \[Bug; (\d+)\]")
        + whole("crates/testkit/tests/ssd.rs", r"RARE: \[Bug; (\d+)\]")
    ),
    "damaged-images": lambda: whole("crates/backend/tests/backends/qcow2_damage.rs", r"^const CASES: usize = (\d+);$"),
    "kill-rounds": lambda: kill_rounds("usual"),
    "kill-rounds-long": lambda: kill_rounds("long"),
    "fuzz-changed": lambda: whole("fuzz/tests/replay.rs", r"^const CHANGED: \[u64; 2\] = \[([\d_]+), [\d_]+\];$"),
    "fuzz-seconds-long": lambda: whole("scripts/test.sh", r"^    fuzz_seconds=(\d+)$"),
    "fuzz-minutes-long": lambda: minutes("scripts/test.sh", r"^    fuzz_seconds=(\d+)$"),
    "fuzz-targets": lambda: len(re.findall(r"^\[\[bin\]\]", (ROOT / "fuzz/Cargo.toml").read_text(), re.MULTILINE)),
    "policies": lambda: rows("crates/engine/src/policy/served/mod.rs"),
    "policies-all": lambda: sum(rows(f"crates/engine/src/policy/{of}/mod.rs") for of in ("served", "studied")),
    "trace-formats": lambda: len(
        re.findall(r"^    \w+ => \w+::\w+,$", (ROOT / "crates/trace/src/format/mod.rs").read_text(), re.MULTILINE)
    ),
    "decisions": lambda: len(list((ROOT / "docs/decisions").glob("[0-9]*.md"))),
    "metadata-bytes": metadata_bytes,
    "content-bytes": content_bytes,
    "metadata-and-content-bytes": lambda: metadata_bytes() + content_bytes(),
    "bench-cells": lambda: (ROOT / "bench/results/latest.md").read_text(encoding="utf-8").count("\n### "),
    "saved-uniform-exclusive": lambda: saved("uniform", "exclusive"),
    "saved-uniform-inclusive": lambda: saved("uniform", "inclusive"),
    "saved-uniform-default": lambda: saved("uniform", "page cache, host's read-ahead"),
    "saved-uniform-linux": lambda: saved("uniform", "page cache, 128 KiB read-ahead"),
    "saved-uniform-no-ahead": lambda: saved("uniform", "page cache, no read-ahead"),
    "saved-zipf-exclusive": lambda: saved("Zipf .99", "exclusive"),
    "saved-zipf-inclusive": lambda: saved("Zipf .99", "inclusive"),
    "saved-zipf-default": lambda: saved("Zipf .99", "page cache, host's read-ahead"),
    "saved-zipf-linux": lambda: saved("Zipf .99", "page cache, 128 KiB read-ahead"),
    "saved-zipf-no-ahead": lambda: saved("Zipf .99", "page cache, no read-ahead"),
    "local-uniform": lambda: local_operations("uniform"),
    "local-zipf": lambda: local_operations("Zipf .99"),
    "wide-hits-64k": lambda: ratio("latest.md", VHOST, WIDE.format(64)),
    "wide-hits-256k": lambda: ratio("latest.md", VHOST, WIDE.format(256)),
    "hits-depth-1": lambda: ratio("latest.md", VHOST, RANDOM.format(1)),
    "hits-depth-1-polling": lambda: ratio("latest.md", VHOST, RANDOM.format(1), "undercroft, polling 50us"),
    "hits-depth-8": lambda: ratio("latest.md", VHOST, RANDOM.format(8)),
    "kicks-depth-8": lambda: requests_per_kick("vhost/hits/rand4k/qd8", "undercroft"),
    "kicks-depth-8-peer": lambda: requests_per_kick("vhost/hits/rand4k/qd8", "qemu-storage-daemon writeback"),
    "hits-depth-32": lambda: ratio("latest.md", VHOST, RANDOM.format(32)),
    "hits-depth-8-polling": lambda: in_short(RANDOM.format(8), "IOPS, polling"),
    **{f"cpu-depth-{d}": lambda d=d: in_short(RANDOM.format(d), "CPU per I/O") for d in (1, 8, 32)},
    **{f"p99-depth-{d}": lambda d=d: in_short(RANDOM.format(d), "p99") for d in (1, 8, 32)},
}


def value(name):
    """What a mark of this name has to hold."""
    if name not in COUNTS:
        raise Unknown(f"nothing is known by the name {name}: scripts/counts.py --list has the names")
    return shown(COUNTS[name]())


def corrected(text, plain=()):
    """A document with every number as it is now, and what was wrong: (text, [(name, had, wants)]). `plain` are patterns
    and names of numbers without marks."""
    wrong = []
    for pattern, name in plain:
        found = re.search(pattern, text)
        if not found:
            raise Unknown(f"nothing is like {pattern!r}, where {name} should stand: change PLAIN in scripts/counts.py")
        now = value(name)
        if found[1] != now:
            wrong.append((name, found[1], now))
            text = text[: found.start(1)] + now + text[found.end(1) :]

    def put(match):
        now = value(match[2])
        if match[3] != now:
            wrong.append((match[2], match[3], now))
        return match[1] + now + match[4]

    return MARK.sub(put, text), wrong


def documents():
    """All that may have marks or other numbers."""
    return [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]


def plain_of(path):
    """Patterns and names of the numbers without marks in a file."""
    return [(pattern, name) for file, pattern, name in PLAIN if ROOT / file == path]


def main(argv):
    if argv[1:] not in ([], ["--write"], ["--list"]):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    try:
        if argv[1:] == ["--list"]:
            print("\n".join(f"{name} {value(name)}" for name in COUNTS))
            return 0
        status = 0
        for path in documents():
            text, wrong = corrected(path.read_text(encoding="utf-8"), plain_of(path))
            for name, had, wants in wrong:
                print(f"{path.relative_to(ROOT)}: {name} is {wants}, not {had}")
            if wrong and argv[1:]:
                path.write_text(text, encoding="utf-8")
            elif wrong:
                status = 1
        if status:
            print("scripts/counts.py --write puts them right")
        return status
    except Unknown as e:
        print(f"counts: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
