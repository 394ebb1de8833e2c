"""The traces: those of ../shared, and a load with a backup in it, which is made here.

Owns where they are and what the made ones consist of. Never simulates. Invariant: the same trace each time.
"""

import numpy

# Name, file, and whether it says when its accesses were.
SHARED = {
    "OLTP": "arc-OLTP.lis.zst",
    "P6": "arc-P6.lis.zst",
    "CloudPhysics": "cloudPhysicsIO.vscsi",
    "w106": "cloudphysics-w106.u32le.xz",
}

# A disk of 4 GiB, a fifth of which is used by Zipf's law.
DISK, HOT, ALPHA, ACCESSES = 1_000_000, 200_000, 0.9, 1_000_000


def shared(folder):
    """The traces that are there, and the names of those that are not."""
    there = {name: folder / file for name, file in SHARED.items() if (folder / file).exists()}
    return there, [name for name in SHARED if name not in there]


def zipf(seed, count):
    """Accesses by Zipf's law to HOT blocks that lie all over the disk."""
    random = numpy.random.default_rng(seed)
    weights = numpy.cumsum(1.0 / numpy.arange(1, HOT + 1) ** ALPHA)
    ranks = numpy.searchsorted(weights, random.random(count) * weights[-1])
    places = numpy.random.default_rng(99).permutation(DISK)[:HOT]
    return places[ranks]


def backups(folder, share=1.0):
    """Writes three traces: the load alone, with a whole pass in its middle, and with one beside its second half.

    Returns, of each, its file, how many accesses come before what is counted, and how many are the load's after that.
    """
    count = int(ACCESSES * share)
    before, after = zipf(1, count), zipf(2, count)
    whole = numpy.arange(DISK)
    hot = numpy.zeros(DISK, dtype=bool)
    hot[numpy.unique(numpy.concatenate([before, after]))] = True
    # Blocks of the load are left out beside it: so every hit is the load's.
    cold = numpy.flatnonzero(~hot)[:count]
    beside = numpy.empty(len(cold) * 2, dtype=after.dtype)
    beside[0::2], beside[1::2] = cold, after[: len(cold)]
    beside = numpy.concatenate([beside, after[len(cold) :]])
    made = {
        "alone": (numpy.concatenate([before, after]), count),
        "after": (numpy.concatenate([before, whole, after]), count + DISK),
        "beside": (numpy.concatenate([before, beside]), count),
    }
    files = {}
    for name, (blocks, warm_up) in made.items():
        path = folder / f"backup-{name}.u64le"
        blocks.astype("<u8").tofile(path)
        files[name] = (path, warm_up, count)
    return files
