"""What lies between a database's file system and its slow disk: nothing, Undercroft, or a peer.

Owns the daemons, loop devices and mounts, and the control group of whatever caches. Never starts a database. Every arm
has the same slow disks (`rig.slowdisk`), and the same read-ahead of its loop device. Invariant: `pids` are all
processes between file system and slow disk, and whatever ends an arm, nothing of it is left.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from rig import cgroup, mounted, process, programs, readahead, serving, slowdisk

MIB = 1 << 20
READ_AHEAD_KB = mounted.READ_AHEAD_SECTORS // 2
# RAM of the daemon where blocks are on the SSD alone: its own tables, what waits to be written, I/O under way.
SSD_ONLY_BYTES = 24 * MIB
# For programs, beside the cache: for each database. With 10 MiB a daemon was killed by the kernel twice: with two disks
# and an SSD store, and with MariaDB on 16 connections to its disk, whose requests under way are the daemon's memory.
PROGRAM_BYTES = 16 * MIB
# Of nbdfuse, which has one request under way on each: more than there are clients, else it is what limits them.
CONNECTIONS = 16
LEAST_BYTES = 8 * MIB
WRITTEN = ("admitted_bytes", "cleaning_bytes", "summaries_bytes", "tables_bytes")


class Below:
    """An arm over the image of each database; `wheres` are the folders that are mounted."""

    key = title = ""
    has_ssd = False

    def __init__(self, sizes, images, folder, logs):
        self.sizes, self.images, self.folder, self.logs = sizes, images, Path(folder), Path(logs)
        self.stack = contextlib.ExitStack()
        self.disks, self.wheres, self.pids = [], [], []

    @classmethod
    def present(cls):
        """Whether it can be measured here."""
        return True

    def cache_bytes(self):
        """Host memory that caches, beside what each container has of its own."""
        return self.sizes.ram_bytes

    def program_bytes(self):
        """Host memory for the programs that cache."""
        return PROGRAM_BYTES * len(self.images)

    def container_extra_bytes(self):
        """What each container has besides."""
        return 0

    def __enter__(self):
        try:
            short = tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None)
            self.stack.callback(shutil.rmtree, short, ignore_errors=True)
            self.run_dir = Path(short)
            for n, image in enumerate(self.images):
                place = self.folder / f"disk-{n}"
                disk = slowdisk.SlowDisk(image, place, self.logs, READ_AHEAD_KB, CONNECTIONS)
                self.disks.append(self.stack.enter_context(disk))
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def where(self, n):
        """Where the file system of disk `n` is mounted."""
        return self.folder / f"where-{n}"

    def through_nbdfuse(self, n, file, pid):
        """Mounts the file of nbdfuse `pid`."""
        self.wheres.append(self.stack.enter_context(mounted.FileSystem(file, self.where(n))).where)
        self.pids.append(pid)

    def start(self):
        """Mounts the slow disks themselves."""
        for n, disk in enumerate(self.disks):
            self.through_nbdfuse(n, disk.folder / "export" / "disk", disk.pids[1])

    def wait(self, microseconds):
        """From now on every transfer of a slow disk waits so long."""
        for disk in self.disks:
            disk.wait(microseconds)

    def check(self):
        """Raises `Stopped` if something has ended."""

    def counts(self):
        """For each disk: what it delivered and took, and the cache's own counters; of all: bytes written to the SSD."""
        return {"disks": [disk.counts() for disk in self.disks], "cpu_seconds": self.cpu_seconds()} | self.own()

    def cpu_seconds(self):
        """Processor time of all processes between file system and slow disk."""
        return sum(mounted.cpu_seconds(pid) for pid in self.pids)

    def own(self):
        """Counters of the cache's own."""
        return {}


class Nothing(Below):
    """No second cache: what the container has of its own."""

    key, title = "none", "no second cache"

    def cache_bytes(self):
        return 0


class PageCache(Below):
    """The page cache of the same file system, with the memory that the others have for a cache in its container."""

    key, title = "pagecache", "page cache, equal memory"

    def cache_bytes(self):
        return 0

    def container_extra_bytes(self):
        return (self.sizes.ram_bytes + self.program_bytes()) // len(self.images)


