"""What the clones boot from: one base image, overlays on it, and the image of another disk, on disks that may wait.

Owns the folder of images. Each image lies in a file system of its own, and that on a disk that nbdkit serves
(rig/slowdisk.py): so it is a file for whoever opens it, clones hold its blocks in common, and each transfer can be made
to wait and is counted where it arrives. Never serves a guest. Invariants: every run of an arm begins with empty
overlays, and with nothing of any image in the page cache of what serves it; the stand-in for the storage has all of its
volumes in memory from the beginning of an arm to its end.
"""

import contextlib
import hashlib
import json
import math
import random
import shutil
from pathlib import Path

from rig import guest as guests, mounted, process, readahead, slowdisk
from rig.images import drop_cached
from rig.process import Stopped

from .boot_arms import MIB

BLOCK = 4096
LIST = "boot/list"
# Of the files of a boot: 1 to 256 blocks, as many of each size as of the next power of two.
LARGEST = 8
OTHER_SEED = 1
# Of the disks' block devices, in KiB: Linux's own.
READ_AHEAD_KB = 128


def boot_files(total_bytes, seed=20):
    """Sizes of the files that a boot reads, in bytes: many small and few large ones, about so much in all."""
    dice, sizes = random.Random(seed), []
    while sum(sizes) < total_bytes:
        sizes.append(BLOCK * round(2 ** dice.uniform(0, LARGEST)))
    return sizes


def read_order(count, seed=21):
    """In which order they are read: another one than they lie in."""
    names = [f"boot/{n:04}" for n in range(count)]
    random.Random(seed).shuffle(names)
    return names


def work_seed(index):
    """The seed of the file that clone `index` (from 0) works with."""
    return OTHER_SEED + 100 + index


