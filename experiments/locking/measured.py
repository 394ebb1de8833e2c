"""Response times as they are measured, beside those that equations 3 and 4 say: the loads of a trace, one at a time,
through the daemon, on a disk behind a wait.

Owns nbdkit, the daemon and the client of one cell. Never fits anything to what it measures: a hit and a miss without
the wait are measured by themselves, and the model adds the wait to the latter. Invariant: nothing of a cell is left
when it ends.
"""

import itertools
import json
import random
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from rig import process
from rig.process import Stopped

BLOCK = 4096
LINE = 64
# Loads, and what loads and stores, of a packed trace: `traces/memory` of the reference data.
LOADS = (1, 3)
# References that are replayed, blocks that are read to know what a miss takes, and what a hit.
REFERENCES = 100_000
MISSES, HITS = 300, 5_000
# Milliseconds; 0 says what a miss takes without.
WAITS = (0, 1, 4)
REPEATS = 3
# Shares of a disk, of which what operations and tables need is taken: 4 MiB is the least that it can have.
SIZES = ("4MiB", "6MiB", "8MiB")
TRACES = ("gzip", "mp3", "sortQ")


def lines(trace):
    """The first references of a packed trace by lines, as `undercroft lab caches` counts loads."""
    found = []
    with subprocess.Popen(["zstd", "-dcq", trace], stdout=subprocess.PIPE) as unpacked:
        while len(found) < REFERENCES and (record := unpacked.stdout.read(8)):
            (word,) = struct.unpack("<Q", record)
            address, size, kind = word & (1 << 48) - 1, word >> 48 & 0xFF, word >> 56
            if kind in LOADS:
                found.extend(range(address // LINE, (address + max(size, 1) - 1) // LINE + 1))
        unpacked.kill()
    return found[:REFERENCES]


def blocks_of(references):
    """Lines as blocks of a disk: the first line is block 0, the next one that comes is block 1."""
    numbers = {}
    return [numbers.setdefault(line, len(numbers)) for line in references], len(numbers)


class Measured:
    """One cell: a trace, in caches of some sizes, on disks with some waits."""

    def __init__(self, name, trace):
        self.id, self.trace = f"measured-{name}", trace

    def run(self, undercroft, work):
        """Its rows, and how long it took."""
        began = time.monotonic()
        blocks, count = blocks_of(lines(self.trace))
        image = work / "measured.raw"
        with open(image, "wb") as f:
            f.write(random.Random(1).randbytes((count + MISSES) * BLOCK))
        rows = []
        try:
            for wait, repeat, size in itertools.product(WAITS, range(REPEATS), SIZES):
                row = self.once(undercroft, work, image, blocks, wait, size)
                rows.append({"wait_ms": wait, "repeat": repeat, "size": size, **row})
        finally:
            image.unlink()
        seconds = round(time.monotonic() - began, 2)
        return {"words": ["measured", self.id], "blocks": count, "seconds": seconds, "rows": rows}

    def once(self, undercroft, work, image, blocks, wait, size, lines="", ask=None):
        """The trace once, from an empty cache. `lines` are more of the disk's configuration, of which the simulator of
        processor caches knows nothing; `ask(served)` asks the daemon for more when the trace is over."""
        with (
            tempfile.TemporaryDirectory(prefix="undercroft-") as folder,
            Served(undercroft, Path(folder), work) as served,
        ):
            served.start(image, wait, size, lines)
            capacity = served.cache()["capacity_bytes"] // BLOCK
            before = served.counters()
            taken = served.read(blocks)
            after = served.counters()
            missed = after["miss_blocks"] - before["miss_blocks"]
            if missed + after["hit_blocks"] - before["hit_blocks"] != len(blocks):
                raise Stopped("the daemon has counted other reads than these")
            said = ask(served) if ask else None
            count = max(blocks) + 1
            misses = served.read(range(count, count + MISSES))
            hits = served.read([count + MISSES - 1] * HITS)
        return {
            "capacity_blocks": capacity,
            **({"said": said} if lines else {"simulated_misses": self.simulated(undercroft, capacity)}),
            "misses": missed,
            "references": len(blocks),
            "mean_us": 1e6 * sum(taken) / len(taken),
            "miss_us": 1e6 * statistics.median(misses),
            "hit_us": 1e6 * statistics.median(hits),
        }

    def simulated(self, undercroft, capacity):
        """What the simulator says of a cache of so many lines in one set."""
        words = ["caches", self.trace, "--format", "memory", "--size", capacity * LINE, "--ways", 0, "--lock", 0]
        words += ["--victim", 0, "--limit", REFERENCES, "--json"]
        (row,) = json.loads(process.run([undercroft, "lab", *words], "undercroft lab caches"))
        return row["misses"]


class Served:
    """The daemon on an export of nbdkit, and a client."""

    def __init__(self, undercroft, folder, logs):
        self.undercroft, self.folder, self.logs = undercroft, folder, logs
        self.started, self.client = [], None

    def __enter__(self):
        return self

    def start(self, image, wait, size, lines=""):
        """Serves an image that waits so many milliseconds before each read, with a cache of so many bytes; `lines` are
        more of the disk's configuration."""
        # The package python3-libnbd, which only these cells need.
        import nbd

        upstream, export, control = (self.folder / name for name in ("up.sock", "disk.sock", "control.sock"))
        filters, values = (["--filter=delay"], [f"rdelay={wait}ms"]) if wait else ([], [])
        self.spawn(["nbdkit", "--foreground", "--unix", upstream, *filters, "file", image, *values], upstream)
        config = self.folder / "undercroft.toml"
        config.write_text(
            f'[store]\nmemory = "64MiB"\n[daemon]\ncontrol = "{control}"\nruntime_dir = "{self.folder}"\n'
            f'[nbd]\nunix = "{export}"\n[[disk]]\nname = "disk"\nimage = "nbd+unix:///?socket={upstream}"\nnbd = true\n'
            f'vhost_user = false\nsize = "{size}"\npolicy = "lru"\nreadahead = "0"\nexclusive = "off"\n{lines}'
        )
        self.control = control
        self.spawn([self.undercroft, "serve", config], export)
        end = time.monotonic() + 20
        while self.disk()["state"] != "serving":
            if time.monotonic() > end:
                raise Stopped(f"the daemon does not serve: {self.disk()}")
            time.sleep(0.05)
        self.client = nbd.NBD()
        self.client.connect_uri(f"nbd+unix:///disk?socket={export}")

    def spawn(self, argv, socket):
        """Starts a program that makes a socket."""
        log = self.logs / f"measured-{Path(str(argv[0])).name}.log"
        started = process.start(argv, log)
        self.started.append(started)
        process.wait_for_sockets([socket], started, log)

    def disk(self):
        """What the status says of the disk."""
        said = process.run([self.undercroft, "status", "--json", "--control", self.control], "undercroft status")
        return json.loads(said)["disks"][0]

    def cache(self):
        """What it says of the disk's cache."""
        return self.disk()["cache"]

    def counters(self):
        """What the disk has counted."""
        return self.disk()["counters"]

    def read(self, blocks):
        """Reads blocks one after the other. How long each took, in seconds."""
        read, clock, taken = self.client.pread, time.perf_counter, []
        for block in blocks:
            began = clock()
            read(BLOCK, block * BLOCK)
            taken.append(clock() - began)
        return taken

    def __exit__(self, *_):
        if self.client is not None:
            self.client.shutdown()
        for started in reversed(self.started):
            process.end(started)


def measured_cells(folder):
    """Those of the design page's traces whose first references need more blocks than the smallest cache has."""
    return [Measured(name, folder / f"{name}.u64le.zst") for name in TRACES]


def hit_among_misses(row):
    """What a hit took on average in the trace, in microseconds, if its misses took what others took by themselves."""
    misses = row["misses"] / row["references"]
    return (row["mean_us"] - misses * row["miss_us"]) / (1 - misses)


def model(rows, wait):
    """The mean of a reference by equation 3, in microseconds, as a function of its share of misses: a miss takes what
    it takes without a wait, and the wait."""
    at_once = [r for r in rows if r["wait_ms"] == 0]
    miss, hit = (statistics.median(r[name] for r in at_once) for name in ("miss_us", "hit_us"))
    return lambda misses: misses * (miss + 1000 * wait) + (1 - misses) * hit
