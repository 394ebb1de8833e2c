"""This repository's tests inside a guest: a disk image with Python, pytest, the tests and our programs, and its guest.

For what this machine cannot have, such as another version of control groups. Owns the image and the guest. Everything
in the image is a copy of what this machine runs, at the same place, with the libraries that it loads. Invariant: what
is skipped in there fails.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .programs import ROOT, built, need, run

sys.path.insert(0, str(ROOT / "experiments"))
from rig.guest import Guest

# The mount point of the image in the guest, and where it holds this repository.
MOUNTED, REPOSITORY = "/mnt", "/repository"
IMAGE_BYTES = 4 << 30
RAM_MIB = 2048
PROGRAMS = ["sh", "dd", "unshare", "mount"]
# What pytest imports beside the standard library.
PACKAGES = ["pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "attr"]
# Parts of the standard library that nothing here imports.
LEFT_OUT = ["test", "idlelib", "tkinter", "lib2to3", "ensurepip", "dist-packages", "site-packages", "config-*"]


def _libraries(path: Path) -> list[Path]:
    """What `ldd` says a program or library loads; nothing for a static one."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    # NAME => PATH (ADDRESS), or PATH (ADDRESS) for the loader.
    found = (re.match(r"\s*(?:\S+ => )?(/\S+) \(", line) for line in said.splitlines())
    return [Path(f[1]) for f in found if f]


def _place(tree: Path, source: Path, at: Path | None = None) -> None:
    """Copies a program to `at`, or to the place that it has here, and what it loads to the places that those have."""
    for path, to in [(source, at or source), *((p, p) for p in _libraries(source))]:
        target = tree / str(to).lstrip("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def _python(tree: Path) -> None:
    """Python and what it imports. Its own modules stay where they are; packages go to the folder of the repository."""
    _place(tree, Path(os.path.realpath(sys.executable)))
    library = Path(sysconfig.get_path("stdlib"))
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(library, tree / str(library).lstrip("/"), symlinks=True, ignore=ignore, dirs_exist_ok=True)
    for module in library.glob("lib-dynload/*.so"):
        for path in _libraries(module):
            _place(tree, path)
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None:
            continue
        source, target = Path(found.origin), tree / f"{REPOSITORY}/packages".lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        if source.name == "__init__.py":
            shutil.copytree(source.parent, target / name, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)


def make_image(folder: Path, programs: list[str]) -> Path:
    """A raw image with ext4 in it that holds all that the tests need, these programs among it."""
    need("strip", "unshare")
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not mkfs:
        pytest.skip("not installed: mkfs.ext4 (make setup installs it)")
    tree, image = folder / "tree", folder / "inside.raw"
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("proc", "sys", "dev", "tmp", "run", "etc", "var/tmp"):
        (tree / name).mkdir(parents=True)
    for name in PROGRAMS + programs:
        found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        _place(tree, Path(found), Path("/usr/bin") / name)
    _python(tree)
    here = tree / REPOSITORY.lstrip("/")
    for folder_of_ours in ("tests", "experiments/rig"):
        shutil.copytree(ROOT / folder_of_ours, here / folder_of_ours, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("undercroft", "undercroft-driver"):
        _place(tree, Path(built(name)), Path(REPOSITORY) / name)
        run("strip", here / name)
    with open(image, "wb") as f:
        f.truncate(IMAGE_BYTES)
    run(mkfs, "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", tree, image)
    shutil.rmtree(tree)
    return image


class Inside:
    """A guest in which tests of this repository are run; what it mounts beside the usual is up to the caller."""

    def __init__(self, folder: Path, accel: str, mounts: str, *, programs=(), **of_guest):
        """`programs` are in the image beside the usual, `of_guest` are further arguments of the guest."""
        self.accel = accel
        image = make_image(folder, list(programs))
        disk = ["-smp", "2", "-drive", f"file={image},format=raw,if=virtio,cache=unsafe"]
        more = {"ram_mib": RAM_MIB, "accel": accel, "private": True, "append": "psi=1"} | of_guest
        self.guest = Guest("inside", disk, folder, **more)
        self.guest.wait_ready()
        self.guest.run(f"mount -t ext4 -o noatime /dev/vda {MOUNTED} && ip link set lo up")
        for kind in ("proc", "sysfs", "devtmpfs"):
            self.guest.run(f"mount -t {kind} {kind} {MOUNTED}/{kind.removesuffix('fs').removesuffix('tmp')}")
        self.guest.run(mounts)

    def test(self, what: str, seconds: float) -> None:
        """Runs tests, all of a file or some, and prints what pytest says. A failure or a skip is a failure here."""
        environment = {
            "PATH": "/usr/bin:/usr/sbin",
            "HOME": "/tmp",
            "PYTHONPATH": f"{REPOSITORY}/packages",
            "UNDERCROFT_PROGRAM": f"{REPOSITORY}/undercroft",
            "UNDERCROFT_PATIENCE": "1" if self.accel == "kvm" else "10",
            "UNDERCROFT_DRIVER_PROGRAM": f"{REPOSITORY}/undercroft-driver",
        }
        if at_length := os.environ.get("UNDERCROFT_LONG"):
            environment["UNDERCROFT_LONG"] = at_length
        words = " ".join(f"{k}={v}" for k, v in environment.items())
        python = os.path.realpath(sys.executable)
        pytest_ = f"{python} -m pytest -rs -v --color=no -p no:cacheprovider --durations=8 {REPOSITORY}/tests/{what}"
        command = f"env -i {words} chroot {MOUNTED} {pytest_}"
        self.guest.send(command)
        output, last, status = self.guest.output(command, seconds), "", None
        while status is None:
            try:
                last = next(output)
                # At once, so that it is there if the rest takes too long.
                print(last, flush=True)
            except StopIteration as end:
                status = end.value
        assert status == 0, f"{what} failed in the guest, as printed above"
        assert "passed" in last and "skipped" not in last, f"{what} was not run in the guest: {last}"

    def close(self) -> None:
        """Ends the guest."""
        self.guest.close()
