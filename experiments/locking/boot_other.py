"""The load of the other disk: what pushes the clones' boot set out, and what shows what pins take from others.

Owns the benchmark's driver. Never touches a clone. Invariant: the same reads in every arm: one pass over the whole
image, then random reads of as much of it as the store has room for, and while clones boot so many of these a second.
"""

import json
import threading
import time

from rig import process
from rig.process import Stopped

SCAN_KIB, RANDOM_KIB = 256, 64
DEPTH = 4
# How often, on average, each part of the working set is read between the rounds.
PASSES = 2
# Beside the boots: so many reads, one at a time, in each second.
BESIDE_READS, BESIDE_SECONDS = 64, 1.0
# What one run of the driver may take: of the loads between the rounds, and of those beside them.
LONGEST, LONGEST_BESIDE = 1200, 120


class Other:
    """Loads of the disk on one socket."""

    def __init__(self, driver, socket, sizes):
        self.driver, self.socket, self.sizes = driver, socket, sizes

    def drive(self, pattern, kib, mib, depth, ops, seed=1, longest=LONGEST):
        """One run of the driver over the first `mib` of the disk."""
        words = ["--pattern", pattern, "--block", f"{kib}KiB", "--length", f"{mib}MiB", "--depth", depth]
        argv = [self.driver, "run", self.socket, *words, "--ops", ops, "--seed", seed]
        done = json.loads(process.run(argv, "undercroft-driver", longest))
        if done["errors"] or done["fault"]:
            raise Stopped(f"undercroft-driver met errors: {done['errors'] or done['fault']}")
        return {"reads": done["operations"], "seconds": done["seconds"], "mean_us": done["read_latency_us"]["mean"],
                "p99_us": done["read_latency_us"]["p99"]}  # fmt: skip

    def scan(self):
        """The whole image once, in order."""
        mib = self.sizes.other_mib
        return self.drive("seq", SCAN_KIB, mib, DEPTH, mib * 1024 // SCAN_KIB)

    def random(self):
        """Its working set, as large as the store, at random."""
        mib = self.sizes.store_mib
        return self.drive("rand", RANDOM_KIB, mib, DEPTH, PASSES * mib * 1024 // RANDOM_KIB)


class Beside:
    """Reads of the working set at a fixed pace, for as long as the context lasts; `done` has what became of them, and
    what the pace was: where reads take too long, it falls."""

    def __init__(self, other):
        self.other, self.over, self.turns, self.error = other, threading.Event(), [], None
        self.seconds = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        start = time.monotonic()
        try:
            while not self.over.is_set():
                began = time.monotonic()
                seed = 100 + len(self.turns)
                self.turns.append(
                    self.other.drive(
                        "rand", RANDOM_KIB, self.other.sizes.store_mib, 1, BESIDE_READS, seed, LONGEST_BESIDE
                    )
                )
                self.over.wait(max(0.0, BESIDE_SECONDS - (time.monotonic() - began)))
                self.seconds = time.monotonic() - start
        except Exception as e:
            self.error = e

    def done(self):
        """All of it together; raises what went wrong."""
        if self.error:
            raise self.error
        if self.thread.is_alive() or not self.turns:
            raise Stopped("the reads of the other disk beside the boots do not end")
        reads = sum(turn["reads"] for turn in self.turns)
        return {
            "reads": reads,
            "mean_us": sum(turn["mean_us"] * turn["reads"] for turn in self.turns) / max(reads, 1),
            "turns": len(self.turns),
            "rate": round(reads / self.seconds, 2),
        }

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(LONGEST_BESIDE + 10)
