"""Static probes: they are in the program, as docs/probes.md says, and fire as often as the daemon says that things
happened."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import ROOT, built, driver, need, need_root, run

# The kernel's probes are one table for all: others may write to it meanwhile, but tests that count do not overlap.
pytestmark = pytest.mark.alone
PROVIDER = "undercroft"


@dataclass(frozen=True)
class Site:
    """One place of the program where a probe is: addresses, and how many arguments it has there."""

    name: str
    location: int
    semaphore: int
    arguments: int


def sites(program: str) -> list[Site]:
    """What the program's notes say."""
    text = run("readelf", "--notes", "--wide", program).stdout
    note = re.compile(
        rf"Provider: {PROVIDER}\n\s+Name: (\w+)\n\s+Location: (\w+), Base: \w+, Semaphore: (\w+)\n\s+Arguments:(.*)\n"
    )
    found = [Site(m[1], int(m[2], 16), int(m[3], 16), len(m[4].split())) for m in note.finditer(text)]
    # Of functions that the linker left out, notes stay, with places near zero.
    return [site for site in found if site.location >= 0x1000]


def documented() -> dict[str, int]:
    """Probes and how many arguments each has, by docs/probes.md."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]*) \|", (ROOT / "docs" / "probes.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name: len(arguments.split(",")) for name, arguments in rows}


def test_the_probes_documented_are_in_the_program():
    """Each with as many arguments as the document gives it, and no others."""
    need("readelf")
    found = {(site.name, site.arguments) for site in sites(built("undercroft"))}
    assert found == set(documented().items())


def offset_in_file(program: str, address: int) -> int:
    """Where in the file an address of the program is."""
    segments = run("readelf", "--segments", "--wide", program).stdout
    for offset, start, size in re.findall(r"^\s+LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", segments, re.MULTILINE):
        if int(start, 16) <= address < int(start, 16) + int(size, 16):
            return address - int(start, 16) + int(offset, 16)
    pytest.fail(f"{address:#x} is in no part of {program}")


def tell(events: Path, line: str) -> None:
    """Adds a line to the kernel's table of probes, which cannot be sought in."""
    fd = os.open(events, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


@contextlib.contextmanager
def counted(program: str, scratch: Path):
    """Counts how often each probe fires, by the kernel's uprobes: yields a function that tells."""
    tracing = scratch / "tracing"
    tracing.mkdir()
    run("mount", "-t", "tracefs", "nodev", tracing)
    group = f"uctest{os.getpid()}"
    events = tracing / "uprobe_events"
    try:
        if not events.exists():
            pytest.skip("this kernel has no uprobes")
        for n, site in enumerate(sites(program)):
            counter = f"({offset_in_file(program, site.semaphore):#x})" if site.semaphore else ""
            tell(events, f"p:{group}/{site.name}_{n} {program}:{offset_in_file(program, site.location):#x}{counter}")
        switch = tracing / "events" / group / "enable"
        switch.write_text("1")

        def told() -> dict[str, int]:
            lines = (line.split() for line in (tracing / "uprobe_profile").read_text(encoding="ascii").splitlines())
            found = dict.fromkeys(documented(), 0)
            for _, event, hits, *_ in lines:
                name, _, number = event.rpartition("_")
                if number.isdigit() and name in found:
                    found[name] += int(hits)
            return found

        yield told
        switch.write_text("0")
    finally:
        with contextlib.suppress(OSError):
            tell(events, f"-:{group}/")
        run("umount", tracing)


def test_probes_fire_as_often_as_things_happen(serve, scratch):
    """A store smaller than the disk: hits, misses, operations and evictions, each as often as the daemon counted."""
    need_root()
    need("readelf", "mount", "umount")
    program = built("undercroft")
    image = images.raw(scratch / "disk.raw", 64 * images.MIB, seed=1)
    daemon = serve([Disk("d", image, "raw")], memory="32MiB")
    with counted(program, scratch) as told:
        driver("run", daemon.vhost("d"), "--ops", "3000", "--depth", "4", "--block", "65536", "--verify", image)
        driver(
            "run",
            daemon.vhost("d"),
            "--ops",
            "500",
            "--depth",
            "1",
            "--block",
            "4096",
            "--pattern",
            "seq",
            "--verify",
            image,
        )
        fired, counters = told(), daemon.disk("d")["counters"]
    reads = counters["reads"]
    assert fired["request"] == fired["reply"] and fired["reply"] >= reads > 3000, (fired, counters)
    assert fired["hit"] + fired["miss"] == reads and fired["hit"] > 0 and fired["miss"] > 0, (fired, counters)
    assert fired["submit"] == fired["done"] >= counters["backend_reads"], (fired, counters)
    assert counters["evicted_blocks"] > 0 and fired["evict"] == fired["miss"] <= fired["found"], (fired, counters)
