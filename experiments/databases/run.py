#!/usr/bin/python3
"""`make lab-stores`: what RAM and SSD stores below databases in containers are worth, on a slow disk.

PostgreSQL under pgbench and MariaDB under sysbench, alone and side by side, on Undercroft with RAM, SSD and both, on
the page cache with the same memory, and on nbdkit's cache filter on the same SSD; disks wait 1 and 8 ms before every
transfer. Then the SSD store by itself: hits beside raw reads of its file, recovery, a daemon that is killed. Writes
docs/results/stores.md, pictures and raw results.
"""

import argparse
import datetime
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from databases import below, cells, devices, plots, report, runner  # noqa: E402
from databases.containers import Podman  # noqa: E402
from databases.engines import ENGINES, PostgreSQL  # noqa: E402
from databases.masters import Masters  # noqa: E402
from exclusive.store import Store  # noqa: E402
from rig import cgroup, guest as guests, machine, mounted, readahead, slowdisk  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

ROOT = guests.ROOT
BUILT = ROOT / "target" / "release"
EXAMPLES = """examples:
  make lab-stores LAB="--quick"
        one size, short runs, three times each; results under build/lab
  make lab-stores LAB="--only postgresql --arms pagecache,ram,both,both-second --repeat 5"
        what one rule of admission changes: the arms named are measured again, in turn, and all others of those
        experiments are forgotten
  make lab-stores LAB="--only devices"
        the SSD store by itself
  make lab-stores LAB="--only devices --beside PATH"
        SSD hits of this build in turns with those of another one: nothing is stored
  make lab-stores LAB="--report"
        writes tables and pictures again from the stored results
"""


