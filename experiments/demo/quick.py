#!/usr/bin/python3
"""`make demo-quick`: the comparison of `make demo` in seconds, with the benchmark's driver in place of guests.

Two drivers read two raw images over vhost-user-blk, Zipf and then sequentially, and compare every byte with a copy.
There is no guest, hence no guest's page cache in front: what the host's cache holds is all that is ever hit.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import report  # noqa: E402
from rig import cgroup, process, serving  # noqa: E402
from rig.command import become_root, end_in_order, give_back  # noqa: E402
from rig.guest import ROOT  # noqa: E402
from rig.images import drop_cached  # noqa: E402
from rig.process import Stopped  # noqa: E402
from rig.screen import Screen  # noqa: E402

MIB = 1 << 20
DRIVER = ROOT / "target" / "release" / "undercroft-driver"
WAYS = [serving.DirectDaemon, serving.PageCache, serving.Undercroft]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--memory", type=int, default=128, help="host memory that serving both disks may take, MiB (default: 128)"
    )
    p.add_argument("--file", type=int, default=256, help="size of each disk, MiB (default: 256)")
    p.add_argument("--theta", type=float, default=0.9, help="skew of the Zipf distribution (default: 0.9)")
    p.add_argument(
        "--ops", type=int, default=60000, help="operations measured, and as many to warm up (default: 60000)"
    )
    p.add_argument("--out", type=Path, default=ROOT / "build" / "demo-quick", help="folder for results")
    return p.parse_args()


def make_images(folder, count, size):
    """`count` pairs (disk, copy to compare with) of random bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(folder / f"disk-{i + 1}.raw", folder / f"copy-{i + 1}.raw") for i in range(count)]
    for pair in pairs:
        for path in pair:
            if not (path.exists() and path.stat().st_size == size):
                break
        else:
            continue
        with open(pair[0], "wb") as disk, open(pair[1], "wb") as copy:
            for _ in range(size // MIB):
                piece = os.urandom(MIB)
                disk.write(piece)
                copy.write(piece)
    return pairs


def drive(socket, copy, options):
    """Runs the driver and returns its report in the form that a guest's has."""
    argv = [DRIVER, "run", socket, "--verify", copy, "--depth", "4", *options]
    done = json.loads(process.run(argv, "undercroft-driver"))
    if done["fault"] or done["errors"]:
        raise Stopped(f"the driver on {socket} met an error: {done['fault'] or done['errors']}")
    read = done["operations"] * int(options[options.index("--block") + 1])
    latency = done["read_latency_us"]
    return {
        "seconds": done["seconds"],
        "reads": done["operations"],
        "writes": 0,
        "read_bytes": read,
        "cached_bytes": 0,
        "read_disk": {
            "count": latency["count"],
            "mean_us": latency["mean"],
            "p50_us": latency["p50"],
            "p99_us": latency["p99"],
        },
        "device": {"read_ios": done["operations"], "read_bytes": read},
    }


def run_way(way, a, pairs, workloads, screen):
    for disk, _ in pairs:
        drop_cached(disk)
    results = {}
    with way, ThreadPoolExecutor(len(pairs)) as pool:
        way.start([disk for disk, _ in pairs])
        for name, (_, warm, measured) in workloads.items():

            def all_of(options, seed):
                jobs = [
                    pool.submit(drive, way.socket(i), copy, [*options, "--seed", str(seed + i)])
                    for i, (_, copy) in enumerate(pairs)
                ]
                return [job.result() for job in jobs]

            screen.status("drivers", f"{way.title:16} {name:4} warming up")
            all_of(warm, 1)
            screen.status("drivers", f"{way.title:16} {name:4} measuring")
            before = way.disk_reads()
            done = all_of(measured, 101)
            after = way.disk_reads()
            results[name] = {
                "guests": done,
                "disk": {k: after[k] - before.get(k, 0) for k in after},
                "memory_bytes": way.memory_used(),
            }
    screen.clear()
    return {"title": way.title, "explains": way.explains, "workloads": results, "status": None}


def main():
    a = arguments()
    end_in_order()
    screen = Screen()
    began = time.monotonic()
    try:
        become_root("demo", "a memory control group of equal size for each")
        pairs = make_images(a.out / "images", 2, a.file * MIB)
        random = ["--pattern", "zipf", "--theta", str(a.theta), "--block", "4096", "--ops", str(a.ops)]
        scan = ["--pattern", "seq", "--block", "65536", "--ops", str(a.file * MIB // 65536)]
        workloads = {
            "zipf": (f"Zipf {a.theta}, 4 KiB, {a.file} MiB a disk", random, random),
            "seq": (f"sequential, 64 KiB, {a.file} MiB a disk, again", scan, scan),
        }
        heading = f"2 drivers at depth 4 on disks of {a.file} MiB; host memory for serving them: {a.memory} MiB"
        screen.say(heading)
        ways = {}
        for kind in WAYS:
            screen.say(f"{kind.title}: {kind.explains}")
            ways[kind.key] = run_way(kind(a.memory * MIB, a.out, image_format="raw"), a, pairs, workloads, screen)
        results = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "host": serving.host(),
            "parameters": {k: v for k, v in vars(a).items() if k != "out"},
            "heading": heading,
            "workloads": {name: text for name, (text, _, _) in workloads.items()},
            "ways": ways,
        }
        (a.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        screen.say()
        screen.say(report.table(results))
        plots = report.plot(results, a.out)
        screen.say(f"every byte was compared; {time.monotonic() - began:.0f} s in all")
        for title, path in [("numbers", a.out / "results.json"), *(("picture", p) for p in plots), ("logs", a.out)]:
            screen.say(f"{title}: {os.path.relpath(path)}")
        return 0
    except (Stopped, cgroup.Unavailable, subprocess.SubprocessError) as e:
        screen.clear()
        print(f"demo: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.clear()
        print("demo: stopped; nothing is left running", file=sys.stderr)
        return 130
    finally:
        with contextlib.suppress(OSError):
            give_back(a.out)


if __name__ == "__main__":
    sys.exit(main())
