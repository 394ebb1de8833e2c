"""The driver's clients: loads on disks, one after the other or side by side.

Owns the clients' processes. Invariant: what a client printed is checked for errors before a figure is taken from it,
and no client outlives `Clients`.
"""

import json
import subprocess
import time
from dataclasses import dataclass

from rig import process
from rig.process import Stopped

BLOCK = 4096


@dataclass(frozen=True)
class Load:
    """One pattern on a range of a disk, in bytes. `once`: each block once, going on where the last turn of it ended."""

    disk: str
    pattern: str
    length: int
    offset: int = 0
    depth: int = 1
    theta: float = 0.99
    once: bool = False

    def place(self, operations, done):
        """(offset, length) for a turn after `done` operations."""
        if not self.once:
            return self.offset, self.length
        span = operations * BLOCK
        return self.offset + done * BLOCK % max(self.length - span, BLOCK), span


class Clients:
    """Runs drivers against a daemon."""

    def __init__(self, driver, served, log):
        self.driver, self.served, self.log = driver, served, log
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.running:
            process.end(client)
            client.stdout.close()

    def start(self, load, seed, operations=None, seconds=None, done=0):
        """Starts a client of `load` for so many operations or seconds."""
        offset, length = load.place(operations, done) if operations else (load.offset, load.length)
        argv = [
            self.driver, "run", self.served.target(load.disk), "--pattern", load.pattern, "--depth", load.depth,
            "--offset", offset,
            "--length", length, "--seed", seed, "--theta", load.theta,
        ]  # fmt: skip
        argv += ["--ops", operations] if operations else ["--seconds", seconds]
        client = process.start(argv, self.log, stdout=subprocess.PIPE)
        self.running.append(client)
        return client

    def finish(self, client):
        """Waits for a client and returns what it measured."""
        out = client.communicate()[0]
        self.running.remove(client)
        if client.returncode:
            raise Stopped(
                f"undercroft-driver ended with {client.returncode}: {process.tail(self.log)} (its log: {self.log})"
            )
        result = json.loads(out)
        if result["errors"] or result["fault"]:
            raise Stopped(f"undercroft-driver met errors: {result['errors'] or result['fault']}")
        return result

    def stop(self, client):
        """Ends a client whose result nobody wants."""
        process.end(client)
        client.stdout.close()
        self.running.remove(client)

    def turn(self, name, load, operations, seed, done=0):
        """One turn of a load: what its client measured, and what the daemon counted for its disk meanwhile."""
        before = counted(self.served)
        began = time.monotonic()
        result = self.finish(self.start(load, seed, operations=operations, done=done))
        after = counted(self.served)
        now = {key: after[load.disk][key] - before[load.disk][key] for key in COUNTERS}
        return {
            "load": name, "began": began, "operations": result["operations"], "seconds": result["seconds"],
            "mean_us": result["latency_us"]["mean"], "p99_us": result["latency_us"]["p99"],
        } | now  # fmt: skip


COUNTERS = ("hit_blocks", "miss_blocks", "joined_blocks", "readahead_hit_blocks", "backend_read_bytes")


def counted(served):
    """Counters of each disk."""
    return {name: disk["counters"] for name, disk in served.disks().items()}
