#!/usr/bin/env python3
"""Coverage-guided fuzzing over many sessions, kept as a table: scripts/fuzz.py --seconds N [--target T]...

Each session takes up the corpus where the last one left it (fuzz/corpus, which stays on this machine, and fuzz/kept,
which goes with the repository), runs two targets at a time, and adds what it did to docs/results/fuzzing.json, from
which docs/results/fuzzing.md is written: time of a processor, executions, corpus, coverage and crashes of every target,
by commit. Ctrl-C ends the targets in order and keeps what was done. With `--out FOLDER` the table is another one, which
`--add FOLDER` books on that of docs/results; `make test-long` leaves its own in build/fuzz. `--keep` packs the smallest
inputs that cover as much as the corpus does into fuzz/kept, for ordinary tests to replay (fuzz/tests/replay.rs).

Owns those files. Never books a session twice. Invariant: what is added to the table
was executed, by the program of the commit it is booked on, and its time is what the target had of a processor, not what
a clock on a wall showed beside other work; a target that was not built or did not start adds nothing.
"""

import argparse
import contextlib
import datetime
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WANTED_SECONDS = 3600
# A target that crashes is started again for the rest of its time, so often at most.
CRASHES_MAX = 10
# The most that an archive of kept inputs takes.
KEPT_BYTES_MAX = 128 * 1024
# What libFuzzer ends with when it is interrupted, and when an input takes too long.
INTERRUPTED = 72
TOO_LONG = 70
# An input may take so many seconds. libFuzzer's clock also counts those that other work had.
INPUT_SECONDS = 10
LINE = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)
WRITTEN = re.compile(r"^artifact_prefix=.*; Test unit written to (.+)$", re.MULTILINE)
EXECUTED = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


def listed(text):
    """The targets that fuzz/Cargo.toml names."""
    return re.findall(r'^\[\[bin\]\]\nname = "([^"]+)"', text, re.MULTILINE)


def read_log(text):
    """What one run of libFuzzer did: executions, and at its end edges and features covered, and inputs kept; None where
    it got nowhere."""
    executed, lines = EXECUTED.findall(text), LINE.findall(text)
    if not executed or not lines:
        return None
    cov, ft, corpus = map(int, lines[-1])
    return {"executions": int(executed[-1]), "cov": cov, "ft": ft, "corpus": corpus}


def add(data, target, commit, day, seconds, did, crashes):
    """Adds a run to the table: one row per target and commit."""
    rows = data.setdefault("targets", {}).setdefault(target, [])
    row = next((r for r in rows if r["commit"] == commit), None)
    if row is None:
        row = {"commit": commit, "first": day, "seconds": 0, "executions": 0, "crashes": 0}
        rows.append(row)
    row |= {"last": day, "cov": did["cov"], "ft": did["ft"], "corpus": did["corpus"]}
    row["seconds"] = round(row["seconds"] + seconds)
    row["executions"] += did["executions"]
    row["crashes"] += crashes


def merge(data, other):
    """Books every row of another table on one."""
    for target, rows in other.get("targets", {}).items():
        for row in rows:
            add(data, target, row["commit"], row["last"], row["seconds"], row, row["crashes"])
            mine = next(r for r in data["targets"][target] if r["commit"] == row["commit"])
            mine["first"] = min(mine["first"], row["first"])


