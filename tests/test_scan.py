"""The daemon's scan of guests' memory, on real QEMU processes and on the driver's guest memory."""

import os

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.guests import PAGE, StillGuest, page, pages
from harness.programs import driver, need, need_root, run, start_driver

MIB = images.MIB
AT = 16 * MIB


def with_scan(daemon, vm: str = "", pid_file=None, **keys: str) -> None:
    """Rewrites a daemon's configuration: its disk belongs to `vm`, and guests are scanned every second."""
    text = daemon.config.read_text()
    settings = {"enabled": "true", "cpu": '"50%"', "period_min": '"1s"', "period_max": '"1s"'} | keys
    scan = "\n".join(["[scan]", *(f"{k} = {v}" for k, v in settings.items()), ""])
    if vm:
        head = f'[[vm]]\nname = "{vm}"\n' + (f'pid_file = "{pid_file}"\n' if pid_file else "")
        text = text.replace("[[disk]]", head + "[[vm.disk]]", 1)
    daemon.config.write_text(text.replace("[nbd]", scan + "[nbd]"))


@pytest.fixture
def scanning(serve, scratch):
    """Starts a daemon that scans: scanning([Disk(...)], vm="web", pid_file=path)."""
    from harness.daemon import Daemon

    daemons: list[Daemon] = []

    def start(disks, vm="", pid_file=None, **keys):
        daemon = Daemon(scratch / "s", disks, memory="64MiB")
        with_scan(daemon, vm, pid_file, **keys)
        daemons.append(daemon)
        return daemon.start()

    yield start
    for daemon in daemons:
        daemon.stop()


def scanned(daemon, passes: int) -> dict:
    """The scan's status once so many passes have ended."""
    until(lambda: daemon.status()["scan"]["passes"] >= passes, f"{passes} passes", limit=60)
    return daemon.status()["scan"]


