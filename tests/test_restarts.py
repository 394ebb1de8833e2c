"""Restarts of the daemon under load that nobody notices: a guest, and an NBD client that connects anew, go on.

The daemon is stopped, killed, crashed and upgraded, in turns of a seed, and started again at once. The guest checks
every block that it reads; what the NBD client was promised is held to a journal. Owns nothing that lasts. Times are
printed, and nothing is asserted of them.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.programs import ROOT, built, driver, finish_driver, need, start_driver

sys.path.insert(0, str(ROOT / "experiments"))
from rig import guest as guests  # noqa: E402
from rig import serving  # noqa: E402

ROUNDS = 200 if os.environ.get("UNDERCROFT_LONG") else 10
SIZE = 64 * images.MIB
GUEST_BYTES = 32 * images.MIB
# How the daemon ends in a round. `abort` is what a panic of a worker comes to.
ENDS = {"stop": signal.SIGTERM, "kill": signal.SIGKILL, "abort": signal.SIGABRT, "upgrade": None}


class Reconnecting:
    """qemu-storage-daemon between an NBD client that knows no reconnecting and the daemon: it has requests wait until
    the daemon is there again, and sends them again."""

    def __init__(self, scratch, socket, export):
        need("qemu-storage-daemon")
        self.socket = scratch / "between.sock"
        server = f"server.type=unix,server.path={socket}"
        words = ["qemu-storage-daemon"]
        words += ["--blockdev", f"driver=nbd,node-name=up,{server},export={export},reconnect-delay=60"]
        words += ["--nbd-server", f"addr.type=unix,addr.path={self.socket}"]
        words += ["--export", "type=nbd,id=e,node-name=up,name=up,writable=on"]
        self.process = subprocess.Popen(words)
        until(self.socket.exists, "qemu-storage-daemon listens")

    def uri(self):
        return f"nbd+unix:///up?socket={self.socket}"

    def close(self):
        self.process.kill()
        self.process.wait()


class GuestLoad(threading.Thread):
    """A load in a guest that checks what it reads. It goes on until it was told to end and has checked everything."""

    def __init__(self, guest, operations):
        super().__init__()
        self.guest, self.done, self.last, self.error = guest, 0, None, None
        self.command = (
            f"workload zipf /dev/vda --seed 4 --bytes {GUEST_BYTES} --ops {operations} --write-percent 40 --check-all"
        )

    def run(self):
        try:
            for event in self.guest.events(self.command, 3600):
                assert event["event"] != "error", event
                self.done = event.get("done", self.done)
                self.last = event
        except BaseException as e:  # noqa: BLE001 - told to whoever waits
            self.error = e


@pytest.fixture
def load(scratch):
    """load(daemon): a guest on the disk `guest` whose front end connects anew, with a load in it."""
    built("undercroft")
    guests.build()
    started = []

    def start(daemon, operations):
        argv = serving.vhost_user(0, daemon.vhost("guest"), reconnect=True)
        guest = guests.Guest("guest", argv, scratch, ram_mib=128, accel=guests.accelerator())
        started.append(guest)
        guest.wait_ready()
        guest.run(f"workload fill /dev/vda --seed 4 --bytes {GUEST_BYTES}", 300)
        running = GuestLoad(guest, operations)
        running.start()
        return running

    yield start
    for guest in started:
        guest.close()


def ends_and_comes_back(daemon, how):
    """Ends the daemon and starts it again at once. Returns how long it takes until it has served every disk again, in
    seconds: what a supervisor waits before it starts a program is not in it."""
    begin = time.monotonic()
    if how == "upgrade":
        daemon.upgrade()
    else:
        daemon.process.send_signal(ENDS[how])
        daemon.process.wait(60)
        if how == "stop":
            assert daemon.process.returncode == 0, daemon.log()
        begin = time.monotonic()
        daemon.launch()
    # The sockets of one that was killed are still there: a client that is served says more than a file.
    # Looked for often: what is printed is this, too.
    for name in ("guest", "client"):
        until(lambda name=name: driver("probe", daemon.nbd(name), check=False).get("exit") == 0, f"{name} is served")
    return time.monotonic() - begin


def is_connected(daemon):
    """Whether the guest's front end has come to the daemon that runs now. One that dies while QEMU 7.2 asks for its
    features is never asked again (docs/attach/qemu.md): nothing that a daemon could mend."""
    return any(one["kind"] == "vhost-user" for one in daemon.disk("guest")["frontends"])


def told(daemon, scratch):
    """What the guest's kernel says of errors, and what all processes of the daemon have warned of: a write that failed
    is told to the guest's program by its last `fsync` only."""
    console, log = (path.read_text(errors="replace") for path in (scratch / "guest-console.log", daemon.log_path))
    errors = [line for line in console.splitlines() if "error" in line.lower()]
    warnings = [line for line in log.splitlines() if " WARN " in line or " ERROR " in line]
    return "\n".join(["the guest's kernel:", *errors[-50:], "the daemon:", *warnings[-200:]])


