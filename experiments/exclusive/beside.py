"""Loads with company: a quiet guest beside a noisy one, a host process beside a guest, clones of one image.

Owns what these measure beyond bytes; the result goes into the record's `extra`. Invariant: each is measured alone and
in company in the same run, so that the difference is the company's.
"""

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from rig import guest as guests, process
from rig.images import drop_cached

from . import measure
from .cells import MIB, SMALLEST_GUEST_MIB, Cell

SEED = 1


def pattern(folder, size, seed, say):
    """An image of the workload program's pattern, made if it is not there, and none of it in the page cache."""
    path = folder / f"pattern-{size // MIB}MiB{'' if seed == SEED else f'-{seed}'}.raw"
    if not path.exists() or path.stat().st_size != size:
        say(f"making an image of {size // MIB} MiB")
        making = path.with_suffix(".new")
        making.unlink(missing_ok=True)
        process.run([guests.BUILT / "workload", "fill", making, "--seed", seed, "--bytes", size], "workload fill")
        making.rename(path)
    drop_cached(path)
    return path


class Company:
    """What loads with company have in common."""

    style = "company"
    format, guests, disks, guest_options, perfect = "raw", 1, 1, {}, True
    cache_extra_bytes = 0  # host memory for serving, beyond N
    limit_extra_bytes = 0  # of the control group, beyond what serving may have

    def check(self, cell: Cell) -> str:
        """Why a cell cannot be run, or nothing."""
        if cell.wait_us is not None:
            return "company is measured on the host's own disk only"
        return f"a guest needs at least {SMALLEST_GUEST_MIB} MiB" if cell.guest_mib < SMALLEST_GUEST_MIB else ""

    def same(self, cell_results):
        """The workload program has checked every byte."""


class Pair(Company):
    """Isolation: what a quiet guest's share of the cache saves alone, and beside a guest that reads without end."""

    key, title = "pair", "quiet guest beside a noisy one"
    guests = 2

    def __init__(self, quiet, noisy):
        # The quiet guest's load fits into what it and its part of the host can keep; the noisy one's does not. Both
        # last long enough (some ten seconds, and the noisy one longer) that single delays do not decide.
        self.quiet, self.noisy = replace(quiet, beyond=0.4, ops=6), replace(noisy, ops=2)

    def explains(self, cell: Cell) -> str:
        """What they do, in words and numbers."""
        return (
            f"one guest with {self.quiet.explains(cell)}, first alone, then beside one with {self.noisy.explains(cell)}"
        )

    def images(self, cell: Cell, folder: Path, say) -> list[Path]:
        """One image each, with contents of their own."""
        sizes = [self.quiet.bytes(cell), self.noisy.bytes(cell)]
        return [pattern(folder, size, SEED + i, say) for i, size in enumerate(sizes)]

    def drive(self, run):
        """The quiet one alone, then both; both parts are measured."""
        quiet, noisy = run.guests
        alone, before, after = run.together([(quiet, self.quiet.command(run.cell, 0))])
        parts = {"alone": {"guest": alone[0], "measured": measure.difference(after, before)}}
        # The quiet one's reads are mostly answered by its own RAM: it is done before the noisy one, and never alone.
        flood = self.noisy.command(run.cell, 1).replace(f"--seed {SEED}", f"--seed {SEED + 1}")
        # The same operations again. Its cache is warm already.
        again = self.quiet.command(run.cell, 0).replace(" --prefill", "")
        results, before, after = run.together([(quiet, again), (noisy, flood)])
        return results, before, after, parts


