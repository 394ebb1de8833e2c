"""The pages of programs that serve disks, as files of the host.

Owns nothing. What a control group reads first is charged to it, the program's own file and its libraries among it, and
is dropped when the group is full of the disks' pages: then one page fault of the program reads up to the disk's
read-ahead of it (2 MiB on some hosts), in the measured part, and the kernel counts that as read by the process.
Programs that were used before have their pages elsewhere. So they are read before, by somebody outside the group:
every arm then begins alike. Invariant: reading changes no file.
"""

import re
import shutil
import subprocess
from pathlib import Path

PIECE = 1 << 20
# A library in ldd's lines: `libc.so.6 => /lib/libc.so.6 (0x...)`, `/lib64/ld-linux.so.2 (0x...)`.
LIBRARY = re.compile(r"(?:=>|^)\s*(/\S+) \(0x", re.MULTILINE)


def files(program):
    """The program's file and those of its libraries; none if it is not found (whoever starts it says so)."""
    path = shutil.which(str(program))
    if path is None:
        return []
    found = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    # A program without libraries is "not a dynamic executable".
    return [Path(path), *map(Path, LIBRARY.findall(found.stdout))]


def read(program):
    """Reads those files whole, so that the page cache has them, and returns how many bytes they are."""
    total = 0
    for path in files(program):
        with open(path, "rb", buffering=0) as f:
            while got := len(f.read(PIECE)):
                total += got
    return total
