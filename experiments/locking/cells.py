"""What the laboratory of processor caches runs: one call of `undercroft lab` for each cell.

Owns the list of cells and how one is run. Never judges a result. Invariant: a cell's id says all that its result
depends on, but for the program and the traces.
"""

import json
import subprocess
import time

from rig import process
from rig.process import Stopped

from .programs import ROOT, SHARED

# The page's traces, and what the thesis calls their programs.
REFERENCE = ("sortB", "sortH", "sortQ", "fft", "gzip", "mp3")
SIZES = "2KiB,4KiB,8KiB,16KiB,32KiB,64KiB"
WAYS = (2, 4, 8, 16)
PERCENTS = "5,10,15,20,25,30"
POLICIES = "fifo,clock,sieve,s3-fifo,arc,lirs,lfu"
CORE_SIZES = "4KiB,8KiB,16KiB,32KiB,64KiB"
CORE_LOCKS = "12.5,25,37.5,50"
# Accesses of a trace that is made here, instructions included.
LIMIT = 6_000_000


def asked(undercroft, words):
    """What `undercroft lab` says for programs."""
    said = process.run([undercroft, "lab", *words, "--json"], f"undercroft lab {' '.join(words)}", 3600)
    try:
        return json.loads(said)
    except ValueError as e:
        raise Stopped(f"undercroft lab has said no JSON: {e}") from None


class Cell:
    """One call of `undercroft lab`; `made`: on traces of programs that are traced here."""

    def __init__(self, name, words, made=False):
        self.id, self.words, self.made = name, [str(word) for word in words], made

    def run(self, undercroft, _work):
        """Its rows, and how long it took."""
        began = time.monotonic()
        rows = asked(undercroft, self.words)
        words = [portable(word) for word in self.words]
        return {"words": words, "seconds": round(time.monotonic() - began, 2), "rows": rows}


def reference_cells(folder=SHARED / "traces" / "memory"):
    """The traces of the design page."""
    found = []
    for name in REFERENCE:
        trace = [folder / f"{name}.u64le.zst", "--format", "memory"]
        more = ["--online", "--optimum", "--probability", "--whole", "--policy", POLICIES]
        found.append(Cell(f"sizes-{name}", ["caches", *trace, "--size", SIZES, *more]))
        found.append(Cell(f"percents-{name}", ["caches", *trace, "--size", "4KiB", "--lock", PERCENTS]))
        found.append(Cell(f"preload-{name}", ["caches", *trace, "--size", "4KiB", "--preload"]))
        found.append(Cell(f"data-{name}", ["caches", *trace, "--size", "4KiB", "--count", "data", "--optimum"]))
        for ways in WAYS:
            found.append(Cell(f"ways{ways}-{name}", ["caches", *trace, "--size", "4KiB", "--ways", ways, "--online"]))
    return found


def own_cells(programs, folder):
    """The traces that are made here; each with the profile of its other input as a control."""
    found = []
    for program in programs:
        first, second = (folder / f"{program.name}-{n}.memory.zst" for n in (1, 2))
        more = ["--online", "--optimum", "--other", second]
        found.append(Cell(f"own-{program.name}", ["caches", first, "--size", SIZES, *more], made=True))
        found.append(Cell(f"second-{program.name}", ["caches", second, "--size", SIZES, "--online"], made=True))
    return found


def core_cells(programs, folder):
    """Several cores: all jobs together, and each program by itself."""
    jobs = [program for program in programs if program.job]
    traces = [folder / f"{program.name}-1.memory.zst" for program in jobs]
    sizes = ["--core-size", CORE_SIZES, "--lock", CORE_LOCKS]
    found = [Cell("cores-all", ["cores", *traces, *sizes], made=True)]
    new = ["--new", traces[-1].name]
    found.append(Cell("cores-new", ["cores", *traces, *sizes, *new], made=True))
    for program, trace in zip(jobs, traces, strict=True):
        found.append(Cell(f"cores-{program.name}", ["cores", trace, *sizes], made=True))
    # Table 1: 2 KiB, 128-byte lines, 8 ways, a quarter locked.
    table = ["cores", traces[0], "--core-size", "2KiB", "--lock", "25", "--repeat", "1", "--cores", "1"]
    found.append(Cell("cores-table1", table, made=True))
    return found


def make_traces(undercroft, programs, folder, screen):
    """Traces both inputs of each program, unless it has been."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        for n, command in enumerate(program.inputs, 1):
            path = folder / f"{program.name}-{n}.memory.zst"
            if path.exists():
                continue
            screen(f"tracing {program.name}, input {n}")
            words = [undercroft, "lab", "trace", path, "--limit", LIMIT, "--", *command]
            # What the program itself prints is its own affair.
            done = subprocess.run(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                raise Stopped(f"{program.name} could not be traced: {''.join(last)}")


def portable(word):
    """A word without the places that this machine has."""
    return word.replace(str(SHARED), "../shared").removeprefix(f"{ROOT}/")
