#!/usr/bin/env python3
"""Disks as files of the host: Undercroft beside qemu-storage-daemon's FUSE export, reads of what is in RAM.
`make bench-files`.

Each server has an image of its own, read whole before: Undercroft's hits are in its store, qemu-storage-daemon's in the
host's page cache. fio reads the file with O_DIRECT, servers in turns (A B A B ...), servers on one core and fio on
another; what counts is the ratio of operations a second within a turn. The first server stands twice: what its two
processes differ by is noise.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers
from cells import MIB

IMAGE = 128 * MIB
MEMORY = 192 * MIB
FILE = "disk.file"
# name, bytes of a read, depth, whether at random
CELLS = [
    ("4 KiB at random, depth 1", 4096, 1, True),
    ("4 KiB at random, depth 8", 4096, 8, True),
    ("128 KiB in order, depth 1", 128 << 10, 1, False),
    ("1 MiB in order, depth 8", 1 << 20, 8, False),
]


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--turns", type=int, default=9, help="turns of every server at every cell (9)")
    p.add_argument("--seconds", type=float, default=1.5, help="of each turn (1.5)")
    p.add_argument("--program", default=peers.UNDERCROFT, help="the undercroft to measure (target/release)")
    p.add_argument("--poll", default="50us", help="how long its worker polls at most (50us, the default)")
    return p.parse_args()


def undercroft(program: str, poll: str, directory: Path, image: Path) -> list[str]:
    """Undercroft with the image as a file."""
    config = directory / "config.toml"
    config.write_text(
        f"""
        [store]
        memory = {MEMORY}
        [daemon]
        control = "{directory}/control.sock"
        runtime_dir = "{directory}"
        workers = 1
        poll = "{poll}"
        [[disk]]
        name = "disk"
        image = "{image}"
        format = "raw"
        vhost_user = false
        fuse = "{directory}/{FILE}"
        """,
        encoding="utf-8",
    )
    return [program, "serve", str(config)]


def storage_daemon(directory: Path, image: Path) -> list[str]:
    """qemu-storage-daemon with the image as a file, through the host's page cache."""
    (directory / FILE).touch()
    return [
        "qemu-storage-daemon",
        *("--blockdev", f"driver=file,node-name=disk,filename={image},aio=io_uring,discard=unmap"),
        *("--export", f"type=fuse,id=file,node-name=disk,mountpoint={directory}/{FILE},writable=on"),
    ]


class Server:
    """A server whose file is there."""

    def __init__(self, name: str, directory: Path, command, core: int):
        directory.mkdir()
        self.name, self.directory, self.file = name, directory, directory / FILE
        image = directory / "image"
        with open(image, "wb") as f:
            for _ in range(IMAGE // MIB):
                f.write(os.urandom(MIB))
            os.fsync(f.fileno())
        with open(directory / "log", "wb") as log:
            words = ["taskset", "--cpu-list", str(core), *command(directory, image)]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + peers.STARTS_WITHIN_S
        while not (self.file.exists() and self.file.stat().st_size == IMAGE):
            if self.process.poll() is not None or time.monotonic() > end:
                text = (directory / "log").read_text(errors="replace")[-2000:].strip()
                self.stop()
                raise peers.Missing(f"{name} did not start: {text}")
            time.sleep(0.02)
        for _ in range(2):
            with open(self.file, "rb", buffering=0) as f:
                while f.read(MIB):
                    pass

    def cpu_s(self) -> float:
        """Processor time that it has had."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ends it."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(peers.STOPS_WITHIN_S)
            self.process.kill()
            self.process.wait()
        subprocess.run(["umount", "-l", self.file], check=False, stderr=subprocess.DEVNULL)


def measure(server: Server, cell, seconds: float, core: int) -> tuple[float, float]:
    """Operations a second of a turn, and microseconds of the server's processor for each."""
    _, size, depth, at_random = cell
    before = server.cpu_s()
    done = subprocess.run(
        ["taskset", "--cpu-list", str(core), "fio", "--name=turn", f"--filename={server.file}", "--direct=1"]
        + [f"--rw={'randread' if at_random else 'read'}", f"--bs={size}", f"--iodepth={depth}"]
        + [f"--ioengine={'psync' if depth == 1 else 'libaio'}", f"--size={IMAGE}", "--norandommap"]
        + ["--time_based", f"--runtime={seconds}s", "--output-format=json"],
        check=True,
        capture_output=True,
        text=True,
    )
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    return read["iops"], (server.cpu_s() - before) * 1e6 / max(1, read["total_ios"])


def main() -> int:
    """Measures and prints a table."""
    a = options()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("two processors are needed: one for servers, one for fio", file=sys.stderr)
        return 1

    def ours(directory, image):
        return undercroft(a.program, a.poll, directory, image)

    arms = [("Undercroft", ours), ("Undercroft again", ours), ("qemu-storage-daemon", storage_daemon)]
    with tempfile.TemporaryDirectory(dir=peers.ROOT / "build") as scratch, contextlib.ExitStack() as stack:
        servers = []
        for n, (name, command) in enumerate(arms):
            servers.append(Server(name, Path(scratch) / f"s{n}", command, cores[0]))
            stack.callback(servers[-1].stop)
        print("| reads of what is in RAM | server | operations/s | us of its CPU each | ratio | of turns |")
        print("|---|---|---:|---:|---:|---|")
        for cell in CELLS:
            turns = [[measure(s, cell, a.seconds, cores[1]) for s in servers] for _ in range(a.turns)]
            for n, server in enumerate(servers):
                ratios = sorted(turn[0][0] / turn[n][0] for turn in turns)
                rate, cpu = (statistics.median(turn[n][k] for turn in turns) for k in (0, 1))
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                middle = statistics.median(ratios)
                print(f"| {cell[0]} | {server.name} | {rate:,.0f} | {cpu:.1f} | {middle:.2f} | {spread} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
