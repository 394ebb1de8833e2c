"""What is measured: the grid of cells and their names.

Owns sizes and counts. Invariant: a cell's id says everything that its results depend on, except the build and the
machine, and has no date in it, so that a run that was stopped is taken up where it was.
"""

import re
from dataclasses import dataclass, replace

MIB = 1 << 20
BLOCK = 4096
# What a guest's kernel and programs need of its memory: 192 MiB leave 128 MiB for its page cache (measured on Debian
# 6.1; what each guest really had is in the results as `available_bytes`).
GUEST_NEEDS_MIB = 64
SMALLEST_GUEST_MIB = 112
# RAM of a guest, where nothing else is asked for: pictures and what stands beside the paper are of these.
USUAL_GUEST_MIB = 192


@dataclass(frozen=True)
class Cell:
    """One run: a load on one kind of guest beside one size of host cache, for all arms."""

    load: str
    zeroing: bool  # init_on_alloc=1: the guest zeroes pages when it allocates them
    mglru: bool
    n: float  # host cache over guest RAM
    guest_mib: int = USUAL_GUEST_MIB
    quick: bool = False
    # Of a disk behind a network: how long each transfer waits, in microseconds. None for the host's own disk.
    wait_us: int | None = None

    @property
    def id(self) -> str:
        """Its name in results, logs and --only."""
        parts = [self.load, f"zero{self.zeroing:d}", f"mglru{self.mglru:d}", f"n{self.n:g}", f"{self.guest_mib}MiB"]
        return "-".join(
            parts + ["quick"] * self.quick + ([] if self.wait_us is None else [f"wait{shown_wait(self.wait_us)}"])
        )

    @property
    def run(self) -> "Cell":
        """What it has in common with the cells that are measured in the same run: those that differ in the wait of
        their disk."""
        return self if self.wait_us is None else replace(self, wait_us=0)

    @property
    def cache_bytes(self) -> int:
        """Host memory for caching one guest's disk."""
        return int(self.n * self.guest_mib) * MIB

    @property
    def usable_mib(self) -> int:
        """What the guest can use as page cache."""
        return self.guest_mib - GUEST_NEEDS_MIB

    @property
    def guest(self) -> str:
        """The guest, in words."""
        kernel = "zeroing" if self.zeroing else "not zeroing"
        return f"{kernel}, MGLRU" if self.mglru else kernel


def shown_wait(microseconds):
    """A wait as it is written in names and tables."""
    return f"{microseconds / 1000:g}ms"


def disk(cell):
    """The disk of a stored cell, in words; those that were measured before there was a choice are of the host's own."""
    wait = cell.get("wait_us")
    return "local" if wait is None else f"{shown_wait(wait).replace('ms', ' ms')} wait"


def grouped(cells):
    """Cells in runs: lists of those that one run measures, one after the other."""
    runs = {}
    for cell in cells:
        runs.setdefault(cell.run, []).append(cell)
    return list(runs.values())


def grid(loads, ns, zeroing, mglru, guest_mib, quick, mglru_loads=("uniform", "zipf"), waits=(None,)):
    """All cells of `loads`, in the order of the tables. Where MGLRU is one of two kinds of guest (both are asked for),
    it is measured on `mglru_loads` and, where both kinds of zeroing are asked for, on zeroing guests only."""
    cells = []
    for load in loads:
        for lru in mglru:
            if lru and len(mglru) > 1 and load not in mglru_loads:
                continue
            for zero in zeroing:
                if lru and len(mglru) > 1 and len(zeroing) > 1 and not zero:
                    continue
                cells += [Cell(load, zero, lru, n, guest_mib, quick, wait) for n in ns for wait in waits]
    return cells


def chosen(cells, pattern, error):
    """Those whose id matches a regular expression; all without one."""
    if not pattern:
        return cells
    try:
        matching = [cell for cell in cells if re.search(pattern, cell.id)]
    except re.error as e:
        return error(f"--only: {e}")
    return matching or error(f"--only: no cell matches '{pattern}'; --list shows their ids")


def usual(stored):
    """Of stored cells, by id, those with guests of the usual size on the host's own disk; all, if there are none."""
    found = {name: cell for name, cell in stored.items() if cell["guest_mib"] == USUAL_GUEST_MIB} or stored
    return {name: cell for name, cell in found.items() if cell.get("wait_us") is None} or found
