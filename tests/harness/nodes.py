"""Nodes of the tree of shares: what a daemon with one store says of them.

Owns what the tests of shares ask a daemon, and the sizes of what they serve. Never starts one. Invariant: at each look
at the nodes, disks together have no more than the store.
"""

import time

from harness import images

SIZE = 96 * images.MIB
MEMORY = 96 * images.MIB
WITHIN_S = 60


def vm(name, image, more="", disk=""):
    """A VM with one disk, `root`, over NBD."""
    return (
        f'[[vm]]\nname = "{name}"\n{more}\n[[vm.disk]]\nname = "root"\nimage = "{image}"\nformat = "raw"\nnbd = true\n'
        f"vhost_user = false\n{disk}\n"
    )


def shares(daemon):
    """The nodes by name. Whatever moves, together they have no more than the store."""
    nodes = {n["name"]: n for n in daemon.get("/v1/shares")["nodes"]}
    assert sum(n["share_bytes"] for n in nodes.values() if n["level"] == "disk") <= MEMORY
    store = daemon.status()["store"]
    assert store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"] <= store["memory_bytes"] == MEMORY
    return nodes


def counters_of(daemon, disk):
    """What a disk has counted."""
    (counters,) = [d["counters"] for d in daemon.status()["disks"] if d["name"] == disk]
    return counters


def misses_of_reads(daemon, disk, seconds):
    """The part of a disk's blocks that had to be read for somebody who waited, within the next seconds."""
    before = counters_of(daemon, disk)
    time.sleep(seconds)
    after = counters_of(daemon, disk)
    missed, hit = (after[name] - before[name] for name in ("miss_blocks", "hit_blocks"))
    assert missed + hit > 0, "nothing was read"
    return missed / (missed + hit)


def until(daemon, what, holds):
    """Waits until `holds` of the nodes."""
    end = time.monotonic() + WITHIN_S
    while not holds(nodes := shares(daemon)):
        assert time.monotonic() < end, f"{what}: {nodes}\n{daemon.call('why', 'host').stdout}"
        time.sleep(0.2)
    return nodes
