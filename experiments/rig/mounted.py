"""Disks that are served over NBD, as file systems of this machine: nbdfuse makes a file of an export, loop a block
device of the file, and that is mounted.

Owns nbdfuse, the loop devices and the mounts. Needs root. Invariant: only the file system's own page cache lies above
an export (the loop device does direct I/O, or nothing is mounted), and an error or a signal leaves nothing behind.
After kill -9 with unwritten data, the loop device may wait for nbdfuse for ever: mount fusectl and write 1 to the
connection's `abort`. Mounts are made in a namespace of this process's own.
"""

import contextlib
import ctypes
import os
import shutil
import time
from pathlib import Path

from . import process
from .process import Stopped

CLONE_NEWNS = 0x00020000
# What a guest's kernel reads ahead on a disk; loop devices would take much more.
READ_AHEAD_SECTORS = 256
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
# Program: the package that has it.
PROGRAMS = {
    "nbdfuse": "libnbd-bin", "losetup": "mount", "blockdev": "util-linux", "mount": "mount", "umount": "mount",
    "mkfs.ext4": "e2fsprogs",
}  # fmt: skip
_private = False


def program(name):
    """Where a program is, or None."""
    return shutil.which(name, path=PATH)


def lacks(packages=()):
    """What is missing on this machine, `packages` among it, in words that say what to do; empty if nothing is."""
    missing = []
    if os.geteuid() != 0:
        missing.append("mounting needs root: run this as root")
    packages = {*packages, *(package for name, package in PROGRAMS.items() if not program(name))}
    if packages:
        missing.append(f"programs are missing: apt-get install {' '.join(sorted(packages))}")
    for device, module in (("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")):
        if not os.access(device, os.R_OK | os.W_OK):
            missing.append(f"there is no {device} to use: modprobe {module}, or let this container have it")
    if "\text4\n" not in Path("/proc/filesystems").read_text():
        missing.append("this kernel has no ext4: modprobe ext4")
    return missing


def private():
    """Gives this process mounts of its own: nobody else sees what is mounted from now on, and it ends with the last
    process here."""
    global _private
    if _private:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise Stopped(f"a mount namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    # What others mount still shows up here.
    process.run([program("mount"), "--make-rslave", "/"], "mount --make-rslave /")
    _private = True


def unmount(where):
    """Undoes a mount, whoever uses it, and whether or not what served it has died."""
    for _ in range(50):
        if not os.path.ismount(where):
            return
        try:
            process.run([program("umount"), where], f"umount {where}")
        except Stopped:
            time.sleep(0.1)
    with contextlib.suppress(Stopped):
        process.run([program("umount"), "--lazy", where], f"umount --lazy {where}")


class Export:
    """An NBD export as a file, `path`. nbdfuse has one request under way on each of its connections."""

    def __init__(self, uri, folder, log, connections=4):
        self.uri, self.folder, self.log, self.connections = uri, folder, log, connections
        self.path = folder / "disk"
        self.process = None

    def __enter__(self):
        private()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.process = process.start([program("nbdfuse"), "-C", self.connections, self.path, self.uri], self.log)
            process.wait_for_files([self.path], self.process, self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            unmount(self.folder)
        finally:
            if self.process:
                process.end(self.process)
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)


class FileSystem:
    """An ext4 in a file (or in a part of it) mounted at `where`."""

    def __init__(self, file, where, offset=0, length=0, read_only=False):
        self.file, self.where, self.offset, self.length, self.read_only = file, where, offset, length, read_only

    def __enter__(self):
        private()
        self.where.mkdir(parents=True, exist_ok=True)
        part = ["--offset", self.offset, "--sizelimit", self.length] if self.length else []
        options = ["--direct-io=on", *part, *(["--read-only"] if self.read_only else [])]
        device = process.run([program("losetup"), "--find", "--show", *options, self.file], "losetup").strip()
        try:
            if process.run([program("losetup"), "--noheadings", "--output", "DIO", device], "losetup").strip() != "1":
                raise Stopped(f"{device} cannot do direct I/O on {self.file}: its pages would be cached twice")
            process.run([program("blockdev"), "--setra", READ_AHEAD_SECTORS, device], "blockdev --setra")
            process.run(
                [
                    program("mount"),
                    "-t",
                    "ext4",
                    "-o",
                    f"noatime,{'ro' if self.read_only else 'rw'}",
                    device,
                    self.where,
                ],
                f"mounting {device}",
            )
        except BaseException:
            unmount(self.where)
            raise
        finally:
            # While it is mounted, this means: once it is not.
            process.run([program("losetup"), "--detach", device], f"losetup --detach {device}")
        return self

    def __exit__(self, *_):
        unmount(self.where)
        with contextlib.suppress(OSError):
            self.where.rmdir()


def cpu_seconds(pid):
    """CPU time that a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
