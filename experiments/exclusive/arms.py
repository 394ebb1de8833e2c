"""The arms of a comparison: ways to serve a guest's disk with the same amount of host memory.

Owns serving processes and their control group. Every arm's group is as large as the cache plus the same allowance for
programs (`rig.serving.PROGRAM_BYTES`); the kernel holds it to that, and what was really used is measured. Undercroft's
store is as large as the cache. Invariant: what an arm read from the disk is counted per disk and by the kernel, for all
arms alike.
"""

import os
import stat
import threading
from pathlib import Path

from rig import cgroup, guest as guests, process, programs, readahead, serving

from . import perfect

MIB = 1 << 20
FADVISE_EVERY_SECONDS = 2.0
# What Linux reads ahead on a disk, if nobody says otherwise.
LINUX_READ_AHEAD_KB = 128
# What the scanner's index may take, which comes off the store: about 30 bytes a page, 1.5 MiB for a guest of 192 MiB.
# Scans follow each other as fast as is allowed without notice of shortage, for a run lasts a minute; its part of a core
# is the default.
SCAN_INDEX_BYTES = 4 * MIB
SCAN = f'\n[scan]\nenabled = true\nperiod_min = "5s"\nperiod_max = "20s"\nmemory = "{SCAN_INDEX_BYTES // MIB}MiB"\n'
SCAN_WORDS = "`[scan]` on (5 % of a core at most, every 5 to 20 s)"


class Absent(Exception):
    """This arm cannot be measured with this build; says why."""


class DiskReads(serving.Serving):
    """What the laboratory wants to know of every way of serving."""

    limit_bytes = None  # of the control group; what the arm itself is given, if nothing else is said
    served_only = False  # for disks behind a network only
    scan = False  # whether guests' memory is scanned
    slow_disks = ()  # what the disks are, where they are behind a network
    # What the kernel reads ahead for this arm, in KiB, and what it was seen to; None where it reads nothing ahead.
    read_ahead_kb = read_ahead_seen_kb = None

    def _limited(self, name):
        self.group = cgroup.Group(name, self.limit_bytes or self.memory_bytes)

    def read_bytes(self):
        """Bytes read from storage so far, per disk."""
        raise NotImplementedError

    def pids(self):
        """The serving processes."""
        return self._pids()

    def cached_bytes(self):
        """Data cached now."""
        return self.group.page_cache_bytes()

    def cached_files(self):
        """Files whose page cache is this arm's cache; none for one that keeps blocks in its own memory."""
        return self.disks

    def own(self):
        """Counters of the server's own, if it has some; the same keys every time."""
        return {}

    def logs_of_blocks(self):
        """Logs of single transfers, one per disk, if there are some."""
        return []


class StorageDaemon(DiskReads):
    """qemu-storage-daemon, one process per disk, all in one control group."""

    direct = "off"
    reads_ahead = None  # what its images are opened with, in KiB; None for what the host has

    def __init__(self, memory_bytes, logs, image_format="raw", disks=1):
        super().__init__(memory_bytes, logs, image_format)
        self.daemons = []
        self.iologs = []
        if self.reads_ahead is not None:
            try:
                readahead.setting(self.logs)
            except readahead.Unsettable as e:
                raise Absent(str(e)) from e

    def start(self, disks):
        self.disks = [Path(d).resolve() for d in disks]
        self._limited(self.key)
        with readahead.opened_with(self.disks[0], self.reads_ahead):
            if self.direct == "off":
                self.read_ahead_kb = readahead.kib(self.disks[0])
                self.read_ahead_seen_kb = readahead.seen(self.disks[0])
                readahead.check(self.reads_ahead, self.read_ahead_seen_kb)
            self._serve()

    def _serve(self):
        for i, disk in enumerate(self.disks):
            driver = "host_device" if stat.S_ISBLK(os.stat(disk).st_mode) else "file"
            log = self.logs / f"{self.key}-{i + 1}.log"
            argv = [
                "qemu-storage-daemon",
                "--blockdev", f"driver={driver},node-name=file,filename={disk},cache.direct={self.direct},aio=threads",
                "--blockdev", f"driver={self.image_format},node-name=disk,file=file,cache.direct={self.direct}",
                "--export", "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,"
                            f"addr.path={self.socket(i)},writable=on,num-queues=1",
            ]  # fmt: skip
            environment = dict(os.environ)
            if self.image_format == "raw":
                iolog = perfect.Log(self.run_dir / f"iolog-{i + 1}")
                self.iologs.append(iolog)
                environment |= {
                    "LD_PRELOAD": str(guests.BUILT / "iolog.so"),
                    "IOLOG_IMAGE": str(disk),
                    "IOLOG_FILE": str(iolog.path),
                }
            programs.read(argv[0])
            self.process = process.start(
                self.group.wrap([str(a) for a in argv]), log, cwd=self.run_dir, env=environment
            )
            self.daemons.append(self.process)
            self.started.append((self.process, log))
            process.wait_for_sockets([self.socket(i)], self.process, log)

    def _pids(self):
        return [daemon.pid for daemon in self.daemons]

    def read_bytes(self):
        return [serving.process_read_bytes(daemon.pid) for daemon in self.daemons]

    def logs_of_blocks(self):
        return self.iologs

    def __exit__(self, *args):
        try:
            for daemon in self.daemons[:-1]:
                process.end(daemon)
        finally:
            for log in self.iologs:
                log.close()
            super().__exit__(*args)


