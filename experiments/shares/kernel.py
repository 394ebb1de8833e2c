"""The per-file experiments: a kernel's compilation, on file systems whose disks are served.

Owns that load (Page cache management, section 5.7, "kerncompile", table 5.5) and the processes of the build. Invariant:
an arm starts from the same bytes as the others, nothing of its files in a page cache, and whatever ends it, builds,
mounts and groups of it end too.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time

from rig import cgroup, mounted, process
from rig.process import Stopped

from . import sources
from .clients import COUNTERS, counted
from .experiment import Experiment, Lacking
from .locality import shown
from .served import MIB, Disk, Vm
from .sources import OUTPUT_MIB, SOURCE_MIB, Sources

# The build's page cache is looked at so often, and a sample taken at every fifth look.
EVERY_S = 0.1
LOOKS = 5
# It is emptied when it holds more than this. By size, not by time: on a busy machine a build must not look as if it
# read more.
PAGE_CACHE_MIB = 12
GROUP_MIB = 384
JOBS = 3


class Kernel(Experiment):
    """One LRU for source and output, as a page cache has, and a cache for each of them."""

    id, title = "d-kernel", "A kernel-tree build"
    # An arm takes about two minutes.
    repeated = 1 / 3
    # Key: title, policy, controller, part of the store.
    ways = {
        "unified": ("one LRU for source and output", "lru", "static", 1.0),
        "static": ("one each, `static`", "lru", "static", 1.0),
        "utility": ("one each, `utility`", "lru", "utility", 1.0),
        "paper": ("one each, CAR, `paper`", "car", "paper", 1.0),
        "less": ("one each, `utility`, five sixths of the store", "lru", "utility", 5 / 6),
    }
    arms = {key: way[0] for key, way in ways.items()}

    def __init__(self, lab):
        super().__init__(lab)
        self.store_mib = 36
        self.warm, self.measured = ([], ["mm/"]) if lab.quick else (["lib/"], ["vmlinux"])
        self.sources = Sources(lab.work / "kernel", lab.work / "kernel.log", lab.screen.say)

    def explains(self):
        what = " ".join(self.measured)
        warm = (
            f"after `make {' '.join(self.warm)}` to warm up, then mounted anew" if self.warm else "nothing to warm up"
        )
        return (
            f"a store of {self.store_mib} MiB; `make -j{JOBS} {what}` of Linux's source in tinyconfig, `make prepare`"
            f" done, {warm}; ext4 file systems of source (read only, {SOURCE_MIB} MiB) and output ({OUTPUT_MIB} MiB,"
            " empty but for that) on two disks of one VM, or on two parts of one disk, over NBD, nbdfuse and a loop"
            f" device with direct I/O; the build's memory is a control group of {GROUP_MIB} MiB, out of which all clean"
            f" page cache is taken whenever it is more than {PAGE_CACHE_MIB} MiB, as there is one cache in the thesis,"
            " not two above each other"
        )

    def numbers(self):
        return {"store_mib": self.store_mib, "measured": self.measured, "jobs": JOBS}

    def run(self, arm):
        if missing := lacks():
            raise Lacking("; ".join(missing))
        try:
            return self.compile(arm)
        except cgroup.Unavailable as e:
            raise Lacking(str(e)) from e

    def present(self):
        return [] if lacks() else list(self.arms)

    def compile(self, arm):
        """The warm-up and the measured build on disks of an arm."""
        _, policy, controller, part = self.ways[arm]
        self.sources.prepare()
        self.sources.reset()
        self.sources.warm_programs()
        if arm == "unified":
            vms = [Vm("both", [Disk("root", self.sources.both)])]
        else:
            vms = [Vm("build", [Disk("source", self.sources.source_image), Disk("output", self.sources.working)])]
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(cgroup.Group("kernel", GROUP_MIB * MIB))
            served = stack.enter_context(
                self.lab.serve(round(part * self.store_mib), vms, controller=controller, policy=policy)
            )
            exports = {}
            for disk in vms[0].disks:
                target, place = served.target(f"{vms[0].name}:{disk.name}"), self.sources.folder / f"export-{disk.name}"
                export = mounted.Export(target, place, self.lab.work / "nbdfuse.log")
                exports[disk.name] = stack.enter_context(export)
            if self.warm:
                with self.file_systems(exports):
                    self.build(served, group, arm, self.warm)
            before = counted(served)
            used = [served.process.pid, *(e.process.pid for e in exports.values())]
            cpu_before = [mounted.cpu_seconds(pid) for pid in used]
            with self.file_systems(exports):
                build, samples = self.build(served, group, arm, self.measured)
                after = counted(served)
                cpu = [mounted.cpu_seconds(pid) - b for pid, b in zip(used, cpu_before, strict=True)]
            return {
                "build": build | {"daemon_cpu_seconds": round(cpu[0], 2), "glue_cpu_seconds": round(sum(cpu[1:]), 2)},
                "disks": {name: {key: after[name][key] - before[name][key] for key in COUNTERS} for name in after},
                "samples": samples, "why": served.why(), "errors": served.errors(),
            }  # fmt: skip

    @contextlib.contextmanager
    def file_systems(self, exports):
        """Source and output, mounted: with nothing of them in the page cache."""
        if "root" in exports:
            disk = exports["root"].path
            source = mounted.FileSystem(disk, self.sources.source, 0, SOURCE_MIB * MIB, read_only=True)
            output = mounted.FileSystem(disk, self.sources.output, SOURCE_MIB * MIB, OUTPUT_MIB * MIB)
        else:
            source = mounted.FileSystem(exports["source"].path, self.sources.source, read_only=True)
            output = mounted.FileSystem(exports["output"].path, self.sources.output)
        with source, output:
            yield

    def build(self, served, group, arm, targets):
        """Builds in the group: what it took, and a sample now and then."""
        began, cpu, samples, looks, emptied = time.monotonic(), children_cpu(), [], 0, 0
        build = process.start(group.wrap([str(a) for a in self.sources.make(*targets, jobs=JOBS)]), self.sources.log)
        try:
            while True:
                try:
                    build.wait(EVERY_S - (time.monotonic() - began) % EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    looks += 1
                    if group.clean_cache_bytes() > PAGE_CACHE_MIB * MIB:
                        group.drop_page_cache()
                        emptied += 1
                    if looks % LOOKS:
                        continue
                    held = group.page_cache_bytes()
                    samples.append(
                        {"at": round(time.monotonic() - began, 2), "page_cache": held, "disks": shown(served)}
                    )
                    cached = sum(disk[1] for disk in samples[-1]["disks"].values()) // MIB
                    self.lab.screen.status(
                        arm, f"make {' '.join(targets)}: {time.monotonic() - began:.0f} s, {cached} MiB cached"
                    )
        finally:
            seconds = time.monotonic() - began
            if build.poll() is None:
                # make and what it started: they are a session of their own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(build.pid, signal.SIGKILL)
                build.wait()
        if build.returncode:
            raise Stopped(
                f"make {' '.join(targets)} ended with {build.returncode}: {process.tail(self.sources.log)} (its log:"
                f" {self.sources.log})"
            )
        return {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(children_cpu() - cpu, 2),
            "emptied": emptied,
        }, samples


def lacks():
    """What is missing on this machine, in words that say what to do; empty if nothing is."""
    return mounted.lacks(sources.missing_packages())


def children_cpu():
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
