"""`undercroft lab` with the real Valgrind: traces of programs, and caches that they go through."""

import json
import os
import signal
import subprocess
import time

import pytest
from harness.programs import built, need, run

LINES = 64


@pytest.fixture(autouse=True)
def _valgrind():
    need("valgrind")


def lab(*words: object, check: bool = True, **more):
    return run(built("undercroft"), "lab", *words, check=check, **more)


def test_a_program_is_traced_and_its_trace_goes_through_caches(tmp_path):
    """What it prints goes where it always does; its accesses are in a file that every command reads."""
    data = tmp_path / "data"
    data.write_bytes(bytes(range(256)) * 64)
    trace = tmp_path / "sum.memory.zst"
    done = lab("trace", trace, "--", "cksum", data)
    assert done.stdout.split()[1:] == [str(16384), str(data)], done.stdout
    assert "wrote" in done.stderr and "accesses" in done.stderr
    more = ["--optimum", "--online", "--probability", "--whole"]
    said = json.loads(lab("caches", trace, "--size", "4KiB,16KiB", *more, "--json").stdout)
    assert {row["trace"] for row in said} == {"sum.memory.zst"}
    for size in (4096, 16384):
        rows = [row for row in said if row["size_bytes"] == size]
        by = {row["way"]: row for row in rows}
        plain = by["none"]
        # All of them saw the same references, which are those of a program that reads 16 KiB.
        assert {row["references"] for row in rows} == {plain["references"]} and plain["references"] > 16384
        assert by["optimum"]["misses"] <= min(row["misses"] for row in rows if "extra" not in row["way"])
        assert by["victim buffer (extra)"]["misses"] <= plain["misses"]
        rule = [by[f"probability-{how}{arm}"] for how in ("literal", "aged") for arm in ("", ", lock")]
        assert {row["lock_percent"] for row in rule} == {None, 5.0}
        assert by["whole cache locked"]["lock_percent"] == 100
        assert by["lock"]["locked_percent"] == pytest.approx(100 * 4 / 64 if size == 4096 else 100 * 13 / 256)
        assert by["lock"]["change"] == pytest.approx(by["lock"]["miss_percent"] - plain["miss_percent"])
    small, large = ([r for r in said if r["size_bytes"] == s and r["way"] == "none"][0] for s in (4096, 16384))
    assert large["misses"] <= small["misses"]
    # There are instructions in it, too, and stores; not everybody counts them.
    counts = [
        json.loads(lab("caches", trace, "--size", "4KiB", "--count", count, "--json").stdout)[0]["references"]
        for count in ("loads", "data", "all")
    ]
    assert counts[0] < counts[1] < counts[2]
    info = json.loads(run(built("undercroft"), "trace", "info", trace, "--json").stdout)[0]
    assert info["format"] == "memory"


def test_cores_lock_ways_and_say_what_a_task_waits_for(tmp_path):
    traces = []
    for n, words in enumerate([["cksum", "/etc/passwd"], ["sort", "/etc/passwd"]]):
        traces.append(tmp_path / f"job{n}.memory")
        lab("trace", traces[-1], "--limit", "200000", "--", *words)
    done = lab("cores", *traces, "--core-size", "4KiB,64KiB", "--repeat", "2", "--new", "job1.memory", "--json")
    rows = json.loads(done.stdout)
    assert [row["strategy"] for row in rows[:5]] == ["none", "loaded", "random", "static", "dynamic"]
    for row in rows:
        # An access across a border of lines is two references.
        assert 2 * 2 * 200_000 <= row["references"] < 2.1 * 2 * 200_000
        # Hybrid locks as much as pays, which may be nothing.
        locks = row["strategy"] in ("random", "static", "dynamic") and row["core_bytes"] == 4096
        assert row["locked_percent"] > 0 if locks else row["strategy"] != "none" or row["locked_percent"] == 0
        assert row["mean_delay"] > 0 and row["core_misses"] > 0
    none = {row["core_bytes"]: row for row in rows if row["strategy"] == "none"}
    assert none[65536]["core_misses"] < none[4096]["core_misses"]
    said = lab("cores", *traces, "--new", "other", check=False)
    assert said.returncode == 1 and "is none of the traces: job0.memory, job1.memory" in said.stderr


def test_an_interrupt_leaves_no_file_and_no_program(tmp_path):
    trace = tmp_path / "sleep.memory"
    words = [built("undercroft"), "lab", "trace", trace, "--", "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        time.sleep(2)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(20) == 130, running.stderr.read()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lock", "80"], "leaves no way unlocked"),
        (["--size", "1000"], "is no whole number of sets"),
        (["--table", "1000"], "is larger than the cache"),
        (["--table", "0"], "has an entry at least"),
        (["--victim", "64", "--size", "2KiB"], "less than a line a set"),
        (["--line", "48"], "give a power of two"),
        (["--policy", "opt"], "there is --optimum"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, words, says):
    trace = tmp_path / "t.lackey"
    trace.write_text("I  0401ab70,3\n L 1ffeffe7e,8\n")
    done = lab("caches", trace, *words, check=False)
    assert done.returncode == 1 and says in done.stderr, done.stderr


def test_packed_accesses_under_the_name_of_another_format_are_not_taken_for_blocks(tmp_path):
    """As those of the laboratory are called: numbers of blocks they would make no sense."""
    trace = tmp_path / "t.u64le"
    trace.write_bytes(b"".join((1 << 56 | 8 << 48 | 64 * n).to_bytes(8, "little") for n in range(200)))
    for command in "caches", "cores":
        done = lab(command, trace, check=False)
        assert done.returncode == 1 and "--format memory" in done.stderr, done.stderr
        assert lab(command, trace, "--format", "memory").returncode == 0
    trace.write_bytes(b"".join(n.to_bytes(8, "little") for n in range(200)))
    assert lab("caches", trace).returncode == 0


def test_a_trace_without_what_counts_is_said_and_a_program_that_is_not_there(tmp_path):
    trace = tmp_path / "t.lackey"
    trace.write_text("I  0401ab70,3\nI  0401ab73,3\n")
    done = lab("caches", trace, check=False)
    assert done.returncode == 1 and "no reference of the kinds that are counted" in done.stderr
    done = lab("trace", tmp_path / "x.memory", "--", "no-such-program", check=False)
    assert done.returncode == 1 and "no memory access" in done.stderr
    assert not (tmp_path / "x.memory").exists()
    (tmp_path / "there").write_text("")
    done = lab("trace", tmp_path / "there", "--", "true", check=False)
    assert done.returncode == 1 and "--force" in done.stderr