def test_guests_and_nbd_clients_go_on(scratch, load):
    """Rounds of restarts under both loads."""
    seed = int(os.environ.get("UNDERCROFT_SEED", "1"))
    dice = random.Random(seed)
    disks = [
        Disk("guest", images.raw(scratch / "guest.raw", SIZE), "raw"),
        Disk("client", images.make(scratch, "client", "qcow2", SIZE, "cluster_size=4096"), "qcow2"),
    ]
    daemon = Daemon(scratch / "d", disks, memory="64MiB", store="keep = true").start()
    daemon.expect_death = True
    between = Reconnecting(scratch, daemon.nbd_socket, "client")
    journal = scratch / "journal"
    client = None
    try:
        # It lasts longer than the rounds, and not much longer on a slow machine.
        guest = load(daemon, ROUNDS * 20_000)
        mix = ["--write-percent", 60, "--zero-percent", 5, "--discard-percent", 2, "--flush-every", 20]
        client = start_driver(
            "run", between.uri(), "--journal", journal, "--block", "512", "--block-max", "32KiB", "--depth", 8,
            *mix, "--seed", seed, "--ops", ROUNDS * 4_000,
        )  # fmt: skip
        times = []
        for _ in range(ROUNDS):
            before = guest.done
            until(lambda before=before: guest.done > before or not guest.is_alive(), "the guest goes on", 120)
            assert guest.error is None, f"{guest.error}\n{told(daemon, scratch)}"
            until(lambda: is_connected(daemon) or not guest.is_alive(), "the guest's front end connects anew", 30)
            assert client.poll() is None or client.returncode == 0, (times, client.communicate()[1][-2000:])
            time.sleep(dice.uniform(0, 0.3))
            how = dice.choice(sorted(ENDS))
            times.append((ends_and_comes_back(daemon, how), how))
        for how in sorted(ENDS):
            took = sorted(seconds for seconds, by in times if by == how)
            print(how, *(f"{seconds:.3f}" for seconds in took))
        lasted = guest.is_alive()
        while guest.is_alive():
            before = guest.done
            guest.join(120)
            assert not guest.is_alive() or guest.done > before, f"it stands still\n{told(daemon, scratch)}"
        assert guest.error is None, f"{guest.error}\n{told(daemon, scratch)}"
        assert lasted, "its load has to last longer than the rounds"
        assert guest.last == {"event": "checked", "blocks": GUEST_BYTES // 4096}
        report = finish_driver(client, 600)
        assert not report["errors"], report
        findings = driver("audit", "--journal", journal, "--target", daemon.nbd("client"), "--strict")
        assert findings.get("ok"), findings
    finally:
        if client and client.poll() is None:
            client.kill()
            client.communicate()
        between.close()
        daemon.stop()
    images.check_qcow2(disks[1].image)
