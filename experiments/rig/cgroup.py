"""Memory control groups: how much host memory one way of serving disks may use, and what it read from the disk.

Owns one group per instance. Knows both versions: v2 (one tree, Debian's default) and v1 (a tree per controller, where
`memory` and `blkio` are wanted). Needs root. Never leaves a group behind: it is removed at the end, and left-overs of a
killed run by the next one.
"""

import contextlib
import errno
import os
import time
from pathlib import Path

PREFIX = "undercroft-demo"


class Unavailable(Exception):
    """No memory control group can be made here; the message says why."""


def _mounts():
    with open("/proc/mounts") as f:
        for line in f:
            _, where, kind, options, *_ = line.split()
            yield Path(where.replace("\\040", " ")), kind, options.split(",")


def _read(path):
    return path.read_text()


def version():
    """Which version has the memory controller here: 2, 1, or None."""
    found = None
    for where, kind, options in _mounts():
        if kind == "cgroup2" and "memory" in _read(where / "cgroup.controllers").split():
            return 2
        if kind == "cgroup" and "memory" in options:
            found = 1
    return found


def _table(path):
    """A file of `name value` lines."""
    return {name: int(value) for name, value in (line.split()[:2] for line in _read(path).splitlines())}


class Group:
    """A control group with an optional memory limit in bytes, at the top or `inside` another one, which then has no
    processes of its own.

    """

    def __init__(self, name, limit_bytes=None, inside=None):
        if os.geteuid() != 0:
            raise Unavailable("memory control groups need root")
        self.folders = []
        self.limit_bytes = limit_bytes
        self.v2 = None
        v1 = {}
        for where, kind, options in _mounts():
            if kind == "cgroup2" and "memory" in _read(where / "cgroup.controllers").split():
                self.v2 = where
            for controller in ("memory", "blkio"):
                if kind == "cgroup" and controller in options:
                    v1[controller] = where
        if inside:
            trees = {"memory": inside.memory, "blkio": inside.io} if not self.v2 else {}
            self.v2, v1 = self.v2 and inside.memory, {k: tree for k, tree in trees.items() if tree}
        try:
            if self.v2:
                self._make_v2(name, limit_bytes)
            elif "memory" in v1:
                self._make_v1(v1, name, limit_bytes)
            else:
                raise Unavailable("no memory controller is mounted under /sys/fs/cgroup")
        except OSError as e:
            self.close()
            raise Unavailable(f"the control group could not be made: {e}") from e

    def _make(self, tree, name):
        for old in tree.glob(f"{PREFIX}-*"):
            if not Path(f"/proc/{old.name.rsplit('-', 1)[1]}").exists():
                with contextlib.suppress(OSError):
                    old.rmdir()
        folder = tree / f"{PREFIX}-{name}-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        self.folders.append(folder)
        return folder

    def _make_v2(self, name, limit):
        for controller in ("+memory", "+io"):
            with contextlib.suppress(OSError):
                (self.v2 / "cgroup.subtree_control").write_text(controller)
        self.memory = self.io = self._make(self.v2, name)
        if limit is not None:
            self.limit(limit)
            with contextlib.suppress(OSError):
                (self.memory / "memory.swap.max").write_text("0")

    def _make_v1(self, trees, name, limit):
        self.memory = self._make(trees["memory"], name)
        self.io = self._make(trees["blkio"], name) if "blkio" in trees else None
        # Groups inside count here, which older kernels do not do by themselves.
        with contextlib.suppress(OSError):
            (self.memory / "memory.use_hierarchy").write_text("1")
        if limit is not None:
            self.limit(limit)

    def limit(self, limit_bytes, file="memory.max"):
        """Another limit from now on, or none (`None`); of version 2 also `memory.high`, of which nobody is killed."""
        if self.v2:
            (self.memory / file).write_text("max" if limit_bytes is None else str(limit_bytes))
        else:
            # Memory and swap together are never less than memory, so they are changed before it or after it.
            for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
                with contextlib.suppress(*[OSError] if "memsw" in name else []):
                    (self.memory / name).write_text(str(-1 if limit_bytes is None else limit_bytes))
        self.limit_bytes = limit_bytes

    def wrap(self, argv):
        """The command that runs `argv` in the group from its first instruction on, so that all it allocates counts."""
        enter = "".join(f'echo $$ >"{folder}/cgroup.procs" && ' for folder in self.folders)
        return ["/bin/sh", "-c", enter + 'exec "$@"', "sh", *argv]

    def memory_bytes(self):
        """Memory charged to the group now, page cache included."""
        return int(_read(self.memory / ("memory.current" if self.v2 else "memory.usage_in_bytes")))

    def peak_bytes(self):
        """The most that was charged to the group at a time; None where the kernel does not say (before Linux 5.19)."""
        with contextlib.suppress(OSError):
            return int(_read(self.memory / ("memory.peak" if self.v2 else "memory.max_usage_in_bytes")))
        return None

    def page_cache_bytes(self):
        """Page cache charged to the group now, without shared memory (guests' RAM is shared memory)."""
        stat = _table(self.memory / "memory.stat")
        if self.v2:
            return stat["file"] - stat["shmem"]
        return stat["total_cache"] - stat.get("total_shmem", 0)

    def clean_cache_bytes(self):
        """Page cache charged to the group now of which the disk has what is in it."""
        stat = _table(self.memory / "memory.stat")
        dirty = (
            stat["file_dirty"] + stat["file_writeback"] if self.v2 else stat["total_dirty"] + stat["total_writeback"]
        )
        return max(0, self.page_cache_bytes() - dirty)

    def drop_page_cache(self):
        """Takes from the group all memory that can be had without swapping: clean pages of files, and names of files.
        Whatever is in use or not yet written stays."""
        try:
            if self.v2:
                (self.memory / "memory.reclaim").write_text(str(self.memory_bytes()))
            else:
                (self.memory / "memory.force_empty").write_text("0")
        except OSError as e:
            # v2 says so when less was there than was asked for.
            if e.errno not in (errno.EAGAIN, errno.EBUSY, errno.EINTR):
                raise Unavailable(
                    f"the kernel takes no page cache from a control group on request (Linux 5.19 or later does): {e}"
                ) from e

    def killed(self):
        """Processes of the group that the kernel killed because its limit left no room."""
        found = _table(self.memory / ("memory.events" if self.v2 else "memory.oom_control"))
        return found.get("oom_kill", 0)

    def disk_reads(self):
        """(operations, bytes) that the group read from block devices, or None where the kernel does not count them."""
        if self.v2:
            with contextlib.suppress(OSError):
                fields = [f.split("=") for line in _read(self.io / "io.stat").splitlines() for f in line.split()[1:]]
                return (
                    sum(int(v) for k, v in fields if k == "rios"),
                    sum(int(v) for k, v in fields if k == "rbytes"),
                )
        elif self.io:
            # Kernels that start throttling only when a limit is set count nothing before: all zeros.
            with contextlib.suppress(OSError):
                counts = self._v1_reads("io_serviced"), self._v1_reads("io_service_bytes")
                return counts if any(counts) else None
        return None

    def _v1_reads(self, name):
        lines = (line.split() for line in _read(self.io / f"blkio.throttle.{name}").splitlines())
        return sum(int(fields[2]) for fields in lines if len(fields) == 3 and fields[1] == "Read")

    def close(self):
        """Removes the group; its processes must have ended."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "memory.force_empty").write_text("0")
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)
        self.folders = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
