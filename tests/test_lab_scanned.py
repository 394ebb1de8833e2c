"""The laboratory's arms with a scanner, pages held twice, repeated runs, and one type of machine per table."""

import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.programs import ROOT, need_root

sys.path.insert(0, str(ROOT / "experiments"))
sys.path.insert(0, str(ROOT / "tests"))

from exclusive import run as lab  # noqa: E402
from exclusive import arms, derive, experiments, report, scanned, store, twice  # noqa: E402
from rig import machine  # noqa: E402
from test_lab import MACHINE, exclusive_record, facts, record, results  # noqa: E402

PAGE = mmap.PAGESIZE


def page(number):
    return b"%016d" % number * (PAGE // 16)


# A process that has pages mapped: of a file that it is given, all that it has; and of its own, what it reads from its
# input, straight into them. A copy on its heap could lie at a page's beginning and would be found there, too.
HOLDS = """
import mmap, os, sys
of, size, own = (int(argument) for argument in sys.argv[1:])
with mmap.mmap(of, size) as ram, mmap.mmap(-1, size) as its_own:
    view = memoryview(its_own)[: own * mmap.PAGESIZE]
    while view:
        view = view[os.readv(0, [view]) :]
    touched = sum(ram[at] for at in range(0, 10 * mmap.PAGESIZE, mmap.PAGESIZE))
    print(touched, flush=True)
    os.read(0, 1)
"""


@contextlib.contextmanager
def process_that_holds(file, size, own):
    """Such a process, which ends with its input."""
    arguments = [sys.executable, "-c", HOLDS, str(file.fileno()), str(size), str(len(own) // PAGE)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [file.fileno()]}
    with subprocess.Popen(arguments, **pipes) as process:
        process.stdin.write(own)
        process.stdin.flush()
        assert process.stdout.readline().strip() == b"480", "the first bytes of ten pages, 48 each"
        yield process.pid


def anew(**more):
    """Facts of a cell that was measured with today's laboratory."""
    full = MACHINE | {
        "memory_gib": 24, "read_ahead_kb": 128, "scheduler": "none", "read_latency_us": 90, "governor": None,
        "thp": "madvise", "cgroup": 1,
    }  # fmt: skip
    return facts() | {"commit": "abcdef0123", "day": "2026-11-24", "repeat": 3, "machine": full} | more


def scanning_record(title, disk_mib, scanner_seconds=0.3, scrubbed=4321):
    made = exclusive_record(disk_mib) | {"title": title, "twice": {"cached": 20_000, "twice": 500}}
    made["measured"]["own"]["scan"] = {"passes": 2, "cooled_blocks": scrubbed}
    made["measured"]["cpu"] = {"seconds": 2.0, "threads": {"undercroft-scan": scanner_seconds, "undercroft-w0": 1.7}}
    return made


# --- Pages held twice


def test_pages_that_two_processes_hold_are_counted_by_content():
    """One process stands for guest and server. What is mapped and was never touched stays untouched."""
    need_root()
    size = 64 * PAGE
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(page(1000 + n) for n in range(10)))
        file.truncate(size)
        file.flush()
        with process_that_holds(file, size, page(1003) + page(5000)) as pid:
            inode = os.fstat(file.fileno()).st_ino
            key = {of for _, _, of in twice.mappings(Path(f"/proc/{pid}/maps").read_text()) if of[1] == inode}
            assert len(key) == 1
            found, _ = twice.of_process(pid)
            apart, _ = twice.of_process(pid, key)
            wanted = [set() for _ in range(3)]
            for into, numbers in zip(wanted, (range(1000, 1010), [1003], [5000])):
                twice.contents(b"".join(map(page, numbers)), into)
            assert wanted[0] | wanted[2] <= found and wanted[1] <= apart
            assert not (wanted[0] - wanted[1]) & apart, "the guest's RAM, mapped here too, is not the server's cache"
            assert not twice.of_process(pid, least=1 << 50)[0]
            twice.contents(bytes(PAGE) * 3, empty := set())
            assert empty == set(), "zeroes are no data"


def test_the_page_cache_is_read_without_filling_it(scratch):
    path = scratch / "image.raw"
    path.write_bytes(b"".join(page(n) for n in range(4096)))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert twice.of_page_cache(path) == set()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for n in (7, 8, 4000):
        os.pread(fd, PAGE, n * PAGE)
    os.close(fd)
    for _ in range(2):
        twice.contents(page(7) + page(8) + page(4000), wanted := set())
        assert twice.of_page_cache(path) == wanted, "looking at it brings nothing in"


def test_only_what_is_there_is_read():
    entries = [0, twice.PRESENT, twice.PRESENT | 5, 0, 1 << 62, twice.PRESENT]
    assert list(twice.runs(entries, 100)) == [(101, 2), (105, 1)]
    text = (
        "1000-3000 rw-p 0 00:00 0 [heap]\n4000-5000 r--p 0 00:00 0\n6000-7000 rw-s 0 00:01 77 /memfd:ram"
        " (deleted)\n8000-9000 rwxp 0 00:00 0\n"
    )
    assert list(twice.mappings(text)) == [(0x1000, 0x3000, ("00:00", 0)), (0x6000, 0x7000, ("00:01", 77))]


# --- Arms


@pytest.fixture
def no_program(monkeypatch):
    monkeypatch.setattr(arms, "supports", lambda key, binary=None: True)


def configured(kind, tmp_path, monkeypatch):
    """The configuration that an arm would start the daemon with."""
    arm = kind(96 << 20, tmp_path)
    monkeypatch.setattr(arm, "serve", lambda: None)
    monkeypatch.setattr(arm, "_limited", lambda name: None)
    arm.run_dir = tmp_path
    arm.slow_disks = [SimpleNamespace(uri=f"nbd+unix:///?socket={tmp_path}/nbd.sock")]
    arm.start([tmp_path / "disk.raw"])
    return arm, arm.config.read_text()


def test_scanning_arms_scan_and_the_others_do_not(no_program, tmp_path, monkeypatch):
    for key, kind in arms.ARMS.items():
        if issubclass(kind, arms.Undercroft):
            arm, text = configured(kind, tmp_path, monkeypatch)
            assert ("[scan]\nenabled = true" in text) == (key in ("scan-vhost", "scan-nbd"))
            assert ("vhost_user = false" in text and arm.private_ram) == (key in ("nbd", "scan-nbd"))
            assert ("pid_file" in text) == (key == "scan-nbd")
            room = arms.SCAN_INDEX_BYTES if kind.scan else 0
            assert arm.store_bytes == (96 << 20) - arms.serving.PROGRAM_BYTES - room, "equal host memory"


def test_the_program_takes_the_configuration_of_every_arm(tmp_path, monkeypatch):
    from harness.programs import built, run

    monkeypatch.setattr(arms.serving.Undercroft, "binary", built("undercroft"))
    (tmp_path / "disk.raw").write_bytes(bytes(1 << 20))
    checked = 0
    for kind in arms.ARMS.values():
        if issubclass(kind, arms.Undercroft):
            arm, _ = configured(kind, tmp_path, monkeypatch)
            done = run(built("undercroft"), "check", arm.config, check=False)
            assert done.returncode == 0, f"{arm.key}: {done.stdout}{done.stderr}"
            checked += 1
    assert checked == 9


def test_sets_of_arms_and_repetitions_are_asked_for_by_name(capsys):
    assert lab.arguments([]).arms == arms.USUAL and lab.arguments([]).repeat == 1
    assert not any("long" in cell.id for cell in lab.arguments([]).cells)
    minute = lab.arguments(["--loads", "uniform-long,zipf-long", "--n", "0.5", "--arms", "scanned"]).cells
    assert [cell.id for cell in minute] == [f"{load}-long-zero1-mglru0-n0.5-192MiB" for load in ("uniform", "zipf")]
    assert lab.arguments(["--arms", "scanned", "--repeat", "3"]).arms == arms.SCANNED
    assert set(lab.arguments(["--arms", "both"]).arms) == {*arms.USUAL, *arms.SCANNED}
    with pytest.raises(SystemExit):
        lab.arguments(["--repeat", "0"])
    assert "--repeat" in capsys.readouterr().err


# --- Repeated runs


def test_of_several_runs_the_median_counts_and_the_spread_is_kept(tmp_path):
    made = derive.together([exclusive_record(70), exclusive_record(60), exclusive_record(90)])
    assert derive.saved(made) == pytest.approx(0.3)
    assert derive.spread(made, "saved") == pytest.approx((0.3, 0.1, 0.4))
    assert derive.with_spread(made, "saved", derive.percent) == "30.0 % (10.0 % to 40.0 %)"
    one = derive.together([exclusive_record(70)])
    assert derive.spread(one, "saved") is None and derive.with_spread(one, "saved", derive.percent) == "30.0 %"
    s = store.Store(tmp_path / "r.json")
    s.begin("a", anew())
    s.add("a", "undercroft-auto", made)
    s.finish("a")
    assert s.done("a", ["undercroft-auto"], [], 3) and not s.done("a", ["undercroft-auto"], [], 5)
    assert "30.0 % (10.0 % to 40.0 %)" in report.full(s.data, [])


# --- The report


def test_the_scanner_is_shown_where_it_was_on_and_said_to_be_off_elsewhere(tmp_path):
    s = results(tmp_path)
    assert "not measured: the scanner was off in every arm" in report.full(s.data, [])
    assert scanned.section(s.data["cells"]) == []
    s.begin("b", anew())
    runs = [scanning_record("exclusive, scan", mib, seconds) for mib, seconds in ((60, 0.3), (61, 0.2), (62, 0.4))]
    s.add("b", "undercroft-auto", exclusive_record(65) | {"twice": {"cached": 20_000, "twice": 4_000}})
    s.add("b", "scan-vhost", derive.together(runs))
    text = report.full(s.data, [])
    assert "| exclusive | 35.0 % | 20,000 | 4,000 | 20.0 % | off | off | off | 20.0 % |" in text
    row = next(line for line in text.splitlines() if line.startswith("| exclusive, scan | 39.0 % (38.0 % to 40.0 %)"))
    assert "| 20,000 | 500 | 2.5 % (2.5 % to 2.5 %) | 4,321 (4,321 to 4,321) | 2 | 3.00 % (2.00 % to 4.00 %) |" in row
    assert "exclusive, scan 3.00 % (2.00 % to 4.00 %) (N = 0.25)" in text


def test_a_scanner_that_did_not_run_is_not_said_to_cost_nothing(tmp_path):
    """Where the load was measured for a minute as well, that stands beside Singleton's figures."""
    s = results(tmp_path)
    idle, busy = (scanning_record("exclusive, scan", 60, seconds) for seconds in (0.0, 0.3))
    s.begin("short", anew())
    s.add("short", "scan-vhost", derive.together([idle, idle]))
    text = report.full(s.data, [])
    assert "| no scan in what was measured |" in text and "0.00 %" not in text
    assert "exclusive, scan no scan in what was measured (N = 0.25)" in text
    s.add("short", "scan-vhost", derive.together([idle, busy, idle]))
    assert "| 0.00 % (0.00 % to 3.00 %), none in 2 of 3 runs |" in report.full(s.data, [])
    s.begin("minute", anew(load="uniform-long", kind="long"))
    s.add("minute", "scan-vhost", derive.together([busy, busy]))
    text = report.full(s.data, [])
    assert "### minute" in text and "### short" in text and text.count("none in 2") == 1
    assert "| exclusive, scan 3.00 % (3.00 % to 3.00 %) (N = 0.25) |" in text


def test_no_table_has_two_types_of_machine_or_old_cells_beside_new_ones(tmp_path):
    s = results(tmp_path)
    s.begin("other", facts() | {"machine": MACHINE | {"cpu": "Other CPU"}})
    s.add("other", "direct", record("O_DIRECT", 100))
    s.begin("new", anew())
    s.add("new", "direct", record("O_DIRECT", 100))
    text = report.full(s.data, [])
    titles = [line for line in text.splitlines() if line.startswith("# Part")]
    assert len(titles) == 3 and titles[0].endswith("CPU, measured anew") and all(t.endswith("old") for t in titles[1:])
    new, *old = text.split("# Part")[1:]
    assert (
        "control groups v1, read-ahead 128 KiB, a 4 KiB read of the disk 90 us, governor none, huge pages madvise"
        in new
    )
    assert "Measured on 2026-11-24, at commit abcdef0123." in new and "**Old**" not in new
    assert all("**Old**" in part and "Measured on" not in part for part in old)
    for part in text.split("# Part")[1:]:
        assert ("Other CPU" in part) == ("other | O_DIRECT" in part)
    assert list(report.pictured(s.data["cells"])) == ["new"], "of parts of equal size, the newest"


def test_the_stored_report_is_that_of_the_stored_results():
    kept = ROOT / "docs" / "results"
    text = (kept / "exclusive.md").read_text()
    pictures = [line[2 : line.index("]")] for line in text.splitlines() if line.startswith("![")]
    assert (
        report.full(store.Store(kept / "exclusive.json.xz").data, pictures) == text
    ), "make lab-exclusive LAB=--report writes it"


def test_the_host_process_is_shown_with_what_it_misses():
    def job(alone, beside):
        passes = lambda pairs: [{"seconds": s, "read_bytes": b} for s, b in pairs]  # noqa: E731
        return record("host page cache", 100) | {
            "extra": {"job": {"alone": passes(alone), "beside": passes(beside), "reads": 1000, "file_bytes": 1}}
        }

    made = job([(1.0, 409_600), (1.0, 409_600)], [(2.0, 2_048_000), (4.0, 2_048_000)])
    assert derive.job(made) == {"job_alone_s": 1.0, "job_beside_s": 3.0, "job_slowdown": 3.0}
    found = experiments.host_job(made)
    assert (found["alone_missed"], found["beside_missed"]) == (0.1, 0.5)
    assert derive.job(job([(1.0, 1)], []))["job_slowdown"] is None
    cells = {
        "h": anew(load="hostjob", kind="company", title="host process", explains="does") | {"arms": {"default": made}}
    }
    assert "| host page cache | 1.000 | 3.000 | 3.00 | 0.4 | 2.0 | 10.0 % | 50.0 % | 2 | 0.0 % |" in "\n".join(
        experiments.sections(cells)
    )


# --- The machine


def test_what_a_machine_is_is_read_and_said(scratch):
    found = machine.facts(scratch, "tcg")
    assert found["cpus"] > 0 and found["memory_gib"] >= 1 and found["cgroup"] in (1, 2, None)
    assert found["read_latency_us"] is None or found["read_latency_us"] > 0
    assert "software emulation" in machine.words(found) and machine.kind(found) == (found["cpu"], found["cpus"], "tcg")
    assert machine.chosen("always [madvise] never") == "madvise" and machine.chosen(None) is None
    assert machine.kind(MACHINE) == machine.kind(anew()["machine"]), "a type is no single machine"
