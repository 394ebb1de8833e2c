"""Loads of guests that lose their own cache: by a reboot, because it is dropped, or because a balloon takes memory.

Owns what happens between two parts of a load: caches are filled, the guest loses its own, and the next reads, as many
as the load has blocks, are measured. Invariant: the second part asks for the same blocks with the same frequency, in
another order, so what the host's cache had before it begins is what counts.
"""

from dataclasses import dataclass

from .cells import MIB, Cell
from .load import Load

# Of what the guest can use as page cache.
BALLOON = 0.25


@dataclass(frozen=True)
class Afresh(Load):
    """A guest that loses its own cache."""

    event: str = "reboot"
    # A perfect cache's savings are computed from transfers; these losses come without any.
    perfect = False
    in_parts = True

    @property
    def guest_options(self) -> dict:
        """What the guest is started with."""
        return {"reboot": {"reboots": True}, "drop": {}, "balloon": {"balloons": True}}[self.event]

    @property
    def reads_only(self) -> bool:
        """A run measures once: the loss is what is measured."""
        return False

    def taken_mib(self, cell: Cell) -> int:
        """What the balloon takes."""
        return int(BALLOON * cell.usable_mib)

    def explains(self, cell: Cell) -> str:
        """What it does, in words and numbers."""
        event = {
            "reboot": "the first reads, as many as there are blocks, after the guest was reset",
            "drop": "the first reads, as many as there are blocks, after the guest dropped its cache",
            "balloon": f"the first reads, as many as there are blocks, after a balloon took {self.taken_mib(cell)} MiB",
        }[self.event]
        return f"{super().explains(cell)}: {event}"

    def counts(self, cell: Cell) -> tuple[int, int]:
        """Operations of the warm-up, and measured."""
        return super().counts(cell)[0], self.blocks(cell) // (2 if cell.quick else 1)

    def drive(self, run):
        """Fills the caches, lets the guest lose its own, and measures."""
        guest, cell = run.guests[0], run.cell
        run.watch(guest, self.command(cell).replace(" --wait", ""))
        if self.event == "reboot":
            guest.reboot()
            run.settle(guest)
        elif self.event == "drop":
            guest.run("echo 3 > /proc/sys/vm/drop_caches")
        else:
            guest.balloon(self.taken_mib(cell) * MIB)
        return *run.together([(guest, self.command(cell, part=1, warm=False))]), {}

    def check(self, cell: Cell) -> str:
        """Why a cell cannot be run, or nothing."""
        if cell.wait_us is not None:
            return "what a guest loses is measured on the host's own disk only"
        return super().check(cell)


def losses(load: Load) -> list[Afresh]:
    """`load` for each way in which a guest loses its cache."""
    titles = {"reboot": "after a reboot", "drop": "after a dropped cache", "balloon": "beside a balloon"}
    return [
        Afresh(
            f"{event}-{load.key}",
            f"{load.title}, {title}",
            load.kind,
            load.beyond,
            misses=load.misses,
            alpha=load.alpha,
            event=event,
        )
        for event, title in titles.items()
    ]
