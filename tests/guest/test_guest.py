"""A real guest on Undercroft: file systems, fio --verify, and a daemon that is changed or killed under it."""

import itertools
import os
import signal
import threading

import pytest
from harness import images
from harness.daemon import Successor
from rig import process

LONG = bool(os.environ.get("UNDERCROFT_LONG"))
DISK = "guest-1:root"
POLICIES = ["lru", "s3-fifo", "arc", "sieve", "clock", "w-tinylfu", "car", "fifo"]
SIZES = ["16MiB", "48MiB", "20MiB", "64MiB", "32MiB"]


class Unrest:
    """Keeps switching the policy and resizing the cache of a disk until the block ends; counts the changes."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.changes = 0
        self.stop = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            for policy, size in zip(itertools.cycle(POLICIES), itertools.cycle(SIZES)):
                self.daemon.ctl("set", DISK, "--policy", policy, "--size", size)
                self.changes += 1
                if self.stop.wait(0.2):
                    return
        except process.Stopped as e:
            self.error = e

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def check(self, at_least):
        assert self.error is None, self.error
        assert self.changes >= at_least


def fill(disk, size, seed):
    """Fills a raw image before it is served. At length a guest does it: see `hold`."""
    if not LONG:
        images.patterned(disk, size, seed)


def hold(guest, device, size, seed, of=1):
    """Has a guest hold as much of a filled disk as its memory takes, which it has `of` disks to use for: it reads that
    much, and checks it. At length it fills all of the disk itself."""
    if LONG:
        guest.run(f"workload fill /dev/{device} --seed {seed} --bytes {size}", 240)
    else:
        most = min(size, guest.ram_bytes // of)
        guest.run(f"workload check /dev/{device} --seed {seed} --bytes {most}", 240)


def check_image(disk):
    """The image is sound and so is the file system in it, seen without the daemon."""
    raw = disk
    if disk.suffix == ".qcow2":
        process.run(["qemu-img", "check", "-q", disk], "qemu-img check")
        raw = disk.with_suffix(".check")
        process.run(["qemu-img", "convert", "-O", "raw", disk, raw], "qemu-img convert")
    e2fsck = process.run(["/usr/sbin/e2fsck", "-fn", raw], "e2fsck on the host")
    assert "files" in e2fsck


@pytest.mark.parametrize("disk", [pytest.param("raw", marks=pytest.mark.long), "qcow2"], indirect=True)
def test_file_system_survives_resizing_and_policy_switches(disk, undercroft, boot):
    """mkfs, files, checksums, a random write storm, unmount, fsck, mount again: while cache size and policy change."""
    daemon = undercroft(disk)
    guest = boot(daemon)
    ops = 60000 if LONG else 8000
    # How many files, by what their sizes grow (the last ones have a MiB), and what is cheap where it is emulated.
    files, growth, sums = (200, 27, "sha256sum") if LONG else (80, 164, "md5sum")
    with Unrest(daemon) as unrest:
        guest.run("mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda", 120)
        guest.run("mount -t ext4 -o noatime,discard /dev/vda /mnt")
        # Files of every size from 1 byte to 1 MiB, some removed again so that their blocks are discarded and reused.
        guest.run(
            f"mkdir /mnt/files && cd /mnt/files && for i in $(seq 1 {files}); do "
            f"head -c $(( (i * i * {growth}) % 1048576 + 1 )) /dev/urandom > f$i; done && rm f?5 f?0 && sync && "
            "for i in $(seq 201 260); do head -c 50000 /dev/urandom > f$i; done && "
            f"{sums} f* > /mnt/sums && sync",
            180,
        )
        events = list(
            guest.events(
                f"workload fill /mnt/data --seed 9 --bytes {48 << 20} && "
                f"workload zipf /mnt/data --seed 9 --bytes {48 << 20} --ops {ops} --write-percent 50 --check-all",
                600,
            )
        )
        assert events[-1] == {"event": "checked", "blocks": (48 << 20) // 4096}
        guest.run("umount /mnt", 120)
        _, text = guest.run("e2fsck -fn /dev/vda", 120)
        assert "non-contiguous" in text
        # Nothing of it is left in the guest's own cache: what is checked now came through the daemon.
        guest.run("echo 3 > /proc/sys/vm/drop_caches")
        guest.run("mount -t ext4 -o noatime /dev/vda /mnt")
        _, text = guest.run(f"cd /mnt/files && {sums} -c /mnt/sums | grep -vc ': OK$'", 180, check=False)
        assert text == "0", "files differ from their checksums"
        guest.run("umount /mnt")
    unrest.check(at_least=10)
    guest.power_off()
    counters = daemon.status()["disks"][0]["counters"]
    assert counters["errors"] == 0
    assert counters["hit_blocks"] > 0 and counters["evicted_blocks"] > 0, "the cache was not at work"
    daemon.__exit__()
    check_image(disk)


# On a raw image, without a guest: tests/test_fio.py.
@pytest.mark.parametrize("disk", [pytest.param("raw", marks=pytest.mark.long), "qcow2"], indirect=True)
def test_fio_verifies_random_block_sizes(disk, undercroft, boot):
    """fio in the guest writes blocks of 512 B to 128 KiB at random places, 16 at a time, and reads every one back."""
    daemon = undercroft(disk)
    guest = boot(daemon, initramfs="initramfs-fio")
    size = "192m" if LONG else "24m"
    with Unrest(daemon) as unrest:
        guest.run(
            "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite "
            f"--bsrange=512-128k --blockalign=512 --size={size} --verify=crc32c --verify_fatal=1 --verify_backlog=256 "
            "--randrepeat=0 --eta=never --output=/tmp/fio.log || (tail -n 40 /tmp/fio.log; false)",
            600,
        )
    unrest.check(at_least=3)
    guest.power_off()
    counters = daemon.status()["disks"][0]["counters"]
    assert counters["errors"] == 0 and counters["writes"] > 100 and counters["reads"] > 100


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_guest_goes_on_after_the_daemon_was_killed(disk, undercroft, boot):
    """kill -9 under a writing guest, then a new daemon on the same socket: I/O goes on, nothing is lost or wrong."""
    daemon = undercroft(disk, reconnect=True)
    guest = boot(daemon)
    size = 64 << 20
    guest.run(f"workload fill /dev/vda --seed 3 --bytes {size}", 120)
    kills = 10 if LONG else 3
    events = guest.events(
        f"workload zipf /dev/vda --seed 3 --bytes {size} --ops {kills * 30000} --write-percent 40 --check-all", 900
    )
    done = None
    for event in events:
        if event["event"] == "progress" and kills and event["done"] > 1000:
            kills -= 1
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait()
            daemon.restart()
        done = event
    assert kills == 0
    assert done == {"event": "checked", "blocks": size // 4096}
    guest.power_off()


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
@pytest.mark.parametrize(
    "zeroing", [pytest.param(True, id="zeroing"), pytest.param(False, id="not zeroing", marks=pytest.mark.long)]
)
def test_pages_kept_from_a_guest_are_what_the_image_holds(disk, zeroing, undercroft, boot):
    """A guest reads and writes twice what its own cache holds: every page of it that is kept is compared with the
    image."""
    daemon = undercroft(disk, daemon_options="check_captures = true\n")
    guest = boot(daemon, ram_mib=160, initramfs="initramfs", append=f"init_on_alloc={zeroing:d}")
    size = 224 << 20
    guest.run(f"workload fill /dev/vda --seed 5 --bytes {size}", 240)
    ops = 400_000 if LONG else 40_000
    events = list(
        guest.events(f"workload zipf /dev/vda --seed 5 --bytes {size} --ops {ops} --write-percent 20 --check-all", 900)
    )
    assert events[-1] == {"event": "checked", "blocks": size // 4096}
    exclusive = daemon.status()["disks"][0]["exclusive"]
    guest.power_off()
    assert exclusive["captures_wrong"] == 0
    assert exclusive["captures_compared"] > 1000, exclusive


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_two_disks_of_a_guest_have_one_table_of_its_pages(disk, undercroft, boot):
    """A guest reads and writes two disks at once, together twice what its own cache holds: one table knows its pages,
    and every page of it that is kept is compared with the image of the disk that it is kept for."""
    second = disk.with_name("second.raw")
    process.run(["qemu-img", "create", "-q", "-f", "raw", second, "256M"], "qemu-img create")
    size = 112 << 20
    for name, image in ("vda", disk), ("vdb", second):
        fill(image, size, seed=ord(name[2]))
    daemon = undercroft(disk, second, daemon_options="check_captures = true\nworkers = 1\n")
    guest = boot(daemon, disks=2, ram_mib=160, initramfs="initramfs", append="init_on_alloc=0")
    for name in "vda", "vdb":
        hold(guest, name, size, seed=ord(name[2]), of=2)
    ops = 200_000 if LONG else 20_000

    def load(name):
        zipf = (
            f"workload zipf /dev/{name} --seed {ord(name[2])} --bytes {size} --ops {ops} --write-percent 20 --check-all"
        )
        return f"{zipf} > /tmp/{name}"

    _, text = guest.run(f"({load('vda')}) & {load('vdb')}; wait; tail -q -n 1 /tmp/vda /tmp/vdb", 900)
    assert text.count('"checked"') == 2, text
    disks = [disk["exclusive"] for disk in daemon.status()["disks"]]
    guest.power_off()
    assert [disk["table_disks"] for disk in disks] == [2, 2], disks
    held = [disk["guest_pages_held"] for disk in disks]
    assert min(held) > 0 and sum(held) == disks[0]["guest_pages_held_by_all"] <= disks[0]["guest_pages"], disks
    # Paid for once: up to 34 bytes a page, and what each disk needs for itself.
    assert sum(disk["table_bytes"] for disk in disks) < 34 * disks[0]["guest_pages"] + (1 << 20), disks
    assert all(disk["captures_wrong"] == 0 and disk["captures_compared"] > 200 for disk in disks), disks


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_what_a_guest_held_is_copied_when_it_reboots(disk, undercroft, boot):
    """A guest that reads more than its own cache holds is reset: what its memory still holds is copied, each page
    compared with the image, and found by the guest when it asks for it again."""
    size = 224 << 20
    fill(disk, size, seed=5)
    daemon = undercroft(disk, daemon_options="check_captures = true\n")
    guest = boot(daemon, ram_mib=160, initramfs="initramfs", reboots=True)
    hold(guest, "vda", size, seed=5)
    load = f"workload zipf /dev/vda --seed 5 --bytes {size} --ops 30000"
    guest.run(load, 600)
    before = daemon.status()["disks"][0]["exclusive"]
    assert before["guest_pages_held"] > 5000, before
    guest.reboot()
    after = daemon.status()["disks"][0]["exclusive"]
    hits = daemon.status()["disks"][0]["counters"]["hit_blocks"]
    guest.run(f"{load} --check-all", 600)
    last = daemon.status()["disks"][0]
    guest.power_off()
    copied = after["restart_copied"] - before["restart_copied"]
    assert copied > 1000, (before, after)
    assert last["counters"]["hit_blocks"] - hits > copied / 4, (copied, hits, last["counters"]["hit_blocks"])
    assert last["exclusive"]["captures_wrong"] == 0, last


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_file_system_of_small_blocks_is_kept_exclusive(disk, undercroft, boot):
    """A file in a file system of 1 KiB blocks, whose pages begin 1 KiB after blocks of the disk: less is read from the
    disk with an exclusive cache than with an inclusive one, and every page that is kept is compared with the image.
    What is cached then is still right where another process goes on with it (`undercroft upgrade`)."""
    process.run(["/usr/sbin/mkfs.ext4", "-q", "-F", "-b", "1024", disk], "mkfs.ext4 on the host")
    size, ops = 176 << 20, 200_000 if LONG else 20_000
    read = {}
    for mode in "off", "auto":
        daemon = undercroft(
            disk,
            daemon_options="check_captures = true\n",
            store_options="keep = true\n",
            disk_options=f'exclusive = "{mode}"\n',
        )
        guest = boot(daemon, ram_mib=160, initramfs="initramfs")
        guest.run("mount -t ext4 -o noatime /dev/vda /mnt")
        if mode == "off":
            guest.run(f"workload fill /mnt/data --seed 5 --bytes {size} && sync", 240)
            guest.run("echo 3 > /proc/sys/vm/drop_caches")
        load = f"workload uniform /mnt/data --seed 5 --bytes {size} --ops {ops}"
        guest.run(load, 600)
        before = daemon.status()["disks"][0]["counters"]["backend_read_bytes"]
        events = list(guest.events(f"{load} --rng 7 --check-all", 900))
        status = daemon.status()["disks"][0]
        assert events[-1] == {"event": "checked", "blocks": size // 4096}
        read[mode] = status["counters"]["backend_read_bytes"] - before
        if mode == "auto":
            daemon.process = Successor.of(daemon.process, lambda: daemon.ctl("upgrade"))
            assert daemon.status()["disks"][0]["cache"]["cached_bytes"] > 4 << 20
            # Here nothing is compared with the other mode: what was cached is asked for, and then all of it.
            load = f"workload uniform /mnt/data --seed 5 --bytes {size} --ops {ops if LONG else 12_000}"
            assert list(guest.events(f"{load} --rng 8 --check-all", 900))[-1]["event"] == "checked"
        guest.run("umount /mnt", 120)
        guest.power_off()
        daemon.__exit__()
        exclusive = status["exclusive"]
        assert exclusive["captures_wrong"] == 0 and exclusive["block_offset"] == (
            1024 if mode == "auto" else 0
        ), exclusive
    print(read, exclusive)
    assert exclusive["captures_compared"] > 500, exclusive
    assert read["auto"] < read["off"] * 0.9, read
    check_image(disk)


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_memory_that_a_balloon_took_stays_with_the_host(disk, undercroft, boot):
    """A balloon takes a third of a guest's memory, which held blocks of the disk: nothing of it is copied, for that
    would take the memory from the host again. The guest finds the right bytes, with the balloon and without."""
    size, taken = 224 << 20, 64 << 20
    fill(disk, size, seed=5)
    daemon = undercroft(disk, daemon_options="check_captures = true\n")
    guest = boot(daemon, ram_mib=192, initramfs="initramfs", balloons=True)
    hold(guest, "vda", size, seed=5)
    load = f"workload zipf /dev/vda --seed 5 --bytes {size} --ops {200_000 if LONG else 20_000}"
    guest.run(load, 900)
    early = daemon.status()["disks"][0]["exclusive"]["early_tried"]
    guest.balloon(taken)
    held = guest.held_bytes()
    assert held <= (192 << 20) - taken + (1 << 20), held
    guest.run(f"{load} --rng 7", 900)
    # What is copied between two looks at the memory, at most.
    assert guest.held_bytes() <= held + (2 << 20), (held, guest.held_bytes())
    guest.balloon(0)
    events = list(guest.events(f"{load} --rng 8 --check-all", 900))
    exclusive = daemon.status()["disks"][0]["exclusive"]
    guest.power_off()
    assert events[-1] == {"event": "checked", "blocks": size // 4096}
    assert exclusive["captures_wrong"] == 0 and exclusive["early_tried"] > early + 1000, (early, exclusive)


@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_memory_that_is_plugged_in_is_seen(disk, undercroft, boot):
    """A guest is given more memory while it reads and writes: from then on the cache knows its pages there, too, and
    every page of it that is kept is compared with the image."""
    size, more = 240 << 20, 128 << 20
    fill(disk, size, seed=5)
    daemon = undercroft(disk, daemon_options="check_captures = true\n")
    # Room for more memory has the kernel set 64 MiB aside for devices that reach 32 bits only.
    guest = boot(daemon, ram_mib=128, initramfs="initramfs", grows=True, append="swiotlb=512")
    hold(guest, "vda", size, seed=5)
    load = f"workload zipf /dev/vda --seed 5 --bytes {size} --ops {200_000 if LONG else 20_000} --write-percent 20"
    before = daemon.status()["disks"][0]["exclusive"]
    guest.grow(more)
    events = list(guest.events(f"{load} --check-all", 900))
    after = daemon.status()["disks"][0]["exclusive"]
    guest.power_off()
    assert events[-1] == {"event": "checked", "blocks": size // 4096}
    assert after["guest_pages"] == before["guest_pages"] + more // 4096, (before, after)
    # More than the memory that it began with could hold.
    assert after["guest_pages_held"] > before["guest_pages"] * 5 // 4, after
    assert after["captures_wrong"] == 0 and after["captures_compared"] > 100, after


@pytest.mark.long
@pytest.mark.parametrize("disk", ["raw"], indirect=True)
def test_pages_of_an_encrypted_disk_are_not_copied_for_long(disk, undercroft, boot):
    """Through dm-crypt no page that the guest reads into holds what the disk has: after a few hundred copies none is
    made, and `status` says why. At length: no more is read from the disk than with an inclusive cache."""
    size, ops = 96 << 20, 100_000 if LONG else 10_000
    key, sectors = bytes(range(64)).hex(), (256 << 20) // 512
    read = {}
    for mode in ("off", "auto") if LONG else ("auto",):
        daemon = undercroft(disk, daemon_options="check_captures = true\n", disk_options=f'exclusive = "{mode}"\n')
        guest = boot(daemon, ram_mib=112, initramfs="initramfs-crypt", reboots=True)
        unlock = "for m in ecb xts dm-mod dm-crypt; do insmod /lib/modules/$m.ko || exit; done"
        unlock += f" && echo '0 {sectors} crypt aes-xts-plain64 {key} 0 /dev/vda 0' | dmsetup create secret"
        guest.run(unlock)
        if not read:
            guest.run(f"workload fill /dev/dm-0 --seed 5 --bytes {size}", 240)
        # What is written is encrypted into pages of their own, which do hold what the disk has until they are used
        # again: the guest begins afresh, and reads.
        guest.reboot()
        guest.run(unlock)
        begun = daemon.status()["disks"][0]["exclusive"]
        load = f"workload uniform /dev/dm-0 --seed 5 --bytes {size} --ops {ops}"
        guest.run(f"{load} --warm {2 * ops}", 900)
        first = daemon.status()["disks"][0]
        events = list(guest.events(f"{load} --rng 7 --check-all", 900))
        last = daemon.status()["disks"][0]
        guest.power_off()
        daemon.__exit__()
        assert events[-1] == {"event": "checked", "blocks": size // 4096}
        read[mode] = last["counters"]["backend_read_bytes"] - first["counters"]["backend_read_bytes"]
    first, last = first["exclusive"], last["exclusive"]
    assert last["state"] in ("opaque", "inclusive") and "copies), as with an encrypted" in last["reason"], last
    tried = [status["early_tried"] + status["captures_tried"] for status in (begun, first, last)]
    # Asked again seldom: 32 copies each time.
    assert 256 <= tried[1] - tried[0] <= 2000 and tried[2] <= tried[1] + 64, (begun, first, last)
    held = [status["early"] + status["captures"] for status in (begun, last)]
    assert held[1] <= held[0] + 8, (begun, last)
    assert not LONG or read["auto"] < read["off"] * 1.03, read
    with open(disk, "rb") as image:
        assert image.read(24) != b"\x05" + bytes(23), "the disk has what was encrypted"
