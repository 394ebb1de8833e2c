#!/usr/bin/python3
"""`make lab-exclusive`: what a host cache saves beside guests that cache for themselves, on real guests.

One run is a load x the guest's kernel x the size of the host cache x the disk, and in it all arms one after the other,
with the same host memory: O_DIRECT, the host page cache in a memory control group (with the host's read-ahead, Linux's
and none), the same with POSIX_FADV_DONTNEED again and again, Undercroft inclusive (LRU and its default policy) and
exclusive. What counts is bytes that the disk did not have to deliver, and the guest's operations a second.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exclusive import arms as arm_module, cells, derive, plots, report  # noqa: E402
from exclusive.loads import LOADS, USUAL  # noqa: E402
from exclusive.session import Session  # noqa: E402
from exclusive.store import Store  # noqa: E402
from rig import cgroup, guest as guests, serving, slowdisk  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

EXAMPLES = """examples:
  make lab-exclusive LAB="--quick"
        uniform and Zipf, zeroing guests, N = 0.25 and 0.5, short runs; results under build/lab
  make lab-exclusive LAB="--loads uniform,zipf --n 0.25,0.5 --zeroing on --mglru off"
  make lab-exclusive LAB="--resume"
        takes up a run that was stopped; cells that are complete stay as they are
  make lab-exclusive LAB="--loads uniform-long,zipf-long --n 0.5 --zeroing on --arms scanned --repeat 3"
        the arms with a scanner and those beside them, for a minute, three times each: median and spread
  make lab-exclusive LAB="--only 'seq-.*-n0.25' --arms direct,default,undercroft-auto --out build/try"
  make lab-exclusive LAB="--arms short --loads uniform,zipf --n 0.5 --zeroing on --mglru off \\
      --disks local,0.5ms,2ms --repeat 3"
        bytes and time on the local disk and on disks behind a network: what README shows
  make lab-exclusive LAB="--loads zipf --n 0.5 --zeroing on --mglru off --arms direct --out build/try \\
      --keep-transfers build/transfers"
        a guest's transfers, to try the engine on without guests
  make lab-exclusive LAB="--report"
        writes tables and pictures again from the stored results
"""
ROOT = guests.ROOT
SWITCH = {"on": [True], "off": [False], "both": [True, False]}


def listed(text, known, what, p):
    """A comma-separated list of names that are all known."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            p.error(f"--{what}: there is no '{name}'; choose from {', '.join(known)}")
    return names


def waits(text, p):
    """A comma-separated list of disks: `local`, or a wait such as 0.5ms."""
    found = []
    for name in text.split(","):
        number = re.fullmatch(r"(\d+(?:\.\d+)?)ms", name)
        if name != "local" and not (number and float(number[1]) <= 1000):
            p.error(f"--disks: '{name}' is neither 'local' nor a wait of at most 1000ms, such as 0.5ms")
        found.append(round(1000 * float(number[1])) if number else None)
    return found


def mib(text):
    """A size in MiB: `192MiB` or `192`."""
    number = text.removesuffix("MiB")
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a size in MiB, such as 192MiB")
    return int(number)


def options():
    """What the command line takes."""
    p = argparse.ArgumentParser(
        prog="make lab-exclusive",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--quick", action="store_true", help="few and short runs: shows that it works and which way it goes")
    p.add_argument("--loads", help=f"of {','.join(LOADS)} (default: all but *-long; quick: uniform,zipf)")
    p.add_argument("--n", help="sizes of the host cache over guest RAM (default: 0.25,0.5,1; quick: 0.25,0.5)")
    p.add_argument(
        "--zeroing", choices=SWITCH, help="guests that zero pages when they allocate them (default: both; quick: on)"
    )
    p.add_argument(
        "--mglru",
        choices=SWITCH,
        help="guests with MGLRU (default: both, MGLRU on zeroing guests with uniform and Zipf only; quick: off)",
    )
    p.add_argument(
        "--disks",
        default="local",
        help="of local, and of waits such as 0.5ms,2ms: a disk behind a network (default: %(default)s)",
    )
    p.add_argument(
        "--arms",
        default="usual",
        help=f"of {','.join(arm_module.ARMS)}, or one of the sets {', '.join(arm_module.SETS)} (default: %(default)s)",
    )
    p.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="K",
        help="run every arm of a cell K times, in turn: median and spread (default: 1)",
    )
    p.add_argument(
        "--guest-memory",
        type=mib,
        default=cells.USUAL_GUEST_MIB,
        metavar="SIZE",
        help="RAM of a guest (default: 192MiB)",
    )
    p.add_argument("--only", metavar="REGEX", help="cells whose id matches; --list shows the ids")
    p.add_argument("--list", action="store_true", help="list the cells and stop")
    p.add_argument("--resume", action="store_true", help="leave cells that are complete as they are")
    p.add_argument(
        "--report", action="store_true", help="measure nothing: make tables and pictures of the stored results"
    )
    p.add_argument(
        "--undercroft", type=Path, metavar="PROGRAM", help="the program to measure (default: target/release/undercroft)"
    )
    p.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "lab" / "work",
        help="folder of images and logs (default: build/lab/work)",
    )
    p.add_argument(
        "--keep-transfers",
        type=Path,
        metavar="FOLDER",
        help="keep what the arm `direct` logs of single transfers, of the last repetition (2 MB a disk): `cargo run"
        " --release -p undercroft-study --example transfer_log` lets caches of any size serve such a guest in a second",
    )
    p.add_argument("--out", type=Path, help="folder of results (default: docs/results; quick: build/lab)")
    return p


