#!/usr/bin/python3
"""`make demo`: what the host's memory saves beside a real guest that caches for itself, and how much faster the guest
is for it.

Boots one guest after the other, each with a disk larger than it can keep in its own RAM and the same amount of host
memory: without a host cache, on the host page cache, on Undercroft as an ordinary (inclusive) cache, and on Undercroft
exclusive of the guest. Each is measured twice: while its disk is fast, and while the same disk is as slow as storage
behind a network. Shows which part of what the guest read the disk did not have to deliver, and the guest's operations a
second. All numbers are measured while it runs; docs/decisions/0187-bytes-and-time.md says how.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exclusive import arms, cells, derive, plots  # noqa: E402
from exclusive.loads import LOADS, Load  # noqa: E402
from exclusive.session import Session  # noqa: E402
from exclusive.store import Store  # noqa: E402
from rig import cgroup, guest as guests, slowdisk  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

MIB = 1 << 20
SHOWN = ["direct", "default-128", "undercroft-off", "undercroft-auto"]
# Waits of the fast disk and of the slow one.
WAITS_US = (0, 2000)
# Of each arm and disk: with four arms and two disks, 64 s of each load.
SECONDS = 8
EXAMPLES = """examples:
  make demo
  make demo DEMO_ARGS="--loads zipf --n 0.25"
  make demo DEMO_ARGS="--arms direct,default,default-128,default-off,undercroft-off,undercroft-auto --long"
  make demo DEMO_ARGS=--ways
        then, too: two guests on clones, with writes, on three ways of serving (experiments/demo/ways.py has more
        options)
