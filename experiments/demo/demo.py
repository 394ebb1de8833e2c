#!/usr/bin/python3
"""`make demo`: what the host's memory saves beside a real guest that caches for itself.

Boots one guest after the other, each with a disk larger than it can keep in its own RAM and the same amount of host memory:
without a host cache, on the host page cache, on Undercroft as an ordinary (inclusive) cache, and on Undercroft exclusive of
the guest. Shows which part of what the guest read the disk did not have to deliver. All numbers are measured while it runs;
docs/decisions/0100-laboratory.md says how.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exclusive import arms, cells, derive, plots  # noqa: E402
from exclusive.loads import LOADS  # noqa: E402
from exclusive.session import Session  # noqa: E402
from exclusive.store import Store  # noqa: E402
from rig import cgroup, guest as guests  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

MIB = 1 << 20
SHOWN = ["direct", "default", "undercroft-off", "undercroft-auto"]
EXAMPLES = """examples:
  make demo
  make demo DEMO_ARGS="--loads zipf --n 0.25"
  make demo DEMO_ARGS="--arms direct,default,fadvise,undercroft-lru,undercroft-off,undercroft-auto --long"
  make demo DEMO_ARGS=--ways
        then, too: two guests on clones, with writes, on three ways of serving (experiments/demo/ways.py has more options)
"""


def arguments(argv=None):
    p = argparse.ArgumentParser(
        prog="make demo", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    loads = [key for key, load in LOADS.items() if load.style == "grid"]
    p.add_argument("--loads", default="uniform,zipf", help=f"of {','.join(loads)} (default: %(default)s)")
    p.add_argument("--n", type=float, default=0.5, help="host cache over guest RAM (default: %(default)s)")
    p.add_argument("--arms", default=",".join(SHOWN), help=f"of {','.join(arms.ARMS)} (default: %(default)s)")
    p.add_argument("--guest-memory", type=int, default=192, metavar="MIB", help="RAM of the guest (default: 192)")
    p.add_argument("--no-zeroing", action="store_true", help="a guest that does not zero pages when it allocates them")
    p.add_argument("--long", action="store_true", help="longer runs, in which caches settle, as make lab-exclusive has them")
    p.add_argument("--ways", action="store_true", help="then compare ways of serving clones to two guests, with writes")
    p.add_argument("--out", type=Path, default=guests.ROOT / "build" / "demo", help="folder for results (default: build/demo)")
    a = p.parse_args(argv)
    for what, known in (("loads", loads), ("arms", list(arms.ARMS))):
        chosen = [name for name in getattr(a, what).split(",") if name]
        for name in chosen:
            if name not in known:
                p.error(f"--{what}: there is no '{name}'; choose from {', '.join(known)}")
        setattr(a, what, chosen)
    if not 0 < a.n <= 16:
        p.error("--n: the host cache is between 0 and 16 times the guest's RAM")
    a.cells = [cells.Cell(load, not a.no_zeroing, False, a.n, a.guest_memory, not a.long) for load in a.loads]
    for cell in a.cells:
        if why := LOADS[cell.load].check(cell):
            p.error(why)
    return a


def bar(share, width=30):
    """A share of 1 as a bar; what is below 0 has none."""
    return "#" * round(max(0.0, share) * width)


def table(cell):
    """One cell for the terminal."""
    lines = [cell["explains"][0].upper() + cell["explains"][1:]]
    lines.append(f"{'':20}{'guest read':>12}{'from the disk':>15}{'saved':>9}{'host memory':>13}")
    for key, record in cell["arms"].items():
        if "absent" in record:
            lines.append(f"{record['title']:20}not in this build")
            continue
        f = derive.figures(record)
        memory = "-" if f["memory_bytes"] is None else f"{f['memory_bytes'] / MIB:,.0f} MiB"
        share = f["saved"]
        lines.append(
            f"{record['title']:20}{f['asked_bytes'] / MIB:>8,.0f} MiB{f['backend_bytes'] / MIB:>11,.0f} MiB"
            f"{derive.percent(share):>9}{memory:>13}  {bar(share or 0)}"
        )
    perfect = derive.perfect(cell)
    if perfect is not None:
        lines.append(f"{'perfect (computed)':20}{'':>12}{'':>15}{derive.percent(perfect):>9}{'':>13}  {bar(perfect)}")
    return "\n".join(lines)


def main():
    a = arguments()
    end_in_order()
    screen = Screen()
    began = time.monotonic()
    try:
        become_root("demo", "a memory control group of equal size for each")
        a.out.mkdir(parents=True, exist_ok=True)
        results = a.out / "exclusive.json"
        results.unlink(missing_ok=True)
        store = Store(results)
        session = Session(guests.ROOT / "build" / "lab" / "work", store, screen)
        screen.say(
            f"one guest of {a.guest_memory} MiB ({session.accel}); host memory for its disk: {a.n:g} of that, "
            f"{a.cells[0].cache_bytes // MIB} MiB"
        )
        for cell in a.cells:
            screen.say(f"{LOADS[cell.load].title}: {LOADS[cell.load].explains(cell)}")
            session.run_cell(cell, a.arms)
        screen.say()
        for cell in store.data["cells"].values():
            screen.say(table(cell))
            screen.say()
        screen.say("Saved: of the bytes that the guest read, those that the disk did not deliver. Below 0: read-ahead that brought")
        screen.say("nothing. Every byte that the guest read was checked. Longer runs, all loads: make lab-exclusive")
        for note in derive.disagreements(store.data["cells"]):
            screen.say(f"note: {note}")
        pictures = plots.draw(store.data, a.out, name="demo")
        seconds = time.monotonic() - began
        screen.say(f"{seconds // 60:.0f} min {seconds % 60:.0f} s in all")
        for title, path in [("numbers", results), *(("picture", p) for p in pictures), ("logs", session.work)]:
            screen.say(f"{title}: {os.path.relpath(path)}")
    except (Stopped, cgroup.Unavailable) as e:
        screen.clear()
        print(f"demo: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("demo: stopped; nothing is left running", file=sys.stderr)
        return 130
    finally:
        give_back(a.out, guests.ROOT / "build" / "lab", guests.BUILT)
    if a.ways:
        return subprocess.run([sys.executable, Path(__file__).with_name("ways.py")], check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
