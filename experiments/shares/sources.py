"""The file systems of the kernel build: its source, and a tree of output in which the build has not begun.

Owns their images, made once from Debian's linux-source package, and the copies that runs work on. Never changes the
source's image after it is made. Invariant: every run starts from the same bytes, none of them in this machine's page
cache.
"""

import contextlib
import json
import os
import shutil
from pathlib import Path

from rig import mounted, process
from rig.images import drop_cached

MIB = 1 << 20
TARBALLS = Path("/usr/src")
SOURCE_MIB, OUTPUT_MIB = 512, 128
# Code that this configuration does not compile is left out, its Kconfig and Makefiles are not.
UNUSED_DRIVERS = "gpu net media scsi staging infiniband usb iio misc clk pinctrl video crypto input mtd hwmon"
UNUSED = [
    *(f"drivers/{d}" for d in UNUSED_DRIVERS.split()),
    "arch/[!x]*", "arch/xtensa", "sound", "tools/perf", "tools/testing",
]  # fmt: skip
UNUSED_FILES = ["*.dts", "*.dtsi", "*.rst", "*.svg", "*.json", "linux-source-*/Documentation/devicetree/*"]
# What the build calls: the package that has it.
PROGRAMS = {
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "tar": "tar",
    "xz": "xz-utils",
}


def tarball():
    """Linux's source, the newest that is installed, or None."""
    found = sorted(
        TARBALLS.glob("linux-source-*.tar.xz"), key=lambda p: [int(n) for n in p.name[13:-7].split(".") if n.isdigit()]
    )
    return found[-1] if found else None


def missing_packages():
    """Packages that a build needs and this machine has not."""
    packages = {package for name, package in PROGRAMS.items() if not shutil.which(name)}
    packages |= set() if tarball() else {"linux-source"}
    return packages | (set() if Path("/usr/include/stdio.h").exists() else {"libc6-dev"})


class Sources:
    """Images under `folder`; file systems are mounted at `source` and `output`, always the same paths: the build writes
    them down."""

    def __init__(self, folder, log, say):
        self.folder, self.log, self.say = folder, log, say
        self.source, self.output = folder / "source", folder / "output"
        self.source_image, self.output_image = folder / "source.raw", folder / "output.raw"
        # What runs work on: the output alone, or after the source on one disk.
        self.working, self.both = folder / "working.raw", folder / "both.raw"

    def make(self, *targets, jobs=3):
        """The command that builds."""
        return ["make", "-C", self.source, f"O={self.output}", f"-j{jobs}", *targets]

    def _key(self):
        """What the images are made from."""
        stat = tarball().stat()
        return json.dumps(
            [
                tarball().name,
                stat.st_size,
                stat.st_mtime,
                str(self.folder),
                SOURCE_MIB,
                OUTPUT_MIB,
                UNUSED,
                UNUSED_FILES,
            ]
        )

    def version(self):
        return tarball().name[len("linux-source-") : -len(".tar.xz")]

    def prepare(self):
        """Makes the images, unless they are there from an earlier run."""
        made = self.folder / "made-from"
        if made.exists() and made.read_text() == self._key():
            return
        mounted.private()
        self.folder.mkdir(parents=True, exist_ok=True)
        made.unlink(missing_ok=True)
        self.say(f"unpacking {tarball().name} into a file system of {SOURCE_MIB} MiB")
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        try:
            left_out = [*(f"linux-source-*/{part}/*.[chS]" for part in UNUSED), *UNUSED_FILES]
            process.run(
                ["tar", "-xJf", tarball(), "-C", tree, "--strip-components=1", *(f"--exclude={p}" for p in left_out)],
                "unpacking Linux's source",
            )
            mkfs(self.source_image, SOURCE_MIB, "-d", tree)
        finally:
            shutil.rmtree(tree, ignore_errors=True)
        mkfs(self.output_image, OUTPUT_MIB)
        self.say("making tinyconfig and what every build needs first (make prepare)")
        with mounted.FileSystem(self.source_image, self.source, read_only=True), mounted.FileSystem(
            self.output_image, self.output
        ):
            for target in ("tinyconfig", "prepare"):
                process.run(self.make(target, jobs=os.cpu_count()), f"make {target}")
        shutil.copyfile(self.source_image, self.both)
        made.write_text(self._key())

    def reset(self):
        """Output in which the build has not begun."""
        shutil.copyfile(self.output_image, self.working)
        with open(self.output_image, "rb") as clean, open(self.both, "r+b") as both:
            both.seek(SOURCE_MIB * MIB)
            shutil.copyfileobj(clean, both, 4 * MIB)
        for image in (self.source_image, self.working, self.both):
            drop_cached(image)

    def warm_programs(self):
        """Reads the compiler and what else the build runs, so that a run neither waits for them nor is charged for
        them."""
        names = [*PROGRAMS, "as", "ar", "nm", "objcopy", "strip", "sh", "sed", "awk", "grep", "cat", "rm", "mv"]
        paths = [shutil.which(name) for name in names]
        paths += [process.run(["gcc", f"-print-prog-name={name}"], "gcc").strip() for name in ("cc1", "collect2")]
        for path in filter(None, paths):
            with contextlib.suppress(OSError):
                Path(path).read_bytes()


def mkfs(image, mib, *options):
    """An empty ext4, or one with what `options` say."""
    new = image.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "wb") as f:
        f.truncate(mib * MIB)
    process.run(
        [
            mounted.program("mkfs.ext4"), "-q", "-F", "-b", "4096", "-m", "0", "-N", "48000", "-O", "^has_journal",
            "-E", "lazy_itable_init=0", *options, new,
        ],
        "mkfs.ext4",
    )  # fmt: skip
    # Not sparse: every miss is to be a transfer.
    process.run(["fallocate", "--length", f"{mib}MiB", new], "fallocate")
    new.rename(image)
