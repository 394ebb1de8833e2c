"""The table of fuzzing: what sessions did adds up, a session that is stopped keeps what it did, crashes are counted.

The programs here print what libFuzzer prints; the real ones are built by another compiler's flags, which
scripts/test.sh does.
"""

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time

import pytest
from harness.programs import ROOT

SCRIPT = ROOT / "scripts" / "fuzz.py"
spec = importlib.util.spec_from_file_location("fuzz_campaign", SCRIPT)
campaign = importlib.util.module_from_spec(spec)
spec.loader.exec_module(campaign)

LOG = """INFO: seed corpus: files: 3 min: 1b max: 64b total: 99b rss: 30Mb
#4\tINITED cov: 100 ft: 130 corp: 3/99b exec/s: 0 rss: 31Mb
#4096\tpulse  cov: 120 ft: 190 corp: 17/1021b lim: 4096 exec/s: 2048 rss: 40Mb
#5000\tDONE   cov: 123 ft: 200 corp: 18/1100b lim: 4096 exec/s: 2500 rss: 41Mb
stat::number_of_executed_units: 5000
stat::average_exec_per_sec:     2500
"""
# Ends when its time is over, or when it is interrupted; says what it did either way, as libFuzzer does.
PROGRAM = """#!/bin/bash
said() {{ printf '#9\\tDONE   cov: 7 ft: 8 corp: 3/9b\\nstat::number_of_executed_units: 9\\n' >&2; }}
trap 'said; exit 72' INT
for word; do case $word in -max_total_time=*) left=${{word#*=}} ;; esac; done
{body}
for ((i = 0; i < left * 20; i++)); do sleep 0.05; done
said
"""