def arguments(argv=None):
    """What was asked for, checked, with the cells to measure."""
    p = options()
    a = p.parse_args(argv)
    loads = listed(a.loads or ("uniform,zipf" if a.quick else ",".join(USUAL)), LOADS, "loads", p)
    a.arms = arm_module.SETS.get(a.arms) or listed(a.arms, arm_module.ARMS, "arms", p)
    try:
        ns = [float(n) for n in (a.n or ("0.25,0.5" if a.quick else "0.25,0.5,1")).split(",")]
    except ValueError:
        p.error(f"--n: '{a.n}' is not a list of numbers such as 0.25,0.5")
    if any(not 0 < n <= 16 for n in ns):
        p.error("--n: the host cache is between 0 and 16 times a guest's RAM")
    if not 1 <= a.repeat <= 99:
        p.error("--repeat: from 1 to 99 times")
    zeroing = SWITCH[a.zeroing or ("on" if a.quick else "both")]
    mglru = SWITCH[a.mglru or ("off" if a.quick else "both")][::-1]
    in_grid = [load for load in loads if LOADS[load].style == "grid"]
    once = [load for load in loads if LOADS[load].style != "grid"]
    a.waits = waits(a.disks, p)
    found = cells.grid(in_grid, ns, zeroing, mglru, a.guest_memory, a.quick, waits=a.waits)
    # What cannot be measured behind a network is left out there.
    a.cells = [cell for cell in found if cell.wait_us is None or LOADS[cell.load].reads_only]
    # What company does is measured once, and what a scanner does.
    n = 0.5 if 0.5 in ns else ns[0]
    a.cells += [cells.Cell(load, zeroing[0], False, n, a.guest_memory, a.quick) for load in once if None in a.waits]
    a.cells = cells.chosen(a.cells, a.only, p.error)
    for cell in a.cells:
        why = LOADS[cell.load].check(cell)
        if why:
            p.error(f"{cell.id}: {why}")
    a.out = a.out or ROOT / ("build/lab" if a.quick else "docs/results")
    return a


def write(store, out, screen):
    """Tables and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw({"cells": report.pictured(store.data["cells"])}, out)
    text = out / "exclusive.md"
    text.write_text(report.full(store.data, [p.name for p in pictures if p.suffix == ".svg"]), encoding="utf-8")
    for title, path in [("tables", text), ("raw results", store.path), *(("picture", p) for p in pictures)]:
        screen.say(f"{title}: {os.path.relpath(path)}")


def main():
    a = arguments()
    if a.list:
        print("\n".join(cell.id for cell in a.cells))
        return 0
    end_in_order()
    screen = Screen()
    work = a.work.resolve()
    if a.undercroft:
        serving.Undercroft.binary = a.undercroft.resolve()
    try:
        if a.report:
            write(Store(a.out / "exclusive.json.xz"), a.out, screen)
            return 0
        become_root("lab", "a memory control group for each arm")
        store = Store(a.out / "exclusive.json.xz")
        session = Session(work, store, screen, a.keep_transfers)
        present = [key for key in a.arms if arm_module.present(key)]
        todo = [c for c in a.cells if not (a.resume and store.done(c.id, arm_module.on(a.arms, c), present, a.repeat))]
        if any(c.wait_us is not None for c in todo) and (missing := slowdisk.lacks()):
            raise Stopped(f"--disks: {'; '.join(missing)}")
        screen.say(
            f"{len(todo)} of {len(a.cells)} cells, {len(present)} of {len(a.arms)} arms each, guests of"
            f" {a.guest_memory} MiB ({session.accel}); about"
            f" {a.repeat * derive.minutes(store.data, todo, len(present)):.0f} minutes"
        )
        runs = cells.grouped(todo)
        for i, run in enumerate(runs):
            began = time.monotonic()
            screen.say(
                f"[{i + 1}/{len(runs)}] {', '.join(cell.id for cell in run)}: {LOADS[run[0].load].explains(run[0])}"
            )
            session.run_cells(run, arm_module.on(a.arms, run[0]), a.repeat)
            screen.say(f"  {time.monotonic() - began:.0f} s")
        write(store, a.out, screen)
        return 0
    except (Stopped, cgroup.Unavailable, ValueError) as e:
        screen.clear()
        print(f"lab: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("lab: stopped; nothing is left running; LAB=--resume goes on from here", file=sys.stderr)
        return 130
    finally:
        give_back(a.out, work, guests.BUILT)


if __name__ == "__main__":
    sys.exit(main())
