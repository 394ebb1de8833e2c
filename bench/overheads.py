#!/usr/bin/env python3
"""What a hit pays for what is done beside it: contents held once, and a recording; with `--against PROGRAM`, also what
it pays beside another build of the daemon. `make bench-overheads`.

One daemon for each arm, each with an image of its own that is read from RAM; random 4 KiB reads over vhost-user, in
turns (A B A B ...); what counts is the ratio of operations a second within a turn, and of the daemon's CPU time for an
operation, other threads included. The first arm stands twice: what its two daemons differ by is noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import compare
import peers
from cells import MIB

MEMORY = 192 * MIB
HOT = 96 * MIB
# name, lines for [store], whether it is recorded, another program than today's
ARMS = [
    ("contents held once", "", False, None),
    ("the same again", "", False, None),
    ("contents not compared", "deduplicate = false", False, None),
    ("recorded", "", True, None),
]


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--turns", type=int, default=12, help="turns of every arm at every depth (12)")
    p.add_argument("--seconds", type=float, default=1.5, help="of each turn (1.5)")
    p.add_argument("--against", metavar="PROGRAM", help="another build of undercroft, as an arm beside today's alone")
    p.add_argument("--depths", default="1,32", help="operations under way (1,32)")
    p.add_argument(
        "--daemons", type=int, default=1, help="of every arm: where their memory lies is a matter of luck, too (1)"
    )
    args = p.parse_args()
    if args.daemons < 1 or args.turns < 1:
        p.error("--daemons and --turns are at least 1")
    return args


def arms(against: str | None) -> list[tuple[str, str, bool, str | None]]:
    """What is compared: the first with each of the others."""
    return [*ARMS[:2], ("the other program", "", False, against)] if against else ARMS


def command(store: str, program: str | None):
    """Undercroft, or another build of it, with more lines in [store]."""

    def configured(directory: Path, image: Path, memory: int) -> list[str]:
        words = peers.undercroft("vhost", "50us")(directory, image, memory)
        config = directory / "config.toml"
        config.write_text(config.read_text().replace("[store]", f"[store]\n{store}", 1))
        return [program or words[0], *words[1:]]

    return configured


def turn(
    placement: peers.Placement, server: peers.Server, depth: int, seconds: float, recorded: bool
) -> tuple[float, float]:
    """Operations a second, and the daemon's CPU microseconds for each."""
    recorder = None
    if recorded:
        words = [peers.UNDERCROFT, "record", str(server.directory / "trace.parquet"), "--force", "--max-size", "4GiB"]
        recorder = subprocess.Popen(
            [*words, "--control", str(server.directory / "control.sock")], stdout=subprocess.DEVNULL
        )
    words = ["--depth", depth, "--length", HOT, "--seconds", seconds, "--pid", server.pid]
    report = compare.drive(placement, server, [str(word) for word in words])
    if recorder:
        recorder.terminate()
        recorder.wait()
    return report["iops"], report["server"]["cpu_s_per_million"]


def line(name: str, depth: int, own: list[tuple[float, float]], first: list[tuple[float, float]]) -> str:
    """What an arm had, beside the first one: its processor time in the median, in the faster quarter, and at least."""
    ratios = sorted(a[0] / b[0] for a, b in zip(own, first))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    cpu = statistics.median(a[1] / b[1] for a, b in zip(own, first))
    rate = statistics.median(f[0] for f in own)
    middle, spread = statistics.median(ratios), f"{low:.3f} to {high:.3f}"
    took = sorted(f[1] for f in own)
    times = f"{statistics.median(took):.2f}, {took[len(took) // 4]:.2f}, {took[0]:.2f}"
    return f"{name:28}{depth:>6}{rate:>10,.0f}{middle:>8.3f}{spread:>20}{cpu:>11.3f}{times:>22}"


def main() -> int:
    """See the head of the file."""
    args = options()
    for program in (Path(peers.UNDERCROFT), compare.DRIVER, *([Path(args.against)] if args.against else [])):
        if not program.exists():
            sys.exit(f"overheads: {program} is not there: make bench-overheads builds ours")
    cores = sorted(os.sched_getaffinity(0))
    placement = peers.Placement(cores[0], cores[-1], False)
    compared = arms(args.against) * args.daemons
    with tempfile.TemporaryDirectory(prefix="uco", dir="/var/tmp") as place:
        servers = []
        try:
            for n, (name, store, _, program) in enumerate(compared):
                image = Path(place) / f"{n}.raw"
                compare.make_image(image, 2 * HOT)
                peer = peers.Peer(name, "vhost", peers.UNDERCROFT, command(store, program), ours=True)
                servers.append(peer.start(placement, image, MEMORY, Path(place) / str(n)))
                compare.drive(
                    placement,
                    servers[-1],
                    ["--pattern", "seq", "--block", "64KiB", "--length", str(HOT), "--ops", str(HOT >> 16)],
                )
            head = f"{'':28}{'depth':>6}{'ops/s':>10}{'ratio':>8}{'between quarters':>20}"
            print(f"{head}{'CPU ratio':>11}{'CPU us':>22}")
            for depth in map(int, args.depths.split(",")):
                figures = [[] for _ in compared]
                for _ in range(args.turns):
                    for n, (_, _, recorded, _) in enumerate(compared):
                        figures[n].append(turn(placement, servers[n], depth, args.seconds, recorded))
                # Those of all daemons of an arm, beside those of the first arm's daemon of the same number.
                of_arms = len(compared) // args.daemons
                for arm in range(of_arms):
                    own, first = (
                        [f for daemon in figures[n::of_arms] for f in daemon] for n in (arm, 0)
                    )
                    print(line(compared[arm][0], depth, own, first), flush=True)
        finally:
            for server in servers:
                server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