class Peer(Below):
    """nbdkit's cache filter over NBD: its file is on the SSD, and its page cache has the memory."""

    key, title = "peer", "nbdkit cache filter on the SSD"
    has_ssd = True

    def start(self):
        self.group = self.stack.enter_context(cgroup.Group("stores", self.sizes.ram_bytes + self.program_bytes()))
        cache = self.folder / "peer"
        cache.mkdir(parents=True, exist_ok=True)
        self.stack.callback(shutil.rmtree, cache, ignore_errors=True)
        self.servers = []
        programs.read(mounted.program("nbdkit"))
        for n, disk in enumerate(self.disks):
            path, log = self.run_dir / f"peer-{n}.sock", self.logs / f"peer-{n}.log"
            size = self.sizes.ssd_bytes // len(self.disks)
            argv = [mounted.program("nbdkit"), "--foreground", "--unix", path, "--filter=cache", "nbd"]
            argv += [f"uri={disk.uri}", f"cache-max-size={size}", "cache-on-read=true", "cache-min-block-size=4096"]
            server = process.start(
                self.group.wrap([str(a) for a in argv]), log, env=dict(os.environ) | {"TMPDIR": str(cache)}
            )
            self.stack.callback(process.end, server)
            process.wait_for_sockets([path], server, log)
            export = mounted.Export(f"nbd+unix:///?socket={path}", self.folder / f"peer-{n}", log, CONNECTIONS)
            self.stack.enter_context(export)
            self.servers.append((server, log))
            self.pids.append(server.pid)
            self.through_nbdfuse(n, export.path, export.process.pid)

    def check(self):
        for server, log in self.servers:
            if server.poll() is not None:
                raise process.Stopped(f"nbdkit ended with {server.returncode}: {process.tail(log)}")

    def own(self):
        lines = [Path(f"/proc/{server.pid}/io").read_text().splitlines() for server, _ in self.servers]
        written = sum(int(line.split()[1]) for of in lines for line in of if line.startswith("write_bytes:"))
        return {"ssd_written_bytes": written, "memory_bytes": self.group.memory_bytes()}


