"""A disk as most hosts have it, behind a network: an image that nbdkit serves and that waits before every transfer, as
a block device.

Owns nbdkit, nbdfuse and the loop device: nbdkit reads the image and waits (experiments/guest/slowdisk.c), nbdfuse makes
a file of the export, and the loop device does direct I/O on that file. So all ways of serving are given the same block
device, the host page cache lies above it as above any disk, and who speaks NBD can be given the export itself (`uri`).
The wait may be changed at any time. nbdkit's own page cache stands for the memory of the storage, and its processor
time for the storage's: neither is counted for the host. Invariant: needs root; whatever ends this, nothing of it is
left.
"""

import contextlib
import os
import shutil
import struct
import tempfile
from pathlib import Path

from . import mounted, process, readahead
from .guest import BUILT
from .process import Stopped

PAGE = 4096
COUNTS = ("reads", "read_bytes", "writes", "written_bytes")
NEEDS = ("nbdkit", "nbdfuse", "losetup", "umount")


def lacks():
    """What this machine lacks for such disks, in words; empty if nothing."""
    missing = [f"not installed: {name} (make setup installs it)" for name in NEEDS if not mounted.program(name)]
    if os.geteuid() != 0:
        missing.append("loop devices need root")
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(device, os.R_OK | os.W_OK):
            missing.append(f"there is no {device} to use")
    return missing


class SlowDisk:
    """One image as such a disk: a context manager. `device` is its path, `uri` its export, `read_ahead_kb` the device's
    read-ahead."""

    def __init__(self, image, folder, logs, read_ahead_kb=None, connections=4):
        self.image, self.folder, self.logs = Path(image).resolve(), Path(folder).resolve(), Path(logs)
        self.read_ahead_kb, self.connections = read_ahead_kb, connections
        self.socket = self.uri = None
        self.page = self.folder / "page"
        self.made = self.folder / "device"  # what a run that was killed has left
        self.device = None
        self.pids = []
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        if missing := lacks():
            raise Stopped(f"a slow disk cannot be made here: {'; '.join(missing)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear()
        try:
            # Sockets have paths of at most 107 bytes: a short folder, whatever the working directory is.
            short = tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None)
            self.stack.callback(shutil.rmtree, short, ignore_errors=True)
            self.socket = Path(short) / "nbd.sock"
            self.uri = f"nbd+unix:///?socket={self.socket}"
            self.page.write_bytes(bytes(PAGE))
            log = self.logs / "nbdkit.log"
            environment = dict(os.environ) | {"LD_PRELOAD": str(BUILT / "slowdisk.so"), "SLOWDISK_FILE": str(self.page)}
            server = process.start(
                [mounted.program("nbdkit"), "--foreground", "--unix", self.socket, "file", self.image],
                log,
                env=environment,
            )
            self.stack.callback(process.end, server)
            process.wait_for_sockets([self.socket], server, log)
            export = self.stack.enter_context(
                mounted.Export(self.uri, self.folder / "export", self.logs / "nbdfuse.log", self.connections)
            )
            self.pids = [server.pid, export.process.pid]
            # With mounts of our own, others do not see the file; so this process makes the loop device of it.
            self.device = Path(
                process.run(
                    [mounted.program("losetup"), "--find", "--show", "--direct-io=on", export.path], "losetup"
                ).strip()
            )
            self.stack.callback(self._detach)
            self.made.write_text(f"{self.device.name} {short}")
            if (
                process.run(
                    [mounted.program("losetup"), "--noheadings", "--output", "DIO", self.device], "losetup"
                ).strip()
                != "1"
            ):
                raise Stopped(f"{self.device} cannot do direct I/O on {export.path}: its pages would be cached twice")
            if self.read_ahead_kb is not None:
                readahead.put(self.device, self.read_ahead_kb)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self, microseconds):
        """From now on every transfer waits so long."""
        with open(self.page, "r+b", buffering=0) as f:
            f.write(struct.pack("<Q", 1000 * microseconds))

    def counts(self):
        """What the disk has delivered and taken so far, by its own count."""
        with open(self.page, "rb") as f:
            return dict(zip(COUNTS, struct.unpack("<5Q", f.read(40))[1:], strict=True))

    def _clear(self):
        """Detaches the loop device of a run that was killed: nbdkit, nbdfuse and the mount have ended with that run."""
        with contextlib.suppress(OSError):
            name, short = self.made.read_text().split(" ", 1)
            shutil.rmtree(short, ignore_errors=True)
            # Somebody else may have that number by now.
            if (
                Path("/sys/block", name, "loop/backing_file")
                .read_text()
                .removesuffix(" (deleted)\n")
                .rstrip()
                .endswith("/disk")
            ):
                self.device = Path("/dev") / name
                self._detach()
        self.made.unlink(missing_ok=True)

    def _detach(self):
        with contextlib.suppress(Stopped):
            process.run([mounted.program("losetup"), "--detach", self.device], "losetup --detach")

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.wait(0)
        self.stack.close()
        for path in (self.page, self.made):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