def test_no_scan_unless_asked(serve, scratch):
    """Guests' memory is nobody's business without `[scan] enabled`."""
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", MIB), "raw")])
    assert daemon.status()["scan"] is None
    threads = [open(f"/proc/{daemon.pid}/task/{t}/comm").read().strip() for t in os.listdir(f"/proc/{daemon.pid}/task")]
    assert "undercroft-scan" not in threads


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_what_a_guest_holds_is_the_first_to_go(scanning, scratch, shared):
    """A guest attached over NBD, found by its pid file: the blocks that its memory holds, and no others, become
    cold."""
    need_root()
    need("nbdcopy")
    image = scratch / "disk.raw"
    image.write_bytes(pages(range(512)))
    held = [*range(100, 150), 7, 7, 400]
    guest = StillGuest(scratch, "web", {AT: pages([*held, None, *range(9000, 9100)])}, shared)
    try:
        pid_file = scratch / "web.pid"
        pid_file.write_text(f"{guest.pid}\n")
        daemon = scanning(
            [Disk("root", image, "raw", {"socket": f'"{scratch}/root.sock"'})], vm="web", pid_file=pid_file
        )
        run("nbdcopy", daemon.nbd("web:root"), "null:")
        before = guest.held()
        # Cached contents are hashed in spare time: it may take some passes until all are known.
        until(lambda: daemon.status()["scan"]["cooled_blocks"] >= 52, "all that the guest holds is cold", limit=60)
        scan = scanned(daemon, daemon.status()["scan"]["passes"] + 2)
        assert guest.held() == before, "the scan made nothing resident"
        assert (scan["guests"], scan["problems"]) == (1, [])
        n = scan["passes"]
        assert (scan["read_pages"], scan["zero_pages"]) == (154 * n, n)
        assert scan["hole_pages"] == (64 * MIB // PAGE - 154) * n
        assert scan["equal_pages"] == n
        assert scan["unchanged_pages"] == 153 * (n - 1)
        # 52 different contents; each was found in every pass since, and became cold once.
        assert scan["found_blocks"] >= 3 * 52
        assert scan["cooled_blocks"] == 52
        assert daemon.disk("web:root")["exclusive"]["cold_blocks"] == 52
        metrics = run("curl", "-s", "--unix-socket", daemon.control, "http://localhost/metrics").stdout
        assert "undercroft_scan_cooled_blocks_total 52" in metrics
        # Cold is not gone: it is read from RAM as before.
        misses = daemon.disk("web:root")["counters"]["miss_blocks"]
        run("nbdcopy", daemon.nbd("web:root"), scratch / "again.raw")
        assert (scratch / "again.raw").read_bytes() == image.read_bytes()
        assert daemon.disk("web:root")["counters"]["miss_blocks"] == misses
    finally:
        guest.stop()


def test_vhost_user_guests_are_found_by_themselves(scanning, scratch):
    """The memory that a front end shares is scanned while it is connected; two disks of one guest are one guest."""
    image = images.raw(scratch / "a.raw", 16 * MIB, seed=1)
    daemon = scanning([Disk("a", image, "raw")])
    assert scanned(daemon, 1)["guests"] == 0
    running = start_driver("run", daemon.vhost("a"), "--seconds", "60", "--depth", "32", "--verify", image)
    try:
        until(lambda: daemon.status()["scan"]["guests"] == 1, "the guest is found", limit=60)
        passes = daemon.status()["scan"]["passes"]
        scan = scanned(daemon, passes + 2)
        assert scan["read_pages"] > 0 and scan["problems"] == []
        assert scan["found_blocks"] > 0, "the driver's buffers hold blocks of the image"
        assert running.poll() is None
    finally:
        running.kill()
        running.communicate()
    until(lambda: daemon.status()["scan"]["guests"] == 0, "the guest has gone", limit=60)
    driver("run", daemon.vhost("a"), "--ops", "500", "--depth", "8", "--verify", image)


def test_guests_that_come_and_go_are_problems_in_words(scanning, scratch):
    """A pid file that is missing, nonsense, or of a process that has ended: said in status, and the daemon serves
    on."""
    need_root()
    image = images.raw(scratch / "disk.raw", MIB, seed=1)
    pid_file = scratch / "web.pid"
    daemon = scanning([Disk("root", image, "raw", {"socket": f'"{scratch}/root.sock"'})], vm="web", pid_file=pid_file)

    def said(words: str) -> None:
        until(lambda: any(words in p for p in daemon.status()["scan"]["problems"]), words, limit=30)

    said("web.pid cannot be read")
    pid_file.write_text("nonsense")
    said("holds no process number")
    pid_file.write_text(str(2**22 + 1))
    said("does not run")
    guest = StillGuest(scratch, "web", {AT: page(1)}, False)
    pid_file.write_text(str(guest.pid))
    until(lambda: daemon.status()["scan"]["guests"] == 1, "the guest is found", limit=30)
    assert "web.pid cannot be read" not in daemon.call("status").stdout
    guest.stop()
    said("does not run")
    assert "does not run" in daemon.call("status").stdout
    driver("run", daemon.nbd("web:root"), "--ops", "100", "--verify", image)


def test_the_scanner_keeps_to_its_ceiling(scanning, scratch):
    """Processor time over time stays near the share that the configuration gives, with passes back to back."""
    need_root()
    image = images.raw(scratch / "disk.raw", MIB, seed=1)
    guest = StillGuest(scratch, "web", {AT: pages(range(48_000))}, True, size=256 * MIB)
    try:
        pid_file = scratch / "web.pid"
        pid_file.write_text(str(guest.pid))
        disk = Disk("root", image, "raw", {"socket": f'"{scratch}/root.sock"'})
        daemon = scanning([disk], vm="web", pid_file=pid_file, cpu='"2%"')
        until(lambda: daemon.status()["uptime_seconds"] > 8, "some seconds", limit=60)
        status = daemon.status()
        assert status["scan"]["cpu_limit_percent"] == 2.0
        assert 0 < status["scan"]["cpu_seconds"] <= 0.02 * status["uptime_seconds"] + 0.1
    finally:
        guest.stop()
