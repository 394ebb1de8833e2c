#!/usr/bin/env python3
"""What was skipped, and why: scripts/skips.py count FILE | report FILE...

`count` prints how many tests a file of crates/skips names: Rust's harness counts them as passed. `report` reads such
files and pytest's logs (-rs) and prints every reason with its number of tests. With UNDERCROFT_NO_SKIPS set, as
continuous integration sets it, `report` fails on every reason that no line of .ci/permitted-skips matches.

Never decides what is skipped. Invariant: a test that was skipped for several reasons counts once, under the first.
"""

import os
import re
import sys
from pathlib import Path

PERMITTED = Path(__file__).resolve().parents[1] / ".ci" / "permitted-skips"
# A line of pytest's short summary: `SKIPPED [2] tests/test_x.py:24: reason`.
PYTEST = re.compile(r"^SKIPPED \[(\d+)\] (\S+?):(?:\d+:)? (.*)$")


def of_file(text):
    """(reason, number of tests) of one file, in the order in which they come."""
    found, seen = {}, set()
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 3:
            test = tuple(fields[:2])
            if test not in seen:
                seen.add(test)
                found[fields[2]] = found.get(fields[2], 0) + 1
        elif match := PYTEST.match(line):
            found[match[3]] = found.get(match[3], 0) + int(match[1])
    return found


def reasons(files):
    """The same of several files, most frequent first. A file that is not there has no skips."""
    found = {}
    for file in files:
        if Path(file).exists():
            for reason, tests in of_file(Path(file).read_text(errors="replace")).items():
                found[reason] = found.get(reason, 0) + tests
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def permitted(text):
    """The regular expressions of a list of permitted skips: one a line, `#` begins a comment."""
    lines = (line.strip() for line in text.splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def main(argv):
    if len(argv) < 3 or argv[1] not in ("count", "report"):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    found = reasons(argv[2:])
    if argv[1] == "count":
        print(sum(found.values()))
        return 0
    for reason, tests in found.items():
        print(f"skipped {tests}: {reason}")
    if not os.environ.get("UNDERCROFT_NO_SKIPS"):
        return 0
    allowed = permitted(PERMITTED.read_text(encoding="utf-8"))
    refused = [reason for reason in found if not any(a.fullmatch(reason) for a in allowed)]
    for reason in refused:
        print(f"not permitted to be skipped (UNDERCROFT_NO_SKIPS is set; .ci/permitted-skips): {reason}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
