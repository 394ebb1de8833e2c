"""The disks of the experiments: raw images with contents on the disk, so that every miss is a transfer.

Owns a folder of images, made once and never written by a load.
"""

import os

MIB = 1 << 20
PIECE = 4 * MIB


def image(folder, name, mib, say):
    """An image of so many MiB that is not sparse."""
    path = folder / f"{name}-{mib}MiB.raw"
    if path.exists() and path.stat().st_size == mib * MIB:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    say(f"making {path.name}")
    new = path.with_suffix(".new")
    piece = os.urandom(PIECE)
    with open(new, "wb") as f:
        for at in range(0, mib * MIB, PIECE):
            f.write(at.to_bytes(8, "little") + piece[8 : min(PIECE, mib * MIB - at)])
        f.flush()
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    new.rename(path)
    return path
