"""Pages held twice: blocks that the host's cache holds while the guest holds them, too.

Owns reading other processes' memory and the page cache, for all arms in the same way and without asking the programs
measured. Never makes a page resident: what is not there is not read. Invariant: a block counts once however often it is
there, and pages of zeroes do not count, for nobody keeps them as data.
"""

import hashlib
import mmap
import os
import struct
from pathlib import Path

from rig import readahead

PAGE = mmap.PAGESIZE
PRESENT = 1 << 63
PIECE = 256  # pages read at a time
ZERO = bytes(PAGE)


def mappings(text):
    """Writable mappings of a process that may hold data, but for code: (begin, end, (device, inode)) of
    /proc/PID/maps."""
    for line in text.splitlines():
        where, access, _, device, inode, *name = line.split(None, 5)
        begin, end = (int(part, 16) for part in where.split("-"))
        if access.startswith("rw-") and not (
            name and name[0].startswith(("[stack", "[vvar", "[vdso", "/dev/vhost", "anon_inode"))
        ):
            yield begin, end, (device, int(inode))


def runs(entries, first):
    """Runs of present pages, (first page, count), of the words of /proc/PID/pagemap from page `first` on."""
    begin = None
    for i, entry in enumerate(entries):
        if entry & PRESENT:
            begin = i if begin is None else begin
        elif begin is not None:
            yield first + begin, i - begin
            begin = None
    if begin is not None:
        yield first + begin, len(entries) - begin


def contents(data, into):
    """Adds the content of every page in `data` to the set `into`, but for zeroes."""
    view = memoryview(data)
    for at in range(0, len(data) - PAGE + 1, PAGE):
        page = view[at : at + PAGE]
        if page != ZERO:
            into.add(hashlib.blake2b(page, digest_size=16).digest())


def of_process(pid, apart=(), least=0):
    """Contents of the resident pages of a process's memory, of mappings with at least `least` bytes; those of the files
    in `apart` are left out. Returns them, and the files that were mapped."""
    found, files = set(), set()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, open(
        f"/proc/{pid}/pagemap", "rb", buffering=0
    ) as pagemap:
        for begin, end, file in mappings(Path(f"/proc/{pid}/maps").read_text()):
            if end - begin < least or (file[1] and file in apart):
                continue
            files |= {file} if file[1] else set()
            for at in range(begin // PAGE, end // PAGE, 1 << 16):
                count = min(1 << 16, end // PAGE - at)
                words = os.pread(pagemap.fileno(), 8 * count, 8 * at)
                for first, pages in runs(struct.unpack(f"{len(words) // 8}Q", words), at):
                    for piece in range(first, first + pages, PIECE):
                        try:
                            contents(
                                os.pread(memory.fileno(), PAGE * min(PIECE, first + pages - piece), PAGE * piece), found
                            )
                        except OSError:
                            continue  # unmapped meanwhile, or not to be read
    return found, files


def of_page_cache(path):
    """Contents of the pages of a file, or block device, that the page cache holds."""
    found = set()
    with open(path, "rb", buffering=0) as file:
        # Reading what is there must not fetch what is not.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for page, there in enumerate(readahead.resident(file.fileno())):
            if there & 1:
                contents(os.pread(file.fileno(), PAGE, PAGE * page), found)
    return found


def held_twice(guests, ram_bytes, servers, files):
    """Different blocks in the host's cache, and of those the ones that some guest's memory holds, too: {"cached",
    "twice"} in pages. A guest's RAM is what is mapped in pieces of at least `ram_bytes`. `files` are those whose page
    cache is the cache; without, the memory of the `servers` is, with the little that programs keep for themselves."""
    in_guests, ram = set(), set()
    for pid in guests:
        found, mapped = of_process(pid, least=ram_bytes)
        in_guests |= found
        ram |= mapped
    cached = set()
    for path in files:
        cached |= of_page_cache(path)
    if not files:
        for pid in servers:
            # Guests' RAM that is shared with the server is not its cache.
            cached |= of_process(pid, ram)[0]
    return {"cached": len(cached), "twice": len(cached & in_guests)}
