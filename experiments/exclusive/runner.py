"""Runs one cell on one arm: images, serving, guests, the load, and what was counted meanwhile.

Owns the order of things. Invariant: every arm of a cell starts from the same bytes with nothing of them in the host's page
cache, and everything that was started has ended when `run` returns or raises.
"""

import concurrent.futures
import contextlib
import threading
import time

from rig import guest as guests
from rig.process import Stopped

from . import measure, perfect, twice
from .cells import BLOCK

PHASE_SECONDS = 900
# A fifth less work for software emulation, and nothing to do with memory.
GUEST_KERNEL = "mitigations=off"


class Run:
    """One arm of one cell, while it runs."""

    def __init__(self, arm, cell, load, folder, accel, screen):
        self.arm, self.cell, self.load = arm, cell, load
        self.folder, self.accel, self.screen = folder, accel, screen
        self.guests = []
        self.trace = None

    def boot(self, stack, disks):
        """Boots one guest per disk."""
        names = [f"{self.arm.key}-guest-{i + 1}" for i in range(len(disks))]
        for i, name in enumerate(names):
            guest = guests.Guest(
                name, self.arm.disk_args(i), self.folder, self.cell.guest_mib, self.accel,
                wrap=self.arm.wrap_guest, append=f"init_on_alloc={self.cell.zeroing:d} {GUEST_KERNEL}", check=self.arm.check,
                private=self.arm.private_ram,
            )  # fmt: skip
            self.guests.append(stack.enter_context(guest))
        for guest in self.guests:
            guest.wait_ready()
            guest.run(f"echo {'y' if self.cell.mglru else 'n'} > /sys/kernel/mm/lru_gen/enabled")
        self.arm.guests_ready(self.guests)

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
        barrier = threading.Barrier(len(commands) + 1)

        def drive(guest, command):
            result = None
            try:
                for event in guest.events(command, PHASE_SECONDS):
                    if event["event"] == "progress":
                        done = event["done"] / event["of"]
                        self.screen.status(
                            guest.name,
                            f"{self.cell.id} {event['phase']:9} {done:4.0%}  {event['mib_per_s']:6.1f} MiB/s, "
                            f"{event['cached_share']:4.0%} from its own RAM",
                        )
                    elif event["event"] == "ready":
                        barrier.wait()
                        barrier.wait()
                        guest.send("go")
                    elif event["event"] == "done":
                        result = event
                barrier.wait()
            except BaseException:
                barrier.abort()
                raise
            return result

        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            futures = [pool.submit(drive, *command) for command in commands]
            try:
                barrier.wait()
                before = self.take()
                self.measuring.set()
                barrier.wait()
                barrier.wait()
                after = self.take()
            except BaseException as e:
                barrier.abort()
                # Guests that are still running would keep the pool waiting.
                for guest, _ in commands:
                    guest.close()
                if not isinstance(e, threading.BrokenBarrierError):
                    raise
                for future in concurrent.futures.as_completed(futures):
                    error = future.exception()
                    if error and not isinstance(error, threading.BrokenBarrierError):
                        raise error from None
                raise Stopped(f"{self.cell.id}, {self.arm.title}: the guests did not finish together") from None
            finally:
                self.measuring.clear()
            return [slim(future.result()) for future in futures], before, after

    def run(self):
        """Does it all and returns the record of this arm."""
        self.measuring = threading.Event()
        disks = self.load.images(self.cell, self.folder / "images", self.screen.say)
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.arm)
            self.arm.start(disks)
            self.screen.status(self.arm.key, f"{self.cell.id} booting")
            self.boot(stack, disks)
            facts = self.guest_facts()
            self.trace = stack.enter_context(measure.ReclaimTrace(set(self.arm.pids())))
            sampler = measure.Sampler(lambda: (int(self.measuring.is_set()), *self.memory()))
            with sampler:
                results, before, after, extra = self.load.drive(self)
            # After the counters: it takes processor time of its own.
            held_twice = self.twice()
            for guest in self.guests:
                guest.power_off()
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
