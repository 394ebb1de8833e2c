"""Many disks: what they cost, and that those which went leave nothing behind."""

import os
import socket
import struct
import time
from pathlib import Path

from harness import images
from harness.daemon import Disk, until
from harness.front import Front

MIB = images.MIB
# Threads that a daemon has whatever it serves, and those that handle messages of front ends for a while.
THREADS_MAX = 64


def threads(daemon) -> int:
    """Threads of the daemon."""
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def descriptors(daemon) -> int:
    """Open descriptors of the daemon."""
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def half(path) -> socket.socket:
    """A front end that has sent half of a message."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(path))
    stream.sendall(struct.pack("<III", 5, 1, 8 + 32)[:9])
    return stream


def test_disks_have_no_threads_of_their_own(serve, scratch):
    """300 disks with a front end each that has sent half a message: as many threads as one disk has, and each can be
    detached."""
    disks = [Disk(f"d{n}", images.raw(scratch / f"{n}.raw", MIB), "raw") for n in range(300)]
    daemon = serve(disks, memory="2GiB")
    fronts = [half(daemon.vhost(d.name)) for d in disks]
    try:
        until(lambda: daemon.disk("d299")["name"] == "d299", "it answers")
        assert threads(daemon) <= THREADS_MAX
        daemon.call("detach", "d7")
        assert fronts[7].recv(1) == b"", "its front end is disconnected"
    finally:
        for front in fronts:
            front.close()


def wake_ups(daemon) -> int:
    """How often the workers have gone to sleep so far."""
    found = 0
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        if (task / "comm").read_text().startswith("undercroft-w"):
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            found += int(fields["voluntary_ctxt_switches"])
    return found


def test_workers_that_sleep_are_left_alone(serve, scratch):
    """A store that may come to need more than the machine has free is looked after four times a second, which woke
    each worker twice: to ask whether it had worked, and what its frames take."""
    with open("/proc/meminfo", encoding="ascii") as f:
        machine = next(int(line.split()[1]) for line in f if line.startswith("MemTotal")) << 10
    disks = [Disk(f"d{n}", images.raw(scratch / f"{n}.raw", MIB), "raw") for n in range(20)]
    daemon = serve(disks, memory=f"{machine * 97 // 100 // MIB}MiB")
    # What is moved in the beginning, and shares of the first interval.
    time.sleep(8)
    before = wake_ups(daemon)
    time.sleep(8)
    woken = wake_ups(daemon) - before
    # A tick a second each, and what is asked at the end of one or two intervals; 130 before.
    assert 8 <= woken <= 60


def test_attached_and_detached_disks_leave_nothing_behind(serve, scratch):
    """200 disks come and go, with and without a front end, some in the middle of a message: no thread, descriptor or
    socket stays. Some by commands, most by what those ask for."""
    daemon = serve([Disk("stays", images.raw(scratch / "stays.raw", MIB), "raw")], memory="64MiB")
    image = images.raw(scratch / "comes.raw", MIB)

    def come_and_go(n: int, by_command: bool) -> None:
        path = scratch / f"comes{n}.sock"
        if by_command:
            daemon.call("attach", "comes", image, "--format", "raw", "--socket", path)
        else:
            spec = {"name": "comes", "image": str(image), "format": "raw", "socket": str(path)}
            code, said = daemon.api("POST", "/v1/disks", spec)
            assert code == 201, said
        front = [None, half, Front][n % 3]
        connected = front(str(path)) if front else None
        if by_command:
            daemon.call("detach", "comes")
        else:
            code, said = daemon.api("DELETE", "/v1/disks/comes")
            assert code == 204, said
        assert not path.exists()
        if connected:
            connected.close()

    for n in range(6):
        come_and_go(n, by_command=True)
    before = (threads(daemon), descriptors(daemon))
    for n in range(200):
        come_and_go(n, by_command=n % 50 == 0)

    def as_before() -> bool:
        return threads(daemon) <= before[0] and descriptors(daemon) <= before[1]

    until(as_before, f"threads and descriptors are {before} again, not {(threads(daemon), descriptors(daemon))}")


def test_sigterm_while_a_connection_is_half_way(serve, scratch):
    """A daemon that is told to end while front ends have sent half a message, or read no reply, ends at once and
    removes their sockets."""
    daemon = serve([Disk(n, images.raw(scratch / f"{n}.raw", MIB), "raw") for n in ("a", "b")], memory="64MiB")
    first, second = half(daemon.vhost("a")), socket.socket(socket.AF_UNIX)
    second.connect(str(daemon.vhost("b")))
    second.setblocking(False)
    try:
        while True:
            second.send(struct.pack("<III", 1, 1, 0))
    except BlockingIOError:
        pass
    daemon.stop()
    for stream in (first, second):
        stream.close()
