#!/usr/bin/env python3
"""What a guest's cached reads wait for beside floods of others on the same worker. `make bench-fairness`.

One daemon with one worker and two disks in RAM. The neighbour reads random cached 4 KiB over vhost-user, one at a time;
in turns it is alone and beside each flood on the other disk (A B A C ...). What counts is its p99 beside a flood to its
p99 alone, of neighbouring turns; the goal is at most 2. Where there is no processor for each of the three programs,
neighbour and flood share one: then all three run at real-time priority, the neighbour's driver above the flood's, so
that what the neighbour waits for is the daemon, and not the scheduler that lets the flood's driver finish its slice;
nor do other programs of the machine keep the flood from flooding.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import compare

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
HOT = 16 * MIB
FLOODED = 64 * MIB
# name, front end of the flood, options of its driver, of fio, or of nbdcopy
FLOODS = [
    ("1 MiB reads, 32 deep", "vhost", ["--block", "1MiB", "--depth", "32"]),
    ("16 MiB reads, 16 deep", "vhost", ["--block", "16MiB", "--depth", "16", "--segments", "64", "--indirect"]),
    ("4 KiB reads, 256 deep", "vhost", ["--block", "4KiB", "--depth", "256", "--queues", "4"]),
    ("1 MiB writes, 8 deep", "vhost", ["--block", "1MiB", "--depth", "8", "--write-percent", "100"]),
    ("NBD, 16 MiB reads", "nbd", ["--block", "16MiB", "--depth", "4"]),
    ("NBD, 64 connections of 256 KiB reads", "nbd", ["--block", "256KiB", "--depth", "128", "--queues", "64"]),
    ("NBD with TLS, nbdcopy of all of it", "tls", ["--connections=4", "--requests=16"]),
    ("file, 1 MiB reads, 8 deep", "file", ["--rw=read", "--bs=1M", "--iodepth=8"]),
    ("file, 1 MiB writes, 8 deep", "file", ["--rw=write", "--bs=1M", "--iodepth=8"]),
]


def built(name: str) -> str:
    """One of our programs: a release build unless the environment names another."""
    given = os.environ.get(name.upper().replace("-", "_") + "_PROGRAM")
    path = Path(given) if given else ROOT / "target/release" / name
    if not path.exists():
        sys.exit(f"fairness: {path} is not built: make bench-fairness builds it")
    return str(path)


def options() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    p.add_argument("--turns", type=int, default=5, help="turns beside every flood (5)")
    p.add_argument("--seconds", type=float, default=2.0, help="of each turn (2)")
    p.add_argument("--only", default="", help="floods whose names contain this")
    p.add_argument("--json", action="store_true", help="the figures as JSON")
    return p.parse_args()


def pinned(core: int, words: list[str], priority: int = 0) -> list[str]:
    """A command that runs on one processor, with `priority` at real time, if any."""
    return [*(["chrt", "--rr", str(priority)] if priority else []), "taskset", "--cpu-list", str(core), *words]


def certificates(place: Path) -> None:
    """A certificate of this host that is its own authority, under the names that libnbd looks for."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", place / "key.pem", "-out", place / "ca-cert.pem"]
    made = subprocess.run([*words.split(), *more], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"fairness: no certificate: {made.stderr}")


