#!/usr/bin/env python3
"""Compares two builds of Undercroft side by side, on hits or on all of `make bench`: `make bench-builds
BENCH_ARGS="--before PATH --after PATH"`.

Owns the turns of the two (A B B A ...): each build serves an image of its own, both daemons run all the time, and one
at a time is driven. What counts are ratios within a turn, after to before, and their spread. `--noise` puts the first
build in both places: what the ratios differ from 1 by then is what the machine can tell. Never writes results into the
repository.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

import compare
import peers
import table
from cells import MIB, Cell, Sizes, cells

SIZES = Sizes(image=128 * MIB, hot=96 * MIB, memory=192 * MIB)
STATES = tuple(dict.fromkeys(c.state for c in cells()))
# What is shown: title, key of a measurement, whether more of it is better.
SHOWN = [("IOPS", "iops", True), ("p99", "p99_us", False), ("CPU per I/O", "cpu_s_per_million", False)]


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--before", type=Path, required=True, metavar="PATH", help="a build of undercroft")
    p.add_argument(
        "--after",
        type=Path,
        metavar="PATH",
        help="the build that is compared with it (default: target/release/undercroft)",
    )
    p.add_argument("--noise", action="store_true", help="compare the first build with itself")
    p.add_argument("--turns", type=int, default=9, help="turns of each build on each cell (9)")
    p.add_argument("--seconds", type=float, default=1.0, help="of each turn (1)")
    p.add_argument(
        "--states",
        default="hits",
        metavar="LIST",
        help="of hits, misses, mixed (hits; 'hits,misses,mixed': the cells of make bench)",
    )
    p.add_argument("--only", default="", metavar="REGEX", help="cells whose key matches, such as vhost/hits/rand4k/qd1")
    p.add_argument(
        "--poll", default="50us", help="longest time that an idle worker polls (50us; 0us: it sleeps at once)"
    )
    a = p.parse_args()
    a.after = a.before if a.noise else a.after or Path(peers.UNDERCROFT)
    for program in (a.before, a.after, compare.DRIVER):
        if not program.exists():
            p.error(f"{program} is not there: make bench-builds builds the driver, and today's program")
    if a.turns < 1:
        p.error("--turns: at least one")
    states = a.states.split(",")
    for state in states:
        if state not in STATES:
            p.error(f"--states: '{state}' is none of {', '.join(STATES)}")
    try:
        a.cells = [c for c in cells() if c.state in states and re.search(a.only, c.key)]
    except re.error as e:
        p.error(f"--only: '{a.only}' is no regular expression: {e}")
    return a


def served_by(program: Path, protocol: str, poll: str) -> peers.Peer:
    """A build as a kind of server."""
    usual = peers.undercroft(protocol, poll)

    def command(directory: Path, image: Path, memory: int) -> list[str]:
        return [str(program.resolve()), *usual(directory, image, memory)[1:]]

    return peers.Peer(str(program), protocol, str(program.resolve()), command, ours=True)


def order(turn: int) -> tuple[int, int]:
    """Which build goes first in a turn: they change places, so that a machine that gets slower is no one's loss."""
    return (0, 1) if turn % 2 == 0 else (1, 0)


def take_turns(
    a: argparse.Namespace, placement: peers.Placement, servers: list[peers.Server], cell: Cell
) -> tuple[list[dict], list[dict]]:
    """What the two builds measured, turn by turn."""
    runs: tuple[list[dict], list[dict]] = ([], [])
    for turn in range(a.turns):
        for n in order(turn):
            runs[n].append(compare.measure(placement, servers[n], cell, SIZES, a.seconds, turn))
    return runs


def quarters(before: list[float], after: list[float]) -> tuple[float, float, float] | None:
    """The ratios of the turns: a quarter is below the first, half below the second, a quarter above the third; None if
    a value is missing."""
    if not before or any(b <= 0 for b in before):
        return None
    ratios = sorted(x / y for x, y in zip(after, before, strict=True))
    return ratios[len(ratios) // 4], statistics.median(ratios), ratios[-1 - len(ratios) // 4]


def row(cell: Cell, before: list[dict], after: list[dict]) -> str:
    """One line of the table: a measurement of the first build, and the ratios."""
    parts = [f"{cell.key:26}", f"{table.count(statistics.median(table.column(before, 'iops'))):>8}"]
    for _, key, _ in SHOWN:
        found = quarters(table.column(before, key), table.column(after, key))
        parts.append(f"{'-' if found is None else f'{found[1]:.3f} ({found[0]:.3f}-{found[2]:.3f})':>22}")
    return "".join(parts)


def main() -> int:
    """See the head of the file."""
    a = options()
    cores = sorted(os.sched_getaffinity(0))
    placement = peers.Placement(cores[0], cores[-1], compare.can_be_realtime() and len(cores) > 1)
    print(f"{a.turns} turns of {a.seconds:g} s; after to before: median of the turns (middle half of them)")
    print(f"{'':26}{'before':>8}" + "".join(f"{title:>22}" for title, _, _ in SHOWN))
    with tempfile.TemporaryDirectory(prefix="ucb", dir="/var/tmp") as place:
        images = [Path(place) / f"{n}.raw" for n in range(2)]
        for image in images:
            compare.make_image(image, SIZES.image)
        for protocol, cold in dict.fromkeys((c.protocol, c.state == "misses") for c in a.cells):
            servers: list[peers.Server] = []
            try:
                for n, program in enumerate((a.before, a.after)):
                    directory = Path(place) / f"{protocol}{n}{'cold' if cold else ''}"
                    memory = SIZES.memory_cold if cold else SIZES.memory
                    servers.append(served_by(program, protocol, a.poll).start(placement, images[n], memory, directory))
                    # Twice: policies that want a block to be asked for again before they keep it get that.
                    for _ in range(0 if cold else 2):
                        compare.drive(
                            placement,
                            servers[n],
                            ["--prefill", "--length", str(SIZES.hot), "--ops", "1", "--depth", "4"],
                        )
                for cell in (c for c in a.cells if (c.protocol, c.state == "misses") == (protocol, cold)):
                    print(row(cell, *take_turns(a, placement, servers, cell)), flush=True)
            except peers.Missing as e:
                print(f"builds: {e}", file=sys.stderr)
                return 1
            finally:
                for server in servers:
                    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
