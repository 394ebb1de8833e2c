"""All Rust tests, several programs at a time: one that fails or dies is seen, and what runs ends with the script."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness.programs import ROOT

SCRIPT = ROOT / "scripts" / "rust_tests.py"
spec = importlib.util.spec_from_file_location("rust_tests", SCRIPT)
rust_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rust_tests)


def message(name, *, test=True, executable=True):
    """What cargo says of a program that it has built."""
    return json.dumps(
        {
            "reason": "compiler-artifact",
            "manifest_path": f"/w/crates/{name}/Cargo.toml",
            "target": {"name": name},
            "profile": {"test": test},
            "executable": f"/w/target/debug/deps/{name}-1" if executable else None,
        }
    )


def test_test_programs_are_run_those_that_take_longest_first():
    said = [
        "   Compiling what cargo prints beside",
        message("alpha"),
        message("undercroft", test=False),
        message("library", test=False, executable=False),
        message("nbd"),
        message("replay"),
        json.dumps({"reason": "build-finished", "success": True}),
    ]
    found = rust_tests.programs("\n".join(said))
    assert [name for name, _, _ in found] == ["replay", "nbd", "alpha"]
    assert found[0][1:] == ("/w/target/debug/deps/replay-1", "/w/crates/replay")
    # Packages may have programs of the same name, and each is run.
    assert len(rust_tests.programs(message("nbd") + "\n" + message("nbd").replace("nbd-1", "nbd-2"))) == 2


def run(commands, jobs=2):
    """Runs shell commands as the script does. Returns whether all ended with 0."""
    return rust_tests.run([(c, ["sh", "-c", c], "/", None) for c in commands], jobs)


@pytest.fixture
def signals():
    """Leaves the process's signals as they were."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, action in kept.items():
        signal.signal(number, action)


def test_one_that_fails_or_dies_is_seen_and_the_others_run_on(signals, capsys):
    assert run(["echo one", "echo two"])
    assert sorted(line for line in capsys.readouterr().out.splitlines() if "Running" not in line) == ["one", "two"]
    for wrong, status in (("exit 101", 101), ("kill -ABRT $$", -signal.SIGABRT)):
        assert not run([f"echo before; {wrong}", "sleep 0.2; echo after"])
        said = capsys.readouterr().out.splitlines()
        assert f"ended with {status}: echo before; {wrong}" in said and "after" in said


def test_what_two_programs_say_is_not_mixed(signals, capsys):
    assert run([f"for i in 1 2 3 4 5; do echo {word}; sleep 0.02; done" for word in ("a", "b")])
    said = [line for line in capsys.readouterr().out.splitlines() if "Running" not in line]
    assert "".join(said) in ("aaaaabbbbb", "bbbbbaaaaa")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_runs_is_ended_with_the_script(tmp_path, number):
    code = (
        f"import importlib.util as u; s = u.spec_from_file_location('r', {str(SCRIPT)!r}); m = u.module_from_spec(s); "
        "s.loader.exec_module(m)\n"
        # Two that run, one with a child of its own, and one that waits for its turn.
        f"m.run([(n, ['sh', '-c', 'sleep 61 & echo $$ $! > {tmp_path}/' + n + '; sleep 62'], '/', None) "
        "for n in 'abc'], 2)"
    )
    script = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL)
    begun = [tmp_path / "a", tmp_path / "b"]
    end = time.monotonic() + 20
    while not all(f.exists() and len(f.read_text().split()) == 2 for f in begun):
        assert time.monotonic() < end, "neither of the two has begun"
        time.sleep(0.02)
    script.send_signal(number)
    assert script.wait(20) != 0
    for process in (int(word) for f in begun for word in f.read_text().split()):
        # A child whose parent was ended is there until somebody asks for its status.
        stat = f"/proc/{process}/stat"
        while os.path.exists(stat) and open(stat, encoding="ascii").read().split()[2] != "Z":
            assert time.monotonic() < end, f"{process} outlives the script"
            time.sleep(0.02)
    assert not (tmp_path / "c").exists()