"""


def arguments(argv=None):
    p = argparse.ArgumentParser(
        prog="make demo", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    loads = [key for key, load in LOADS.items() if isinstance(load, Load) and load.reads_only]
    known_arms = [key for key, arm in arms.ARMS.items() if not arm.scan]
    p.add_argument("--loads", default="uniform,zipf", help=f"of {','.join(loads)} (default: %(default)s)")
    p.add_argument("--n", type=float, default=0.5, help="host cache over guest RAM (default: %(default)s)")
    p.add_argument("--arms", default=",".join(SHOWN), help=f"of {','.join(known_arms)} (default: %(default)s)")
    p.add_argument("--guest-memory", type=int, default=192, metavar="MIB", help="RAM of the guest (default: 192)")
    p.add_argument("--no-zeroing", action="store_true", help="a guest that does not zero pages when it allocates them")
    p.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="how long each load is measured on each arm and disk (default: %(default)s)",
    )
    p.add_argument(
        "--long", action="store_true", help="longer warm-ups, in which caches settle, as make lab-exclusive has them"
    )
    p.add_argument("--ways", action="store_true", help="then compare ways of serving clones to two guests, with writes")
    p.add_argument(
        "--out", type=Path, default=guests.ROOT / "build" / "demo", help="folder for results (default: build/demo)"
    )
    a = p.parse_args(argv)
    for what, known in (("loads", loads), ("arms", known_arms)):
        chosen = [name for name in getattr(a, what).split(",") if name]
        for name in chosen:
            if name not in known:
                p.error(f"--{what}: there is no '{name}'; choose from {', '.join(known)}")
        setattr(a, what, chosen)
    if not 0 < a.n <= 16:
        p.error("--n: the host cache is between 0 and 16 times the guest's RAM")
    if not 1 <= a.seconds <= 3600:
        p.error("--seconds: from 1 to 3600")
    a.missing = slowdisk.lacks()
    waits = [None] if a.missing else WAITS_US
    a.cells = [
        cells.Cell(load, not a.no_zeroing, False, a.n, a.guest_memory, not a.long, wait)
        for load in a.loads
        for wait in waits
    ]
    # As many operations as it takes, until the time is over.
    a.timed = {load: replace(LOADS[load], seconds=a.seconds, ops=1000) for load in a.loads}
    for cell in a.cells:
        if why := LOADS[cell.load].check(cell):
            p.error(why)
    return a


def runs(demo_cells):
    """Cells in runs: a guest stays for all loads that have the same image."""
    found = {}
    for cell in demo_cells:
        load = LOADS[cell.load]
        found.setdefault((load.bytes(cell), load.pool), []).append(cell)
    return list(found.values())


def bar(share, width=20):
    """A share of 1 as a bar; what is below 0 has none."""
    return "#" * round(max(0.0, share) * width)


def table(fast, slow, keys):
    """One load for the terminal: stored cells of the fast disk and of the slow one (None: not run), and the arms that
    were to be run."""
    first = fast or slow
    lines = [first["explains"][0].upper() + first["explains"][1:]]
    lines.append(
        f"{'':32}{'guest read':>12}{'from the disk':>15}{'saved':>9}"
        f"{'ops/s, fast':>13}{'ops/s, slow':>13}{'host memory':>13}"
    )
    for key in keys:
        title = arms.ARMS[key].title
        records = [cell["arms"].get(key) if cell else None for cell in (fast, slow)]
        record = records[0] or records[1]
        if record is None:
            lines.append(f"{title:32}{'not run':>12}")
            continue
        if "absent" in record:
            lines.append(f"{title:32} not run: {record['absent']}")
            continue
        f = derive.figures(record)
        memory = "-" if f["memory_bytes"] is None else f"{f['memory_bytes'] / MIB:,.0f} MiB"
        rates = [f"{derive.figures(r)['ops_per_s']:,.0f}" if r else "not run" for r in records]
        lines.append(
            f"{title:32}{f['asked_bytes'] / MIB:>8,.0f} MiB{f['backend_bytes'] / MIB:>11,.0f} MiB"
            f"{derive.percent(f['saved']):>9}{rates[0]:>13}{rates[1]:>13}{memory:>13}  {bar(f['saved'] or 0)}"
        )
    perfect = derive.perfect(first)
    if perfect is not None:
        lines.append(f"{'perfect (computed)':32}{'':>12}{'':>15}{derive.percent(perfect):>9}{'':>39}  {bar(perfect)}")
    return "\n".join(lines)


def show(a, store, screen):
    """Tables and the picture of all that has been measured."""
    stored = store.data["cells"]
    screen.say()
    for load in a.loads:
        found = [stored.get(cell.id) for cell in a.cells if cell.load == load]
        found = [cell if cell and derive.measured_arms(cell) else None for cell in found]
        if not any(found):
            screen.say(f"{LOADS[load].title}: not run")
        else:
            screen.say(table(found[0], found[1] if len(found) > 1 else None, a.arms))
        screen.say()
    screen.say(
        "Saved: of the bytes that the guest read from the fast disk, those that the disk did not deliver. Below 0:"
        " read-ahead that"
    )
    screen.say(
        "brought nothing. Every byte that the guest read was checked. Longer runs, all loads: make lab-exclusive"
    )
    if a.missing:
        screen.say(f"The slow disk was not run: {'; '.join(a.missing)}")
    for note in derive.disagreements(stored):
        screen.say(f"note: {note}")
    most = max((cores for _, _, cores in derive.busy(stored)), default=None)
    if most:
        screen.say(
            f"note: this machine was busy with other work (up to {most:.1f} cores): speeds say little. Bytes do not"
            " depend on it."
        )
    heading = (
        f"A guest of {a.guest_memory} MiB, {a.cells[0].cache_bytes // MIB} MiB of host cache: bytes that the disk did"
        " not deliver, and the guest's speed"
    )
    pictures = plots.speed(
        plots.setup(), {n: c for n, c in stored.items() if derive.measured_arms(c)}, a.out, "demo", a.arms, heading
    )
    for title, path in [("numbers", store.path), *(("picture", p) for p in pictures)]:
        screen.say(f"{title}: {os.path.relpath(path)}")


def measure(a, screen):
    """All of it; what was measured until an error or Ctrl-C is shown."""
    a.out.mkdir(parents=True, exist_ok=True)
    results = a.out / "exclusive.json"
    for old in (results, *a.out.glob("demo*.svg"), *a.out.glob("demo*.png")):
        old.unlink(missing_ok=True)
    store = Store(results)
    try:
        session = Session(guests.ROOT / "build" / "lab" / "work", store, screen)
        screen.say(
            f"one guest of {a.guest_memory} MiB ({session.accel}); host memory for its disk: {a.n:g} of that, "
            f"{a.cells[0].cache_bytes // MIB} MiB; logs: {os.path.relpath(session.work)}"
        )
        for run in runs(a.cells):
            for load in dict.fromkeys(cell.load for cell in run):
                screen.say(f"{LOADS[load].title}: {LOADS[load].explains(run[0])}")
            session.run_cells(run, arms.on(a.arms, run[0]), loads=a.timed)
    finally:
        screen.clear()
        if any(derive.measured_arms(cell) for cell in store.data["cells"].values()):
            show(a, store, screen)


def main():
    a = arguments()
    end_in_order()
    screen = Screen()
    began = time.monotonic()
    try:
        become_root("demo", "a memory control group of equal size for each")
        measure(a, screen)
        seconds = time.monotonic() - began
        screen.say(f"{seconds // 60:.0f} min {seconds % 60:.0f} s in all")
    except (Stopped, cgroup.Unavailable) as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; nothing is left running", file=sys.stderr)
        return 130
    finally:
        give_back(a.out, guests.ROOT / "build" / "lab", guests.BUILT)
    if a.ways:
        return subprocess.run([sys.executable, Path(__file__).with_name("ways.py")], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
