"""What is measured: the grid of cells and their names.

Owns sizes and counts. Invariant: a cell's id says everything that its results depend on, except the build and the machine,
and has no date in it, so that a run that was stopped is taken up where it was.
"""

import re
from dataclasses import dataclass

MIB = 1 << 20
BLOCK = 4096
# What a guest's kernel and programs need of its memory: 192 MiB leave 128 MiB for its page cache (measured on Debian 6.1;
# what each guest really had is in the results as `available_bytes`).
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

    @property
    def id(self) -> str:
        """Its name in results, logs and --only."""
        parts = [self.load, f"zero{self.zeroing:d}", f"mglru{self.mglru:d}", f"n{self.n:g}", f"{self.guest_mib}MiB"]
        return "-".join(parts + ["quick"] * self.quick)

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


def grid(loads, ns, zeroing, mglru, guest_mib, quick, mglru_loads=("uniform", "zipf")):
    """All cells of `loads`, in the order of the tables. Where MGLRU is one of two kinds of guest (both are asked for), it is
    measured on `mglru_loads` and, where both kinds of zeroing are asked for, on zeroing guests only."""
    cells = []
    for load in loads:
        for lru in mglru:
            if lru and len(mglru) > 1 and load not in mglru_loads:
                continue
            for zero in zeroing:
                if lru and len(mglru) > 1 and len(zeroing) > 1 and not zero:
                    continue
                cells += [Cell(load, zero, lru, n, guest_mib, quick) for n in ns]
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
    """Of stored cells, by id, those with guests of the usual size; all, if there are none."""
    return {name: cell for name, cell in stored.items() if cell["guest_mib"] == USUAL_GUEST_MIB} or stored
