"""The demo's images: a base, and clones of it in which guests have written data of their own.

Owns build/demo/images. The base (qcow2, ext4) holds a file that all clones share, as clones share an operating system.
Each clone (qcow2 over the base) holds a file of its own, written once by a real guest running on it. Every 4 KiB block
of both says what it is (experiments/guest/workload.c), so every read in every run is checked. A run works on copies:
each way of serving starts from the same bytes.
"""

import concurrent.futures
import hashlib
import json
import os
import shutil

from . import guest as guests
from . import process

SHARED_SEED = 1


def private_seed(index):
    """The seed of the file that clone `index` (from 0) has of its own."""
    return 100 + index


class Images:
    """Master images for `count` guests with `file_bytes` in the shared and in each private file; runs work on copies
    in `format` (qcow2, over the base; or raw, with all of the base in it)."""

    def __init__(self, folder, count, file_bytes, format="qcow2"):
        self.folder = folder
        self.count = count
        self.file_bytes = file_bytes
        self.format = format
        self.base = folder / "base.qcow2"

    def master(self, index):
        return self.folder / f"clone-{index + 1}.qcow2"

    def disk(self, index):
        """The copy of clone `index` that a run works on."""
        return self.folder / f"disk-{index + 1}.{self.format}"

    def _key(self):
        """What the masters were made from."""
        sources = (guests.ROOT / "experiments/guest/workload.c").read_bytes() + (
            guests.ROOT / "experiments/rig/images.py"
        ).read_bytes()
        return json.dumps([self.count, self.file_bytes, hashlib.sha256(sources).hexdigest()])

    def prepare(self, accel, say):
        """Makes the masters, unless they are there from an earlier run."""
        key = self.folder / "made-from"
        if key.exists() and key.read_text() == self._key():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        work = self.folder / "work"
        work.mkdir(parents=True)
        mib = self.file_bytes >> 20
        say(f"making the base image: ext4 with a file of {mib} MiB that all guests share")
        files = work / "files"
        files.mkdir()
        self._workload("fill", files / "shared", SHARED_SEED)
        raw = work / "base.raw"
        with open(raw, "wb") as f:
            f.truncate(2 * self.file_bytes + (128 << 20))
        mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        process.run(
            [mkfs, "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", files, raw],
            "mkfs.ext4",
        )
        process.run(["qemu-img", "convert", "-O", "qcow2", raw, self.base], "qemu-img convert")
        say(f"making {self.count} clones: each guest writes {mib} MiB of its own into its clone")
        for index in range(self.count):
            process.run(
                ["qemu-img", "create", "-q", "-f", "qcow2", "-b", self.base.name, "-F", "qcow2", self.master(index)],
                "qemu-img create",
            )
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda index: self._personalise(index, accel, work), range(self.count)))
        shutil.rmtree(work)
        key.write_text(self._key())

    def _workload(self, kind, path, seed):
        process.run(
            [guests.BUILT / "workload", kind, path, "--seed", seed, "--bytes", self.file_bytes], f"making {path.name}"
        )

    def _personalise(self, index, accel, logs):
        disk = ["-drive", f"file={self.master(index)},format=qcow2,if=virtio,cache=writeback"]
        with guests.Guest(f"clone-{index + 1}", disk, logs, accel=accel) as guest:
            guest.wait_ready()
            guest.run("mount -t ext4 -o noatime /dev/vda /mnt")
            guest.run(
                f"workload fill /mnt/private --seed {private_seed(index)} --bytes {self.file_bytes}", seconds=300
            )
            guest.run("umount /mnt")
            guest.power_off()

    def reset(self):
        """Fresh copies of the clones, and none of any image's bytes in the host's page cache."""
        for index in range(self.count):
            if self.format == "qcow2":
                shutil.copyfile(self.master(index), self.disk(index))
            else:
                convert = ["qemu-img", "convert", "-O", self.format, self.master(index), self.disk(index)]
                process.run(convert, "qemu-img convert")
        for image in (self.base, *(f(i) for i in range(self.count) for f in (self.master, self.disk))):
            drop_cached(image)


def drop_cached(path):
    """Writes a file's dirty pages and drops all its pages from the host's page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    cached = int(process.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], "fincore").strip() or 0)
    if cached > 1 << 20:
        raise process.Stopped(
            f"{path.name}: {cached >> 20} MiB of it stay in the page cache; is another program using it?"
        )