def file_system(path, files, size):
    """Makes an ext4 of `size` bytes with what is in the folder `files`."""
    with open(path, "wb") as f:
        f.truncate(size)
    options = ["-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
    process.run([mounted.program("mkfs.ext4"), *options, "-d", files, path], "mkfs.ext4")


class Images:
    """The masters in `folder`, made when they are missing or were made for other sizes."""

    def __init__(self, folder, sizes, say):
        self.folder, self.sizes, self.say = Path(folder), sizes, say
        self.volumes = {name: self.folder / f"{name}.volume" for name in ("base", "other")}

    def _key(self):
        made = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        s = self.sizes
        return json.dumps([s.clones, s.boot_mib, s.work_mib, s.other_mib, made])

    def prepare(self):
        """Makes both volumes, unless they are there."""
        key = self.folder / "made-from"
        if key.exists() and key.read_text() == self._key():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.say("making the base image and that of the other disk")
        self._volume("base", "base.qcow2", self._base)
        self._volume("other", "other.raw", self._other)
        key.write_text(self._key())

    def _volume(self, name, image, make):
        """Puts an image into a file system of its own."""
        files = self.folder / "files"
        files.mkdir()
        make(files / image)
        size = (files / image).stat().st_size
        file_system(self.volumes[name], files, size * 21 // 20 + 128 * MIB)
        shutil.rmtree(files)

    def _base(self, image):
        """A disk with the files that a boot reads, and files for each clone to work with."""
        s, root = self.sizes, self.folder / "root"
        for folder in ("boot", "work"):
            (root / folder).mkdir(parents=True)
        sizes = boot_files(s.boot_mib * MIB)
        for n, size in enumerate(sizes):
            (root / f"boot/{n:04}").write_bytes(random.Random(1000 + n).randbytes(size))
        (root / LIST).write_text("\n".join(read_order(len(sizes))) + "\n")
        for n in range(s.clones):
            self._fill(root / f"work/{n + 1}", work_seed(n), s.work_mib * MIB)
        raw = self.folder / "base.raw"
        file_system(raw, root, (s.boot_mib + s.clones * s.work_mib) * MIB * 11 // 10 + 128 * MIB)
        process.run(["qemu-img", "convert", "-O", "qcow2", raw, image], "qemu-img convert")
        raw.unlink()
        shutil.rmtree(root)

    def _other(self, image):
        self._fill(image, OTHER_SEED, self.sizes.other_mib * MIB)

    @staticmethod
    def _fill(path, seed, size):
        """Data that experiments/guest/workload.c checks when it reads them."""
        process.run([guests.BUILT / "workload", "fill", path, "--seed", seed, "--bytes", size], "workload fill")


def resident(path):
    """Bytes of a file that are in the page cache."""
    return int(process.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], "fincore").strip() or 0)


def allocated(path):
    """Bytes of a file that are more than holes."""
    found = path.stat()
    return min(found.st_size, 512 * found.st_blocks)


class Disks:
    """The volumes as disks that wait `wait_us` before each transfer, mounted, with overlays on what is in them."""

    def __init__(self, images, wait_us):
        self.images, self.wait_us, self.stack = images, wait_us, contextlib.ExitStack()
        self.slow, self.where = {}, {}
        # Of each volume, bytes that are in the page cache since it was filled.
        self.filled = {}

    def __enter__(self):
        try:
            for name, volume in self.images.volumes.items():
                self._mount(name, volume)
            for slow in self.slow.values():
                slow.wait(self.wait_us)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _mount(self, name, volume):
        folder = self.images.folder
        logs = folder / f"{name}-logs"
        logs.mkdir(exist_ok=True)
        slow = slowdisk.SlowDisk(volume, folder / f"{name}-disk", logs, read_ahead_kb=READ_AHEAD_KB)
        self.slow[name] = self.stack.enter_context(slow)
        self.where[name] = folder / f"{name}-mount"
        self.where[name].mkdir(exist_ok=True)
        self.stack.callback(mounted.unmount, self.where[name])
        mount = [mounted.program("mount"), "-t", "ext4", "-o", "ro,noatime", slow.device, self.where[name]]
        process.run(mount, f"mounting {slow.device}")

    def fill(self):
        """Has the volumes in the page cache of what stands for the storage, so that it is as fast in every arm.

        Stopped: there is no memory for them.
        """
        for volume in self.images.volumes.values():
            # At first some of it is there, since it was mounted, and nobody knows how much there will be.
            if resident(volume) < self.filled.get(volume, math.inf):
                with open(volume, "rb", buffering=0) as f:
                    while f.read(MIB):
                        pass
                if volume not in self.filled:
                    self.stack.enter_context(readahead.kept_cached(volume))
                # Holes may be in the page cache as well, or not.
                self.filled[volume] = max(resident(volume), allocated(volume), self.filled.get(volume, 1))
        self.check_filled()

    def check_filled(self):
        """Stops if a volume is not all in the page cache: what is read of it then waits for this machine's own disk."""
        for volume, filled in self.filled.items():
            if (lacks := filled - resident(volume)) > 0:
                raise Stopped(
                    f"{volume.name}: {lacks >> 10} KiB of the stand-in for the storage are not in the page cache, so"
                    " that arms would not be measured alike; free memory on this machine"
                )

    def overlays(self):
        """Empty overlays, the clones' first and the other disk's last; nothing of any image is cached."""
        base, other = self.where["base"] / "base.qcow2", self.where["other"] / "other.raw"
        of = [(base, "qcow2", f"clone-{n + 1}") for n in range(self.images.sizes.clones)] + [(other, "raw", "other")]
        made = []
        for backing, kind, name in of:
            made.append(self.images.folder / f"{name}.qcow2")
            command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", backing, "-F", kind, made[-1]]
            process.run(command, "qemu-img create")
        for path in (base, other, *made):
            drop_cached(path)
        return made

    def counts(self):
        """What each disk has delivered so far, by its own count."""
        found = {}
        for name, slow in self.slow.items():
            counts = slow.counts()
            found[name] = {"reads": counts["reads"], "read_bytes": counts["read_bytes"]}
        return found

    def __exit__(self, *_):
        self.stack.close()
