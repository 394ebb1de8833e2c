"""Images: made, and read back.

Owns files in the directory it is given.
"""

import hashlib
import random
from pathlib import Path

from .programs import ROOT, run

MIB = 1 << 20


def raw(path: Path, size: int, seed: int | None = None) -> Path:
    """A raw image: empty, or with reproducible random contents."""
    with open(path, "wb") as f:
        if seed is None:
            f.truncate(size)
        else:
            generator = random.Random(seed)
            for at in range(0, size, MIB):
                f.write(generator.randbytes(min(MIB, size - at)))
    return path


def patterned(path: Path, size: int, seed: int) -> None:
    """Fills the beginning of a raw image as `workload fill` does in a guest: it is the same program, which is built
    with the guests."""
    run(ROOT / "build" / "guest" / "workload", "fill", path, "--seed", seed, "--bytes", size)


def qcow2(path: Path, size: int, backing: Path | None = None, backing_format: str = "raw", options: str = "") -> Path:
    """A qcow2 image, empty or on a backing file."""
    command = ["qemu-img", "create", "-q", "-f", "qcow2"]
    if options:
        command += ["-o", options]
    if backing:
        command += ["-b", backing, "-F", backing_format]
    run(*command, path, size)
    return path


def make(directory: Path, name: str, image_format: str, size: int, options: str = "") -> Path:
    """An empty image of a format; the options are qcow2's."""
    path = directory / f"{name}.{image_format}"
    return raw(path, size) if image_format == "raw" else qcow2(path, size, options=options)


def flattened(image: Path, image_format: str, to: Path) -> Path:
    """The contents of an image that nothing serves, as a raw file."""
    run("qemu-img", "convert", "-f", image_format, "-O", "raw", image, to)
    return to


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check_qcow2(path: Path) -> None:
    """The image must be consistent; clusters that are allocated but unused (after a crash) are harmless."""
    done = run("qemu-img", "check", "-f", "qcow2", path, check=False)
    assert done.returncode in (0, 3), f"qemu-img check: {done.stdout}{done.stderr}"


def same(got: bytes, want: bytes, what: str) -> None:
    """Asserts that many bytes are what they should be, and says where they first differ. What pytest makes of a failed
    comparison of a few MiB takes minutes with `-v`, and an emulated guest never gets there."""
    if got == want:
        return
    step = 4096
    differs = (at for at in range(0, min(len(got), len(want)), step) if got[at : at + step] != want[at : at + step])
    at = next(differs, min(len(got), len(want)))
    raise AssertionError(f"{what}: {len(got)} bytes for {len(want)}, others in the {step} from {at} on")
