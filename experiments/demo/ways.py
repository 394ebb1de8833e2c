#!/usr/bin/python3
"""Two real guests on clones of one image: on Undercroft, on cache=none and on the host page cache, at equal host memory.

Boots guests that read (and write) more than their own RAM holds, on each way of serving their disks in turn, and shows
what had to be read from the disk, how fast the guests went and what memory it took. All numbers are measured while it
runs; docs/decisions/0070-demo-and-measures.md says how, and what "equal" means.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import report  # noqa: E402
from rig import cgroup, guest as guests, serving  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.images import SHARED_SEED, Images, private_seed  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

MIB = 1 << 20


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = [w.key for w in serving.WAYS]
    p.add_argument("--ways", default=",".join(ways), help=f"which ways to compare, in order (default: {','.join(ways)})")
    p.add_argument("--guests", type=int, default=2, help="how many guests (default: 2)")
    p.add_argument("--memory", type=int, default=256, help="host memory that serving all disks may take, MiB (default: 256)")
    p.add_argument("--guest-ram", type=int, default=128, help="RAM of a guest, MiB (default: 128)")
    p.add_argument("--file", type=int, default=256, help="working set of a guest, MiB (default: 256)")
    p.add_argument("--alpha", type=float, default=0.9, help="skew of the Zipf distribution (default: 0.9)")
    p.add_argument("--write-percent", type=int, default=10, help="writes in the Zipf workload, %% (default: 10)")
    p.add_argument("--warm", type=int, default=60000, help="Zipf operations before measuring (default: 60000)")
    p.add_argument("--ops", type=int, default=60000, help="Zipf operations measured (default: 60000)")
    p.add_argument("--passes", type=int, default=1, help="sequential passes measured, after one to warm up (default: 1)")
    p.add_argument("--format", default="qcow2", choices=["qcow2", "raw"], help="format of the clones (default: qcow2)")
    p.add_argument("--policy", help="Undercroft's replacement policy (default: its own default)")
    p.add_argument("--out", type=Path, default=guests.ROOT / "build" / "demo-ways", help="folder for results (default: build/demo-ways)")
    a = p.parse_args()
    known = {w.key: w for w in serving.WAYS}
    unknown = [w for w in a.ways.split(",") if w not in known]
    if unknown:
        p.error(f"--ways: there is no '{unknown[0]}'; choose from {', '.join(known)}")
    if a.memory <= serving.PROGRAM_BYTES // MIB:
        p.error(f"--memory: {a.memory} is too little; {serving.PROGRAM_BYTES // MIB} MiB of it are for the program itself")
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


def run_workload(name, command, way, running, screen):
    """Runs one workload in all guests at once. Between warm-up and measuring all wait for each other."""
    barrier = threading.Barrier(len(running) + 1)

    def drive(index, guest):
        label = f"guest {index + 1}"
        result = None
        try:
            for event in guest.events(command(index)):
                if event["event"] == "progress":
                    share = event["done"] / event["of"]
                    screen.status(
                        label,
                        f"{way.title:16} {name:4} {event['phase']:9} {bar(share)} {event['mib_per_s']:6.1f} MiB/s, "
                        f"{event['cached_share']:4.0%} from its own RAM, else {event['disk_p50_us']:.0f} us",
                    )
                elif event["event"] == "ready":
                    barrier.wait()
                    barrier.wait()
                    guest.send("go")
                elif event["event"] == "done":
                    result = event
            barrier.wait()
        except BaseException:
            barrier.abort()
            raise
        return result

    with concurrent.futures.ThreadPoolExecutor(len(running)) as pool:
        futures = [pool.submit(drive, i, guest) for i, guest in enumerate(running)]
        try:
            barrier.wait()
            before = way.disk_reads()
            barrier.wait()
            barrier.wait()
            after, memory = way.disk_reads(), way.memory_used()
        except BaseException as e:
            # Guests that are still running would keep the pool waiting.
            barrier.abort()
            if not isinstance(e, threading.BrokenBarrierError):
                for guest in running:
                    guest.close()
                raise
            after = None
        finished = [f for f in futures if not isinstance(f.exception(), threading.BrokenBarrierError)]
        results = [f.result() for f in (finished if after is None else futures)]
    if after is None:
        raise Stopped(f"{way.title}: {name}: the guests did not finish together")
    return {"guests": results, "disk": {k: after[k] - before[k] for k in after}, "memory_bytes": memory}


def bar(share, width=20):
    full = round(share * width)
    return "#" * full + "." * (width - full)


def run_way(way, a, images, accel, screen):
    """Boots the guests on one way of serving and runs every workload."""
    screen.status("guests", f"{way.title:16} fresh images, nothing of them in the page cache")
    images.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(way)
        way.start([images.disk(i) for i in range(a.guests)])
        running = []
        for i in range(a.guests):
            running.append(
                stack.enter_context(
                    guests.Guest(
                        f"{way.key}-guest-{i + 1}", way.disk_args(i), a.out, a.guest_ram, accel, wrap=way.wrap_guest,
                        check=way.check,
                    )  # fmt: skip
                )
            )
        began = time.monotonic()
        for i, guest in enumerate(running):
            screen.status("guests", f"{way.title:16} booting guest {i + 1} of {a.guests}")
            guest.wait_ready()
            guest.run("mount -t ext4 -o noatime /dev/vda /mnt")
        way.guests_ready(running)
        screen.status("guests", f"{way.title:16} booted in {time.monotonic() - began:.0f} s ({running[0].kernel}, {accel})")
        results = {}
        for name, _, command in workloads(a):
            results[name] = run_workload(name, command, way, running, screen)
        for guest in running:
            guest.run("umount /mnt")
            guest.power_off()
        status = way.status() if hasattr(way, "status") else None
    screen.clear()
    return {"title": way.title, "explains": way.explains, "workloads": results, "status": status}


def main():
    a = arguments()

    end_in_order()
    became_guest = guests.ROOT / "build" / "guest"
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
        give_back(a.out, became_guest)


if __name__ == "__main__":
    sys.exit(main())
