"""What a perfectly exclusive host cache would have saved, computed from a log of one disk's transfers.

The log (experiments/guest/iolog.c) names the guest page of every 4 KiB that was moved. When a page takes part in a
transfer of another block, the block that it held has left the guest: that moment the perfect cache has its content, at
no cost. A block that is read goes back to the guest and leaves the cache. Room is made by age (LRU).

Perfect means: no eviction is missed and no content has to be read again. It is no upper bound of everything thinkable:
a placement that knows better than LRU, or that learns of evictions before the page is used again, can save more.
"""

import struct
from collections import OrderedDict
from pathlib import Path

HEADER = 16
RECORD = struct.Struct("<QIBBxx")
BEGIN = struct.Struct("<QQ")
READ, WRITE = 0, 1
MISS, HIT, UNKNOWN = 0, 1, 2


class Log:
    """The file that iolog.c writes to; made here, so that its memory is charged to this process."""

    def __init__(self, path, records=1 << 21):
        self.path = Path(path)
        self.room = records
        with open(self.path, "wb") as f:
            piece = bytes(1 << 20)
            left = HEADER + records * RECORD.size
            while left > 0:
                left -= f.write(piece[: min(left, len(piece))])

    def count(self):
        """Records so far."""
        with open(self.path, "rb") as f:
            return struct.unpack("<Q", f.read(8))[0]

    def read(self):
        """All records, as (page, block, op, hit); None if there were more than the file has room for."""
        count = self.count()
        if count > self.room:
            return None
        with open(self.path, "rb") as f:
            f.seek(HEADER)
            return list(RECORD.iter_unpack(f.read(count * RECORD.size)))

    def close(self):
        """Removes it."""
        self.path.unlink(missing_ok=True)


def keep(records, begin, path):
    """Writes a log's records to a file: how many, which is the first that is measured, and the records as iolog.c made
    them. `undercroft_study::sim::transfer_log` replays it through the daemon's own engine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BEGIN.pack(len(records), begin) + b"".join(RECORD.pack(*record) for record in records))


def hits(records):
    """(blocks read, blocks that the host's page cache held), or None if the kernel could not tell."""
    reads = [hit for _, _, op, hit in records if op == READ]
    if UNKNOWN in reads:
        return None
    return len(reads), sum(hit == HIT for hit in reads)


def exclusive(records, begin, capacity):
    """(blocks read, blocks saved) from record `begin` on, by a perfectly exclusive cache of `capacity` blocks."""
    cache = OrderedDict()
    block_in = {}  # guest page -> the block it holds
    pages_of = {}  # block -> how many guest pages hold it
    reads = saved = 0
    for index, (page, block, op, _) in enumerate(records):
        if op == READ:
            hit = cache.pop(block, None) is not None
            if index >= begin:
                reads += 1
                saved += hit
        else:
            cache.pop(block, None)
        before = block_in.get(page)
        if before == block:
            continue
        block_in[page] = block
        pages_of[block] = pages_of.get(block, 0) + 1
        if before is not None:
            pages_of[before] -= 1
            if not pages_of[before]:
                del pages_of[before]
                cache[before] = True
                cache.move_to_end(before)
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return reads, saved


def inclusive_lru(records, begin, capacity):
    """The same for an inclusive LRU cache: what Undercroft's LRU arm must come close to."""
    cache = OrderedDict()
    reads = saved = 0
    for index, (_, block, op, _) in enumerate(records):
        hit = block in cache
        if op == READ and index >= begin:
            reads += 1
            saved += hit
        cache[block] = True
        cache.move_to_end(block)
        if len(cache) > capacity:
            cache.popitem(last=False)
    return reads, saved
