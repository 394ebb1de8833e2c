"""A guest that migrates between two daemons on one image, under load: two QEMUs, emulated, and two daemons, one on each
side. The guest checks every block that it reads; what it has written at the end is checked once more without it.

Owns nothing that lasts. Never uses shared page caches: images are read past them.
"""

import json
import os
import sys
import threading

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import ROOT, built, run
from harness.volumes import need_fuse

sys.path.insert(0, str(ROOT / "experiments"))
from rig import guest as guests  # noqa: E402
from rig import process, serving  # noqa: E402

MIB = 1 << 20
SIZE = 256 * MIB
DATA = 96 * MIB
RAM_MIB = 128
STORE = "80MiB"
OPERATIONS = 600_000 if os.environ.get("UNDERCROFT_LONG") else 150_000
# Operations between two looks.
WINDOW = 12_000


@pytest.fixture(scope="module")
def accel():
    """Builds what guests boot from, once, and says how they run here."""
    built("undercroft")
    guests.build()
    return guests.accelerator()


@pytest.fixture
def boot(scratch, accel):
    """boot(daemon, name, ...): a guest on the daemon's disk, ended after the test."""
    started = []

    def start(daemon, name, **options):
        # As a front end that connects anew would, when its daemon is killed.
        argv = serving.vhost_user(0, daemon.vhost("disk"), reconnect=True)
        guest = guests.Guest(name, argv, scratch, ram_mib=RAM_MIB, accel=accel, migrates=True, **options)
        started.append(guest)
        if not options.get("incoming"):
            guest.wait_ready()
        return guest

    yield start
    for guest in started:
        guest.close()
        for log in (guest.log, guest.console):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:] if log.exists() else 'was not written'}")


class Load:
    """A load in a guest, whichever QEMU that runs in: its output comes from one after the other."""

    def __init__(self, guest, command):
        self.guest, self.events, self.status = guest, [], None
        self.moved = threading.Event()
        guest.send(command)

    def follow(self, until_event, seconds=600):
        """Reads on until an event for which `until_event` says so, or the command's end."""
        for line in self.guest.output("the load", seconds):
            if line.startswith("{"):
                event = json.loads(line)
                assert event["event"] != "error", event
                self.events.append(event)
                if until_event(event):
                    return event
        raise AssertionError(f"the load ended: {self.events[-3:]}")

    def progress(self, more):
        """Waits until the load has done so many operations more."""
        done = [e["done"] for e in self.events if e["event"] == "progress" and e["phase"] == "measuring"]
        wanted = (done[-1] if done else 0) + more
        return self.follow(lambda e: e["event"] == "progress" and e["phase"] == "measuring" and e["done"] >= wanted)


def counters(daemon):
    """Blocks that were read from the cache, and all that were read."""
    c = daemon.disk("disk")["counters"]
    return c["hit_blocks"], c["hit_blocks"] + c["miss_blocks"]


def ratio(before, now):
    """The hit ratio between two looks at the counters."""
    reads = now[1] - before[1]
    assert reads > 100, f"only {reads} blocks were read"
    return (now[0] - before[0]) / reads


@pytest.fixture(params=["raw", "qcow2"])
def sides(request, serve, scratch):
    """Two daemons on one image, the second of which waits for the guest."""
    image = scratch / f"disk.{request.param}"
    process.run(["qemu-img", "create", "-q", "-f", request.param, image, f"{SIZE}"], "qemu-img create")
    here = serve([Disk("disk", image, options={"nbd": "false"})], memory=STORE)
    there = serve([Disk("disk", image, options={"nbd": "false", "incoming": "true"})], memory=STORE)
    return image, here, there


