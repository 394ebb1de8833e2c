"""The laboratory with a real guest: a small cell on two arms, and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import stuck
from harness.programs import BESIDE, ROOT, built, run

sys.path.insert(0, str(ROOT / "experiments"))

from exclusive import derive, store  # noqa: E402
from rig import slowdisk  # noqa: E402

# A pool of the guest's own, past its page cache: what reaches the host then does not depend on how much memory the
# guest found free when it booted, so that two arms see the same reads.
SMALL = ["--quick", "--loads", "pool", "--n", "0.25", "--guest-memory", "112MiB"]


def command(scratch, *arguments):
    """The laboratory on the program under test, with all its files in `scratch`."""
    program = ["--undercroft", built("undercroft"), "--work", scratch / "work", "--out", scratch / "out"]
    return [
        str(a) for a in [sys.executable, ROOT / "experiments" / "exclusive" / "run.py", *SMALL, *program, *arguments]
    ]


def left_behind(scratch):
    """Control groups and tracing instances of runs that have ended, and processes of this one."""
    named = [
        *Path("/sys/fs/cgroup").glob("**/undercroft-demo-*"),
        *Path("/sys/kernel/tracing/instances").glob("undercroft-lab-*"),
    ]
    found = [str(p) for p in named if not Path("/proc", p.name.rsplit("-", 1)[1]).exists()]
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    found += [str(p) for p in loops if str(scratch) in p.read_text()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(scratch) in line and line.startswith(("qemu", "/bin/sh", "nbdkit", "nbdfuse")):
            found.append(line)
    return found


def test_a_small_cell(scratch, accel):
    """O_DIRECT reads what the guest reads, LRU saves what an LRU cache put through the log of that saves, and a second
    run with --resume has nothing to do."""
    words = command(scratch, "--arms", "direct,undercroft-lru")
    done = run(*words, check=False, limit=300 * BESIDE, logs=scratch / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = store.load(scratch / "out" / "exclusive.json.xz")["cells"].values()
    arms = {key: derive.figures(record) for key, record in cell["arms"].items()}
    assert abs(arms["direct"]["saved"]) < 0.01
    assert abs(arms["undercroft-lru"]["hit_blocks"] - derive.computed_lru(cell)) < 0.02
    assert 0.1 < derive.perfect(cell) < 0.9
    assert derive.disagreements({"cell": cell}) == []
    report = (scratch / "out" / "exclusive.md").read_text()
    assert "### O_DIRECT pool" in report
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", report)
    assert pictures and all((scratch / "out" / picture).exists() for picture in pictures), pictures
    again = run(*words, "--resume", check=False, limit=60 * BESIDE)
    assert again.returncode == 0 and "0 of 1 cells" in again.stdout
    assert left_behind(scratch) == []


@pytest.mark.long
def test_a_small_cell_on_slow_disks(scratch, accel):
    """Two waits in one run: the disk's own count is what the arms were counted, the guest's cache outlives the first
    part, and an arm that speaks NBD to the disk itself saves what one on the block device does."""
    if missing := slowdisk.lacks():
        pytest.skip("; ".join(missing))
    small = ["--loads", "uniform", "--disks", "0.5ms,2ms", "--arms", "default-off,undercroft-lru,upstream"]
    done = run(*command(scratch, *small), check=False, limit=600 * BESIDE, logs=scratch / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    cells = store.load(scratch / "out" / "exclusive.json.xz")["cells"]
    assert [cell["wait_us"] for cell in cells.values()] == [500, 2000]
    assert derive.disagreements(cells) == []
    for cell in cells.values():
        arms = derive.measured_arms(cell)
        assert list(arms) == ["default-off", "undercroft-lru", "upstream"]
        for record in arms.values():
            assert record["disk_latency_us"] >= cell["wait_us"]
            assert (
                0.2 < derive.figures(record)["guest_hits"] < 0.8
            ), "also in the part that begins with what the other has left"
            assert derive.figures(record)["emulator_us_per_op"] > 0
        assert (arms["default-off"]["read_ahead_kb"], arms["default-off"]["read_ahead_seen_kb"]) == (0, 0)
        assert arms["undercroft-lru"]["read_ahead_kb"] is None
        assert derive.saved(arms["upstream"]) > derive.saved(arms["undercroft-lru"])
    text = (scratch / "out" / "exclusive.md").read_text()
    assert "### Time: uniform" in text and "| 2 ms wait |" in text and "exclusive, NBD image" in text
    assert left_behind(scratch) == []


def test_a_daemon_that_dies_ends_the_run(scratch, accel):
    """A guest would wait for ever for a disk that nobody serves: the laboratory says who died, and leaves nothing."""
    lab = subprocess.Popen(
        command(scratch, "--arms", "undercroft-lru"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in lab.stdout:
            if "filling" in line:
                break
        (daemon,) = [pid for pid in stuck.below(lab.pid) if stuck.command(pid)[1:2] == ["serve"]]
        os.kill(daemon, signal.SIGKILL)
        _, said = lab.communicate(timeout=60)
    finally:
        lab.kill()
    assert lab.returncode == 1 and "undercroft ended with -9" in said, said
    assert left_behind(scratch) == []


def test_a_stopped_run_leaves_nothing(scratch, accel):
    """Ctrl-C while a guest runs: exit status 130 and nothing left."""
    stopped = subprocess.Popen(
        command(scratch, "--arms", "default"), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for line in stopped.stdout:
            if "booting" in line:
                break
        time.sleep(2)
        os.kill(stopped.pid, signal.SIGINT)
        stopped.communicate(timeout=60)
    finally:
        stopped.kill()
    assert stopped.returncode == 130
    assert left_behind(scratch) == []


@pytest.mark.long  # what the scan finds: tests/test_scan.py
def test_a_guest_with_private_ram_is_scanned(scratch, accel):
    """Over NBD nothing is known of the guest but by the scan, which finds it by its pid file: what it holds is found in
    the cache, and the laboratory counts the same from outside."""
    done = run(*command(scratch, "--arms", "scan-nbd"), check=False, limit=300 * BESIDE, logs=scratch / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = store.load(scratch / "out" / "exclusive.json.xz")["cells"].values()
    record = cell["arms"]["scan-nbd"]
    scan = record["end"]["own"]["scan"]
    assert scan["guests"] == 1 and scan["passes"] >= 1 and scan["read_pages"] > 0
    assert scan["cooled_blocks"] > 0, "an inclusive cache has what the guest has just read"
    assert 0 < record["twice"]["twice"] < record["twice"]["cached"]
    assert record["end"]["own"]["disks"][0]["counters"]["reads"] > 0
    assert "NBD, private RAM, scan" in (scratch / "out" / "exclusive.md").read_text()
    assert cell["machine"]["cgroup"] in (1, 2) and cell["repeat"] == 1
    assert left_behind(scratch) == []