def hours(seconds):
    """A time as h:mm:ss."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def rendered(data, targets):
    """The table as Markdown: a row for each of `targets`, run or not, then every row by commit."""
    rows = data.get("targets", {})
    lines = [
        "# Fuzzing, by target",
        "",
        (
            "Written by `scripts/fuzz.py` from `fuzzing.json`; no number is typed in by hand. Time is that of"
            " one processor; edges (`cov`) and features (`ft`) are libFuzzer's, at the end of the last session, and"
            " grow with the program as well as with time. Crashes are of the program of that time; all are mended."
            f" Wanted: {WANTED_SECONDS // 3600} hour for every target, all sessions together."
        ),
        "",
        "| target | time | executions | crashes | inputs kept | edges | features | last commit, day | an hour |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for target in targets:
        of = rows.get(target, [])
        if not of:
            lines.append(f"| {target} | 0:00:00 | 0 | - | - | - | - | - | **no** |")
            continue
        last, total = of[-1], sum(r["seconds"] for r in of)
        lines.append(
            f"| {target} | {hours(total)} | {sum(r['executions'] for r in of):,} | {sum(r['crashes'] for r in of)} |"
            f" {last['corpus']:,} | {last['cov']:,} | {last['ft']:,} | {last['commit']}, {last['last']} |"
            f" {'yes' if total >= WANTED_SECONDS else '**no**'} |"
        )
    total = sum(r["seconds"] for of in rows.values() for r in of)
    lines += ["", f"Together {hours(total)}. By commit (`+`: with changes that were not committed):", ""]
    lines += ["| target | commit | days | time | executions | crashes | edges |", "|---|---|---|---:|---:|---:|---:|"]
    for target, of in sorted(rows.items()):
        for r in of:
            days = r["first"] if r["first"] == r["last"] else f"{r['first']} to {r['last']}"
            gone = "" if target in targets else " (no longer a target)"
            lines.append(
                f"| {target}{gone} | {r['commit']} | {days} | {hours(r['seconds'])} | {r['executions']:,} |"
                f" {r['crashes']} | {r['cov']:,} |"
            )
    return "\n".join(lines) + "\n"


class Table:
    """The two files of results."""

    def __init__(self, folder, targets):
        self.json, self.markdown, self.targets = folder / "fuzzing.json", folder / "fuzzing.md", targets
        self.data = json.loads(self.json.read_text()) if self.json.exists() else {"version": 1}

    def save(self):
        """Writes both, the raw results whole or not at all."""
        self.json.parent.mkdir(parents=True, exist_ok=True)
        rows = {t: of for t, of in sorted(self.data.get("targets", {}).items())}
        lines = [
            f'"{t}": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in of) + "]" for t, of in rows.items()
        ]
        new = self.json.with_suffix(".new")
        new.write_text('{"version": 1, "targets": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
        new.rename(self.json)
        self.markdown.write_text(rendered(self.data, self.targets), encoding="utf-8")


def give_way(pid):
    """Has the session of a process get the least of the processors. Where the kernel groups processes by session
    (sched(7), autogroup), each group has an equal part of them, and SCHED_IDLE counts within its group alone."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("19", encoding="ascii")


def ended(process):
    """Seconds that a process had of a processor, once it has ended; None while it runs."""
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if not pid:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


