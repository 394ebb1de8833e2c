"""What the experiment with clones that boot at once compares, and the sizes of all that takes part.

Owns the settings. Never starts anything. Invariant: arms differ in nothing but what stands here, and what is set is
stored with the results.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """Of one run; the usual ones, and small ones for a trial."""

    clones: int = 10
    guest_mib: int = 128
    # Of it each disk has a like part at first, and pins are refused that are more than a budget of that part. So it
    # has to hold the boot set once for each clone, though it is kept once.
    store_mib: int = 1024
    # What a clone's share does not fall below, where that is set. Each pays for a tenth of the boot set, which all hold
    # in common; but no more than the budget of what a disk holds can be locked, so the least is about a fifth of the
    # boot set, and what its operations and tables take.
    floor_mib: int = 24
    boot_mib: int = 60
    # What each clone reads of its own when it has booted: more than its floor.
    work_mib: int = 32
    # How many times the store the image of the other disk is.
    other_stores: int = 4

    @property
    def other_mib(self):
        """The image of the other disk."""
        return self.other_stores * self.store_mib


USUAL = Sizes()
QUICK = Sizes(clones=3, store_mib=320, other_stores=2)
# Of each cell. With five, two arms that are wholly apart have p = 0.008 (boot_derive.py); with three it would be 0.1.
REPETITIONS = 5
BUDGET = "90%"
INTERVAL = "1s"


@dataclass(frozen=True)
class Arm:
    """One way of serving the clones. `set` are lines of each clone's disk, but for the file of its pins or profile."""

    title: str
    explains: str
    has_pins: bool = False
    has_profile: bool = False
    has_floor: bool = False
    is_fetched: bool = False
    is_page_cache: bool = False
    set: str = ""

    def disk_lines(self, pins):
        """Lines of a clone's disk."""
        named = (("pins", self.has_pins), ("lock_profile", self.has_profile))
        return "".join(f'{key} = "{pins}"\n' for key, has in named if has) + self.set

    def vm_lines(self, sizes):
        """Lines of a clone's virtual machine."""
        return f'floor = "{sizes.floor_mib}MiB"\n' if self.has_floor else ""


PINS = {"has_pins": True, "set": f'lock_budget = "{BUDGET}"\n'}
HELD = {"has_pins": True, "set": f'lock_budget = "{BUDGET}"\nlock_held = true\n'}
ARMS = {
    "none": Arm("nothing", "nothing is set for the clones"),
    "pinned": Arm("pins", "`pins` and `lock_budget`, nothing else", **PINS),
    "held": Arm("pins, held", "the same and `lock_held`: pins stay locked though guests hold these blocks", **HELD),
    "floor": Arm("floor", "a `floor` for each clone, no pins: what the floor alone brings", has_floor=True),
    "kept": Arm("pins, held, floor", "pins that are held, and the floor", has_floor=True, **HELD),
    "fetched": Arm(
        "pins, held, floor, fetched", "the same, and `undercroft warm` with the file of the pins before each round",
        has_floor=True, is_fetched=True, **HELD,
    ),
    "page-cache": Arm("page cache", "qemu-storage-daemon over the host page cache, under the same limit of memory",
                      is_page_cache=True),
}  # fmt: skip


def order(keys, repetition):
    """The arms as a repetition (from 1) has them, in rows of a Latin square (Williams, 1949): none is always first, and
    no arm follows the same other one time and again."""
    count = len(keys)
    row = [n // 2 + 1 if n % 2 else -(n // 2) for n in range(count)]
    shift = (repetition - 1) * max(1, count // REPETITIONS)
    return [keys[(at + shift) % count] for at in row]
