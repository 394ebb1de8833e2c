"""KSM on the real kernel, with real QEMU processes: what can be merged is told, settings are kept and put back."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import built, need, need_root, run

# KSM has one set of settings for the whole machine.
pytestmark = pytest.mark.alone

KSM = Path("/sys/kernel/mm/ksm")
SETTINGS = ["run", "pages_to_scan", "sleep_millisecs", "advisor_mode", "smart_scan", "use_zero_pages"]
RAM = 64 * images.MIB
MANAGED = """
[ksm]
manage = true
pages_to_scan = 20000
sleep = "1ms"
"""


def need_ksm() -> None:
    need_root()
    if not KSM.exists():
        pytest.skip("this kernel has no KSM")


def settings() -> dict[str, str]:
    """What the kernel is set to now; the chosen one of several words."""
    values = {}
    for name in SETTINGS:
        with contextlib.suppress(FileNotFoundError):
            text = (KSM / name).read_text(encoding="ascii").strip()
            values[name] = text.split("[")[1].split("]")[0] if "[" in text else text
    return values


@pytest.fixture(autouse=True)
def _as_before():
    """Whatever a test does to the machine is undone, and a test that leaves something behind fails."""
    before = settings()
    yield
    after = settings()
    for name, value in before.items():
        if after[name] != value:
            (KSM / name).write_text(value, encoding="ascii")
    assert after == before, "the machine was left with other settings"


@pytest.fixture
def qemu(scratch):
    """Starts paused guests: qemu("name", shared=True, content=file). Ended when the test is over."""
    need("qemu-system-x86_64")
    running = []

    def start(name: str, shared: bool = False, content: Path | None = None, merge: str = "on") -> int:
        machine = f"q35,accel=tcg,mem-merge={merge}"
        command = ["qemu-system-x86_64", "-name", f"guest={name}", "-m", "64", "-S", "-nodefaults", "-display", "none"]
        if shared:
            machine += ",memory-backend=ram"
            command += ["-object", f"memory-backend-memfd,id=ram,size={RAM},share=on"]
        if content:
            command += ["-device", f"loader,file={content},addr=0x200000,force-raw=on"]
        log = open(scratch / f"{name}.log", "wb")
        process = subprocess.Popen([*command, "-machine", machine], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        running.append(process)
        until(lambda: known(process.pid) is not None or process.poll() is not None, f"guest {name} has its RAM")
        assert process.poll() is None, (scratch / f"{name}.log").read_text()
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.wait()


def report() -> dict:
    """What `undercroft ksm status --json` says."""
    return json.loads(run(built("undercroft"), "ksm", "status", "--json").stdout)


def known(pid: int) -> dict | None:
    """What it says of a process, once that has all its RAM."""
    guests = [g for g in report()["guests"] if g["pid"] == pid]
    ram = sum(g["mergeable_bytes"] + g["unmarked_bytes"] + g["shared_bytes"] for g in guests)
    return guests[0] if ram >= RAM else None


def test_what_can_be_merged_is_told_of_real_guests(qemu):
    """Private RAM can be merged, shared RAM cannot and the reason is said, RAM without the mark is told apart."""
    need_root()
    pids = [qemu("private"), qemu("shared", shared=True), qemu("unmarked", merge="off")]
    private, shared, unmarked = (known(pid) for pid in pids)
    assert private["name"] == "private" and private["mergeable_bytes"] >= RAM
    assert private["shared_bytes"] == private["unmarked_bytes"] == 0
    assert shared["shared_bytes"] == RAM and shared["shared_with"] == ["/memfd:memory-backend-memfd"]
    assert shared["mergeable_bytes"] < RAM // 2
    assert unmarked["mergeable_bytes"] == 0 and unmarked["unmarked_bytes"] >= RAM
    text = run(built("undercroft"), "ksm", "status").stdout
    assert (
        "64MiB (/memfd:memory-backend-memfd) cannot be merged: the kernel merges private anonymous memory only" in text
    )
    assert f"unmarked ({pids[2]}): " in text and "mem-merge=off" in text


def test_pages_of_two_guests_are_merged_and_counted(serve, scratch, qemu):
    """The daemon switches KSM on; equal RAM of two real guests is merged; equal RAM that is shared is not."""
    need_ksm()
    content = images.raw(scratch / "content", 16 * images.MIB, seed=11)
    pids = [qemu("one", content=content), qemu("two", content=content), qemu("three", shared=True, content=content)]
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", images.MIB), "raw")], extra=MANAGED)
    assert daemon.status()["ksm"]["managed"]
    until(
        lambda: all(known(pid)["merged_bytes"] >= 15 * images.MIB for pid in pids[:2]),
        "both guests have merged what they have in common",
        limit=120,
    )
    assert known(pids[2])["merged_bytes"] < images.MIB
    numbers = daemon.status()["ksm"]["numbers"]
    assert numbers["pages_sharing"] * 4096 >= 15 * images.MIB
    assert "saved by" in daemon.call("status").stdout
    # Only the merging ends with the daemon; pages that are merged stay so, unless it is asked for.
    out = daemon.call("ksm", "off", "--unmerge").stdout
    assert "as it was found" in out
    assert (
        f"changed by uid {os.getuid()} pid " in daemon.log() and "ksm.manage: true -> false, unmerged" in daemon.log()
    )
    # Asked before merging goes on: two passes over 64 MiB take ksmd less time than a slow machine needs to ask.
    assert [known(pid)["merged_bytes"] for pid in pids] == [0, 0, 0]
    daemon.call("ksm", "on")
    assert "ksm.manage: false -> true" in daemon.log()


def test_settings_are_put_back_after_sigterm(serve, scratch):
    """What was found is there again when the daemon has ended in order; the log has the warning."""
    need_ksm()
    before = settings()
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", images.MIB), "raw")], extra=MANAGED)
    now = settings()
    assert (now["run"], now["pages_to_scan"], now["sleep_millisecs"]) == ("1", "20000", "1")
    assert "merging lets a guest find out" in daemon.log()
    assert (daemon.directory / "ksm.saved").exists()
    daemon.stop()
    assert settings() == before
    assert not (daemon.directory / "ksm.saved").exists()


def test_settings_are_put_back_by_the_next_start_after_kill_9(serve, scratch):
    """Killed, the daemon leaves its settings; the next start of it puts back what was found, managed or not."""
    need_ksm()
    before = settings()
    disks = [Disk("a", images.raw(scratch / "a.raw", images.MIB), "raw")]
    daemon = serve(disks, extra=MANAGED)
    daemon.kill()
    assert settings()["pages_to_scan"] == "20000", "nobody was there to put it back"
    daemon.extra, daemon.expect_death = "", False
    daemon.write_config(disks)
    daemon.start()
    assert settings() == before
    assert "KSM is as it was found again" in daemon.log()
    assert not daemon.status()["ksm"]["managed"]


def test_a_crash_while_managing_twice_keeps_what_was_found_first(serve, scratch):
    """Two kills in a row, managed each time: what stood there before all of it comes back."""
    need_ksm()
    before = settings()
    disks = [Disk("a", images.raw(scratch / "a.raw", images.MIB), "raw")]
    daemon = serve(disks, extra=MANAGED)
    for _ in range(2):
        daemon.kill()
        daemon.start()
        assert settings()["pages_to_scan"] == "20000"
    daemon.expect_death = False
    daemon.stop()
    assert settings() == before


def test_it_is_switched_live_and_by_reload(serve, scratch):
    """`ksm on` and `off` go through the daemon, and a reload changes settings live."""
    need_ksm()
    before = settings()
    disks = [Disk("a", images.raw(scratch / "a.raw", images.MIB), "raw")]
    daemon = serve(disks)
    assert settings() == before, "off unless asked for"
    assert "not managed by this daemon" in daemon.call("ksm", "off", check=False).stderr
    done = daemon.call("ksm", "on")
    assert "KSM is on" in done.stdout and "warning: merging lets a guest find out" in done.stderr
    assert settings()["run"] == "1"
    daemon.call("ksm", "off")
    assert settings() == before
    daemon.extra = MANAGED
    daemon.write_config(disks)
    daemon.call("reload")
    assert settings()["pages_to_scan"] == "20000"
    daemon.extra = '[ksm]\nmanage = true\nadvisor = "scan-time"\n' if "advisor_mode" in before else ""
    daemon.write_config(disks)
    daemon.call("reload")
    if "advisor_mode" in before:
        assert settings()["advisor_mode"] == "scan-time" and settings()["sleep_millisecs"] == before["sleep_millisecs"]
    daemon.extra = ""
    daemon.write_config(disks)
    daemon.call("reload")
    assert settings() == before


def test_without_the_right_to_it_the_daemon_says_so_and_goes_on(scratch):
    """A daemon of an ordinary user names the file that it may not write, in the log and in status, and serves."""
    need_ksm()
    need("setpriv")
    before = settings()
    # The program and its directory have to be reachable for that user.
    place = scratch / "d"
    place.mkdir()
    shutil.copy(built("undercroft"), place / "undercroft")
    images.raw(place / "a.raw", images.MIB)
    config = place / "c.toml"
    disk = f'[[disk]]\nname = "a"\nimage = "{place}/a.raw"\nformat = "raw"\n'
    config.write_text(
        f'[store]\nmemory = "32MiB"\n[daemon]\nruntime_dir = "{place}"\n{MANAGED}{disk}', encoding="utf-8"
    )
    scratch.chmod(0o755)
    for path in [place, *place.iterdir()]:
        os.chown(path, 65534, 65534)
    prefix = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    with open(scratch / "log", "wb") as log:
        process = subprocess.Popen([*prefix, place / "undercroft", "serve", config], stdout=log, stderr=log)
    try:
        until((place / "control.sock").exists, "the daemon serves")
        end = time.monotonic() + 20
        while not (
            done := run(built("undercroft"), "status", "--json", "--control", place / "control.sock", check=False)
        ).stdout:
            assert time.monotonic() < end, done.stderr
        ksm = json.loads(done.stdout)["ksm"]
        assert (
            not ksm["managed"] and "/sys/kernel/mm/ksm/run cannot be written (Permission denied" in ksm["problems"][0]
        )
        assert "as root" in ksm["problems"][0] and "KSM cannot be managed" in (scratch / "log").read_text()
        assert settings() == before
    finally:
        process.terminate()
        assert process.wait(30) == 0
