"""Programs that are traced here, with two inputs each: those that the rules were not tuned on.

Owns their commands and inputs, all of which are made of files that do not change. Never traces. Invariant: the same
program and input give the same accesses, but for what the loader and libraries of the machine do.
"""

import importlib.util
import shutil
from pathlib import Path

from rig import process
from rig.guest import ROOT

SHARED = ROOT.parent / "shared"
HERE = Path(__file__).resolve().parent / "programs"
# Packages of Debian 12 that have them.
PACKAGES = {
    "gzip": "gzip", "bzip2": "bzip2", "xz": "xz-utils", "zstd": "zstd", "sort": "coreutils", "sha256sum": "coreutils",
    "mawk": "mawk", "perl": "perl", "sqlite3": "sqlite3", "grep": "grep", "bc": "bc", "diff": "diffutils",
    "python3": "python3", "cjpeg": "libjpeg-turbo-progs", "ppmtogif": "netpbm", "cc": "gcc", "valgrind": "valgrind",
    "nbdkit": "nbdkit",
}  # fmt: skip

SQL = """
create table t(a integer primary key, b text, c integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
insert into t select i, hex(i * {by}), (i * {by}) % 997 from n;
create index c on t(c);
select c, count(*), max(b) from t group by c order by 2 desc limit 5;
"""
PYTHON = """
import json
d = {{str(i * {by} % 5003): [i] * 3 for i in range({n})}}
print(len(json.dumps(json.loads(json.dumps(d)))))
"""
PERL = "while (<>) {{ $n{{lc $1}}++ while /{word}/g }} print scalar(keys %n), qq(\\n)"


class Program:
    """One program: its name, and its command with the first input and with the second."""

    def __init__(self, name, first, second, job=False):
        self.name, self.inputs = name, (first, second)
        # Whether it is one of the jobs of several cores.
        self.job = job


def picture(folder, name, width, height, by):
    """A picture as ppmtogif and cjpeg read it: gradients and a pattern."""
    path = folder / name
    if not path.exists():
        rows = bytearray()
        for y in range(height):
            for x in range(width):
                rows += bytes(((x * by) & 0xE0, (y * by >> 1) & 0xE0, (x ^ y) & 0xC0))
        path.write_bytes(b"P6\n%d %d\n255\n" % (width, height) + bytes(rows))
    return path


def text(name):
    """One of the papers, as text."""
    return str(next((SHARED / "papers").glob(f"{name}_*.txt")))


def part(folder, of, size):
    """The first bytes of a file."""
    path = folder / f"{Path(of).stem}.{size}"
    if not path.exists():
        path.write_bytes(Path(of).read_bytes()[:size])
    return str(path)


def lines(folder, name, said):
    """A file with a few lines."""
    path = folder / name
    path.write_text(said)
    return str(path)


def fft(folder):
    """Our own FFT, compiled."""
    path = folder / "fft"
    source = HERE / "fft.c"
    if not path.exists() or path.stat().st_mtime < source.stat().st_mtime:
        process.run(["cc", "-O2", "-o", path, source, "-lm"], "cc")
    return str(path)


def missing():
    """What has to be installed first."""
    wanted = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if importlib.util.find_spec("nbd") is None:
        wanted.append("python3-libnbd")
    return sorted(set(wanted))


def all_of(folder):
    """All programs, their inputs made."""
    a, b = part(folder, text("002"), 25_000), part(folder, text("001"), 40_000)
    long, other = text("000"), text("003")
    small, large = picture(folder, "small.ppm", 96, 64, 5), picture(folder, "large.ppm", 128, 80, 9)
    run = fft(folder)
    return [
        Program("fft", [run, "12"], [run, "7"], job=True),
        Program("gif", ["ppmtogif", "-quiet", small], ["ppmtogif", "-quiet", large], job=True),
        Program("jpeg", ["cjpeg", small], ["cjpeg", "-quality", "90", large], job=True),
        Program("sqlite", ["sqlite3", ":memory:", SQL.format(rows=900, by=7)],
                ["sqlite3", ":memory:", SQL.format(rows=1500, by=13)], job=True),
        Program("python", ["/usr/bin/python3", "-S", "-E", "-c", PYTHON.format(n=900, by=7)],
                ["/usr/bin/python3", "-S", "-E", "-c", PYTHON.format(n=1500, by=31)], job=True),
        Program("gzip", ["gzip", "-6", "-c", b], ["gzip", "-9", "-c", a]),
        Program("bzip2", ["bzip2", "-c", a], ["bzip2", "-c", b]),
        Program("xz", ["xz", "-1", "-c", a], ["xz", "-0", "-c", b]),
        Program("zstd", ["zstd", "-q", "-3", "-c", long], ["zstd", "-q", "-3", "-c", other]),
        Program("sort", ["sort", b], ["sort", "-r", a]),
        Program("sha256", ["sha256sum", long], ["sha256sum", b]),
        Program("awk", ["mawk", "{for(i=1;i<=NF;i++)n[$i]++} END{print length(n)}", b],
                ["mawk", "{n[length($0)]+=NF} END{for(k in n)s+=k*n[k];print s}", other]),
        Program("perl", ["perl", "-e", PERL.format(word="(\\w+)"), b],
                ["perl", "-e", PERL.format(word="([aeiou]\\w)"), a]),
        Program("grep", ["grep", "-ciE", "cache|lock(ed|ing)", long], ["grep", "-cE", "[0-9]+ ?(KB|MB)", other]),
        Program("bc", ["bc", "-l", lines(folder, "pi.bc", "scale=60; 4*a(1)\nquit\n")],
                ["bc", "-l", lines(folder, "e.bc", "scale=40; e(2.5)\nquit\n")]),
        Program("diff", ["diff", "-q", a, b], ["diff", a, text("002")]),
    ]  # fmt: skip
