"""A load of files: a kernel's source tree in an ext4 file system, read by passes of grep and tar in the guest.

Owns the tree and its image: Debian's linux-source package, fetched once by `apt-get download` (nothing is installed),
and as many of its files, in a fixed order, as are wanted. Invariant: every arm's guest counts the same as the first
one's, or the run stops: what it read was what is in the files.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from rig import guest as guests, process
from rig.images import drop_cached
from rig.process import Stopped

from .cells import BLOCK, MIB, SMALLEST_GUEST_MIB, Cell

PARTS = ["include", "kernel", "mm", "lib", "fs", "block", "net", "crypto", "security", "virt", "sound"]
# tar's output is not counted in a pipe: under software emulation that takes ten times as long as reading the files.
GREP, TAR = "grep -rF {} /mnt | wc -l", "tar cf /dev/null /mnt 2>/dev/null && echo all"
PASS_SECONDS = 600


class Tree:
    """One guest that reads a source tree of 1.5 times what it can keep."""

    key, title = "tree", "kernel source, grep and tar"
    guests, disks, format, style, guest_options, perfect = 1, 1, "raw", "grid", {}, True
    cache_extra_bytes = limit_extra_bytes = 0
    reads_only = True
    times = 1.5
    warm = [GREP.format("EXPORT_SYMBOL_GPL"), TAR]
    measured = [TAR, GREP.format("spin_lock_irqsave")]

    def bytes(self, cell: Cell) -> int:
        """The tree's size, in whole blocks."""
        return int(self.times * cell.usable_mib) * MIB

    def explains(self, cell: Cell) -> str:
        """What it does, in words and numbers."""
        return (
            f"{self.bytes(cell) // MIB} MiB of Linux's source in ext4, read by grep -r and tar in turn: "
            f"{len(self._passes(cell)[0])} passes to warm up, {len(self._passes(cell)[1])} measured"
        )

    def check(self, cell: Cell) -> str:
        """Why a cell cannot be run, or nothing."""
        return f"a guest needs at least {SMALLEST_GUEST_MIB} MiB" if cell.guest_mib < SMALLEST_GUEST_MIB else ""

    def _passes(self, cell):
        return (self.warm[:1], self.measured[1:]) if cell.quick else (self.warm, self.measured)

    def images(self, cell: Cell, folder: Path, say) -> list[Path]:
        """The disk's image, and none of it in the host's page cache."""
        size = self.bytes(cell)
        image = folder / f"tree-4k-{size // MIB}MiB.raw"
        if not image.exists():
            say(f"making a file system with {size // MIB} MiB of Linux's source")
            files = folder / "tree"
            shutil.rmtree(files, ignore_errors=True)
            try:
                choose(unpacked(folder, say), files, size)
                making = image.with_suffix(".new")
                with open(making, "wb") as f:
                    f.truncate(size + size // 8 + 64 * MIB)
                mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
                # Blocks of 4 KiB as on disks of 512 MiB and more: smaller ones would lie across the blocks that a cache
                # keeps.
                options = ["-q", "-F", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-N", "40000"]
                process.run([mkfs, *options, "-d", files, making], "mkfs.ext4")
                making.rename(image)
            finally:
                shutil.rmtree(files, ignore_errors=True)
        drop_cached(image)
        return [image]

    def drive(self, run):
        """The passes, in the guest of `run`; returns what Run.together does."""
        guest, cell = run.guests[0], run.cell
        guest.run("mount -t ext4 -o ro,noatime /dev/vda /mnt")
        warm, measured = self._passes(cell)
        for i, command in enumerate(warm):
            run.screen.status(guest.name, f"{cell.id} warm-up, pass {i + 1} of {len(warm)}: {command}")
            guest.run(command, PASS_SECONDS)
        with run.measured_part():
            before, device = run.take(), stat(guest)
            counts = []
            for i, command in enumerate(measured):
                run.screen.status(guest.name, f"{cell.id} measuring, pass {i + 1} of {len(measured)}: {command}")
                counts.append(guest.run(command, PASS_SECONDS)[1].strip())
            after, device_after = run.take(), stat(guest)
        guest.run("umount /mnt")
        return (
            [self._result(cell, measured, counts, after["time"] - before["time"], device, device_after)],
            before,
            after,
            {},
        )

    def again(self, run, part, warm):
        """The same passes again."""
        return self.drive(run)

    def _result(self, cell, measured, counts, seconds, before, after):
        """The passes' result, in the form that the workload program's have."""
        device = {name: after[name] - before[name] for name in after}
        read = self.bytes(cell) * len(measured)
        ios = device["read_ios"]
        return {
            "seconds": seconds,
            "reads": read // BLOCK,
            "writes": 0,
            "read_bytes": read,
            "cached_bytes": max(0, read - device["read_bytes"]),
            "read_disk": {"count": ios, "mean_us": 1000 * device["read_ms"] / ios if ios else 0},
            "device": device,
            "counts": counts,
        }

    def same(self, cell_results):
        """Stops if the guests of two arms did not read the same."""
        seen = {tuple(guest.get("counts", ())) for record in cell_results for guest in record.get("guests", [])}
        if len(seen) > 1:
            raise Stopped(f"{self.title}: guests counted differently on different arms: {sorted(seen)}")


def stat(guest):
    """The guest's own count for its disk (Documentation/block/stat.rst)."""
    v = [int(n) for n in guest.run("cat /sys/block/vda/stat")[1].split()]
    return {"read_ios": v[0], "read_bytes": v[2] * 512, "read_ms": v[3], "write_ios": v[4], "write_bytes": v[6] * 512}


def unpacked(folder, say):
    """The parts of the source that are used, unpacked; fetched if they are not there."""
    where = folder / "linux-source"
    if where.exists():
        return where
    found = subprocess.run(["apt-cache", "depends", "linux-source"], capture_output=True, text=True, check=False).stdout
    package = next(
        (line.split()[1] for line in found.splitlines() if line.strip().startswith("Depends: linux-source-")), None
    )
    if not package:
        raise Stopped("apt knows no linux-source: run 'apt-get update', then this again, or leave the load `tree` out")
    say(f"fetching {package} (140 MB; it is unpacked here, not installed)")
    work = folder / "linux-source.new"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    fetch = subprocess.run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    if fetch.returncode:
        raise Stopped(
            f"apt-get download {package} failed: {(fetch.stderr.strip() or 'no reason given').splitlines()[-1]}"
        )
    members = " ".join(f"{package}/{part}" for part in PARTS)
    script = f"dpkg-deb --fsys-tarfile *.deb | tar -xO --wildcards '*/{package}.tar.xz' | tar -xJ {members}"
    process.run(["/bin/bash", "-c", f"set -o pipefail; cd '{work}' && {script} && rm *.deb"], f"unpacking {package}")
    (work / package).rename(where)
    with contextlib.suppress(OSError):
        work.rmdir()
    return where


def choose(source, to, size):
    """Hard-links files of `source` into `to`, in a fixed order, up to `size` bytes in whole blocks."""
    left = size
    for part in PARTS:
        for folder, names, files in os.walk(source / part):
            names.sort()
            for name in sorted(files):
                path = Path(folder) / name
                if path.is_symlink():
                    continue
                blocks = -(-path.stat().st_size // BLOCK) * BLOCK
                if blocks > left:
                    return
                left -= blocks
                target = to / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
    raise Stopped(f"the source has {size - left} bytes only, {size} are wanted: use smaller guests")
