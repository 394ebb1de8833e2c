#!/usr/bin/python3
"""`make lab-locking`: processor caches with locked lines and victim buffers, by the thesis and beyond it.

Runs `undercroft lab` on the memory traces of ../shared, on programs that are traced here, and on the block traces of
../shared (cells `blocks-...`: the daemon's cache), keeps the results, and writes docs/results/locking.md with pictures,
and the same as locking.html. Nothing in it is a matter of time but the traces, which take minutes, the processor time
that `blocks-...` have beside their counts, and the cells `measured-...`, `boot-...` and `steady-...`, which put loads
on the daemon and want a quiet machine; the last two, which have guests, are left out unless they are asked for, need
root, and take half an hour each.
"""

import argparse
import json
import lzma
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locking import blocks, boot, cells, measured, measured_locks, page, plots, programs, report, steady  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.guest import ROOT  # noqa: E402
from rig.process import Stopped  # noqa: E402

EXAMPLES = """examples:
  make lab-locking
  make lab-locking LAB="--only 'sizes-(gzip|mp3)'"
  make lab-locking LAB="--only '^blocks-'"
  make lab-locking LAB="--report"
        writes tables and pictures again from the stored results
  make lab-locking LAB="--only boot-2ms"
        guests that boot at once on clones, with and without pins
  make lab-locking LAB="--only steady-"
        guests that read for a while, with locks and without
"""


def arguments(argv=None):
    """The command line."""
    p = argparse.ArgumentParser(
        prog="make lab-locking",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--only", metavar="REGEX", help="cells whose id matches this; --list shows the ids")
    p.add_argument("--list", action="store_true", help="list the cells and stop")
    p.add_argument("--report", action="store_true", help="run nothing: make tables and pictures of the stored results")
    p.add_argument(
        "--undercroft",
        type=Path,
        default=ROOT / "target" / "release" / "undercroft",
        metavar="PROGRAM",
        help="the program (default: target/release/undercroft)",
    )
    p.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "lab" / "locking",
        help="folder of programs, inputs and traces (default: build/lab/locking)",
    )
    results = ROOT / "docs" / "results"
    p.add_argument("--out", type=Path, default=results, help="folder of results (default: docs/results)")
    a = p.parse_args(argv)
    try:
        a.only = re.compile(a.only or "")
    except re.error as e:
        p.error(f"--only: '{a.only}' is no regular expression: {e}")
    return a


def load(path):
    """What is stored, by cell."""
    if not path.exists():
        return {}
    with lzma.open(path, "rt") as f:
        return json.load(f)


def save(path, data):
    """Stores it, whole at every moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    with lzma.open(beside, "wt", preset=6) as f:
        json.dump(data, f, separators=(",", ":"))
    beside.replace(path)


def measure(a, data, stored):
    """Runs all cells that are asked for."""
    lacks = programs.missing()
    if lacks:
        raise Stopped(f"these packages are missing: {' '.join(lacks)} (scripts/setup.sh locking)")
    if not programs.SHARED.is_dir():
        raise Stopped("the reference data are missing: they are expected in ../shared, beside the repository")
    a.work.mkdir(parents=True, exist_ok=True)
    known = programs.all_of(a.work)
    wanted = all_cells(known, a.work)
    if a.list:
        return print("\n".join(cell.id for cell in wanted))
    wanted = [cell for cell in wanted if a.only.search(cell.id) and (a.only.pattern or not has_guests(cell))]
    if any(has_guests(cell) for cell in wanted):
        become_root("lab-locking", "control groups and disks that wait")
    if any(isinstance(cell, cells.Cell) and cell.made for cell in wanted):
        cells.make_traces(a.undercroft, known, a.work / "traces", lambda line: print(line, flush=True))
    for n, cell in enumerate(wanted, 1):
        print(f"[{n}/{len(wanted)}] {cell.id}", flush=True)
        data[cell.id] = cell.run(a.undercroft, a.work)
        save(stored, data)
    return None


def has_guests(cell):
    """Whether it is one with guests."""
    return isinstance(cell, boot.Boot | steady.Steady)


def all_cells(known, work):
    """All cells, in order."""
    traces = work / "traces"
    simulated = cells.reference_cells() + cells.own_cells(known, traces) + cells.core_cells(known, traces)
    shared = programs.SHARED / "traces"
    timed = (measured.measured_cells, measured_locks.measured_locks_cells)
    other = [cell for cells_of in timed for cell in cells_of(shared / "memory")] + blocks.block_cells(shared / "block")
    return simulated + other + boot.boot_cells() + steady.steady_cells()


def main(argv=None):
    """See the head of the file."""
    a = arguments(argv)
    end_in_order()
    stored = a.out / "locking.json.xz"
    try:
        data = load(stored)
        if not a.report:
            measure(a, data, stored)
            if a.list:
                return 0
        pictures = plots.draw(data, a.out)
        text = report.markdown(data, [p.name for p in pictures])
        (a.out / "locking.md").write_text(text)
        (a.out / "locking.html").write_text(page.page(text, a.out))
        print(f"wrote {a.out / 'locking.md'}, and for browsers {a.out / 'locking.html'}")
    except KeyboardInterrupt:
        print("interrupted: cells that were done are kept", file=sys.stderr)
        return 130
    except Stopped as e:
        print(f"lab-locking: {e}", file=sys.stderr)
        return 1
    finally:
        give_back(a.out, a.work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
