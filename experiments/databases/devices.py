"""The SSD store by itself: hits beside raw reads of the same file, recovery, and a daemon that is killed.

Owns the daemon, the file of its store and the turns. Never runs a database. The file is written whole before the store
has it (its first and last MiB with zeroes, which the store asks for), so that raw reads reach the device everywhere.
Invariant: raw reads, hits and the peer take turns in one run, on the same processors; what ends a run leaves nothing
behind.
"""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rig import mounted, process
from rig.images import drop_cached

MIB = 1 << 20
DEPTH = 32
READS = ("--depth", DEPTH, "--block", 4096, "--pattern", "rand")
TURNS = 7
COMPARED_TURNS = 9
KILLS = 5
# Longer than the 5 s after which what a disk without changes has is written down.
REST_SECONDS = 8
PASSES = 24
RAM_MIB = 32


def fill(path, size):
    """A file without holes, zeroes at both ends and noise between."""
    with open(path, "wb") as f:
        f.write(bytes(MIB))
        for _ in range(size // MIB - 2):
            f.write(os.urandom(MIB))
        f.write(bytes(MIB))
        os.fsync(f.fileno())
    drop_cached(path)


def is_realtime():
    """Whether programs can be put before everything else that runs on their processor, as in `make bench`."""
    return subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True, check=False).returncode == 0


def placed(core):
    """What goes before a command, so that it runs on a processor."""
    return [*(["chrt", "--rr", "1"] if is_realtime() else []), "taskset", "--cpu-list", str(core)]


