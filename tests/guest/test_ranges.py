"""undercroft-ranges in a real guest: what it prints is where the files' bytes are in the image, seen from outside."""

import json
import struct
import subprocess
import time

import pytest
from harness.images import MIB
from harness.programs import built
from rig import process

SIZE = 256 * MIB
START = 1 * MIB
CHUNK = 1024
WITHIN_S = 60
COMMAND = "/mnt/undercroft-ranges --container web --disk guest-1:root"


@pytest.fixture
def disk(scratch):
    """An image with a partition table, and on its one partition ext4 of 1 KiB blocks that holds the program."""
    path, root = scratch / "disk.raw", scratch / "root"
    root.mkdir()
    (root / "undercroft-ranges").write_bytes(open(built("undercroft-ranges"), "rb").read())
    (root / "undercroft-ranges").chmod(0o755)
    with open(path, "wb") as f:
        f.truncate(SIZE)
        entry = struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", START // 512, (SIZE - START) // 512)
        f.seek(446)
        f.write(entry.ljust(64, b"\0") + b"\x55\xaa")
    mke2fs = ["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-E", f"offset={START}", "-d", root, path]
    process.run([*mke2fs, f"{(SIZE - START) >> 10}k"], "mke2fs")
    return path


def chunk(container, file, n):
    """A KiB that is nowhere else."""
    return f"{container} {file} {n}".ljust(CHUNK - 1).encode() + b"\n"


def write(container, file, first, count, more=""):
    """The guest's command that appends chunks to a file."""
    loop = f"for (i = {first}; i < {first + count}; i++) printf \"%-1023s\\n\", \"{container} {file} \" i"
    return f"awk 'BEGIN {{ {loop} }}' >> /mnt/{container}/{file}{more}"


def held(image, ranges):
    """Every chunk of the image in these ranges, in order."""
    chunks = []
    with open(image, "rb") as f:
        for r in ranges:
            f.seek(r["offset_bytes"])
            data = f.read(r["length_bytes"])
            assert len(data) == r["length_bytes"]
            chunks += [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    return chunks


def wanted(*files):
    return sorted(chunk("web", file, n) for file, count in files for n in range(count))


def test_what_it_prints_is_where_the_bytes_are(disk, scratch, undercroft, boot):
    """Fragmented, linked, sparse and deleted files on a partition: the ranges hold every byte of the container's files
    once, and nothing else; the list follows when files grow and go."""
    daemon = undercroft(disk)
    guest = boot(daemon)
    guest.run("mount -t ext4 -o noatime /dev/vda1 /mnt && mkdir /mnt/web /mnt/db /mnt/web/deep")
    # Two containers that write in turn, each piece on the disk before the next: many extents, those of both in between.
    turns = "; ".join(
        f"{write('web', 'big', n * 40, 40)}; sync; {write('db', 'big', n * 40, 40)}; sync" for n in range(12)
    )
    guest.run(turns, 120)
    guest.run(f"{write('web', 'deep/small', 0, 3)}; {write('web', 'gone', 0, 50)}; sync; rm /mnt/web/gone")
    guest.run("ln /mnt/web/big /mnt/web/deep/again; ln -s /mnt/db /mnt/web/link; truncate -s 1M /mnt/web/hole")
    _, text = guest.run(f"{COMMAND} /mnt/web 2>/tmp/said")
    listed = json.loads(text)
    assert (listed["disk"], listed["container"]) == ("guest-1:root", "web")
    assert len(listed["ranges"]) > 5, "it was not fragmented"
    assert sorted(held(disk, listed["ranges"])) == wanted(("big", 480), ("deep/small", 3))
    # The daemon takes it as it is, and knows as many bytes.
    lists = scratch / "lists"
    lists.write_text(text)
    said = daemon.ctl("set", "--ranges", str(lists))
    assert f"in {len(listed['ranges'])} ranges of disk" in said, said
    # Both containers together have twice that, and nothing in common.
    _, text = guest.run(f"{COMMAND.replace('web', 'db')} /mnt/db")
    others = json.loads(text)["ranges"]
    assert sorted(held(disk, others)) == sorted(chunk("db", "big", n) for n in range(480))

    # It keeps up: a file goes, another one grows, without anybody calling sync.
    guest.run(f"{COMMAND} --watch 200ms /mnt/web > /tmp/lists 2>/tmp/said & echo $! > /tmp/pid")
    guest.run("while [ ! -s /tmp/lists ]; do sleep 0.1; done")
    guest.run(f"rm /mnt/web/deep/small; {write('web', 'late', 0, 700)}")
    end = time.monotonic() + WITHIN_S
    while sum(r["length_bytes"] for r in listed["ranges"]) != (480 + 700) * CHUNK:
        assert time.monotonic() < end, listed
        time.sleep(0.2)
        listed = json.loads(guest.run("tail -n 1 /tmp/lists")[1])
    assert sorted(held(disk, listed["ranges"])) == wanted(("big", 480), ("late", 700))
    _, text = guest.run("kill $(cat /tmp/pid); cat /tmp/lists")
    lines = text.splitlines()
    assert all(a != b for a, b in zip(lines, lines[1:])), "a list was printed twice in a row"

    # What cannot be listed says why, and what to do.
    guest.run("mkdir -p /tmp/tmpfs && mount -t tmpfs tmpfs /tmp/tmpfs")
    for arguments, status, said in (
        ("/tmp/tmpfs", 1, "in memory"),
        ("/mnt/nothing", 1, "that are there"),
        ("--watch 1 /mnt/web", 2, "write it like 10s"),
    ):
        code, text = guest.run(f"{COMMAND} {arguments} 2>&1", check=False)
        assert code == status and said in text, text
    guest.run("umount /mnt")
    guest.power_off()


def test_the_program_is_static_and_says_how_it_is_used(scratch):
    """It needs nothing of the guest, and its help has examples."""
    program = built("undercroft-ranges")
    help_ = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, env={}, timeout=20).stdout
    assert "Examples:" in help_ and "--watch INTERVAL" in help_
    headers = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True, timeout=20).stdout
    assert "INTERP" not in headers
