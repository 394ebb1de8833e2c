#!/usr/bin/env python3
"""What many disks cost a daemon on which nothing happens: threads, memory, start, idle processor time. `make
bench-disks`.

Owns the sparse images and the daemons that it starts, one at a time. `--against PATH` runs another build in turns with
this one (A B B A ...), on the same images and the same configuration. Each figure is the median of the repetitions,
with the least and the most. Memory is what the process has resident when it is ready, with a store that is empty;
processor time and wake-ups are what all of its threads together had while nobody asked for anything. Writes
docs/results/disks.md with `--write` alone.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results/disks.md"
READY_WITHIN_S = 120.0
# Key, title, unit, format, what is wanted for 1,000 disks.
SHOWN = [
    ("threads", "threads", "", ".0f", 64.0),
    ("rss_mib", "resident memory", " MiB", ".0f", 200.0),
    ("start_s", "start until ready", " s", ".2f", 1.5),
    ("idle_percent", "processor time when idle", " %", ".2f", 0.5),
    ("wakeups_per_s", "wake-ups per second when idle", "", ".1f", None),
    ("descriptors", "descriptors", "", ".0f", None),
    ("stop_s", "end after SIGTERM", " s", ".2f", None),
]


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument(
        "--program",
        type=Path,
        default=Path(os.environ.get("UNDERCROFT_PROGRAM", ROOT / "target/release/undercroft")),
        metavar="PATH",
    )
    p.add_argument("--against", type=Path, metavar="PATH", help="another build, run in turns with this one")
    p.add_argument("--disks", type=int, default=1000, help="raw disks with a socket each (1000)")
    p.add_argument("--size", type=int, default=1024, help="MiB of each disk, a sparse file (1024)")
    p.add_argument("--memory", default="16GiB", help="of the store (16GiB)")
    p.add_argument("--repetitions", type=int, default=5, help="of each build (5)")
    p.add_argument("--idle", type=float, default=10.0, metavar="SECONDS", help="for which it is left alone (10)")
    p.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    p.add_argument("--json", action="store_true", help="the figures as JSON")
    a = p.parse_args()
    for program in filter(None, (a.program, a.against)):
        if not program.exists():
            p.error(f"{program} is not there: make bench-disks builds today's program")
    if min(a.disks, a.size, a.repetitions) < 1 or a.idle <= 0:
        p.error("disks, size, repetitions and idle: more than 0")
    return a


def configuration(place: Path, a: argparse.Namespace) -> tuple[Path, Path]:
    """The disks; the file that names them, and the directory of their sockets."""
    # Where sockets usually are: a file system in memory.
    sockets = Path(tempfile.mkdtemp(prefix="ucd", dir="/dev/shm" if Path("/dev/shm").is_dir() else place))
    toml = f'[store]\nmemory = "{a.memory}"\n[daemon]\ncontrol = "{place}/c.sock"\nruntime_dir = "{place}"\n'
    for n in range(a.disks):
        image = place / f"{n}.raw"
        with open(image, "wb") as file:
            file.truncate(a.size << 20)
        toml += f'[[disk]]\nname = "d{n}"\nimage = "{image}"\nformat = "raw"\nsocket = "{sockets}/{n}.sock"\n'
    path = place / "undercroft.toml"
    path.write_text(toml)
    return path, sockets


def tasks(pid: int) -> tuple[int, float, int]:
    """Threads of a process, seconds of processor time that they have had, and how often they went to sleep."""
    seconds, sleeps = 0.0, 0
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        seconds += int((thread / "schedstat").read_text().split()[0]) / 1e9
        status = (thread / "status").read_text()
        sleeps += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return len(threads), seconds, sleeps


def resident_mib(pid: int) -> float:
    """MiB of memory that a process has resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def run(program: Path, config: Path, place: Path, a: argparse.Namespace) -> dict[str, float]:
    """One life of a daemon."""
    notify = place / "notify"
    notify.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as says, open(place / "log", "wb") as log:
        says.bind(str(notify))
        says.settimeout(READY_WITHIN_S)
        start = time.monotonic()
        daemon = subprocess.Popen(
            [program, "serve", config], stdout=log, stderr=log, env={**os.environ, "NOTIFY_SOCKET": str(notify)}
        )
        try:
            while b"READY=1" not in says.recv(4096):
                pass
            figures = {"start_s": time.monotonic() - start, "rss_mib": resident_mib(daemon.pid)}
            figures["descriptors"] = len(os.listdir(f"/proc/{daemon.pid}/fd"))
            # What belongs to the start has a moment to end.
            time.sleep(2)
            begin, (_, seconds, sleeps) = time.monotonic(), tasks(daemon.pid)
            time.sleep(a.idle)
            passed, (threads, seconds_after, sleeps_after) = time.monotonic() - begin, tasks(daemon.pid)
            figures |= {"threads": threads, "idle_percent": (seconds_after - seconds) / passed * 100}
            figures["wakeups_per_s"] = (sleeps_after - sleeps) / passed
            figures["rss_mib"] = max(figures["rss_mib"], resident_mib(daemon.pid))
        except TimeoutError:
            sys.exit(f"disks: the daemon does not serve: {(place / 'log').read_text()[-4000:]}")
        finally:
            begin = time.monotonic()
            daemon.terminate()
            daemon.wait(60)
        figures["stop_s"] = time.monotonic() - begin
    return figures


def row(runs: list[dict[str, float]], key: str, unit: str, form: str) -> str:
    """A figure with its spread."""
    values = [r[key] for r in runs]
    middle, low, high = (format(x, form) for x in (statistics.median(values), min(values), max(values)))
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low} to {high})"


def table(a: argparse.Namespace, builds: list[Path], runs: list[list[dict[str, float]]]) -> str:
    """The figures as a table of Markdown."""
    heads = ["", *(["this build"] if len(builds) == 1 else ["this build", "before"]), "wanted"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for key, title, unit, form, wanted in SHOWN:
        cells = [row(r, key, unit, form) for r in runs]
        lines.append(
            f"| {title} | {' | '.join(cells)} |"
            f" {f'at most {wanted:g}{unit}' if wanted is not None and a.disks == 1000 else ''} |"
        )
    return "\n".join(lines)


def main() -> int:
    """See the head of the file."""
    a = options()
    builds = [a.program, *([a.against] if a.against else [])]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    runs: list[list[dict[str, float]]] = [[] for _ in builds]
    with tempfile.TemporaryDirectory(prefix="ucd", dir="/var/tmp") as directory:
        config, sockets = configuration(Path(directory), a)
        for repetition in range(a.repetitions):
            for n in range(len(builds)) if repetition % 2 == 0 else reversed(range(len(builds))):
                runs[n].append(run(builds[n], config, Path(directory), a))
                if not a.json:
                    print(f"{builds[n]}: {' '.join(f'{k}={v:.2f}' for k, v in runs[n][-1].items())}", flush=True)
    shutil.rmtree(sockets)
    if a.json:
        print(json.dumps(dict(zip(map(str, builds), runs, strict=True)), indent=1))
        return 0
    text = table(a, builds, runs)
    print(text)
    if a.write:
        kernel = platform.release().split("-")[0]
        RESULTS.write_text(
            f"# What {a.disks:,} disks cost\n\n`make bench-disks` ({(__doc__ or '').split(': ', 1)[0].lower()}):"
            f" {a.disks:,} sparse raw disks of {a.size:,} MiB with a vhost-user socket each, a store of {a.memory}, no"
            f" front end connected; {a.repetitions} repetitions in turns, medians with the least and the most. Linux"
            f" {kernel}, {os.cpu_count()} processors.\n\n{text}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
