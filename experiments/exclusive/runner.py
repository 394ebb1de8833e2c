"""Runs one cell on one arm: images, serving, guests, the load, and what was counted meanwhile.

Owns the order of things. Invariant: every arm of a cell starts from the same bytes with nothing of them in the host's page
cache, and everything that was started has ended when `run` returns or raises.
"""

import contextlib
import threading
import time

from rig.fleet import Fleet

from . import measure, perfect, twice
from .cells import BLOCK

# A fifth less work for software emulation, and nothing to do with memory.
GUEST_KERNEL = "mitigations=off"


class Run(Fleet):
    """One arm of one cell, while it runs."""

    def __init__(self, arm, cell, load, folder, accel, screen):
        super().__init__(arm, folder, cell.guest_mib, accel, screen)
        self.arm, self.cell, self.load = arm, cell, load
        self.trace = None

    def start(self, stack, disks):
        """Boots one guest per disk, with the kernel that the cell asks for."""
        super().start(stack, disks, f"init_on_alloc={self.cell.zeroing:d} {GUEST_KERNEL}")
        for guest in self.guests:
            guest.run(f"echo {'y' if self.cell.mglru else 'n'} > /sys/kernel/mm/lru_gen/enabled")

    def guest_facts(self):
        """What the guests say of themselves."""
        _, memory = self.guests[0].run("cat /proc/meminfo")
        found = measure.table(memory.replace(":", "").replace(" kB", ""))
        _, generations = self.guests[0].run("cat /sys/kernel/mm/lru_gen/enabled")
        return {
            "kernel": self.guests[0].kernel,
            "total_bytes": found["MemTotal"] << 10,
            "available_bytes": found["MemAvailable"] << 10,
            "mglru": int(generations, 16) != 0,
        }

    def take(self):
        """Every counter, now."""
        return {
            "time": time.monotonic(),
            "read_bytes": self.arm.read_bytes(),
            "own": self.arm.own(),
            "records": [log.count() for log in self.arm.logs_of_blocks()],
            "vmstat": measure.vmstat(),
            "group": measure.group_stat(self.arm.group.memory),
            "reclaim": self.trace.counted() if self.trace else None,
            "cpu": measure.cpu(self.arm.pids()),
        }

    def memory(self):
        """(cached bytes, host memory that serving takes), now."""
        return self.arm.cached_bytes(), self.arm.group.memory_bytes()

    def twice(self):
        """Pages that the host's cache holds and a guest, too; None for images in a format whose blocks lie elsewhere in the file."""
        if self.arm.image_format != "raw":
            return None
        guests = [guest.qemu.pid for guest in self.guests]
        return twice.held_twice(guests, self.cell.guest_mib << 20, self.arm.pids(), self.arm.cached_files())

    @contextlib.contextmanager
    def measured_part(self):
        """Marks memory samples that are taken meanwhile."""
        self.measuring.set()
        try:
            yield
        finally:
            self.measuring.clear()

    def together(self, commands):
        """Runs the workload program in several guests at once and returns their results, and the counters before and after
        the measured part, which they begin together. `commands` are (guest, command)."""
        try:
            results, before, after = super().together(self.cell.id, commands, self.take, self.measuring.set)
        finally:
            self.measuring.clear()
        return [slim(result) for result in results], before, after

    def run(self):
        """Does it all and returns the record of this arm."""
        self.measuring = threading.Event()
        disks = self.load.images(self.cell, self.folder / "images", self.screen.say)
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self.start(stack, disks)
            facts = self.guest_facts()
            self.trace = stack.enter_context(measure.ReclaimTrace(set(self.arm.pids())))
            sampler = measure.Sampler(lambda: (int(self.measuring.is_set()), *self.memory()))
            with sampler:
                results, before, after, extra = self.load.drive(self)
            # After the counters: it takes processor time of its own.
            held_twice = self.twice()
            self.power_off()
            record = {
                "title": self.arm.title,
                "explains": self.arm.explains,
                "seconds": round(time.monotonic() - began, 1),
                "guest": facts,
                "guests": results,
                "limit_bytes": self.arm.limit_bytes,
                "extra": extra,
                "twice": held_twice,
                "measured": measure.difference(after, before),
                "end": {"own": after["own"]},
                "samples": measure.thinned(sampler.samples),
                "mean": means(sampler.samples),
            }
            record |= self.from_logs(before)
        self.screen.clear()
        return record

    def from_logs(self, before):
        """Hits by blocks, and what a perfect cache would have saved, from logs of single transfers."""
        logs = self.arm.logs_of_blocks()
        if not logs:
            return {}
        found = {"hits": [], "perfect": [], "inclusive_lru": []}
        for log, begin in zip(logs, before["records"], strict=True):
            records = log.read()
            if records is None:
                return {}
            found["hits"].append(perfect.hits(records[begin:]))
            if self.arm.key == "direct":
                capacity = self.cell.cache_bytes // BLOCK
                found["perfect"].append(perfect.exclusive(records, begin, capacity))
                found["inclusive_lru"].append(perfect.inclusive_lru(records, begin, capacity))
        return found


def slim(result):
    """A guest's result without what no figure is made of."""
    return {key: value for key, value in result.items() if key not in ("event", "workload")}


def means(samples):
    """Mean memory over the whole run and over its measured part."""
    measured = [s for s in samples if s[1]] or samples
    if not samples:
        return None
    return {
        "cached_bytes": round(sum(s[2] for s in measured) / len(measured)),
        "memory_bytes": round(sum(s[3] for s in measured) / len(measured)),
        "cached_bytes_run": round(sum(s[2] for s in samples) / len(samples)),
    }
