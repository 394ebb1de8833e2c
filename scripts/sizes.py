#!/usr/bin/env python3
"""Lines of Rust in each crate at two commits: scripts/sizes.py BEFORE [AFTER], a table in Markdown.

AFTER is the working tree if it is not given. Tests are counted apart: files of tests, and what stands behind
`#[cfg(test)] mod tests {` in a file of the product, which is the last thing in it. The table of decision 0157 is what
this prints.

Owns the way to count. Never compiles anything. Invariant: every line of a Rust file below crates/ is counted once.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*arguments):
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def sources(commit):
    """(path, text) of every Rust file below crates/, at a commit or, without one, as it is now."""
    if commit is None:
        paths = [
            p for p in git("ls-files", "-co", "--exclude-standard", "crates/*.rs").splitlines() if (ROOT / p).is_file()
        ]
        return [(p, (ROOT / p).read_text(encoding="utf-8")) for p in paths]
    paths = [p for p in git("ls-tree", "-r", "--name-only", commit, "crates").splitlines() if p.endswith(".rs")]
    return [(p, git("show", f"{commit}:{p}")) for p in paths]


def tests_in(path, lines):
    """How many lines of a file are tests."""
    below = path.split("/", 2)[2]
    if not below.startswith("src/") or path.endswith("tests.rs") or "tests/" in below:
        return len(lines)
    for n, line in enumerate(lines):
        if (
            line.startswith("#[cfg(")
            and "test" in line
            and lines[n + 1 :]
            and lines[n + 1].startswith("mod ")
            and lines[n + 1].endswith("{")
        ):
            return len(lines) - n
    return 0


def sizes(commit):
    """Lines of each crate: those of the product, and those of tests."""
    product, tests = Counter(), Counter()
    for path, text in sources(commit):
        name, lines = path.split("/")[1], text.splitlines()
        of_tests = tests_in(path, lines)
        product[name] += len(lines) - of_tests
        tests[name] += of_tests
    return product, tests


def cell(lines, whole):
    """A number with its part of the whole."""
    return f"{lines:,} ({100 * lines / whole:.0f} %)" if lines else ""


def main(argv):
    if not 2 <= len(argv) <= 3 or argv[1].startswith("-"):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    (before, tests_before), (after, tests_after) = sizes(argv[1]), sizes(argv[2] if len(argv) > 2 else None)
    sums = [sum(part.values()) for part in (before, tests_before, after, tests_after)]
    print("| crate | before | its tests | after | its tests |\n|---|---:|---:|---:|---:|")
    for name in sorted(before.keys() | after.keys(), key=lambda name: (-after[name], -before[name])):
        tests = [f"{part[name]:,}" if name in part else "" for part in (tests_before, tests_after)]
        print(f"| `{name}` | {cell(before[name], sums[0])} | {tests[0]} | {cell(after[name], sums[2])} | {tests[1]} |")
    print(f"| all | {sums[0]:,} | {sums[1]:,} | {sums[2]:,} | {sums[3]:,} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
