"""The machine that something was measured on, as far as it decides the figures.

Owns reading it. Never changes a setting. Invariant: what cannot be told is None, never a guess; the disk's latency is
measured on the file system that the images of the run are on.
"""

import contextlib
import mmap
import os
import random
import subprocess
import time
from pathlib import Path

from . import cgroup, serving

LATENCY_READS = 200
LATENCY_FILE_BYTES = 64 << 20
BLOCK = 4096
# What makes two machines of one type: figures of different types never stand in one table.
TYPE = ("cpu", "cpus", "accelerator")
# Of each of the kernel's monitors of accesses to memory.
MONITORS = Path("/sys/kernel/mm/damon/admin/kdamonds")


def text(path):
    """What a small file of the kernel says, or None."""
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return None


def chosen(line):
    """Of `always [madvise] never`, the one in brackets."""
    return line[line.index("[") + 1 : line.index("]")] if line and "[" in line else line


def disk_of(folder):
    """The folder in /sys of the whole disk that a folder is on, or None."""
    number = os.stat(folder).st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not place.exists():
        return None
    place = place.resolve()
    return place if (place / "queue").exists() else place.parent if (place.parent / "queue").exists() else None


def machine_type():
    """What the machine calls itself; where it says nothing, whether a hypervisor runs it."""
    named = text("/sys/class/dmi/id/product_name")
    if named:
        return named
    with open("/proc/cpuinfo") as f:
        flags = next((line.split() for line in f if line.startswith("flags")), [])
    return "virtual" if "hypervisor" in flags else "unknown type"


def read_latency_us(folder):
    """Median of single 4 KiB reads with O_DIRECT from a file of its own, in microseconds; None where O_DIRECT does not
    work."""
    path = Path(folder) / "latency.raw"
    try:
        if not path.exists() or path.stat().st_size != LATENCY_FILE_BYTES:
            path.write_bytes(random.Random(1).randbytes(1 << 20) * (LATENCY_FILE_BYTES >> 20))
            fd = os.open(path, os.O_RDWR)
            os.fsync(fd)
            os.close(fd)
    except OSError:
        return None
    return latency_us(path)


def latency_us(path):
    """The same of a file or block device that is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    buffer, dice, times = mmap.mmap(-1, BLOCK), random.Random(2), []
    try:
        blocks = os.lseek(fd, 0, os.SEEK_END) // BLOCK
        for _ in range(LATENCY_READS):
            at = BLOCK * dice.randrange(blocks)
            begin = time.perf_counter()
            os.preadv(fd, [buffer], at)
            times.append(time.perf_counter() - begin)
    except OSError:
        return None
    finally:
        os.close(fd)
    return round(1e6 * sorted(times)[len(times) // 2])


def commit(root):
    """The commit of the tree, with a `+` if it was changed; None outside of a repository."""

    def git(*words):
        return subprocess.run(
            ["git", "-c", "safe.directory=*", *words], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return git("rev-parse", "--short=10", "HEAD") + (
            "+" if git("status", "--porcelain", "--", "crates", "experiments", "Cargo.lock") else ""
        )
    return None


def takes_idle_pages(monitors=MONITORS):
    """Whether the kernel pages out what has not been used for a while, however much memory is free (DAMON): the host
    page cache then has less than it might, and what serves from memory of its own has not."""
    found = False
    for monitor in monitors.glob("[0-9]*"):
        state, actions = text(monitor / "state"), [text(p) for p in monitor.glob("contexts/*/schemes/*/action")]
        if state is None or None in actions:
            return None
        found |= state == "on" and "pageout" in actions
    return found


def facts(folder, accelerator):
    """All of it, with the disk that `folder` is on."""
    disk = disk_of(folder)
    with open("/proc/meminfo") as f:
        memory = int(next(line.split()[1] for line in f if line.startswith("MemTotal:")))
    return serving.host() | {
        "accelerator": accelerator,
        "memory_gib": round(memory / (1 << 20)),
        "read_ahead_kb": int(text(disk / "queue/read_ahead_kb")) if disk else None,
        "scheduler": chosen(text(disk / "queue/scheduler")) if disk else None,
        "read_latency_us": read_latency_us(folder),
        "governor": text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "thp": chosen(text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "cgroup": cgroup.version(),
        "machine_type": machine_type(),
        "takes_idle_pages": takes_idle_pages(),
    }


def processor_facts():
    """What decides processor time, for what needs no disk and no guest."""
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    return {
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "governor": text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "machine_type": machine_type(),
    }


def processor_words(machine):
    """The same in words."""
    parts = [f"{machine['cpu']}, {machine['cpus']} processors", f"Linux {machine['kernel'].split('-')[0]}"]
    parts += [f"governor {machine['governor'] or 'none'}", f"machine {machine['machine_type']}"]
    return ", ".join(parts)


def kind(machine):
    """What has to be equal for figures to stand in one table."""
    return tuple(machine.get(name) for name in TYPE)


def words(machine):
    """A machine in words; those measured before all of this was recorded say less."""
    accelerator = "software emulation" if machine["accelerator"] == "tcg" else machine["accelerator"]
    parts = [f"{machine['cpu']}, {machine['cpus']} processors"]
    if machine.get("memory_gib"):
        parts.append(f"{machine['memory_gib']} GiB")
    parts += [f"Linux {machine['kernel'].split('-')[0]}", f"QEMU {machine['qemu']}", f"guests under {accelerator}"]
    if "cgroup" in machine:
        latency = machine["read_latency_us"]
        parts += [
            f"control groups v{machine['cgroup']}",
            (
                f"read-ahead {machine['read_ahead_kb']} KiB"
                if machine["read_ahead_kb"] is not None
                else "read-ahead unknown"
            ),
            f"a 4 KiB read of the disk {latency} us" if latency is not None else "latency of the disk unknown",
            f"governor {machine['governor'] or 'none'}",
            f"huge pages {machine['thp'] or 'unknown'}",
        ]
        if machine.get("machine_type"):
            parts.append(f"machine {machine['machine_type']}")
        if machine.get("takes_idle_pages"):
            parts.append("files' pages that nobody uses for a minute are taken back (DAMON)")
    return ", ".join(parts)