class Store:
    """A daemon with one disk whose blocks are on its SSD store."""

    def __init__(self, lab, image_mib, program=None, name="devices"):
        self.lab, self.image_mib, self.program, self.name = lab, image_mib, program or lab.undercroft, name
        self.process = None

    def __enter__(self):
        self.folder = self.lab.work / self.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.run_dir = Path(tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None))
        self.image, self.ssd = self.folder / "image.raw", self.folder / "ssd"
        self.socket, self.control = self.run_dir / "disk.sock", self.run_dir / "control.sock"
        fill(self.image, self.image_mib * MIB)
        # A third more than the blocks need, for segments that are being written and summaries.
        fill(self.ssd, (self.image_mib * 4 // 3 + 64) * MIB)
        (self.run_dir / "stores.toml").write_text(
            f'[store]\nmemory = "{RAM_MIB}MiB"\n[daemon]\ncontrol = "{self.control}"\nruntime_dir = "{self.run_dir}"\n'
            f'workers = 1\n[ssd]\npaths = ["{self.ssd}"]\nsize = {self.ssd.stat().st_size}\nadmit = "all"\n'
            f'[[disk]]\nname = "disk"\nimage = "{self.image}"\nformat = "raw"\nstore = "ssd"\n'
            f'socket = "{self.socket}"\n'
        )
        self.start()
        return self

    def __exit__(self, *_):
        if self.process:
            process.end(self.process, 30)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        """Starts the daemon, and waits for nothing."""
        argv = [*placed(self.lab.cores[0]), self.program, "serve"]
        self.log = self.lab.work / f"{self.name}.log"
        self.process = process.start([*argv, self.run_dir / "stores.toml"], self.log)

    def wait(self):
        """Waits until it answers."""
        process.wait_for_answer(self.control, self.process, self.log)
        process.wait_for_sockets([self.socket], self.process, self.log)

    def ctl(self, *words):
        """The JSON of a command."""
        argv = [self.program, *words, "--json", "--control", self.control]
        return json.loads(process.run(argv, f"undercroft {words[0]}", seconds=60))

    def drive(self, *words):
        """A run of the benchmark's driver."""
        return drive(self.lab, self.socket, *words)

    def warm(self):
        """Reads the disk until its blocks are on the SSD; the part that is."""
        for _ in range(PASSES):
            self.drive("--pattern", "seq", "--block", 64 << 10, "--depth", 4, "--ops", self.image_mib * 16)
            part = self.ctl("ssd")["cached_bytes"] / (self.image_mib * MIB)
            if part > 0.99:
                break
        return part


def drive(lab, socket, *words):
    """A run of the benchmark's driver on a socket."""
    argv = [*placed(lab.cores[-1]), lab.driver, "run", socket, *words]
    return json.loads(process.run(argv, "undercroft-driver", 300))


class Peer:
    """qemu-storage-daemon with the store's file, in the daemon's place: what the way from the driver to the device
    costs without a cache."""

    def __init__(self, store):
        self.store, self.socket = store, store.run_dir / "peer.sock"

    def __enter__(self):
        lab, file = self.store.lab, f"driver=file,node-name=file,filename={self.store.ssd}"
        how = "cache.direct=on,aio=io_uring,locking=off,read-only=on"
        export = f"type=vhost-user-blk,id=export,node-name=file,addr.type=unix,addr.path={self.socket},writable=off"
        argv = [*placed(lab.cores[0]), "qemu-storage-daemon", "--blockdev", f"{file},{how}", "--export", export]
        log = lab.work / "peer.log"
        self.process = process.start(argv, log)
        process.wait_for_sockets([self.socket], self.process, log)
        return self

    def __exit__(self, *_):
        process.end(self.process, 30)

    def read(self, seconds, seed):
        """The reads that `hit` has of the disk, of the file."""
        done = drive(self.store.lab, self.socket, *READS, "--seconds", seconds, "--seed", seed)
        return {"iops": done["iops"], "p99_us": done["latency_us"]["p99"]}


def raw(lab, path, seconds):
    """4 KiB reads at random of a file by fio, with io_uring and O_DIRECT."""
    argv = [*placed(lab.cores[-1]), "fio", "--name=raw", f"--filename={path}", "--direct=1"]
    argv += ["--ioengine=io_uring", "--rw=randread", "--bs=4k", f"--iodepth={DEPTH}", "--norandommap", "--readonly"]
    argv += ["--time_based", f"--runtime={seconds}s", "--output-format=json", "--randrepeat=0"]
    said = process.run(argv, "fio", seconds + 60)
    read = json.loads(said[said.index("{") :])["jobs"][0]["read"]
    return {"iops": read["iops"], "p99_us": read["clat_ns"]["percentile"]["99.000000"] / 1000}


def hit(store, seconds, seed):
    """The same of the disk, by the driver over vhost-user; how many were SSD hits is the daemon's count."""
    before, cpu = store.ctl("status")["disks"][0]["counters"], mounted.cpu_seconds(store.process.pid)
    done = store.drive(*READS, "--seconds", seconds, "--seed", seed)
    after = store.ctl("status")["disks"][0]["counters"]
    spent = mounted.cpu_seconds(store.process.pid) - cpu
    delta = {name: after[name] - before[name] for name in ("hit_blocks", "ssd_hit_blocks", "backend_read_bytes")}
    return {
        "iops": done["iops"], "p99_us": done["latency_us"]["p99"], "cpu_us": 1e6 * spent / done["operations"],
        "ssd_hit_part": delta["ssd_hit_blocks"] / done["operations"], "ram_hit_part": delta["hit_blocks"]
        / done["operations"], "image_bytes": delta["backend_read_bytes"], "load_average": os.getloadavg()[0],
    }  # fmt: skip


def kill(store):
    """Seconds from kill -9 until a new daemon has answered a read, and how often it had to be started."""
    began = time.monotonic()
    store.process.send_signal(signal.SIGKILL)
    store.process.wait()
    store.socket.unlink(missing_ok=True)
    for starts in range(1, 21):
        store.start()
        while store.process.poll() is None and not store.socket.is_socket():
            time.sleep(0.002)
        if store.process.poll() is None:
            store.drive("--ops", 1, "--depth", 1)
            seconds = time.monotonic() - began
            store.wait()
            return {"seconds": seconds, "starts": starts, "cached_bytes": store.ctl("ssd")["cached_bytes"]}
        time.sleep(0.02)
    raise process.Stopped(f"a killed daemon does not come up again: {process.tail(store.log)}")


def compare(lab, program):
    """What hits of two builds cost, in turns with raw reads of the file of the first: words for people."""
    image_mib = 256
    with Store(lab, image_mib) as store, Store(lab, image_mib, program, "devices-beside") as beside:
        parts = []
        for of in (store, beside):
            of.wait()
            lab.screen.status("stores", f"filling the SSD store of {of.name}")
            parts.append(of.warm())
        with Peer(store) as peer:
            ways = {
                "raw": lambda _: raw(lab, store.ssd, lab.turn_seconds),
                "hits": lambda turn: hit(store, lab.turn_seconds, turn),
                "beside": lambda turn: hit(beside, lab.turn_seconds, turn),
                "peer": lambda turn: peer.read(lab.turn_seconds, turn),
            }
            turns = []
            for turn in range(COMPARED_TURNS):
                lab.screen.status("stores", f"SSD hits of two builds, turn {turn + 1} of {COMPARED_TURNS}")
                names = list(ways)[turn % 4 :] + list(ways)[: turn % 4]
                turns.append({name: ways[name](turn) for name in names})
    lab.screen.clear()

    def median(of, to, what="iops"):
        ratios = sorted(turn[of][what] / turn[to][what] for turn in turns)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"

    return [
        f"{len(turns)} turns of {lab.turn_seconds} s; on the SSD {parts[0]:.0%} and {parts[1]:.0%} of {image_mib} MiB;"
        f" load {os.getloadavg()[0]:.1f}",
        f"throughput of hits, this build to the one beside it   {median('hits', 'beside')}",
        f"processor time of a hit, the same                     {median('hits', 'beside', 'cpu_us')}",
        f"raw reads to hits: throughput                         {median('raw', 'hits')}",
        f"raw reads to hits of the one beside it                {median('raw', 'beside')}",
        f"raw reads to qemu-storage-daemon                      {median('raw', 'peer')}",
    ]


def measure(lab):
    """Hits beside raw reads, in turns, and then kills."""
    image_mib = 256 if lab.is_quick else 512
    with Store(lab, image_mib) as store:
        store.wait()
        lab.screen.status("stores", "filling the SSD store")
        part = store.warm()
        turns = []
        with Peer(store) as peer:
            ways = {
                "raw": lambda _: raw(lab, store.ssd, lab.turn_seconds),
                "hits": lambda turn: hit(store, lab.turn_seconds, turn),
                "peer": lambda turn: peer.read(lab.turn_seconds, turn),
            }
            for turn in range(TURNS):
                lab.screen.status("stores", f"SSD hits beside raw reads, turn {turn + 1} of {TURNS}")
                names = list(ways)[turn % 3 :] + list(ways)[: turn % 3]
                turns.append({name: ways[name](turn) for name in names})
        kills = []
        for n in range(KILLS):
            lab.screen.status("stores", f"kill -9, {n + 1} of {KILLS}")
            time.sleep(REST_SECONDS)
            kills.append(kill(store) | {"load_average": os.getloadavg()[0]})
        facts = {"image_mib": image_mib, "on_ssd_part": part, "ram_mib": RAM_MIB, "is_realtime": is_realtime()}
        return facts | {"turns": turns, "kills": kills}


def recovery(lab):
    """What the example `ssd_cost` says of a full store that is recovered with direct I/O."""
    gib = 1 if lab.is_quick else 10
    path = lab.work / "recovery"
    path.unlink(missing_ok=True)
    lab.screen.status("stores", f"filling and recovering a store of {gib} GiB")
    try:
        said = process.run([lab.ssd_cost, path, gib], "ssd_cost", 900)
    finally:
        path.unlink(missing_ok=True)
    took = [int(ms) for ms in re.findall(r"^recovery, .*?: (\d+) ms", said, re.MULTILINE)]
    memory = float(re.search(r"bytes of memory per block: ([\d.]+)", said)[1])
    amplification = int(re.search(r"(\d+) bytes written for 1000 admitted", said)[1])
    return {
        "gib": gib, "ms": took, "bytes_per_block": memory, "amplification": amplification / 1000,
        "load_average": os.getloadavg()[0], "said": said,
    }  # fmt: skip


def has_fio():
    """Whether fio is here with io_uring."""
    found = mounted.program("fio")
    return bool(found) and "io_uring" in subprocess.run([found, "--enghelp"], capture_output=True, text=True).stdout
