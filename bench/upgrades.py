#!/usr/bin/env python3
"""How long nobody is served while one process of the daemon takes over from another. `make bench-upgrades`.

A disk under load (the project's driver, 8 reads and writes at a time) is upgraded several times, with an empty store,
with a RAM store that is full, and with an SSD store below it that is full as well. What is shown is the pause by the
daemon's log, the longest wait that the driver saw in any upgrade, and how much of what was cached still was.

Owns a scratch folder, and an image there with content (nothing but zeroes would take no memory). Invariant: the program
that takes over is the one that served.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers

GIB = 1 << 30
PAUSE = re.compile(r"nobody was served for ([0-9.]+)(µs|ms|s)\b")
UNITS = {"µs": 1e-3, "ms": 1.0, "s": 1e3}


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--rounds", type=int, default=5, help="upgrades of each cell (5)")
    p.add_argument("--ram", type=float, default=4, help="GiB of the RAM store (4)")
    p.add_argument("--ssd", type=float, default=10, help="GiB of the SSD store (10)")
    p.add_argument("--only", default="", metavar="REGEX", help="cells whose name matches, such as 'SSD' (all)")
    p.add_argument("--program", default=peers.UNDERCROFT, help="the undercroft to measure (target/release)")
    p.add_argument("--driver", default=str(Path(peers.UNDERCROFT).with_name("undercroft-driver")), help="its driver")
    p.add_argument("--scratch", type=Path, default=Path("/var/tmp"), help="where there is room for it (/var/tmp)")
    a = p.parse_args()
    for program in (a.program, a.driver):
        if not os.access(program, os.X_OK):
            p.error(f"{program} cannot be run: `make bench-upgrades` builds it")
    if not a.scratch.is_dir():
        p.error(f"--scratch: {a.scratch} is no folder")
    return a


class Daemon:
    """A daemon with one disk, whose process may become another."""

    def __init__(self, a: argparse.Namespace, directory: Path, image: Path, ssd: bool):
        self.program, self.log, self.socket = a.program, directory / "log", directory / "control.sock"
        self.disk = directory / "disk.sock"
        config = directory / "config.toml"
        below = f'[ssd]\npaths = ["{directory}/ssd"]\nsize = {int(a.ssd * GIB)}\nadmit = "all"\n' if ssd else ""
        memory = int(a.ram * GIB) + (int(a.ssd * GIB) // 300 if ssd else 0)
        config.write_text(
            f'[store]\nmemory = {memory}\nkeep = true\n{below}[daemon]\ncontrol = "{self.socket}"\n'
            f'runtime_dir = "{directory}"\nworkers = 1\n'
            f'[[disk]]\nname = "disk"\nimage = "{image}"\nformat = "raw"\nsocket = "{self.disk}"\nexclusive = "off"\n'
        )
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([self.program, "serve", config], stdout=log, stderr=log)
        while not self.disk.exists():
            if self.process.poll() is not None:
                sys.exit(self.log.read_text())
            time.sleep(0.05)

    def call(self, *words: str) -> str:
        done = subprocess.run(
            [self.program, *words, "--control", str(self.socket)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"undercroft {' '.join(words)}: {done.stderr}\n{self.log.read_text()}")
        return done.stdout

    def cached(self) -> tuple[int, int]:
        """Bytes in the RAM store, and in the SSD store."""
        status = json.loads(self.call("status", "--json"))
        below = json.loads(self.call("ssd", "--json"))["cached_bytes"] if "[ssd]" in self.config() else 0
        return status["disks"][0]["cache"]["cached_bytes"], below

    def config(self) -> str:
        return self.log.with_name("config.toml").read_text()

    def pid(self) -> int:
        return json.loads(self.call("status", "--json"))["pid"]

    def stop(self) -> None:
        os.kill(self.pid(), signal.SIGTERM)
        while self.disk.exists():
            time.sleep(0.05)


def image_of(path: Path, size: int) -> Path:
    """An image with content of which no two blocks are the same."""
    print(f"writing {size / GIB:.0f} GiB of content", flush=True)
    with open(path, "wb", buffering=0) as out:
        for _ in range(size >> 22):
            out.write(os.urandom(1 << 22))
        os.fsync(out.fileno())
    return path


def cell(a: argparse.Namespace, directory: Path, image: Path, length: int, ssd: bool) -> dict:
    """The upgrades of one cell: pauses and longest waits in ms, and the least part that was still cached."""
    directory.mkdir()
    daemon = Daemon(a, directory, image, ssd)
    pauses, waits, kept = [], [], 1.0
    try:
        if length:
            # From the end to the beginning once more, so that what was evicted first is below.
            for _ in range(2 if ssd else 1):
                fill = ["run", daemon.disk, "--ops", "1", "--prefill", "--length", str(length)]
                subprocess.run([a.driver, *fill], check=True, stdout=subprocess.DEVNULL)
        for _ in range(a.rounds):
            load = ["--write-percent", "10", "--depth", "8", "--block", "4KiB", "--seconds", "4"]
            where = ["--length", str(max(length, GIB))]
            running = subprocess.Popen(
                [a.driver, "run", daemon.disk, *load, *where], stdout=subprocess.PIPE, text=True
            )
            time.sleep(1.5)
            before = daemon.cached()
            daemon.call("upgrade")
            after = daemon.cached()
            kept = min([kept, *(now / was for now, was in zip(after, before, strict=True) if was > GIB // 4)])
            report = json.loads(running.communicate()[0])
            if running.returncode or report["errors"]:
                sys.exit(f"the load failed: {report}")
            waits.append(report["latency_us"]["max"] / 1000)
            amount, unit = PAUSE.findall(daemon.log.read_text())[-1]
            pauses.append(float(amount) * UNITS[unit])
    finally:
        daemon.stop()
    return {"pauses": pauses, "waits": waits, "kept": kept, "cached": before}


def main() -> int:
    """Prints the table."""
    a = options()
    ram, ssd = int(a.ram * GIB), int(a.ssd * GIB)
    cells = [("empty", 0, False), (f"RAM {a.ram:g} GiB", ram, False)]
    if ssd:
        cells.append((f"RAM {a.ram:g} GiB, SSD {a.ssd:g} GiB", ram + ssd, True))
    cells = [of for of in cells if re.search(a.only, of[0])]
    if not cells:
        sys.exit(f"--only: no cell matches '{a.only}'; there are 'empty', 'RAM ...' and 'RAM ..., SSD ...'")
    with tempfile.TemporaryDirectory(dir=a.scratch, prefix="undercroft-upgrades-") as scratch:
        folder = Path(scratch)
        image = image_of(folder / "image.raw", max(length for _, length, _ in cells) + GIB // 2)
        print(f"load before: {os.getloadavg()[0]:.1f}; {a.rounds} upgrades each; median (least to most)\n")
        print("| store | cached: RAM, SSD | nobody is served, ms | longest wait, ms | still cached, at least |")
        print("|---|---|---:|---:|---:|")
        for n, (name, length, has_ssd) in enumerate(cells):
            r = cell(a, folder / str(n), image, length, has_ssd)
            shown = [
                f"{statistics.median(of):.0f} ({min(of):.0f} to {max(of):.0f})" for of in (r["pauses"], r["waits"])
            ]
            cached = ", ".join(f"{b / GIB:.1f} GiB" for b in r["cached"])
            print(f"| {name} | {cached} | {shown[0]} | {shown[1]} | {r['kept'] * 100:.1f} % |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