def start(place: Path, core: int, priority: int, kinds: set[str]) -> subprocess.Popen:
    """The daemon, serving; its disks are `near` and `far`, the latter also in the ways that floods of these kinds
    take."""
    toml = (
        f'[store]\nmemory = "256MiB"\n[daemon]\ncontrol = "{place}/c.sock"\nruntime_dir = "{place}"\nworkers ='
        f' 1\n[nbd]\nunix = "{place}/nbd.sock"\nconnections = 128\nconnections_per_export = 100\n'
    )
    for name, size in (("near", 2 * HOT), ("far", 2 * FLOODED)):
        with open(place / f"{name}.raw", "wb") as image:
            for _ in range(size // MIB):
                image.write(os.urandom(MIB))
        toml += (
            f'[[disk]]\nname = "{name}"\nimage = "{place}/{name}.raw"\nformat = "raw"\nsocket ='
            f' "{place}/{name}.sock"\nnbd = true\n'
        )
    if "file" in kinds:
        toml += f'fuse = "{place}/far.file"\n'
    if "tls" in kinds:
        certificates(place)
        toml += (
            f'[[nbd.listen]]\ntcp = "127.0.0.1:0"\ntls = "require"\ntls_cert = "{place}/ca-cert.pem"\n'
            f'tls_key = "{place}/key.pem"\n'
        )
    (place / "c.toml").write_text(toml)
    with open(place / "log", "wb") as log:
        daemon = subprocess.Popen(
            pinned(core, [built("undercroft"), "serve", str(place / "c.toml")], priority), stdout=log, stderr=log
        )
    end = time.monotonic() + 20
    while not (place / "far.sock").exists():
        if daemon.poll() is not None or time.monotonic() > end:
            sys.exit(f"fairness: the daemon does not serve: {(place / 'log').read_text()}")
        time.sleep(0.05)
    return daemon


def words_for(place: Path, disk: str, front: str, more: list[str]) -> list[str]:
    """A command of our driver that puts a load on a disk."""
    target = f"{place}/{disk}.sock" if front == "vhost" else f"nbd+unix:///{disk}?socket={place}/nbd.sock"
    return [built("undercroft-driver"), "run", target, *more]


def tls_port(place: Path) -> str:
    """Where the listener with TLS listens."""
    words = [built("undercroft"), "status", "--json", "--control", str(place / "c.sock")]
    status = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return next(a for a in status["nbd"] if a.startswith("tcp:")).rsplit(":", 1)[1]


class Flood:
    """A load on the disk `far` for so many seconds."""

    def __init__(self, place: Path, front: str, more: list[str], seconds: float, on):
        """`on` makes a command one that runs where the flood does."""
        self.front, self.began = front, time.monotonic()
        if front == "file":
            words = ["fio", "--name=flood", f"--filename={place}/far.file", "--direct=1", "--ioengine=libaio", *more]
            words += [f"--size={FLOODED}", "--time_based", f"--runtime={seconds}", "--output-format=json"]
        elif front == "tls":
            uri = f"nbds://localhost:{tls_port(place)}/far?tls-certificates={place}"
            copy = " ".join(["nbdcopy", *more, f"'{uri}'", "null:"])
            text = f"n=0; while [ $SECONDS -lt {seconds:.0f} ]; do {copy} || exit 1; n=$((n + 1)); done; echo $n"
            words = ["bash", "-c", text]
        else:
            words = words_for(place, "far", front, [*more, "--length", str(FLOODED), "--seconds", str(seconds)])
        self.process = subprocess.Popen(on(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def mb_per_s(self) -> float:
        """Waits for its end; what it moved a second."""
        out, err = self.process.communicate()
        if self.process.returncode != 0:
            sys.exit(f"fairness: {self.front}: {err}")
        if self.front == "file":
            job = json.loads(out)["jobs"][0]
            return (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e6
        if self.front == "tls":
            return int(out) * 2 * FLOODED / 1e6 / (time.monotonic() - self.began)
        return json.loads(out)["mb_per_s"]


def lacks(front: str) -> str | None:
    """What is not here that a flood of this kind needs."""
    programs = {"file": ["fio"], "tls": ["nbdcopy", "openssl"]}.get(front, [])
    if missing := [name for name in programs if not shutil.which(name)]:
        return f"not installed: {', '.join(missing)}"
    return "there is no /dev/fuse to use" if front == "file" and not os.access("/dev/fuse", os.R_OK | os.W_OK) else None


def near(place: Path, core: int, priority: int, seconds: float) -> dict:
    """What the neighbour measures."""
    more = ["--length", str(HOT), "--depth", "1", "--seconds", str(seconds)]
    done = subprocess.run(
        pinned(core, words_for(place, "near", "vhost", more), priority), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"fairness: {done.stderr}")
    return json.loads(done.stdout)


def main() -> int:
    """See the head of the file."""
    args = options()
    cores = sorted(os.sched_getaffinity(0))
    rest = cores[2:] or cores[1:]
    # The daemon's, the neighbour's, the flood's.
    priorities = (1, 2, 1) if rest[0] == cores[1] and compare.can_be_realtime() else (0, 0, 0)
    figures = {}
    floods = [f for f in FLOODS if args.only in f[0]]
    if not floods:
        sys.exit(f"fairness: no flood's name contains '{args.only}': {'; '.join(f[0] for f in FLOODS)}")
    for name, front, _ in floods:
        if why := lacks(front):
            print(f"{name:40} not measured: {why}", file=sys.stderr)
    floods = [f for f in floods if not lacks(f[1])]
    with tempfile.TemporaryDirectory(prefix="ucf", dir="/var/tmp") as directory:
        place = Path(directory)
        daemon = start(place, cores[0], priorities[0], {front for _, front, _ in floods})
        try:
            for disk, length in (("near", HOT), ("far", 2 * FLOODED)):
                warm = ["--pattern", "seq", "--block", "64KiB", "--length", str(length), "--ops", str(length >> 16)]
                subprocess.run(words_for(place, disk, "vhost", warm), check=True, capture_output=True)
            for name, front, more in floods:
                turns = []
                for _ in range(args.turns):
                    alone = near(place, cores[1], priorities[1], args.seconds)
                    on = lambda words: pinned(rest[0], words, priorities[2])  # noqa: E731
                    flood = Flood(place, front, more, args.seconds + 2, on)
                    time.sleep(1)
                    beside = near(place, cores[1], priorities[1], args.seconds)
                    moved = flood.mb_per_s()
                    p99 = [r["latency_us"]["p99"] for r in (alone, beside)]
                    turns.append(
                        {
                            "alone_us": p99[0],
                            "beside_us": p99[1],
                            "ratio": p99[1] / p99[0],
                            "flood_mb_per_s": moved,
                        }
                    )
                figures[name] = turns
                if not args.json:
                    mid = {key: statistics.median(t[key] for t in turns) for key in turns[0]}
                    print(
                        f"{name:40} p99 alone {mid['alone_us']:7.0f} us, beside {mid['beside_us']:7.0f} us, ratio"
                        f" {mid['ratio']:5.2f} ({min(t['ratio'] for t in turns):.2f} to"
                        f" {max(t['ratio'] for t in turns):.2f}), flood {mid['flood_mb_per_s']:,.0f} MB/s",
                        flush=True,
                    )
        finally:
            daemon.terminate()
            daemon.wait(30)
    if args.json:
        print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
