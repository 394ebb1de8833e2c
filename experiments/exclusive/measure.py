"""What is counted while an arm runs: CPU, memory, reclaim, swap.

Owns reading the kernel's counters. Never changes anything but a tracing instance of its own, which is removed.
Invariant: every counter is taken at two moments and the difference is what counts; what this kernel does not count is
None, not 0.
"""

import contextlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
VMSTAT = (
    "pswpin", "pswpout", "pgscan_kswapd", "pgscan_direct", "pgsteal_kswapd", "pgsteal_direct", "allocstall_normal",
    "workingset_refault_file", "oom_kill",
)  # fmt: skip
# Of the serving process's control group; version 1 has only the first two, version 2 only the others.
GROUP = ("pgpgin", "pgpgout", "pgscan", "pgsteal", "workingset_refault_file", "workingset_refault_anon")
TRACING = Path("/sys/kernel/tracing")
INSTANCE = "undercroft-lab-"


def table(text):
    """`name value` lines as numbers."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def chosen(text, names):
    """Those of `names` that are in a table of `name value` lines."""
    found = table(text)
    return {name: found[name] for name in names if name in found}


def vmstat():
    """The host's reclaim and swap counters, since boot."""
    return chosen(Path("/proc/vmstat").read_text(), VMSTAT)


def group_stat(folder):
    """The same of one memory control group."""
    with contextlib.suppress(OSError):
        return chosen((folder / "memory.stat").read_text(), GROUP)
    return {}


def cpu_seconds(stat):
    """User and system time in a line of /proc/PID/stat (proc(5): fields 14 and 15; the name in field 2 may have
    blanks)."""
    fields = stat.rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def thread_name(stat):
    """The name in a line of /proc/PID/stat."""
    return stat[stat.index("(") + 1 : stat.rindex(")")]


def cpu(pids):
    """CPU seconds of processes so far: all, and by name of thread."""
    total, threads = 0.0, {}
    for pid in pids:
        total += cpu_seconds(Path(f"/proc/{pid}/stat").read_text())
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                stat = (task / "stat").read_text()
                threads[thread_name(stat)] = threads.get(thread_name(stat), 0.0) + cpu_seconds(stat)
    return {"seconds": total, "threads": threads}


def major_faults(stat):
    """Page faults that read from a disk, in a line of /proc/PID/stat (proc(5): field 12)."""
    return int(stat.rsplit(")", 1)[1].split()[9])


def busy_seconds(stat=None):
    """CPU seconds that this machine's processors have worked so far, for whomever (proc(5), /proc/stat)."""
    fields = [int(n) for n in (stat or Path("/proc/stat").read_text()).splitlines()[0].split()[1:9]]
    # user, nice, system, idle, iowait, irq, softirq, steal: the last is time in which others had the processor.
    return (sum(fields) - fields[3] - fields[4]) / TICK


def difference(after, before):
    """`after` minus `before`, through nested tables; what is only in `after` stays, texts too."""
    if isinstance(after, dict):
        return {k: difference(v, before.get(k) if isinstance(before, dict) else None) for k, v in after.items()}
    if isinstance(after, list):
        same = isinstance(before, list) and len(before) == len(after)
        return [difference(a, b) for a, b in zip(after, before if same else [None] * len(after), strict=True)]
    if isinstance(after, bool | str) or after is None or not isinstance(before, int | float):
        return after
    return round(after - before, 6)


class Sampler:
    """Memory over time: calls `read()` every so often, from a thread of its own, between entering and leaving."""

    def __init__(self, read, every_seconds=0.5):
        self.read = read
        self.every = every_seconds
        self.samples = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        begin = time.monotonic()
        while not self.over.wait(self.every):
            # The server may just be ending.
            with contextlib.suppress(Exception):
                self.samples.append((round(time.monotonic() - begin, 2), *self.read()))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def thinned(samples, most=60):
    """At most `most` samples, evenly chosen, with the first and the last."""
    if len(samples) <= most:
        return samples
    return [samples[round(i * (len(samples) - 1) / (most - 1))] for i in range(most)]


class ReclaimTrace:
    """Pages that reclaim looked at and freed on behalf of some processes, from the kernel's own trace points. Version 1
    of the control groups does not count them; this does, where tracing is compiled in. `counted` is None where it is
    not.

    """

    EVENT = "vmscan/mm_vmscan_lru_shrink_inactive"
    LINE = re.compile(r"\(\s*(\d+|-+)\).*nr_scanned=(\d+) nr_reclaimed=(\d+)")

    def __init__(self, pids):
        self.pids = pids
        self.scanned = self.reclaimed = 0
        self.folder = TRACING / "instances" / f"{INSTANCE}{os.getpid()}"
        self.fd = self.thread = None
        self.mounted = False

    def __enter__(self):
        # Where nothing has mounted it, as on small machines: for as long as this takes.
        self.mounted = not (TRACING / "events").exists() and not subprocess.run(
            ["mount", "-t", "tracefs", "tracefs", TRACING], capture_output=True, check=False
        ).returncode
        try:
            # Left-overs of runs that were killed.
            for old in self.folder.parent.glob(f"{INSTANCE}*"):
                if not Path("/proc", old.name.removeprefix(INSTANCE)).exists():
                    with contextlib.suppress(OSError):
                        old.rmdir()
            self.folder.mkdir(exist_ok=True)
            (self.folder / "options" / "record-tgid").write_text("1")
            (self.folder / "events" / self.EVENT / "enable").write_text("1")
            self.fd = os.open(self.folder / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            self._remove()
            return self
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def counted(self):
        """{"scanned": pages, "reclaimed": pages} so far, or None."""
        return {"scanned": self.scanned, "reclaimed": self.reclaimed} if self.thread else None

    def _run(self):
        rest = ""
        while not self.over.wait(0.2):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(self.fd, 65536):
                    *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
                    self.add(lines)

    def add(self, lines):
        """Counts lines of trace_pipe that name one of the processes."""
        for line in lines:
            found = self.LINE.search(line)
            if found and found[1].isdigit() and int(found[1]) in self.pids:
                self.scanned += int(found[2])
                self.reclaimed += int(found[3])

    def _remove(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        if self.mounted:
            subprocess.run(["umount", TRACING], capture_output=True, check=False)
            self.mounted = False

    def __exit__(self, *_):
        if self.thread:
            self.over.set()
            self.thread.join()
        self._remove()
