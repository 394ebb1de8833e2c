"""The load of one guest that runs the workload program on its disks.

Owns sizes, operation counts and the command that runs in the guest. Invariant: a load is fixed by its cell; every arm
gets the same operations in the same order (seeded), in a warm-up that is not measured and a measured part. Random loads
come after one pass over everything, so that guest and host caches are full before the warm-up begins.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rig.images import drop_cached

from .beside import SEED, pattern
from .cells import BLOCK, MIB, SMALLEST_GUEST_MIB, Cell

# Which blocks are popular, where a run measures several times.
LAYOUT = 3


@dataclass(frozen=True)
class Load:
    """A single guest that runs the workload program on its raw disk."""

    # How the guest is started, beyond the usual; whether a perfect cache's savings can be computed; and whether a run
    # has several parts also on the local disk, so that which blocks are popular must not depend on the order of reads.
    guest_options = {}
    perfect = True
    in_parts = False

    key: str
    title: str  # for tables
    kind: str  # of experiments/guest/workload.c
    beyond: float  # working set: what the guest can keep plus this much of its RAM ...
    times: float = 0  # ... or this many times what it can keep
    misses: float = 0.5  # about how many of its operations the guest's own cache cannot answer
    ops: float = 0.4  # measured operations, in working sets (passes, if sequential)
    alpha: float = 0
    write_percent: int = 0
    anon: float = 0  # anonymous memory that comes and goes, of what the guest can keep
    pool: float = 0  # of a buffer pool, likewise
    seconds: float = 0  # the measured part ends after so long; 0: when its operations are done
    guests: int = 1
    disks: int = 1  # of the guest; the blocks are on them in turn, 64 KiB each
    format: str = "raw"
    style: str = "grid"
    cache_extra_bytes: int = 0
    limit_extra_bytes: int = 0

    @property
    def reads_only(self) -> bool:
        """Whether it leaves the image as it was, so that a run can measure several times."""
        return not self.write_percent

    def bytes(self, cell: Cell) -> int:
        """The working set."""
        kept = cell.usable_mib * (self.pool or 1)
        mib = self.times * cell.usable_mib if self.times else kept + self.beyond * cell.guest_mib
        return int(mib) * MIB

    def blocks(self, cell: Cell) -> int:
        """The working set, in blocks of 4 KiB."""
        return self.bytes(cell) // BLOCK

    def explains(self, cell: Cell) -> str:
        """What it does, in words and numbers."""
        size = self.bytes(cell) // MIB
        text = {
            "uniform": f"uniform 4 KiB reads of {size} MiB",
            "zipf": f"Zipf {self.alpha:g}, 4 KiB reads of {size} MiB",
            "seq": f"{size} MiB in order, again and again, with the guest's read-ahead",
            "pool": (
                f"uniform 4 KiB reads of {size} MiB by O_DIRECT into a pool of {int(cell.usable_mib * self.pool)} MiB"
            ),
        }[self.kind]
        if self.disks > 1:
            text += f", on {self.disks} disks in turn, 64 KiB each"
        if self.write_percent:
            text += f", {self.write_percent} % of them writes"
        if self.anon:
            text += f", while {int(cell.usable_mib * self.anon)} MiB of anonymous memory come and go"
        return text

    def counts(self, cell: Cell) -> tuple[int, int]:
        """Operations of the warm-up, and measured."""
        if self.kind == "seq":
            return 2, 1 if cell.quick else 2
        # The host's cache is full of what the first pass left, which suits who keeps the oldest. So its content has to
        # be replaced often enough before anything is measured.
        blocks, turns = self.blocks(cell), 0.5 if cell.quick else 1.5
        warm = 0.2 * blocks + turns * cell.cache_bytes // BLOCK / self.misses
        return int(min(warm, 4 * blocks)), int(self.ops * blocks) // (2 if cell.quick else 1)

    def command(self, cell: Cell, index: int = 0, part: int = 0, warm: bool = True) -> str:
        """What guest `index` runs. Of a run that measures several times, part 0 fills the caches; later ones go on with
        other reads of the same blocks, behind a warm-up only after another load."""
        before, ops = self.counts(cell)
        names = [f"vd{chr(ord('a') + disk)}" for disk in range(self.disks)]
        parts = [
            (
                f"workload {self.kind} {','.join(f'/dev/{name}' for name in names)} --seed {SEED} --bytes"
                f" {self.bytes(cell)}"
            ),
            f"--device {','.join(names)} --wait",
            f"--rng {index + 7 + 100 * part} --warm {before if warm else 0} --ops {ops}",
        ]
        if cell.wait_us is not None or self.in_parts:
            parts.append(f"--layout {LAYOUT}")
        if self.seconds:
            parts.append(f"--seconds {self.seconds:g}")
        if self.kind != "seq" and not part:
            parts.append("--prefill")
        if self.kind == "zipf":
            parts.append(f"--alpha {self.alpha}")
        if self.write_percent:
            parts.append(f"--write-percent {self.write_percent}")
        if self.anon:
            anon = int(cell.usable_mib * self.anon) * MIB
            parts.append(f"--anon {anon} --anon-every {max(1, ops // 10)}")
        if self.pool:
            parts.append(f"--frames {int(cell.usable_mib * self.pool) * MIB // BLOCK}")
        return " ".join(parts)

    def images(self, cell: Cell, folder: Path, say) -> list[Path]:
        """The disks' images with what a run begins with, and none of it in the host's page cache."""
        master = pattern(folder, self.bytes(cell), SEED, say)
        if self.disks == 1 and not self.write_percent:
            return [master]
        # A disk of several has all blocks at their places, and is asked for its part of them.
        disks = [folder / f"disk-{n + 1}.raw" for n in range(self.disks)]
        for disk in disks:
            shutil.copyfile(master, disk)
            drop_cached(disk)
        drop_cached(master)
        return disks

    def drive(self, run):
        """Runs it in the guests of `run`."""
        return *run.together([(guest, self.command(run.cell, i)) for i, guest in enumerate(run.guests)]), {}

    def again(self, run, part, warm):
        """Measures once more in the same guests: on a disk with another wait, or, with a `warm`-up, after another
        load."""
        return *run.together([(guest, self.command(run.cell, i, part, warm)) for i, guest in enumerate(run.guests)]), {}

    def same(self, cell_results):
        """The workload program has checked every byte."""

    def check(self, cell: Cell) -> str:
        """Why a cell cannot be run, or nothing."""
        if cell.guest_mib < SMALLEST_GUEST_MIB:
            return f"a guest needs at least {SMALLEST_GUEST_MIB} MiB"
        return ""