class Direct(StorageDaemon):
    """No host cache."""

    key, title = "direct", "O_DIRECT"
    explains = "qemu-storage-daemon, cache.direct=on: no host cache; the reference for bytes"
    direct = "on"


class Default(StorageDaemon):
    """The host page cache as people have it on this host."""

    key, title = "default", "page cache, host's read-ahead"
    explains = (
        "qemu-storage-daemon over the host page cache, in a memory control group, with the read-ahead that this host's"
        " disk has"
    )


class LinuxDefault(StorageDaemon):
    """The host page cache as Linux has it, if nobody says otherwise."""

    key, title = "default-128", f"page cache, {LINUX_READ_AHEAD_KB} KiB read-ahead"
    explains = f"the same with Linux's read-ahead, {LINUX_READ_AHEAD_KB} KiB"
    reads_ahead = LINUX_READ_AHEAD_KB


class NoReadAhead(StorageDaemon):
    """The host page cache that holds what was asked for, and nothing else."""

    key, title = "default-off", "page cache, no read-ahead"
    explains = "the same without read-ahead"
    reads_ahead = 0


class Fadvise(StorageDaemon):
    """The same, with everything of the images dropped again and again."""

    key, title = "fadvise", "fadvise"
    explains = f"as on this host, with POSIX_FADV_DONTNEED on the image every {FADVISE_EVERY_SECONDS:g} s"

    def start(self, disks):
        super().start(disks)
        self.over = threading.Event()
        self.dropper = threading.Thread(target=self._drop, daemon=True)
        self.dropper.start()

    def _drop(self):
        files = [os.open(disk, os.O_RDONLY) for disk in self.disks]
        try:
            while not self.over.wait(FADVISE_EVERY_SECONDS):
                for fd in files:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            for fd in files:
                os.close(fd)

    def __exit__(self, *args):
        if hasattr(self, "over"):
            self.over.set()
            self.dropper.join()
        super().__exit__(*args)


class Undercroft(serving.Undercroft, DiskReads):
    """Undercroft with one setting."""

    settings = ""

    def __init__(self, memory_bytes, logs, image_format="raw", disks=1):
        settings = self.settings
        if supports("exclusive"):
            settings += f'exclusive = "{self.exclusive}"\n'
        elif self.exclusive != "off":
            raise Absent("this build of undercroft has no exclusive mode")
        store = memory_bytes - serving.PROGRAM_BYTES - (SCAN_INDEX_BYTES if self.scan else 0)
        super().__init__(memory_bytes, logs, image_format, disk_options=settings, store_bytes=store)
        if self.scan:
            self.daemon_options += SCAN

    def read_bytes(self):
        return [disk["counters"]["backend_read_bytes"] for disk in self.status()["disks"]]

    def cached_files(self):
        return []

    def cached_bytes(self):
        # What equal blocks share is there once, whatever disks hold it.
        return self.status()["store"]["data_bytes"]

    def own(self):
        status = self.status()
        # Times of workers' threads are in `cpu`; what copying and hashing guests' pages took of them is here.
        return {
            "process_read_bytes": serving.process_read_bytes(self.process.pid),
            "store": numbers(status["store"]),
            # The scan's counters are of all guests; what it took of a processor is in `cpu`, by its thread's name.
            "scan": numbers(status["scan"]) if status.get("scan") else None,
            "copying_seconds": status.get("copying_seconds"),
            # Results are for everybody: no paths of the machine that they were measured on.
            "disks": [
                numbers({k: v for k, v in disk.items() if k not in ("latency", "image", "socket")})
                for disk in status["disks"]
            ],
        }


class Lru(Undercroft):
    """Inclusive, by recency."""

    key, title, exclusive = "undercroft-lru", "inclusive, LRU", "off"
    explains = 'undercroft, exclusive = "off", policy = "lru"'
    settings = 'policy = "lru"\n'


class Inclusive(Undercroft):
    """Inclusive, default policy."""

    key, title, exclusive = "undercroft-off", "inclusive", "off"
    explains = 'undercroft, exclusive = "off", its default policy'


class Auto(Undercroft):
    """Exclusive, as it comes."""

    key, title, exclusive = "undercroft-auto", "exclusive", "auto"
    explains = 'undercroft, exclusive = "auto": it finds out by itself which way pays'