class Running:
    """One target while it runs; `idle`: on what other work leaves of the processors."""

    def __init__(self, target, programs, seconds, place, idle):
        self.target, self.programs, self.place, self.idle = target, programs, place, idle
        self.end = time.monotonic() + seconds
        self.crashes = 0
        self.again = None  # the process that tries again an input on which a run gave up
        self.start()

    def start(self):
        """Runs it for what is left of its time."""
        corpus, artifacts = self.place / "corpus" / self.target, self.place / "artifacts" / self.target
        for folder in (corpus, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        unpack(self.place, self.target, corpus)
        seeds = self.place / "seeds" / self.target
        left = max(1, round(self.end - time.monotonic()))
        # Beside the corpus: sessions in other places have logs of their own.
        self.log = self.place / "logs" / f"{self.target}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        argv = [
            self.programs / self.target, f"-max_total_time={left}", f"-timeout={INPUT_SECONDS}",
            "-rss_limit_mb=2048", "-max_len=65536",
            "-print_final_stats=1", f"-artifact_prefix={artifacts}/", corpus, *([seeds] if seeds.is_dir() else []),
        ]  # fmt: skip
        argv = ["chrt", "--idle", "0", *argv] if self.idle else argv
        with open(self.log, "wb") as log:
            # A session of its own: Ctrl-C reaches this program, which ends it in order.
            self.process = subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log, start_new_session=True)
        if self.idle:
            give_way(self.process.pid)

    def interrupt(self):
        """Asks it to end and to say what it did."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)

    def finished(self):
        """None while it runs; then (seconds that it had of a processor, what it did or None, whether it crashed)."""
        if self.again:
            return self.tried_again()
        if (took := ended(self.process)) is None:
            return None
        text = self.log.read_text(errors="replace")
        did, status = (took, read_log(text)), self.process.returncode
        if status == TOO_LONG and (written := WRITTEN.search(text)):
            self.did, self.gave_up_on = did, Path(written[1])
            argv = [self.programs / self.target, f"-timeout={6 * INPUT_SECONDS}", "-rss_limit_mb=2048", written[1]]
            with open(self.log, "ab") as log:
                self.again = subprocess.Popen(list(map(str, argv)), stdout=log, stderr=log, start_new_session=True)
            return None
        return *did, status not in (0, INTERRUPTED)

    def tried_again(self):
        """As `finished`, for an input on which a run gave up: it is a crash if it takes that long of a processor when
        it has one. If not, other work had it, and the input goes."""
        if (took := ended(self.again)) is None:
            return None
        slow = self.again.returncode != 0 or took >= INPUT_SECONDS
        self.again = None
        if not slow:
            self.gave_up_on.unlink(missing_ok=True)
        return *self.did, slow


def campaign(targets, programs, seconds, jobs, idle, table, commit, place, say=print):
    """Runs all targets, `jobs` at a time; what each did is in the table as soon as it has ended. Returns the exit
    status."""
    waiting, running, stopping, status = list(targets), [], False, 0
    while running or (waiting and not stopping):
        try:
            while waiting and len(running) < jobs and not stopping:
                running.append(Running(waiting.pop(0), programs, seconds, place, idle))
            for run, outcome in [(r, outcome) for r in running if (outcome := r.finished())]:
                took, did, crashed = outcome
                running.remove(run)
                gave_up = run.process.returncode == TOO_LONG
                run.crashes += crashed
                if did:
                    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
                    add(table.data, run.target, commit, day, took, did, int(crashed))
                    table.save()
                    said = (
                        f"{did['executions']:,} executions in {hours(round(took))}, {did['corpus']:,} kept,"
                        f" {did['cov']:,} edges"
                    )
                else:
                    status, said = 1, f"said nothing of what it did: see {run.log}"
                if crashed:
                    status, said = (
                        1,
                        f"{said}; CRASHED (the input is in {place / 'artifacts' / run.target}, the log in {run.log})",
                    )
                say(f"fuzz: {run.target}: {said}")
                left = run.end - time.monotonic()
                if (crashed or gave_up) and did and left > 1 and run.crashes < CRASHES_MAX and not stopping:
                    run.start()
                    running.append(run)
            time.sleep(0.1)
        except KeyboardInterrupt:
            stopping, status = True, 130
            for run in running:
                run.interrupt()
    return status


def unpack(place, target, corpus):
    """Adds the inputs that the repository keeps to a corpus."""
    packed = place / "kept" / f"{target}.tar.xz"
    if packed.exists():
        with tarfile.open(packed) as archive:
            for member in archive.getmembers():
                (corpus / Path(member.name).name).write_bytes(archive.extractfile(member).read())


def packed(inputs):
    """Inputs as an archive: the same inputs give the same bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", format=tarfile.USTAR_FORMAT, preset=9) as archive:
        for data in sorted(set(inputs), key=lambda data: (len(data), data)):
            entry = tarfile.TarInfo(hashlib.sha1(data).hexdigest())
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def keep(target, programs, place):
    """Packs the smallest inputs that cover what the corpus covers; the longest are left out where the archive would be
    too large. Returns what to say of it."""
    corpus, seeds = place / "corpus" / target, place / "seeds" / target
    if not corpus.is_dir():
        return "nothing to keep: it has no corpus here"
    with tempfile.TemporaryDirectory() as merged:
        argv = [
            programs / target,
            "-merge=1",
            "-max_len=65536",
            f"-timeout={INPUT_SECONDS}",
            "-rss_limit_mb=2048",
            merged,
            corpus,
            *([seeds] if seeds.is_dir() else []),
        ]
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
        inputs = sorted((p.read_bytes() for p in Path(merged).iterdir()), key=len)
    if done.returncode or not inputs:
        return f"could not be merged: {done.stderr[-300:]}"
    of = len(inputs)
    while len(archive := packed(inputs)) > KEPT_BYTES_MAX:
        inputs = inputs[: len(inputs) * 9 // 10]
    (place / "kept").mkdir(exist_ok=True)
    (place / "kept" / f"{target}.tar.xz").write_bytes(archive)
    return f"{len(inputs):,} of {of:,} inputs kept, {len(archive):,} bytes"


def commit_now():
    """The commit that is built, with a mark if anything that is built differs from it."""

    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    changed = git(
        "status",
        "--porcelain",
        "--",
        "crates",
        "fuzz/fuzz_targets",
        "fuzz/src",
        "fuzz/Cargo.toml",
        "Cargo.lock",
        "Cargo.toml",
    )
    return git("rev-parse", "--short=10", "HEAD").strip() + ("+" if changed.strip() else "")


def build():
    """Builds all targets, with every assertion on, like the tests: all but our own crates have been built for those
    already. Gives their folder, or None where the build failed."""
    # A wrapper that caches what compilers make does not know this one.
    environment = os.environ | {
        "RUSTC_WRAPPER": "",
        "RUSTC_WORKSPACE_WRAPPER": str(ROOT / "scripts" / "rustc-coverage"),
    }
    command = [
        ROOT / "scripts" / "cargo",
        "build",
        "--locked",
        "-p",
        "undercroft-fuzz",
        "--features",
        "libfuzzer",
        "--bins",
    ]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        return None
    return ROOT / "target" / "debug"


def main():
    p = argparse.ArgumentParser(
        prog="scripts/fuzz.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--seconds", type=int, default=600, help="time for each target in this session (default: %(default)s)"
    )
    p.add_argument(
        "--target", action="append", metavar="T", help="this target alone; may be given again (default: all)"
    )
    p.add_argument("--jobs", type=int, default=2, help="targets at a time (default: %(default)s)")
    p.add_argument("--idle", action="store_true", help="run with what other work leaves of the processors (SCHED_IDLE)")
    p.add_argument("--keep", action="store_true", help="run nothing: pack the inputs found into fuzz/kept")
    p.add_argument(
        "--add", type=Path, metavar="FOLDER", help="run nothing: book what a table in FOLDER has, and remove it"
    )
    p.add_argument("--report", action="store_true", help="run nothing: write the table again")
    p.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "results", help="folder of the table (default: docs/results)"
    )
    p.add_argument("--programs", type=Path, help="folder of targets that are built already (default: builds them)")
    p.add_argument(
        "--place", type=Path, default=ROOT / "fuzz", help="folder of corpus, artifacts, logs and seeds (default: fuzz)"
    )
    a = p.parse_args()
    known = listed((ROOT / "fuzz" / "Cargo.toml").read_text())
    targets = a.target or known
    if a.seconds < 1 or a.jobs < 1:
        p.error("--seconds and --jobs are at least 1")
    for target in targets:
        if target not in known:
            p.error(f"there is no target '{target}': choose from {', '.join(known)}")
    table = Table(a.out, known)
    if a.add:
        other = Table(a.add, known)
        if not other.json.exists():
            p.error(f"there is no table in {a.add}: a session with --out {a.add} leaves one, as `make test-long` does")
        merge(table.data, other.data)
        table.save()
        # Whoever books it again would count it twice.
        other.json.unlink()
        other.markdown.unlink(missing_ok=True)
        return 0
    if a.report:
        table.save()
        return 0
    programs = a.programs or build()
    if programs is None:
        return 1
    if a.keep:
        for target in targets:
            print(f"fuzz: {target}: {keep(target, programs, a.place)}", flush=True)
        return 0
    minutes = -(-len(targets) // a.jobs) * a.seconds / 60
    # Also where the shell that started this in the background has Ctrl-C ignored, and for who ends it by `kill`.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"{len(targets)} targets, {a.seconds} s each, {a.jobs} at a time: about {minutes:.0f} minutes", flush=True)
    status = campaign(
        targets, programs, a.seconds, a.jobs, a.idle, table, commit_now(), a.place, lambda text: print(text, flush=True)
    )
    print(f"table: {os.path.relpath(table.markdown)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
