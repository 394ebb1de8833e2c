#!/usr/bin/env python3
"""All Rust tests, several programs at a time: scripts/rust_tests.py [--jobs N] [-- ARGUMENTS OF EACH PROGRAM]

Cargo runs one test program after the other, and many of them wait more than they compute. This has cargo build them and
say which they are, and runs as many at a time as there are processors, those that take longest first; the tests in
documentation, which cargo alone can run, are one of them. What a program says is printed when it has ended, in one
piece. Ctrl-C and `kill` end all that runs.

Never reads what the tests say: scripts/test.sh counts. Invariant: ends with 0 only if every program did.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARGO = ROOT / "scripts" / "cargo"
BUILD = ("test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics")
DOCUMENTATION = ("test", "--workspace", "--locked", "--no-fail-fast", "--doc")
# Begun first: whatever takes long and begins last is waited for by one processor while the other has nothing to do.
LONGEST = (
    "study",
    "undercroft_porttest",
    "simulation",
    "undercroft_study",
    "replay",
    "planted",
    "undercroft_engine",
    "ssd",
    "core",
    "undercroft_daemon",
    "backends",
    "nbd",
    "control_api",
    "tidy",
    "golden",
    "allocations",
    "laboratory",
    "fenced_order",
    "cli",
)


class Ended(Exception):
    """Ctrl-C was pressed, or the script was told to end by `kill`."""


def programs(messages):
    """(name, program, folder of its package) of each test program that cargo's messages name, in the order in which
    they are run. Cargo runs a test in the folder of its package, too."""
    found = []
    for line in messages.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message.get("profile", {}).get("test"):
            found.append((message["target"]["name"], message["executable"], str(Path(message["manifest_path"]).parent)))
    return sorted(found, key=lambda one: (LONGEST.index(one[0]) if one[0] in LONGEST else len(LONGEST), one))


class Running:
    """What runs, so that it can be ended."""

    def __init__(self):
        self.processes = set()
        self.ending = False

    def run(self, title, command, folder, environment=None):
        """Runs a program to its end and prints what it said. Returns whether it ended with 0."""
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            if self.ending:
                return False
            # A group of its own, so that what a test has started ends with it.
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes.add(process)
            if self.ending:
                self.end(process)
            status = process.wait()
            self.processes.discard(process)
            said.seek(0)
            wrong = "" if status == 0 else f"\nended with {status}: {title}\n"
            print(f"     Running {title}\n{said.read()}{wrong}", end="", flush=True)
        return status == 0

    def end(self, process):
        """Ends a program and all that it has started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end_all(self):
        """Ends all that runs, and begins nothing more."""
        self.ending = True
        for process in list(self.processes):
            self.end(process)


def run(work, jobs):
    """Runs all of (title, command, folder, environment), `jobs` at a time. Returns whether all ended with 0."""

    def ended(*_):
        raise Ended

    running = Running()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return all([done.result() for done in [pool.submit(running.run, *one) for one in work]])
        finally:
            running.end_all()


def main():
    p = argparse.ArgumentParser(
        prog="scripts/rust_tests.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="programs at a time (default: one for each processor)"
    )
    p.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for each program, after --: --skip NAME ...")
    a = p.parse_args()
    if a.jobs < 1:
        p.error("--jobs is at least 1")
    built = subprocess.run([CARGO, *BUILD], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        return built.returncode
    work = [("tests in documentation", [CARGO, *DOCUMENTATION], ROOT, None)]
    for name, program, folder in programs(built.stdout):
        title = f"{name} ({os.path.relpath(program, ROOT)})"
        work.append((title, [program, *a.arguments], folder, os.environ | {"CARGO_MANIFEST_DIR": folder}))
    try:
        return 0 if run(work, a.jobs) else 1
    except Ended:
        return 130


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # While cargo builds, which Ctrl-C ends as well.
        sys.exit(130)