def options():
    """What the command line takes."""
    p = argparse.ArgumentParser(
        prog="make lab-stores", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("--quick", action="store_true", help="one size and short runs; results in build/lab")
    p.add_argument("--only", metavar="REGEX", default="", help="experiments whose id matches; --list shows the ids")
    p.add_argument("--arms", help=f"of {','.join(below.ARMS)} (default: all that an experiment has)")
    p.add_argument("--list", action="store_true", help="list the experiments and stop")
    p.add_argument("--resume", action="store_true", help="leave experiments that are complete as they are")
    p.add_argument("--report", action="store_true", help="measure nothing: tables and pictures of the stored results")
    p.add_argument("--repeat", type=int, metavar="K", help="run every arm K times, in turn (default: 3)")
    p.add_argument("--seconds", type=int, help="of each measured part (default: 15; quick: 6)")
    p.add_argument("--warm-up", type=int, metavar="SECONDS", help="without wait before it (default: 30; quick: 8)")
    p.add_argument("--data", type=int, metavar="MIB", help="size of each database (default: 192)")
    p.add_argument("--undercroft", type=Path, default=BUILT / "undercroft", help="the program to measure")
    p.add_argument("--beside", type=Path, metavar="PATH", help="compare SSD hits with those of another build")
    p.add_argument("--driver", type=Path, default=BUILT / "undercroft-driver", help="the benchmark's driver")
    p.add_argument("--ssd-cost", type=Path, default=BUILT / "examples" / "ssd_cost", help="the example that recovers")
    p.add_argument("--work", type=Path, default=ROOT / "build" / "lab" / "stores", help="folder of images and logs")
    p.add_argument("--out", type=Path, help="folder of results (default: docs/results; quick: build/lab)")
    return p


def arguments(argv=None):
    """What was asked for, checked."""
    p = options()
    a = p.parse_args(argv)
    try:
        a.only = re.compile(a.only)
    except re.error as e:
        p.error(f"--only: '{a.only}' is no regular expression: {e}")
    for arm in (a.arms or "").split(","):
        if a.arms and arm not in below.ARMS:
            p.error(f"--arms: there is no '{arm}'; choose from {', '.join(below.ARMS)}")
    a.repeat = 3 if a.repeat is None else a.repeat
    a.seconds = a.seconds or (6 if a.quick else 15)
    a.warm_up = a.warm_up or (8 if a.quick else 30)
    a.data = 192 if a.data is None else a.data
    if not 1 <= a.repeat <= 99:
        p.error("--repeat: from 1 to 99 times")
    if not 16 <= a.data <= 65536:
        p.error("--data: from 16 to 65536 MiB")
    if a.seconds < 1 or a.warm_up < 1:
        p.error("--seconds, --warm-up: at least 1")
    if a.beside and not os.access(a.beside, os.X_OK):
        p.error(f"--beside: {a.beside} is no program that can be run")
    a.out = a.out or ROOT / ("build/lab" if a.quick else "docs/results")
    return a


def version(*command):
    """What a program says of its version."""
    try:
        out = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "missing"
    found = re.search(r"\d+\.\d+(\.\d+)?", out.stdout + out.stderr)
    return found[0] if found else "unknown"


def peers():
    """Which of the kernel's own caches on SSDs there are, in words."""
    devices_text = Path("/proc/devices").read_text()
    has_mapper = "device-mapper" in devices_text or Path("/dev/mapper/control").exists()
    has_bcache = Path("/sys/fs/bcache").exists() or "bcache" in devices_text
    words = [f"{name}: {'there, not run' if has else 'not in this kernel'}"
             for name, has in (("device mapper (dm-cache)", has_mapper), ("bcache", has_bcache),
                               ("nbd", "nbd" in devices_text.split()))]  # fmt: skip
    return "Peers in the kernel: " + "; ".join(words) + "."


class Lab:
    """What is the same for all experiments of a run."""

    def __init__(self, a, screen):
        self.screen, self.is_quick = screen, a.quick
        self.undercroft, self.driver, self.ssd_cost = (p.resolve() for p in (a.undercroft, a.driver, a.ssd_cost))
        self.work, self.seconds, self.warm_up, self.data_mib = a.work.resolve(), a.seconds, a.warm_up, a.data
        self.turn_seconds = 2 if a.quick else 5
        self.cores = sorted(os.sched_getaffinity(0))
        self.podman = self.masters = None
        below.Undercroft.binary = self.undercroft
        self.work.mkdir(parents=True, exist_ok=True)
        # Held until the program ends: a run ends all containers of the folder.
        self.lock = open(self.work / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stopped(
                f"another run works in {self.work}: wait for it, or give this one a folder of its own by --work"
            ) from None

    def facts(self, a):
        """What was known before the first run."""
        versions = {
            "PostgreSQL": version((PostgreSQL.folder or Path("/nowhere")) / "postgres", "--version"),
            "MariaDB": version(mounted.program("mariadbd") or "mariadbd", "--version"),
            "sysbench": version("sysbench", "--version"), "nbdkit": version("nbdkit", "--version"),
            "Podman": version("podman", "--version"), "fio": version("fio", "--version"),
            "undercroft": version(self.undercroft, "--version"),
        }  # fmt: skip
        known = machine.facts(self.work, "none") | {"versions": versions, "peers": peers()}
        return {
            "machine": known, "commit": machine.commit(ROOT), "quick": a.quick, "repeat": a.repeat,
            "seconds": a.seconds, "warm_up": a.warm_up, "data_mib": a.data,
            "options": f"--repeat {a.repeat} --seconds {a.seconds:g} --warm-up {a.warm_up:g} --data {a.data}",
            "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        }  # fmt: skip


def of_cell(lab, store, cell, a, facts):
    """All arms of a cell, in turn."""
    store.begin(
        cell.id,
        facts | {
            "title": cell.title, "engines": list(cell.engines), "ram_bytes": cell.sizes.ram_bytes,
            "ssd_bytes": cell.sizes.ssd_bytes, "program_bytes": below.PROGRAM_BYTES * len(cell.engines),
            "base_bytes": {key: ENGINES[key].base_bytes for key in cell.engines}, "load_before": os.getloadavg()[0],
            "connections": below.CONNECTIONS,
        },
    )  # fmt: skip
    arms = [arm for arm in cell.arms if not a.arms or arm in a.arms.split(",")]
    run, runs = runner.Run(lab, cell), {arm: [] for arm in arms}
    for n in range(a.repeat):
        for arm in arms:
            began = time.monotonic()
            record = run.run(arm)
            runs[arm].append(record)
            store.add(cell.id, arm, {"title": below.ARMS[arm].title, "runs": runs[arm]})
            tps = ", ".join(
                f"{int(wait) // 1000} ms " + "/".join(f"{load['tps']:.0f}" for load in record[wait]["loads"])
                for wait in record if wait.isdigit()
            )  # fmt: skip
            title = f"{n + 1}/{a.repeat} {below.ARMS[arm].title}"
            lab.screen.say(f"  {title:52} transactions/s: {tps}  ({time.monotonic() - began:.0f} s)")
    store.finish(cell.id)


def of_devices(lab, store, a, facts):
    """The SSD store by itself."""
    missing = [str(path.name) for path in (lab.driver, lab.ssd_cost) if not path.exists()]
    if missing or not devices.has_fio():
        raise Stopped(f"missing: {', '.join(missing) or 'fio with io_uring'} (make lab-stores builds and installs it)")
    if a.beside:
        for line in devices.compare(lab, a.beside.absolute()):
            lab.screen.say(line)
        return
    store.begin("devices", facts | {"title": "the SSD store by itself", "load_before": os.getloadavg()[0]})
    store.add("devices", "hits", {"title": "hits and kills", "runs": [devices.measure(lab)]})
    store.add("devices", "recovery", {"title": "recovery", "runs": [devices.recovery(lab)]})
    store.finish("devices")
    lab.screen.clear()


def write(store, out, screen):
    """Tables and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(store.data, out)
    text = out / "stores.md"
    text.write_text(report.full(store.data, [p.name for p in pictures if p.suffix == ".svg"]), encoding="utf-8")
    for title, path in [("tables", text), ("raw results", store.path), *(("picture", p) for p in pictures)]:
        screen.say(f"{title}: {os.path.relpath(path)}")


def measure(a, store, screen, wanted):
    """Everything that was asked for."""
    become_root("lab", "containers, mounts and control groups")
    engines = {key for name in wanted for key in ENGINES if key in re.split(r"[+-]", name)}
    if missing := runner.lacks(engines) + slowdisk.lacks():
        raise Stopped("; ".join(dict.fromkeys(missing)))
    lab = Lab(a, screen)
    if not lab.undercroft.exists():
        raise Stopped(f"{lab.undercroft} is missing: cargo build --release -p undercroft")
    readahead.put_back()
    guests.build(is_guest=False)
    facts = lab.facts(a)
    mounted.private()
    with Podman(lab.work / "podman") as lab.podman:
        lab.masters = Masters(lab.work / "masters", lab.podman, a.data, screen.say)
        for name, run in wanted.items():
            if a.resume and store.data["cells"].get(name, {}).get("complete"):
                continue
            screen.say(f"{name}: {time.strftime('%H:%M')}, load average {os.getloadavg()[0]:.1f}")
            run(lab, store, a, facts)
            screen.clear()
    shutil.rmtree(lab.work / "images", ignore_errors=True)


def main():
    """Measures, or reads what was measured, and writes the results."""
    a = arguments()
    end_in_order()
    screen = Screen()
    wanted = {
        cell.id: lambda lab, store, a, facts, cell=cell: of_cell(lab, store, cell, a, facts)
        for cell in cells.grid(a.quick)
    } | {"devices": of_devices}
    wanted = {name: run for name, run in wanted.items() if a.only.search(name)}
    if a.list or not wanted:
        print("\n".join(wanted) or "lab: no experiment matches --only")
        return 0 if wanted else 2
    if a.beside and list(wanted) != ["devices"]:
        print("lab: --beside compares SSD hits alone: add --only devices", file=sys.stderr)
        return 2
    try:
        store = Store(a.out / "stores.json.xz")
        if not a.report:
            measure(a, store, screen, wanted)
        if not a.beside:
            write(store, a.out, screen)
        return 0
    except (Stopped, cgroup.Unavailable, ValueError, OSError) as e:
        screen.clear()
        print(f"lab: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("lab: stopped; nothing is left running; LAB=--resume goes on from here", file=sys.stderr)
        return 130
    finally:
        give_back(a.out, a.work)


if __name__ == "__main__":
    sys.exit(main())
