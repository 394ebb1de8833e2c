"""Runs one cell on one arm: images, serving, guests, the load, and what was counted meanwhile. Cells that differ in
nothing but the wait of their disk are measured one after the other in one run, behind one warm-up at full speed.

Owns the order of things. Invariant: every arm of a cell starts from the same bytes with nothing of them in the host's
page cache, and everything that was started has ended when `run` returns or raises.
"""

import contextlib
import time
from pathlib import Path

from rig import machine, readahead, slowdisk
from rig.fleet import PHASE_SECONDS, Fleet

from . import measure, perfect, twice
from .cells import BLOCK

# A fifth less work for software emulation, and nothing to do with memory.
GUEST_KERNEL = "mitigations=off"


class Run(Fleet):
    """One arm of cells of one run, while it runs: `cells` are (cell, load), on the images of the first."""

    def __init__(self, arm, cells, folder, accel, screen, keep_transfers=None):
        self.cell, self.load = cells[0]  # what is measured
        arm.disks_each = self.load.disks
        super().__init__(arm, folder, self.cell.guest_mib, accel, screen)
        self.arm, self.cells = arm, cells
        self.keep_transfers = keep_transfers  # folder that logs of single transfers stay in, if any
        self.trace = None
        self.part = 0  # number of the cell, from 1, while it is measured

    def start(self, stack, disks):
        """Boots the guests, with the kernel that the cell asks for."""
        options = f"init_on_alloc={self.cell.zeroing:d} {GUEST_KERNEL}"
        super().start(stack, disks, options, **self.load.guest_options)
        for guest in self.guests:
            self.settle(guest)

    def settle(self, guest):
        """Sets a guest up that has booted."""
        # While nobody has a disk open, its kernel keeps nothing of it: the next part of a run would find an empty
        # cache.
        for disk in range(self.load.disks):
            guest.run(f"sleep 100000 </dev/vd{chr(ord('a') + disk)} >/dev/null 2>&1 &")
        guest.run(f"echo {'y' if self.cell.mglru else 'n'} > /sys/kernel/mm/lru_gen/enabled")

    def watch(self, guest, command):
        """Runs the workload program in a guest, shows how far it is, and measures nothing."""
        for event in guest.events(command, PHASE_SECONDS):
            if event["event"] == "progress":
                self.show(self.cell.id, guest, event)

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
            "major_faults": sum(
                measure.major_faults(Path(f"/proc/{pid}/stat").read_text()) for pid in self.arm.pids()
            ),
            "emulator_seconds": sum(measure.cpu([guest.qemu.pid])["seconds"] for guest in self.guests),
            "disk": [disk.counts() for disk in self.arm.slow_disks],
            "disk_cpu_seconds": measure.cpu([pid for disk in self.arm.slow_disks for pid in disk.pids])["seconds"],
            "machine_cpu_seconds": measure.busy_seconds(),
        }

    def memory(self):
        """(cached bytes, host memory that serving takes), now."""
        return self.arm.cached_bytes(), self.arm.group.memory_bytes()

    def twice(self):
        """Pages that the host's cache holds and a guest, too; None for images in a format whose blocks lie elsewhere in
        the file."""
        if self.arm.image_format != "raw":
            return None
        guests = [guest.qemu.pid for guest in self.guests]
        return twice.held_twice(guests, self.cell.guest_mib << 20, self.arm.pids(), self.arm.cached_files())

    def _begins(self):
        """What is measured begins: from now on the disk is as slow as it is to be."""
        for disk in self.arm.slow_disks:
            disk.wait(self.cell.wait_us)
        self.part = self.cells.index((self.cell, self.load)) + 1

    def _over(self):
        self.part = 0
        for disk in self.arm.slow_disks:
            disk.wait(0)

    @contextlib.contextmanager
    def measured_part(self):
        """What loads measure that do not run the workload program."""
        self._begins()
        try:
            yield
        finally:
            self._over()

    def together(self, commands):
        """Runs the workload program in several guests at once and returns their results, and the counters before and
        after the measured part, which they begin together. `commands` are (guest, command)."""
        try:
            results, before, after = super().together(self.cell.id, commands, self.take, self._begins)
        finally:
            self._over()
        return [slim(result) for result in results], before, after

    def run(self, each):
        """Does it all, and calls `each` with each cell and its record, as soon as there is one."""
        with contextlib.ExitStack() as stack:
            disks = self.load.images(self.cell, self.folder / "images", self.screen.say)
            latencies = self._slow(stack, disks)
            self._run([disk.device for disk in self.arm.slow_disks] or disks, latencies, each)

    def _slow(self, stack, images):
        """Makes the disks slow that are to be: what a read of them takes, by their wait. (Disks end after the
        server.)"""
        waits = {cell.wait_us for cell, _ in self.cells}
        if None in waits:
            return {None: None}
        ahead = readahead.kib(self.folder)
        self.arm.slow_disks = [
            stack.enter_context(slowdisk.SlowDisk(image, self.folder / f"disk-{i + 1}", self.folder, ahead))
            for i, image in enumerate(images)
        ]
        first, found = self.arm.slow_disks[0], {}
        for wait in waits:
            first.wait(wait)
            found[wait] = machine.latency_us(first.device)
        first.wait(0)
        return found

    def _run(self, disks, latencies, each):
        began, before_load = time.monotonic(), None
        with contextlib.ExitStack() as stack:
            self.start(stack, disks)
            shared = {
                "title": self.arm.title, "explains": self.arm.explains, "guest": self.guest_facts(),
                "limit_bytes": self.arm.limit_bytes,
                "read_ahead_kb": self.arm.read_ahead_kb, "read_ahead_seen_kb": self.arm.read_ahead_seen_kb,
            }  # fmt: skip
            self.trace = stack.enter_context(measure.ReclaimTrace(set(self.arm.pids())))
            with measure.Sampler(lambda: (self.part, *self.memory())) as sampler:
                for part, (self.cell, self.load) in enumerate(self.cells):
                    if part == 0:
                        measured = self.load.drive(self)
                    else:
                        measured = self.load.again(self, part, warm=self.load is not before_load)
                    before_load, last = self.load, part == len(self.cells) - 1
                    record = (
                        shared
                        | {"disk_latency_us": latencies[self.cell.wait_us]}
                        | self._record(measured, sampler.samples, part)
                    )
                    # After the counters, and at the end: it takes processor time of its own.
                    record["twice"] = self.twice() if last else None
                    record["seconds"] = round(time.monotonic() - began, 1)
                    began = time.monotonic()
                    each(self.cell, record)
            self.power_off()
        self.screen.clear()

    def _record(self, measured, samples, part):
        results, before, after, extra = measured
        return {
            "guests": results,
            "extra": extra,
            "measured": measure.difference(after, before),
            "end": {"own": after["own"]},
            "samples": measure.thinned(list(samples)),
            "mean": means(list(samples), part + 1),
        } | self.from_logs(before, after)

    def from_logs(self, before, after):
        """Hits by blocks, and what a perfect cache would have saved, from logs of single transfers."""
        logs = self.arm.logs_of_blocks()
        if not logs:
            return {}
        found = {"hits": [], "perfect": [], "inclusive_lru": []}
        for log, begin, end in zip(logs, before["records"], after["records"], strict=True):
            records = log.read()
            if records is None:
                return {}
            records = records[:end]
            if self.keep_transfers and self.arm.key == "direct":
                name = f"{self.cell.id}-{log.path.name.removeprefix('iolog-')}.transfers"
                perfect.keep(records, begin, self.keep_transfers / name)
            found["hits"].append(perfect.hits(records[begin:]))
            # A log is of one disk: what a cache would hold of several together cannot be computed from logs without
            # times.
            if self.arm.key == "direct" and self.load.disks == 1 and self.load.perfect:
                capacity = self.cell.cache_bytes // BLOCK
                found["perfect"].append(perfect.exclusive(records, begin, capacity))
                found["inclusive_lru"].append(perfect.inclusive_lru(records, begin, capacity))
        return found


def slim(result):
    """A guest's result without what no figure is made of."""
    return {key: value for key, value in result.items() if key not in ("event", "workload")}


def means(samples, part=1):
    """Mean memory over the whole run and over one of its measured parts."""
    measured = [s for s in samples if s[1] == part] or samples
    if not samples:
        return None
    return {
        "cached_bytes": round(sum(s[2] for s in measured) / len(measured)),
        "memory_bytes": round(sum(s[3] for s in measured) / len(measured)),
        "cached_bytes_run": round(sum(s[2] for s in samples) / len(samples)),
    }
