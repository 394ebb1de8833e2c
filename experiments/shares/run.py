#!/usr/bin/python3
"""`make lab-shares`: how well shares follow the load, on a live daemon.

Experiments with `undercroft serve` over O_DIRECT images and the driver's clients over NBD, a kernel's build on file
systems that it serves (as root, where nbdfuse, loop devices and a compiler are), and the simulator beside them. Arms
that are compared run one after the other, again and again, so that what else the machine does meets all of them alike.
"""

import argparse
import fcntl
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exclusive.store import Store  # noqa: E402
from rig.command import end_in_order  # noqa: E402
from rig.guest import ROOT  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402
from rig.serving import host  # noqa: E402
from shares import plots, report  # noqa: E402
from shares.derivative import Derivative  # noqa: E402
from shares.experiment import Absent, Lab  # noqa: E402
from shares.kernel import Kernel  # noqa: E402
from shares.locality import Locality  # noqa: E402
from shares.perfile import PerFile, Tenth  # noqa: E402
from shares.phased import Phased  # noqa: E402
from shares.many import ManyDisks  # noqa: E402
from shares.simulated import Simulated  # noqa: E402

EXAMPLES = """examples:
  make lab-shares LAB="--quick"
        small stores, short runs, one of each arm; results under build/lab
  make lab-shares LAB="--only 'c|d' --repeat 5"
  make lab-shares LAB="--resume"
        takes up a run that was stopped; experiments that are complete stay as they are
  make lab-shares LAB="--report"
        writes tables and pictures again from the stored results
"""


def arguments(argv=None):
    p = argparse.ArgumentParser(
        prog="make lab-shares",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--quick", action="store_true", help="small and short, and one run of each arm: shows that it works")
    p.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="runs of each arm where arms are compared, a third as many for the phased load (default: 3; quick: 1)",
    )
    p.add_argument("--only", metavar="REGEX", help="experiments whose id begins with this; --list shows the ids")
    p.add_argument("--list", action="store_true", help="list the experiments and stop")
    p.add_argument("--resume", action="store_true", help="leave experiments that are complete as they are")
    p.add_argument(
        "--report", action="store_true", help="measure nothing: make tables and pictures of the stored results"
    )
    release = ROOT / "target" / "release"
    p.add_argument(
        "--undercroft",
        type=Path,
        default=release / "undercroft",
        metavar="PROGRAM",
        help="the program to measure (default: target/release/undercroft)",
    )
    p.add_argument(
        "--driver",
        type=Path,
        default=release / "undercroft-driver",
        metavar="PROGRAM",
        help="the clients (default: target/release/undercroft-driver)",
    )
    p.add_argument(
        "--simulator",
        type=Path,
        default=release / "examples" / "shares_table",
        metavar="PROGRAM",
        help="the simulator (default: target/release/examples/shares_table)",
    )
    p.add_argument(
        "--many-disks",
        type=Path,
        default=release / "examples" / "many_disks",
        metavar="PROGRAM",
        help="what reads from a thousand disks (default: target/release/examples/many_disks)",
    )
    p.add_argument(
        "--build",
        default="release",
        metavar="WORD",
        help="what kind of build the programs are, for the report (default: release)",
    )
    p.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "lab" / "shares",
        help="folder of images and logs (default: build/lab/shares)",
    )
    p.add_argument("--out", type=Path, help="folder of results (default: docs/results; quick: build/lab)")
    a = p.parse_args(argv)
    if a.repeat is not None and a.repeat < 1:
        p.error("--repeat: at least one run of each arm")
    try:
        a.only = re.compile(a.only or "")
    except re.error as e:
        p.error(f"--only: '{a.only}' is no regular expression: {e}")
    a.repeat = a.repeat or (1 if a.quick else 3)
    a.out = a.out or ROOT / ("build/lab" if a.quick else "docs/results")
    return a


def experiments(lab):
    """All of them, in order."""
    return [
        Locality(lab, "lru"),
        Locality(lab, "s3-fifo"),
        Derivative(lab),
        Phased(lab),
        PerFile(lab),
        Tenth(lab),
        Kernel(lab),
        Simulated(lab),
        ManyDisks(lab),
    ]


def write(store, out, screen):
    """Tables and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(store.data["cells"], out)
    text = out / "shares.md"
    text.write_text(
        report.full(store.data["cells"], [p.name for p in pictures if p.suffix == ".svg"]), encoding="utf-8"
    )
    for title, path in [("tables", text), ("raw results", store.path), *(("picture", p) for p in pictures)]:
        screen.say(f"{title}: {os.path.relpath(path)}")


def measure(experiment, store, repeat, facts):
    """All arms, one after the other, so many times."""
    screen = experiment.lab.screen
    store.begin(
        experiment.id,
        facts | {"title": experiment.title, "explains": experiment.explains(), "repeat": repeat} | experiment.numbers(),
    )
    runs, absent = {arm: [] for arm in experiment.arms}, set()
    for n in range(repeat):
        for arm, title in experiment.arms.items():
            if arm in absent:
                continue
            began = time.monotonic()
            try:
                runs[arm].append(experiment.run(arm))
                record = {"title": title, "runs": runs[arm]}
            except Absent as e:
                absent.add(arm)
                record = {"title": title, "absent": str(e), "where": e.where}
                screen.say(f"  {title}: not {e.where}: {e}")
            finally:
                screen.clear()
            store.add(experiment.id, arm, record)
            if arm not in absent:
                screen.say(f"  {title}, run {n + 1} of {repeat}: {time.monotonic() - began:.0f} s")
    store.finish(experiment.id)


def main():
    a = arguments()
    end_in_order()
    screen = Screen()
    # The programs run in folders of their own.
    lab = Lab(a.undercroft.resolve(), a.driver.resolve(), a.work.resolve(), screen, a.quick)
    Simulated.program, ManyDisks.program = a.simulator.resolve(), a.many_disks.resolve()
    chosen = [e for e in experiments(lab) if a.only.match(e.id)]
    if a.list or not chosen:
        print("\n".join(e.id for e in (chosen or experiments(lab))))
        return 0 if chosen else 2
    try:
        store = Store(a.out / "shares.json.xz")
        if not a.report:
            for program in (lab.undercroft, lab.driver):
                if not program.exists():
                    raise Stopped(
                        f"{program} is missing: cargo build --release -p undercroft -p undercroft-bench-driver"
                    )
            lab.work.mkdir(parents=True, exist_ok=True)
            lock = open(lab.work / ".lock", "w")  # noqa: SIM115 - held until the program ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Stopped(
                    f"another run works in {lab.work}: wait for it, or give this one a folder of its own by --work"
                ) from None
            facts = {"machine": host(), "build": a.build, "quick": a.quick}
            for e in chosen:
                if a.resume and store.done(e.id, list(e.arms), e.present()):
                    continue
                screen.say(f"{e.id}: {e.explains()}")
                measure(e, store, max(1, round(a.repeat * e.repeated)), facts)
        write(store, a.out, screen)
        return 0
    except (Stopped, ValueError, OSError) as e:
        screen.clear()
        print(f"lab: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("lab: stopped; nothing is left running; LAB=--resume goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
