"""What is measured: which databases, with how much RAM and SSD, on how slow a disk.

Owns the list. Never measures. Invariant: the arms of a cell have the same sizes and disks.
"""

from dataclasses import dataclass

from . import below
from .below import MIB
from .engines import ENGINES

WAITS_US = (1000, 8000)


@dataclass(frozen=True)
class Sizes:
    """What an arm may cache with, in MiB."""

    ram: int
    ssd: int

    @property
    def ram_bytes(self):
        """Of RAM."""
        return self.ram * MIB

    @property
    def ssd_bytes(self):
        """Of the SSD."""
        return self.ssd * MIB


@dataclass(frozen=True)
class Cell:
    """Databases side by side, on arms that take turns."""

    engines: tuple
    sizes: Sizes

    @property
    def id(self):
        """Its name."""
        return f"{'+'.join(self.engines)}-ram{self.sizes.ram}-ssd{self.sizes.ssd}"

    @property
    def arms(self):
        """Keys of the arms that it is measured on."""
        return below.ALONE if len(self.engines) == 1 else below.MIXED

    @property
    def title(self):
        """In words."""
        names = " beside ".join(ENGINES[key].title for key in self.engines)
        return f"{names}: {self.sizes.ram} MiB of RAM, {self.sizes.ssd} MiB of SSD"


QUICK = (Sizes(64, 128),)
FULL = (Sizes(32, 64), Sizes(64, 128), Sizes(128, 256))


def grid(is_quick):
    """All of them."""
    sizes = QUICK if is_quick else FULL
    alone = [Cell((key,), of) for of in sizes for key in ENGINES]
    return [*alone, Cell(tuple(ENGINES), Sizes(96, 192))]