@pytest.mark.parametrize("sides", [pytest.param("raw", marks=pytest.mark.long), "qcow2"], indirect=True)
def test_there_and_back_under_load(sides, boot, scratch):
    """The guest reads and writes all the time, goes to another daemon, warm, and comes back."""
    image, here, there = sides
    disk = there.disk("disk")
    assert (disk["state"], disk["size_bytes"], disk["cache"]["cached_bytes"]) == ("dormant", SIZE, 0)
    first = boot(here, "first")
    first.run(f"workload fill /dev/vda --seed 5 --bytes {DATA}", 300)
    load = Load(
        first,
        f"workload zipf /dev/vda --seed 5 --bytes {DATA} --alpha 0.9 --warm 2000 --ops {OPERATIONS} "
        "--write-percent 20 --check-all",
    )
    load.progress(WINDOW)
    before = counters(here)
    load.progress(WINDOW)
    stayed = ratio(before, counters(here))
    # What is hot goes along, before the guest does; nothing is read there before it comes.
    hot = here.call("hot-set", "disk").stdout
    said = there.call("warm", "disk", stdin=hot).stdout
    assert "will be fetched when its guest runs here" in said
    assert there.disk("disk")["counters"]["backend_reads"] == 0
    over = scratch / "there.sock"
    second = boot(there, "second", incoming=over)
    until(over.exists, "the second QEMU waits")
    assert there.disk("disk")["state"] == "dormant", "connected, and its guest does not run"
    told = first.migrate(second, over)
    rounds = told["ram"]["dirty-sync-count"]
    print(f"there: {told['downtime']} ms down, {told['total-time']} ms in all, {rounds} rounds")
    assert here.disk("disk")["state"] == "dormant", "the image is closed where the guest was before the guest goes on"
    assert here.disk("disk")["cache"]["cached_bytes"] == 0
    load.guest = second
    load.progress(WINDOW // 4)
    arrived = counters(there)
    load.progress(WINDOW)
    moved = ratio(arrived, counters(there))
    print(f"hit ratio {stayed:.3f} where it was, {moved:.3f} after it has come")
    assert moved > stayed * 0.7, "it came cold"
    assert there.disk("disk")["state"] == "serving"
    # And back, to a daemon that has served it before: whatever it knew then is forgotten.
    first.close()
    back = scratch / "back.sock"
    third = boot(here, "third", incoming=back)
    until(back.exists, "the third QEMU waits")
    reads = here.disk("disk")["counters"]["backend_reads"]
    assert here.disk("disk")["state"] == "dormant"
    told = second.migrate(third, back)
    print(f"back: {told['downtime']} ms down, {told['total-time']} ms in all")
    load.guest = third
    checked = load.follow(lambda e: e["event"] == "checked", 900)
    assert checked["blocks"] == DATA // 4096
    assert here.disk("disk")["counters"]["backend_reads"] > reads
    assert list(third.output("the load", 60)) == [], "the load ended well"
    third.run("sync")
    third.power_off()
    for daemon in (here, there):
        assert daemon.disk("disk")["counters"]["errors"] == 0
        daemon.stop()
    if image.suffix == ".qcow2":
        process.run(["qemu-img", "check", "-q", image], "qemu-img check")


@pytest.mark.parametrize("sides", [pytest.param("raw", marks=pytest.mark.long), "qcow2"], indirect=True)
def test_what_the_guest_has_written_is_on_the_image(sides, boot, scratch):
    """Data that were written on both sides, read once more without any daemon."""
    image, here, there = sides
    first = boot(here, "first")
    first.run(f"workload fill /dev/vda --seed 6 --bytes {DATA // 2} && sync", 300)
    over = scratch / "there.sock"
    second = boot(there, "second", incoming=over)
    until(over.exists, "the second QEMU waits")
    first.migrate(second, over)
    second.run(f"workload check /dev/vda --seed 6 --bytes {DATA // 2}", 300)
    second.run("echo 3 > /proc/sys/vm/drop_caches")
    second.run(f"workload check /dev/vda --seed 6 --bytes {DATA // 2}", 300)
    second.run("dd if=/dev/urandom of=/tmp/page bs=64k count=1 && dd if=/tmp/page of=/dev/vda bs=64k seek=2000 && sync")
    _, wanted = second.run("sha256sum < /tmp/page")
    second.power_off()
    here.stop()
    there.stop()
    raw = scratch / "seen.raw"
    process.run(["qemu-img", "convert", "-O", "raw", image, raw], "qemu-img convert")
    process.run([guests.BUILT / "workload", "check", raw, "--seed", 6, "--bytes", DATA // 2], "checking on the host")
    with open(raw, "rb") as f:
        f.seek(2000 << 16)
        (scratch / "page").write_bytes(f.read(65536))
    assert run("sha256sum", scratch / "page").stdout.split()[0] == wanted.split()[0]


@pytest.mark.parametrize("sides", [pytest.param("raw", marks=pytest.mark.long), "qcow2"], indirect=True)
def test_a_migration_that_is_called_off_changes_nothing(sides, boot, scratch):
    """Logging is switched on and off under load, and the guest stays."""
    _, here, there = sides
    first = boot(here, "first")
    first.run(f"workload fill /dev/vda --seed 7 --bytes {DATA // 2}", 300)
    load = Load(
        first, f"workload zipf /dev/vda --seed 7 --bytes {DATA // 2} --alpha 0.9 --ops {OPERATIONS // 3} "
        "--write-percent 30 --check-all",
    )
    for n in range(2):
        over = scratch / f"there{n}.sock"
        second = boot(there, f"second{n}", incoming=over)
        until(over.exists, "the second QEMU waits")
        first.cancel_migration(over)
        second.close()
        load.progress(WINDOW // 4)
    assert here.disk("disk")["state"] == "serving" and there.disk("disk")["state"] == "dormant"
    assert load.follow(lambda e: e["event"] == "checked", 600)["blocks"] == DATA // 2 // 4096
    assert there.disk("disk")["counters"]["backend_reads"] == 0


def test_a_daemon_that_waits_opens_nothing_and_says_why_it_cannot(serve, scratch):
    """Two daemons on one image: the second knows its size alone. Its guest starts while the first still has it."""
    image = images.raw(scratch / "disk.raw", 64 * MIB, seed=1)
    here = serve([Disk("disk", image)])
    there = serve([Disk("disk", image, options={"incoming": "true"})])
    disk = there.disk("disk")
    assert disk["state"] == "dormant" and "opened when the guest starts" in disk["reason"]
    assert "not open" in disk["backend"]
    assert all(not listener["disks"] for listener in there.status()["nbd_listeners"]), "another one writes to it"
    # A set that is for another disk, or no set at all, is refused.
    assert "another size" not in there.call("warm", "disk", stdin=here.call("hot-set", "disk").stdout).stdout
    wrong = there.call("warm", "disk", stdin='{"size_bytes": 4096, "ranges": []}', check=False)
    assert wrong.returncode == 1 and "the hot set is of a disk of 4096 bytes" in wrong.stderr
    wrong = there.call("warm", "disk", stdin="what", check=False)
    assert wrong.returncode == 1 and "standard input" in wrong.stderr
    opened = os.listdir(f"/proc/{there.pid}/fd")
    names = [os.readlink(f"/proc/{there.pid}/fd/{fd}") for fd in opened if os.path.exists(f"/proc/{there.pid}/fd/{fd}")]
    assert str(image) not in names


def test_a_guest_that_comes_too_early_waits_for_the_image(serve, scratch, boot):
    """Its disk is still served elsewhere: it waits, then fails and says why; and works once the image is free."""
    image = images.raw(scratch / "disk.raw", 64 * MIB, seed=1)
    here = serve([Disk("disk", image, options={"nbd": "false"})])
    there = serve([Disk("disk", image, options={"nbd": "false", "incoming": "true"})])
    guest = boot(there, "early", reboots=True)
    until(lambda: there.disk("disk")["state"] == "failed", "it is given up", 40)
    reason = there.disk("disk")["reason"]
    for words in ("its image cannot be had", "disk.raw", "locked by another program"):
        assert words in reason, reason
    assert guest.run("dd if=/dev/vda of=/dev/null bs=4k count=1", check=False)[0] != 0, "nothing is made up"
    here.stop()
    guest.reboot()
    assert there.disk("disk")["state"] == "serving"
    _, seen = guest.run("dd if=/dev/vda bs=64k count=16 2>/dev/null | sha256sum")
    with open(image, "rb") as f:
        (scratch / "begin").write_bytes(f.read(1 << 20))
    assert seen.split()[0] == run("sha256sum", scratch / "begin").stdout.split()[0]
    guest.power_off()


def test_a_disk_that_is_a_file_is_one_where_its_guest_runs(serve, scratch, boot):
    """The file goes when the guest has gone, and is made where the guest comes: two hosts must not write one image."""
    need_fuse()
    image = images.raw(scratch / "disk.raw", 64 * MIB, seed=3)
    files = [scratch / "here.file", scratch / "there.file"]
    options = [{"nbd": "false", "fuse": f'"{file}"'} for file in files]
    here = serve([Disk("disk", image, options=options[0])])
    there = serve([Disk("disk", image, options={**options[1], "incoming": "true"})])
    assert os.path.getsize(files[0]) == 64 * MIB and not files[1].exists(), "nothing of the image is open there"
    first = boot(here, "first")
    over = scratch / "there.sock"
    second = boot(there, "second", incoming=over)
    until(over.exists, "the second QEMU waits")
    held = os.open(files[0], os.O_RDONLY)
    first.migrate(second, over)
    until(lambda: not files[0].exists(), "the file is gone where the guest was")
    with pytest.raises(OSError):
        os.pread(held, 4096, 0)
    os.close(held)
    until(lambda: files[1].exists() and os.path.getsize(files[1]) == 64 * MIB, "the file is where the guest runs")
    with open(files[1], "rb") as file, open(image, "rb") as disk:
        assert file.read(1 << 20) == disk.read(1 << 20)
    second.power_off()
    assert os.path.getsize(files[1]) == 64 * MIB, "a guest that is off has not gone elsewhere"
    there.stop()
    assert not files[1].exists()
