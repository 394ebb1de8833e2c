"""Logs under pressure: nobody reads them, peers try to fill them, files may not grow."""

import fcntl
import json
import os
import resource
import socket
import subprocess
import time

from harness import images, nbdwire
from harness.daemon import Daemon, Disk, until
from harness.nbdwire import Wire
from harness.programs import built, driver

SIZE = 16 * images.MIB
EIO, ENOSPC = 5, 28


def failed_writes(daemon, disk: str, seconds: float) -> int:
    """Writes past what the file may grow to, one after the other."""
    failed, end = 0, time.monotonic() + seconds
    with Wire(daemon.nbd_socket) as wire:
        wire.handshake(disk)
        while time.monotonic() < end:
            wire.request(nbdwire.WRITE, 12 * images.MIB, 4096, failed, data=b"w" * 4096)
            error, _ = wire.reply()
            assert error in (EIO, ENOSPC), "a write that cannot be done is answered with an error"
            failed += 1
    return failed


def test_file_size_limit_is_an_error_of_that_write(scratch):
    """RLIMIT_FSIZE below the image's size: the write fails, the daemon lives on, and the log stays short."""
    low = images.raw(scratch / "low.raw", SIZE, seed=1)
    reads = images.raw(scratch / "reads.raw", SIZE, seed=2)
    limit = 8 * images.MIB
    daemon = Daemon(
        scratch / "d0",
        [Disk("low", low, "raw"), Disk("reads", reads, "raw")],
        wrap=lambda words: ["prlimit", f"--fsize={limit}", *words],
    ).start()
    try:
        assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit, "the limit is the daemon's alone"
        failed = failed_writes(daemon, "low", 3)
        assert failed > 50
        lines = [line for line in daemon.log().splitlines() if "failed" in line]
        assert 1 <= len(lines) <= 12, f"{failed} failures made {len(lines)} lines"
        driver("run", daemon.vhost("reads"), "--ops", "300", "--verify", reads)
        driver("run", daemon.vhost("low"), "--ops", "300", "--length", "8MiB", "--verify", low)
    finally:
        daemon.stop()


def hang_up(daemon, times: int) -> None:
    """Connections to the vhost-user socket of `a` that say nonsense."""
    for _ in range(times):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(daemon.vhost("a"))
            s.sendall(b"\xff" * 64)
            try:
                s.recv(1)
            except OSError:
                pass


def test_a_peer_fills_no_log(serve, scratch):
    """A thousand front ends that say nonsense are worth a few lines; how many were left out is counted."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", image, "raw")])
    begun, before = time.monotonic(), len(daemon.log_path.read_text(errors="replace").splitlines())
    hang_up(daemon, 1000)
    lines = len(daemon.log_path.read_text(errors="replace").splitlines()) - before
    allowed = 40 + 5 * (time.monotonic() - begun)
    assert 1 <= lines <= allowed, f"{lines} lines"
    left_out = daemon.status()["log"]["limited_lines"]
    assert left_out > 500, f"{left_out} were left out, {lines} were logged"
    until(lambda: "more like this were left out" in daemon.log(), "it is said how many", limit=30)
    driver("run", daemon.vhost("a"), "--ops", "300", "--verify", image)


def test_a_log_that_nobody_reads_stops_nobody(scratch):
    """Standard error is a pipe that is full: every disk is served on, and the daemon stops in order."""
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = Daemon(scratch / "d0", [Disk("a", image, "raw")])
    command = ["env", "UNDERCROFT_LOG=trace", *daemon_words(daemon)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    daemon.process = process
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
    try:
        until(daemon.answers, "it serves")
        until(lambda: pressed(daemon), "lines find no room", limit=60)
        driver("run", daemon.vhost("a"), "--ops", "2000", "--depth", "8", "--verify", image)
        assert daemon.status()["disks"][0]["state"] == "serving"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


def test_a_change_by_hand_is_one_line(serve, scratch):
    """Who changed what, from what, and to what; of a disk, of the store, of ranges, and of disks that come and go."""
    image, other = (images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate("ab", 1))
    web = (
        f'[[vm]]\nname = "web"\n[[vm.disk]]\nname = "d"\nimage = "{images.raw(scratch / "d.raw", SIZE)}"\nformat ='
        ' "raw"\n'
    )
    daemon = serve([Disk("a", image, "raw")], extra=web)
    lists = [
        {"disk": "web:d", "container": "shop", "ranges": [{"offset_bytes": at, "length_bytes": n} for at, n in ranges]}
        for ranges in (((0, 4096), (1 << 20, 8192)), ((0, 1 << 20),))
    ]
    for words, said in (
        (
            ("set", "a", "--weight", "50", "--readahead", "1MiB"),
            'disk "a": weight: 100 -> 50; disk "a": readahead: 512KiB -> 1MiB',
        ),
        (("set", "--memory", "96MiB"), "the store may hold 128MiB -> 96MiB"),
        (("attach", "b", other, "--format", "raw"), f'disk "b" attached, image {other}'),
        (("detach", "b"), 'disk "b" is to be detached'),
        (("set", "--ranges", "-"), 'disk "web:d": ranges of container "shop": 0 (0B) -> 2 (12KiB)'),
        (("set", "--ranges", "-"), 'disk "web:d": ranges of container "shop": 2 (12KiB) -> 1 (1MiB)'),
    ):
        daemon.call(*words, stdin=json.dumps(lists.pop(0)) if "-" in words else None)
        until(lambda: "changed by " in daemon.log(), f"it is said: {said}")
        (line,) = [line for line in daemon.log().splitlines() if "changed by " in line]
        assert f"changed by uid {os.getuid()} pid " in line and line.endswith(said), line
        daemon.log_path.write_text("", encoding="utf-8")


def pressed(daemon) -> bool:
    """Says more, a line or two for each connection; whether lines have been dropped."""
    for _ in range(200):
        with Wire(daemon.nbd_socket) as wire:
            wire.handshake("a").request(nbdwire.READ, 0, 4096, 1)
            assert wire.reply() == (0, 1)
            wire.receive(4096)
    return daemon.status()["log"]["unread_lines"] > 0


def daemon_words(daemon) -> list[str]:
    """The command of a daemon."""
    return [built("undercroft"), "serve", str(daemon.config)]