@pytest.fixture
def place(tmp_path):
    """A folder of programs, by the names of the real targets."""
    programs = tmp_path / "programs"
    programs.mkdir()

    def make(target, body=""):
        path = programs / target
        path.write_text(PROGRAM.format(body=body))
        path.chmod(0o755)

    words = [
        sys.executable,
        str(SCRIPT),
        "--programs",
        programs,
        "--place",
        tmp_path / "fuzz",
        "--out",
        tmp_path / "out",
    ]

    def start(*more):
        return subprocess.Popen([*map(str, words), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    make.start, make.out = start, tmp_path / "out"
    return make


def stored(place):
    return json.loads((place.out / "fuzzing.json").read_text())["targets"]


def test_logs_of_libfuzzer_are_read():
    assert campaign.read_log(LOG) == {"executions": 5000, "cov": 123, "ft": 200, "corpus": 18}
    assert campaign.read_log("") is None and campaign.read_log(LOG.replace("stat::", "")) is None
    targets = campaign.listed((ROOT / "fuzz/Cargo.toml").read_text())
    assert len(targets) == (ROOT / "fuzz/Cargo.toml").read_text().count("[[bin]]") >= 12


def test_sessions_add_up_by_target_and_commit():
    data, did = {}, campaign.read_log(LOG)
    campaign.add(data, "api", "abc", "2026-01-01", 1800.4, did, 0)
    campaign.add(data, "api", "abc", "2026-01-02", 1700, did | {"cov": 130}, 1)
    campaign.add(data, "api", "def", "2026-01-03", 100, did | {"cov": 140}, 0)
    assert [(r["commit"], r["seconds"], r["executions"], r["crashes"]) for r in data["targets"]["api"]] == [
        ("abc", 3500, 10000, 1), ("def", 100, 5000, 0),
    ]  # fmt: skip
    text = campaign.rendered(data, ["api", "trace"])
    assert "| api | 1:00:00 | 15,000 | 1 | 18 | 140 | 200 | def, 2026-01-03 | yes |" in text
    assert "| trace | 0:00:00 | 0 | - | - | - | - | - | **no** |" in text
    assert "| api | abc | 2026-01-01 to 2026-01-02 | 0:58:20 | 10,000 | 1 | 130 |" in text


def test_a_session_goes_on_where_the_last_one_was(place):
    for name in ("api", "trace"):
        place(name)
    for round_ in (1, 2):
        run = place.start("--seconds", "1", "--target", "api", "--target", "trace")
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, out + err
        assert {t: [r["executions"] for r in of] for t, of in stored(place).items()} == {
            "api": [9 * round_],
            "trace": [9 * round_],
        }
    assert "| api | 0:00:0" in (place.out / "fuzzing.md").read_text()


def test_a_table_of_another_folder_is_booked_once(place, tmp_path):
    place("api")
    run = place.start("--seconds", "1", "--target", "api")
    assert run.communicate(timeout=60) and run.returncode == 0
    first = stored(place)
    tests = tmp_path / "tests"
    tests.mkdir()
    other = json.loads((place.out / "fuzzing.json").read_text())
    (row,) = other["targets"]["api"]
    other["targets"]["trace"] = [row | {"commit": "abc", "crashes": 2}]
    row["first"] = "2026-01-01"
    (tests / "fuzzing.json").write_text(json.dumps(other))
    run = place.start("--add", str(tests))
    assert run.communicate(timeout=60) and run.returncode == 0
    after = stored(place)
    assert after["trace"] == other["targets"]["trace"]
    ((old,), (new,)) = first["api"], after["api"]
    assert (new["executions"], new["seconds"]) == (2 * old["executions"], 2 * old["seconds"])
    assert (new["first"], new["last"]) == ("2026-01-01", old["last"])
    run = place.start("--add", str(tests))
    assert "there is no table in" in run.communicate(timeout=60)[1] and run.returncode == 2
    assert stored(place) == after


def test_a_crash_is_counted_and_the_rest_of_the_time_is_used(place, tmp_path):
    marker = tmp_path / "crashed"
    place("api", f'if [ ! -e {marker} ]; then touch {marker}; said; exit 77; fi')
    run = place.start("--seconds", "2", "--target", "api")
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 1 and "CRASHED" in out
    (row,) = stored(place)["api"]
    assert (row["crashes"], row["executions"]) == (1, 18)


@pytest.mark.parametrize("slow", [False, True], ids=["beside-other-work", "slow"])
def test_an_input_that_takes_long_is_a_crash_if_it_does_so_alone(place, tmp_path, slow):
    """libFuzzer gives up by the clock on the wall, which goes on while others have the processors."""
    unit, marker = tmp_path / "timeout-1", tmp_path / "gave-up"
    gives_up = f"echo 'artifact_prefix={tmp_path}/; Test unit written to {unit}' >&2; touch {unit}; said; exit 70"
    # Alone, the last word is the input.
    alone = f"if [ ${{!#}} = {unit} ]; then exit {70 if slow else 0}; fi"
    place("api", f"{alone}\nif [ ! -e {marker} ]; then touch {marker}; {gives_up}; fi")
    run = place.start("--seconds", "2", "--target", "api")
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, "CRASHED" in out, unit.exists()) == (int(slow), slow, slow), out
    (row,) = stored(place)["api"]
    assert (row["crashes"], row["executions"]) == (int(slow), 18), "the rest of the time is used"


def test_a_target_that_does_not_start_adds_nothing(place, tmp_path):
    place("api", "exit 1")
    run = place.start("--seconds", "1", "--target", "api")
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 1 and "said nothing" in out and not (place.out / "fuzzing.json").exists()
    # Of its own place: tests of others, and real sessions, ran beside it and wrote over its log.
    assert f"see {tmp_path}/fuzz/logs/api.log" in out
    run = place.start("--target", "ap")
    assert "there is no target 'ap'" in run.communicate(timeout=60)[1] and run.returncode == 2


def test_ctrl_c_keeps_what_was_done(place, tmp_path):
    started = [tmp_path / f"{name}-started" for name in ("api", "trace", "config")]
    for name, marker in zip(("api", "trace", "config"), started):
        place(name, f"touch {marker}")
    run = place.start("--seconds", "600", "--target", "api", "--target", "trace", "--target", "config")
    assert "3 targets" in run.stdout.readline()
    end = time.monotonic() + 60
    while not all(marker.exists() for marker in started[:2]):
        assert time.monotonic() < end, "two at a time"
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, out + err
    assert {t: [r["executions"] for r in of] for t, of in stored(place).items()} == {"api": [9], "trace": [9]}
    assert not started[2].exists()


def test_what_is_idle_is_so_beside_other_sessions(place, tmp_path):
    """Two targets once took half of two processors from a build beside them, at SCHED_IDLE: in sessions of their
    own."""
    # A kernel that does not group processes by session has no such file, and nothing to give way in.
    grouped = os.path.exists("/proc/self/autogroup")
    says = f"cat /proc/$$/autogroup > {tmp_path}/group 2>&1; chrt -p $$ > {tmp_path}/class"
    place("api", f"sleep 0.5; {says}; said; exit 0")
    # Little work, but beside busy processors it waits for each piece.
    out, err = place.start("--seconds", "1", "--target", "api", "--idle").communicate(timeout=300)
    assert "SCHED_IDLE" in (tmp_path / "class").read_text(), out + err
    assert grouped == (tmp_path / "group").read_text().endswith(" nice 19\n")


def test_inputs_that_are_kept_are_small_and_come_back(place, tmp_path):
    """The shortest of what the merged corpus has, the same bytes for the same inputs, and in the next session's
    corpus."""
    fuzz, inputs = tmp_path / "fuzz", [b"a", b"bb", b"\0" * 5000]
    corpus = fuzz / "corpus" / "api"
    corpus.mkdir(parents=True)
    for i, data in enumerate(inputs):
        (corpus / str(i)).write_bytes(data)
    # What libFuzzer does for -merge=1, without leaving anything out.
    place("api", 'if [ "$1" = -merge=1 ]; then cp "${@: -1}"/* "${@: -2:1}"; exit 0; fi')
    assert place.start("--keep", "--target", "api").wait(timeout=60) == 0
    first = (fuzz / "kept" / "api.tar.xz").read_bytes()
    assert first == campaign.packed(reversed(inputs)) and len(first) < 1000
    for path in corpus.iterdir():
        path.unlink()
    assert place.start("--target", "api", "--seconds", "1").wait(timeout=60) == 0
    assert sorted(p.read_bytes() for p in corpus.iterdir()) == sorted(inputs)


def test_an_archive_of_inputs_is_bounded(place, tmp_path, monkeypatch):
    corpus = tmp_path / "fuzz" / "corpus" / "api"
    corpus.mkdir(parents=True)
    for i in range(100):
        (corpus / str(i)).write_bytes(random.Random(i).randbytes(10 * i + 1))
    place("api", 'cp "${@: -1}"/* "${@: -2:1}"; exit 0')
    monkeypatch.setattr(campaign, "KEPT_BYTES_MAX", 20_000)
    assert "of 100 inputs kept" in campaign.keep("api", tmp_path / "programs", tmp_path / "fuzz")
    with tarfile.open(tmp_path / "fuzz" / "kept" / "api.tar.xz") as archive:
        sizes = [m.size for m in archive]
    assert 20 < len(sizes) < 100 and sizes == sorted(sizes) and sizes[0] == 1, "the shortest are kept"
    assert (tmp_path / "fuzz" / "kept" / "api.tar.xz").stat().st_size <= 20_000


def test_the_table_that_is_kept_is_that_of_its_results(tmp_path):
    """docs/results/fuzzing.md is written from fuzzing.json, and every target of today is in it."""
    kept = ROOT / "docs" / "results"
    (tmp_path / "fuzzing.json").write_text((kept / "fuzzing.json").read_text())
    done = subprocess.run(
        [sys.executable, SCRIPT, "--report", "--out", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fuzzing.md").read_text() == (
        kept / "fuzzing.md"
    ).read_text(), "scripts/fuzz.py --report writes it"
    table = (kept / "fuzzing.md").read_text()
    assert set(campaign.listed((ROOT / "fuzz/Cargo.toml").read_text())) <= set(
        re.findall(r"^\| (\S+) \|", table, re.MULTILINE)
    )