class HostJob(Company):
    """Effect on the host: a process whose reads the page cache cannot all answer, from the same host memory. Whatever a
    guest's cache takes, and whatever passes through the page cache on a guest's behalf, its reads miss more."""

    key, title = "hostjob", "host process beside a guest"
    # A file larger than all of the group's memory; four fifths of the reads go to a fifth of it, which fits into what
    # is the process's alone. So it misses by itself, and misses more if anything is taken from it.
    file_mib, reads, pause_seconds = 192, 4000, 0.2
    limit_extra_bytes = 64 * MIB
    # Until its cache has settled: 160,000 reads of 49,152 blocks. The last quarter of these passes counts.
    alone_passes, alone_seconds = 40, 300

    def __init__(self, load):
        self.load = load

    def explains(self, cell: Cell) -> str:
        """What they do, in words and numbers."""
        return (
            f"{self.load.explains(cell)}; on the host a process reads single blocks of a file of {self.file_mib} MiB at"
            f" random, four fifths of them in a fifth of it, {self.reads:,} in a pass, with"
            f" {self.limit_extra_bytes // MIB} MiB more in the same control group: less than its file"
        )

    def images(self, cell: Cell, folder: Path, say) -> list[Path]:
        """The guest's image; and the process's file."""
        self.file = pattern(folder, self.file_mib * MIB, 77, say)
        return self.load.images(cell, folder, say)

    def drive(self, run):
        """The process alone while the guest is idle, then beside it."""
        guest = run.guests[0]
        with Job(run, self.file, self.reads, self.pause_seconds) as job:
            job.wait(self.alone_passes, self.alone_seconds)
            alone = job.passes()
            # The guest fills its caches first, and with them the host's; what counts is what comes after, as for the
            # guest.
            results, before, after = run.together([(guest, self.load.command(run.cell))])
            beside = [p for p in job.passes() if before["time"] <= p.pop("at") <= after["time"]]
        alone = [{k: v for k, v in p.items() if k != "at"} for p in alone[-(self.alone_passes // 4) :]]
        facts = {"file_bytes": self.file_mib * MIB, "reads": self.reads}
        return results, before, after, {"job": {"alone": alone, "beside": beside} | facts}


JOB = """
import json, os, random, sys, time
path, reads, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def read_bytes():
    return next(int(l.split()[1]) for l in open("/proc/self/io") if l.startswith("read_bytes"))
fd = os.open(path, os.O_RDONLY)
blocks = os.fstat(fd).st_size // 4096
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
dice = random.Random(1)
# The fifth that is read most is spread over the file.
often = dice.sample(range(blocks), blocks // 5)
# All of it once, so that its cache is full from the start.
for block in range(blocks):
    os.pread(fd, 4096, 4096 * block)
while True:
    begin, had = time.monotonic(), read_bytes()
    for _ in range(reads):
        block = dice.choice(often) if dice.random() < 0.8 else dice.randrange(blocks)
        os.pread(fd, 4096, 4096 * block)
    end = time.monotonic()
    print(json.dumps({"at": end, "seconds": round(end - begin, 4), "read_bytes": read_bytes() - had}), flush=True)
    time.sleep(pause)
"""


class Job:
    """The host process, in the control group of the serving process."""

    def __init__(self, run, file, reads, pause):
        self.log = run.folder / f"{run.arm.key}-hostjob.log"
        self.log.unlink(missing_ok=True)
        self.argv = run.arm.group.wrap([sys.executable, "-c", JOB, str(file), str(reads), str(pause)])

    def __enter__(self):
        self.process = process.start(self.argv, self.log)
        return self

    def passes(self):
        """Every pass so far: when it ended, seconds, and bytes read from the disk."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def wait(self, passes, seconds):
        """Waits for so many passes."""
        end = time.monotonic() + seconds
        while len(self.passes()) < passes:
            if self.process.poll() is not None:
                raise process.Stopped(f"the host process ended: {process.tail(self.log)}")
            if time.monotonic() > end:
                raise process.Stopped(
                    f"the host process did not make {passes} passes in {seconds} s: its log is {self.log}"
                )
            time.sleep(0.1)

    def __exit__(self, *_):
        process.end(self.process)


class Clones(Company):
    """Memory for what eight clones of one image have in common, against one."""

    key, title = "clones", "eight clones of one image"
    guests, format = 8, "qcow2"
    common_mib = 48

    def explains(self, cell: Cell) -> str:
        """What they do, in words and numbers."""
        return (
            f"{self.guests} guests on qcow2 clones of one base read the same {self.common_mib} MiB twice each, one"
            " after the other, dropping their own caches in between; the host has room for all of it many times"
        )

    @property
    def cache_extra_bytes(self):
        """Room for everybody's copy: what is measured is how much is taken."""
        return self.guests * self.common_mib * MIB

    def images(self, cell: Cell, folder: Path, say) -> list[Path]:
        """A base with one file in ext4, and empty clones of it."""
        base = folder / f"base-4k-{self.common_mib}MiB.qcow2"
        if not base.exists():
            say(f"making a base image with {self.common_mib} MiB in a file")
            files, raw = folder / "base-files", folder / "base.raw"
            shutil.rmtree(files, ignore_errors=True)
            files.mkdir()
            size = self.common_mib * MIB
            process.run(
                [guests.BUILT / "workload", "fill", files / "common", "--seed", SEED, "--bytes", size], "workload fill"
            )
            with open(raw, "wb") as f:
                f.truncate(size + 64 * MIB)
            mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
            process.run(
                [mkfs, "-q", "-F", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-d", files, raw],
                "mkfs.ext4",
            )
            process.run(["qemu-img", "convert", "-O", "qcow2", raw, base], "qemu-img convert")
            raw.unlink()
            shutil.rmtree(files)
        clones = [folder / f"clone-{i + 1}.qcow2" for i in range(self.guests)]
        for clone in clones:
            clone.unlink(missing_ok=True)
            create = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", base.name, "-F", "qcow2", clone]
            process.run(create, "qemu-img create")
            drop_cached(clone)
        drop_cached(base)
        return clones

    def drive(self, run):
        """One after the other; memory is taken after each."""
        read = f"workload check /mnt/common --seed {SEED} --bytes {self.common_mib * MIB}"
        memory, results = [], []
        begin = run.arm.cached_bytes()
        with run.measured_part():
            before = run.take()
            for i, guest in enumerate(run.guests):
                run.screen.status(run.arm.key, f"{run.cell.id} clone {i + 1} of {len(run.guests)} reads")
                started = time.monotonic()
                guest.run("mount -t ext4 -o ro,noatime /dev/vda /mnt")
                for _ in range(2):
                    guest.run(f"echo 3 > /proc/sys/vm/drop_caches; {read}", 300)
                guest.run("umount /mnt")
                memory.append(run.arm.cached_bytes())
                results.append(self._result(guest, time.monotonic() - started))
            after = run.take()
        return (
            results,
            before,
            after,
            {"clones": {"before": begin, "cached_bytes": memory, "common_bytes": self.common_mib * MIB}},
        )

    def _result(self, guest, seconds):
        """The form that the workload program's results have."""
        v = [int(n) for n in guest.run("cat /sys/block/vda/stat")[1].split()]
        device = {
            "read_ios": v[0],
            "read_bytes": v[2] * 512,
            "read_ms": v[3],
            "write_ios": v[4],
            "write_bytes": v[6] * 512,
        }
        total = 2 * self.common_mib * MIB
        return {
            "seconds": seconds, "reads": total // 4096, "writes": 0, "read_bytes": total,
            "cached_bytes": 0, "read_disk": {"count": v[0], "mean_us": 1000 * v[3] / max(1, v[0])}, "device": device,
        }  # fmt: skip