class Capture(Undercroft):
    """Exclusive, content taken at reuse only."""

    key, title, exclusive = "undercroft-capture", "exclusive, capture", "capture"
    explains = 'undercroft, exclusive = "capture": content is taken when a page is reused'


class Delayed(Undercroft):
    """Exclusive, content taken early and confirmed late."""

    key, title, exclusive = "undercroft-delayed", "exclusive, delayed", "delayed"
    explains = 'undercroft, exclusive = "delayed": content is taken before the eviction, confirmed after'


class Upstream(Auto):
    """Exclusive, and it speaks NBD to the disk itself."""

    key, title = "upstream", "exclusive, NBD image"
    explains = (
        'undercroft, exclusive = "auto", that reads the disk over NBD itself, without a block device of the host in'
        " between"
    )
    served_only = True

    def start(self, disks):
        super().start([disk.uri for disk in self.slow_disks])

    def format_option(self):
        return ""

    def own(self):
        # The kernel counts what is read of disks, not of sockets.
        return {name: value for name, value in super().own().items() if name != "process_read_bytes"}


class ScanVhost(Auto):
    """Exclusive, and the guest's memory is scanned besides."""

    key, title = "scan-vhost", "exclusive, scan"
    explains = f'undercroft, exclusive = "auto", and {SCAN_WORDS}'
    scan = True


class Nbd(Inclusive):
    """Over NBD, for a guest whose memory nobody sees."""

    key, title = "nbd", "NBD, private RAM"
    explains = "undercroft over NBD, its default policy; the guest's RAM is private, so that the cache is inclusive"
    private_ram = True

    def start(self, disks):
        self.daemon_options = f'\n[nbd]\nunix = "{self.nbd_socket()}"\n' + self.daemon_options
        super().start(disks)

    def nbd_socket(self):
        """The one socket of all disks."""
        return self.run_dir / "nbd.sock"

    def port_options(self, index):
        return "vhost_user = false\nnbd = true\n"

    def sockets(self):
        return [self.nbd_socket()]

    def disk_args(self, index):
        server = f"server.type=unix,server.path={self.nbd_socket()},export={':'.join(self.names(index))}"
        return [
            "-blockdev",
            f"driver=nbd,node-name=disk{index},{server}",
            "-device",
            f"virtio-blk-pci,drive=disk{index}",
        ]


class ScanNbd(Nbd):
    """The same, with the guest's memory scanned: found by its pid file."""

    key, title = "scan-nbd", "NBD, private RAM, scan"
    explains = f"the same, and {SCAN_WORDS}; the guest is found by its pid file"
    scan = True

    def pid_file(self, index):
        """Where the process number of a guest stands once it has booted."""
        return self.run_dir / f"guest-{index + 1}.pid"

    def vm_options(self, index):
        return f'pid_file = "{self.pid_file(index)}"\n'

    def guests_ready(self, guests):
        for index, guest in enumerate(guests):
            self.pid_file(index).write_text(f"{guest.qemu.pid}\n")


ARMS = {
    arm.key: arm
    for arm in [
        Direct, Default, LinuxDefault, NoReadAhead, Fadvise, Lru, Inclusive, Auto, Capture, Delayed, Upstream,
        ScanVhost, Nbd, ScanNbd,
    ]
}  # fmt: skip
PAGE_CACHE = ("default", "default-128", "default-off")
USUAL = ["direct", *PAGE_CACHE, "fadvise", "undercroft-lru", "undercroft-off", "undercroft-auto", "upstream"]
# What an arm with a scanner is measured beside.
SCANNED = ["direct", *PAGE_CACHE, "undercroft-off", "undercroft-auto", "scan-vhost", "nbd", "scan-nbd"]
# What README and the demo compare.
SHORT = ["direct", *PAGE_CACHE, "undercroft-off", "undercroft-auto"]
SETS = {
    "short": SHORT,
    "usual": USUAL,
    "scanned": SCANNED,
    "both": [*USUAL, *(key for key in SCANNED if key not in USUAL)],
}


def on(keys, cell):
    """Of arms, those that a cell has: some are for disks behind a network only."""
    return [key for key in keys if cell.wait_us is not None or not ARMS[key].served_only]


def supports(key, binary=None):
    """Whether this build of undercroft knows a configuration key of a disk."""
    binary = binary or serving.Undercroft.binary
    if not Path(binary).exists():
        raise process.Stopped(f"{binary} is not there: run `make build`")
    return any(f" `{key}` " in line for line in process.run([binary, "reference"], "undercroft reference").splitlines())


def numbers(value):
    """The numbers and texts of a piece of JSON, without its lists."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items() if isinstance(v, dict | int | float | str)}
    return value


def present(key):
    """Whether this build has an arm."""
    arm = ARMS[key]
    return not (issubclass(arm, Undercroft) and arm.exclusive != "off" and not supports("exclusive"))