class Undercroft(Below):
    """Undercroft, which reads the slow disk over NBD; `undercroft mount` makes its disk a folder."""

    stores = ("ram",)  # of each disk
    admit = "all"
    binary = serving.Undercroft.binary

    def cache_bytes(self):
        return SSD_ONLY_BYTES if set(self.stores) == {"ssd"} else self.sizes.ram_bytes

    def ssd_lines(self):
        """The configuration of the SSD store."""
        path = self.folder / "ssd"
        path.unlink(missing_ok=True)
        self.stack.callback(path.unlink, missing_ok=True)
        size = max(64 * MIB, self.sizes.ssd_bytes)
        return f'\n[ssd]\npaths = ["{path}"]\nsize = {size}\nadmit = "{self.admit}"\n'

    def start(self):
        self.group = self.stack.enter_context(cgroup.Group("stores", self.cache_bytes() + self.program_bytes()))
        self.control = self.run_dir / "control.sock"
        # Regions of the SSD are for one worker each: with one disk, a second worker's would stay empty.
        lines = [
            f'[store]\nmemory = {self.cache_bytes()}\n[daemon]\ncontrol = "{self.control}"\nworkers = 1\n'
            f'runtime_dir = "{self.run_dir}"\n'
        ]
        if self.has_ssd:
            lines.append(self.ssd_lines())
        for n, disk in enumerate(self.disks):
            store = self.stores[n % len(self.stores)]
            lines.append(f'[[disk]]\nname = "{self.name(n)}"\nimage = "{disk.uri}"\nstore = "{store}"\n')
        config, self.log = self.run_dir / "stores.toml", self.logs / "undercroft.log"
        config.write_text("".join(lines))
        self.log.unlink(missing_ok=True)
        programs.read(self.binary)
        argv = self.group.wrap([str(self.binary), "serve", str(config)])
        self.process = process.start(argv, self.log, cwd=self.run_dir)
        self.stack.callback(process.end, self.process, 30)
        self.pids.append(self.process.pid)
        process.wait_for_answer(self.control, self.process, self.log)
        for n in range(len(self.disks)):
            where = self.where(n)
            where.mkdir(parents=True, exist_ok=True)
            mount = json.loads(self.ctl("mount", self.name(n), where, "-o", "noatime", "--json"))
            self.stack.callback(self.unmount, where)
            readahead.put(mount["device"], READ_AHEAD_KB)
            self.wheres.append(where)

    def name(self, n):
        """The name of disk `n`: loop devices are the whole machine's, so no other run has it."""
        return f"stores-{os.getpid()}-{n}"

    def ctl(self, *words):
        """Runs a command against the daemon and returns what it prints."""
        return process.run([self.binary, *words, "--control", self.control], f"undercroft {words[0]}", seconds=60)

    def unmount(self, where):
        """Undoes a mount."""
        with contextlib.suppress(process.Stopped):
            self.ctl("umount", where)
        mounted.unmount(where)
        with contextlib.suppress(OSError):
            where.rmdir()

    def check(self):
        if self.process.poll() is not None:
            killed = " (the kernel killed it: its control group is full)" if self.group.killed() else ""
            raise process.Stopped(
                f"undercroft ended with {self.process.returncode}{killed}: {process.tail(self.log)} (log: {self.log})"
            )

    def own(self):
        status = json.loads(self.ctl("status", "--json"))
        disks = {disk["name"]: disk["counters"] for disk in status["disks"]}
        found = {"caches": [disks[self.name(n)] for n in range(len(self.disks))]}
        found["memory_bytes"] = self.group.memory_bytes()
        if self.has_ssd:
            ssd = json.loads(self.ctl("ssd", "--json"))
            if not ssd["in_service"]:
                raise process.Stopped(f"the SSD store is out of service: {ssd['reason']}")
            found["ssd_written_bytes"] = sum(ssd["written"][name] for name in WRITTEN)
            found["ssd_admitted_bytes"] = ssd["written"]["admitted_bytes"]
            found["ssd_counters"] = ssd["counters"]
        return found


class Least(Undercroft):
    """As little as there can be: what the way to the disk is worth, without a cache."""

    key, title = "least", "Undercroft, least RAM"

    def cache_bytes(self):
        return LEAST_BYTES


class Ram(Undercroft):
    key, title = "ram", "Undercroft, RAM"


class Ssd(Undercroft):
    key, title = "ssd", "Undercroft, SSD"
    stores, has_ssd = ("ssd",), True


class SsdSecond(Ssd):
    key, title = "ssd-second", "Undercroft, SSD, admits `second`"
    admit = "second"


class Both(Undercroft):
    key, title = "both", "Undercroft, RAM and SSD"
    stores, has_ssd = ("both",), True


class BothSecond(Both):
    key, title = "both-second", "Undercroft, RAM and SSD, admits `second`"
    admit = "second"


class BothMeasured(Both):
    key, title = "both-measured", "Undercroft, RAM and SSD, admits `measured`"
    admit = "measured"


class RamSsd(Undercroft):
    key, title = "ram-ssd", "Undercroft, the first in RAM, the second on SSD"
    stores, has_ssd = ("ram", "ssd"), True


class SsdRam(Undercroft):
    key, title = "ssd-ram", "Undercroft, the first on SSD, the second in RAM"
    stores, has_ssd = ("ssd", "ram"), True


ALL = (Nothing, PageCache, Least, Ram, Ssd, SsdSecond, Both, BothSecond, BothMeasured, Peer, RamSsd, SsdRam)
ARMS = {arm.key: arm for arm in ALL}
# `ssd-second` is there to be asked for: --arms.
ALONE = [arm.key for arm in ALL[:-2] if arm is not SsdSecond]
MIXED = ["pagecache", "ram", "both", "ram-ssd", "ssd-ram"]
