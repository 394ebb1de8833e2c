#!/usr/bin/python3
"""Two real guests on clones of one image: on Undercroft, on cache=none and on the host page cache, at equal host
memory.

Boots guests that read (and write) more than their own RAM holds, on each way of serving their disks in turn, and shows
what had to be read from the disk, how fast the guests went and what memory it took. All numbers are measured while it
runs; docs/decisions/0070-demo-and-measures.md says how, and what "equal" means.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import report  # noqa: E402
from rig import cgroup, guest as guests, serving  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.fleet import Fleet  # noqa: E402
from rig.images import SHARED_SEED, Images, private_seed  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

MIB = 1 << 20


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = [w.key for w in serving.WAYS]
    p.add_argument(
        "--ways", default=",".join(ways), help=f"which ways to compare, in order (default: {','.join(ways)})"
    )
    p.add_argument("--guests", type=int, default=2, help="how many guests (default: 2)")
    p.add_argument(
        "--memory", type=int, default=256, help="host memory that serving all disks may take, MiB (default: 256)"
    )
    p.add_argument("--guest-ram", type=int, default=128, help="RAM of a guest, MiB (default: 128)")
    p.add_argument("--file", type=int, default=256, help="working set of a guest, MiB (default: 256)")
    p.add_argument("--alpha", type=float, default=0.9, help="skew of the Zipf distribution (default: 0.9)")
    p.add_argument("--write-percent", type=int, default=10, help="writes in the Zipf workload, %% (default: 10)")
    p.add_argument("--warm", type=int, default=60000, help="Zipf operations before measuring (default: 60000)")
    p.add_argument("--ops", type=int, default=60000, help="Zipf operations measured (default: 60000)")
    p.add_argument(
        "--passes", type=int, default=1, help="sequential passes measured, after one to warm up (default: 1)"
    )
    p.add_argument("--format", default="qcow2", choices=["qcow2", "raw"], help="format of the clones (default: qcow2)")
    p.add_argument("--policy", help="Undercroft's replacement policy (default: its own default)")
    p.add_argument(
        "--out",
        type=Path,
        default=guests.ROOT / "build" / "demo-ways",
        help="folder for results (default: build/demo-ways)",
    )
    a = p.parse_args()
    known = {w.key: w for w in serving.WAYS}
    unknown = [w for w in a.ways.split(",") if w not in known]
    if unknown:
        p.error(f"--ways: there is no '{unknown[0]}'; choose from {', '.join(known)}")
    if a.memory <= serving.PROGRAM_BYTES // MIB:
        p.error(
            f"--memory: {a.memory} is too little; {serving.PROGRAM_BYTES // MIB} MiB of it are for the program itself"
        )
    a.ways = [known[w] for w in a.ways.split(",")]
    return a


def workloads(a):
    """(name, what it is, command for guest `index`)."""
    size = f"--bytes {a.file * MIB} --device vda --wait"
    return [
        (
            "zipf",
            f"Zipf {a.alpha}, 4 KiB, {a.write_percent} % writes, {a.file} MiB of each guest's own",
            lambda i: f"workload zipf /mnt/private --seed {private_seed(i)} {size} --warm {a.warm} --ops {a.ops} "
            f"--alpha {a.alpha} --write-percent {a.write_percent} --rng {i + 7}",
        ),
        (
            "seq",
            f"sequential, {a.file} MiB of the shared base, again and again",
            lambda i: f"workload seq /mnt/shared --seed {SHARED_SEED} {size} --warm 1 --ops {a.passes}",
        ),
    ]


def run_way(way, a, images, accel, screen):
    """Boots the guests on one way of serving and runs every workload."""
    screen.status("guests", f"{way.title:16} fresh images, nothing of them in the page cache")
    images.reset()
    fleet = Fleet(way, a.out, a.guest_ram, accel, screen)
    with contextlib.ExitStack() as stack:
        fleet.start(stack, [images.disk(i) for i in range(a.guests)])
        for guest in fleet.guests:
            guest.run("mount -t ext4 -o noatime /dev/vda /mnt")
        results = {}
        for name, _, command in workloads(a):
            commands = [(guest, command(i)) for i, guest in enumerate(fleet.guests)]
            done, before, after = fleet.together(name, commands, lambda: (way.disk_reads(), way.memory_used()))
            disk = {key: after[0][key] - before[0][key] for key in after[0]}
            results[name] = {"guests": done, "disk": disk, "memory_bytes": after[1]}
        for guest in fleet.guests:
            guest.run("umount /mnt")
        fleet.power_off()
        status = way.status() if hasattr(way, "status") else None
    screen.clear()
    return {"title": way.title, "explains": way.explains, "workloads": results, "status": status}


def main():
    a = arguments()
    end_in_order()
    screen = Screen()
    try:
        become_root("demo", "a memory control group of equal size for each")
        began = time.monotonic()
        a.out.mkdir(parents=True, exist_ok=True)
        guests.build()
        accel = guests.accelerator()
        images = Images(a.out / "images", a.guests, a.file * MIB, a.format)
        images.prepare(accel, screen.say)
        heading = (
            f"{a.guests} guests of {a.guest_ram} MiB ({accel}), each with a working set of {a.file} MiB; "
            f"host memory for serving their disks: {a.memory} MiB"
        )
        screen.say(heading)
        options = f'policy = "{a.policy}"\n' if a.policy else ""
        ways = {}
        for kind in a.ways:
            extra = {"image_format": a.format} | ({"disk_options": options} if kind is serving.Undercroft else {})
            screen.say(f"{kind.title}: {kind.explains}")
            ways[kind.key] = run_way(kind(a.memory * MIB, a.out, **extra), a, images, accel, screen)
        results = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "host": serving.host() | {"accelerator": accel},
            "parameters": {k: v for k, v in vars(a).items() if k not in ("ways", "out")},
            "heading": heading,
            "workloads": {name: text for name, text, _ in workloads(a)},
            "ways": ways,
        }
        (a.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        screen.say()
        screen.say(report.table(results))
        plots = report.plot(results, a.out)
        seconds = time.monotonic() - began
        screen.say(f"every byte that the guests read was checked; {seconds // 60:.0f} min {seconds % 60:.0f} s in all")
        for title, path in [("numbers", a.out / "results.json"), *(("picture", p) for p in plots), ("logs", a.out)]:
            screen.say(f"{title}: {os.path.relpath(path)}")
        return 0
    except (Stopped, cgroup.Unavailable) as e:
        screen.clear()
        print(f"demo: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("demo: stopped; nothing is left running", file=sys.stderr)
        return 130
    finally:
        give_back(a.out, guests.BUILT)


if __name__ == "__main__":
    sys.exit(main())
