"""The work that servers are compared on.

Owns the list of cells. Invariant: a cell is the same for every server: the same image, offsets and lengths.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """How much data a run uses, in bytes."""

    image: int
    hot: int  # the working set of hits
    memory: int  # what Undercroft may use for hits: the working set and its metadata fit
    memory_cold: int = 16 * MIB  # and for misses


@dataclass(frozen=True)
class Cell:
    """One kind of work, on one protocol."""

    protocol: str
    state: str  # "hits", "misses" or "mixed"
    pattern: str  # "rand" or "seq"
    block_kib: int
    depth: int
    reference: str  # the peer that ratios are to

    @property
    def work(self) -> str:
        """What is done, in words."""
        order = "random" if self.pattern == "rand" else "sequential"
        what = {"hits": "read, all hits", "misses": "read, all misses", "mixed": "70 % read, 30 % write"}[self.state]
        return f"{self.block_kib} KiB {order}, depth {self.depth}, {what}"

    @property
    def key(self) -> str:
        """For --only and the results."""
        return f"{self.protocol}/{self.state}/{self.pattern}{self.block_kib}k/qd{self.depth}"

    def driver_options(self, sizes: Sizes) -> list[str]:
        """Options of the driver's `run`."""
        options = ["--pattern", self.pattern, "--block", f"{self.block_kib}KiB", "--depth", str(self.depth)]
        if self.state == "mixed":
            options += ["--write-percent", "30"]
        if self.state != "misses":
            options += ["--length", str(sizes.hot)]
        return options


def cells() -> list[Cell]:
    """All of them, in the order of the tables."""
    shapes = [("rand", 4, 1), ("rand", 4, 8), ("rand", 4, 32), ("seq", 64, 8), ("seq", 256, 8)]
    # The strongest peer: the page cache for hits and writes; for misses the one that goes round it as Undercroft does.
    references = {
        ("vhost", "hits"): "qemu-storage-daemon writeback",
        ("vhost", "misses"): "qemu-storage-daemon direct",
        ("vhost", "mixed"): "qemu-storage-daemon writeback",
        ("nbd", "hits"): "nbdkit file",
        ("nbd", "misses"): "qemu-nbd direct",
        ("nbd", "mixed"): "nbdkit file",
    }
    return [
        Cell(protocol, state, pattern, block, depth, reference)
        for (protocol, state), reference in references.items()
        for pattern, block, depth in shapes
        if not (state == "mixed" and pattern == "seq")
    ]
