"""qemu-io against the daemon: patterns of every alignment, zeroes and discards, against a model in memory."""

import random

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import need, run

SIZE = 8 * images.MIB
FORMATS = ["raw", "qcow2"]


def nbd(daemon) -> str:
    """The disk as QEMU names it."""
    return f"nbd:unix:{daemon.nbd_socket}:exportname=a"


def qemu_io(target: str, commands: list[str], image_format: str = "raw") -> str:
    """Runs commands in one qemu-io; every one must succeed."""
    done = run("qemu-io", "-f", image_format, target, stdin="\n".join([*commands, "quit"]) + "\n")
    bad = [line for line in done.stdout.splitlines() if "failed" in line or "error" in line.lower()]
    assert not bad, f"{bad[:5]}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("image_format", FORMATS)
def test_patterns_aligned_and_not(serve, scratch, image_format):
    """What is written is read back: at block, sector and byte alignment, across blocks, and over what was there."""
    need("qemu-io", "qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format)])
    qemu_io(
        nbd(daemon),
        [
            "write -P 1 0 64k",
            "read -P 1 0 64k",
            "write -P 2 512 512",
            "read -P 1 0 512",
            "read -P 2 512 512",
            "read -P 1 1024 63k",
            "write -P 3 5000 3000",
            "read -P 1 4096 904",
            "read -P 3 5000 3000",
            "read -P 1 8000 1000",
            "write -P 4 4095 2",
            "read -P 1 4000 95",
            "read -P 4 4095 2",
            "read -P 1 4097 903",
            "write -z 16k 8k",
            "read -P 0 16k 8k",
            "read -P 1 24k 4k",
            "write -z 30000 100",
            "read -P 1 29999 1",
            "read -P 0 30000 100",
            "read -P 1 30100 100",
            "write -P 5 1M 2M",
            "read -P 5 1M 2M",
            "flush",
            "read -P 0 4M 1M",
        ],
    )


@pytest.mark.parametrize("image_format", FORMATS)
def test_random_commands_against_a_model(serve, scratch, image_format):
    """A few hundred random writes, zeroes and discards; the disk then equals a model, through the daemon and in the
    image."""
    need("qemu-io", "qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    # A cache much smaller than the disk: evictions and fills are part of it.
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    seed = 20260
    dice = random.Random(seed)
    model = bytearray(SIZE)
    commands = []
    for i in range(400):
        unit = dice.choice([1, 512, 4096, 65536])
        length = min(SIZE, unit * dice.randint(1, 32 if unit < 65536 else 8))
        at = dice.randrange(0, SIZE - length + 1) // unit * unit
        pattern = i % 255 + 1
        kind = dice.choice(["write", "write", "write", "zero", "read", "flush"])
        if kind == "write":
            commands.append(f"write -P {pattern} {at} {length}")
            model[at : at + length] = bytes([pattern]) * length
        elif kind == "zero":
            commands.append(f"write -z {at} {length}")
            model[at : at + length] = bytes(length)
        elif kind == "read":
            commands.append(f"read {at} {length}")
        else:
            commands.append("flush")
    qemu_io(nbd(daemon), commands)
    through = scratch / "through.raw"
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", nbd(daemon), through)
    assert through.read_bytes() == model, f"through the daemon (seed {seed})"
    daemon.stop()
    at_rest = images.flattened(image, image_format, scratch / "at-rest.raw")
    assert at_rest.read_bytes() == model, f"in the image (seed {seed})"


@pytest.mark.parametrize("image_format", FORMATS)
def test_discard_leaves_zeroes_or_what_was_there(serve, scratch, image_format):
    """After a discard the range reads the same by every way, and its neighbours are untouched."""
    need("qemu-io", "qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format)])
    qemu_io(
        nbd(daemon),
        [
            "write -P 7 0 4M",
            "read -P 7 0 4M",
            "discard 1M 1M",
            "discard 100k 300",
            "read -P 7 0 100k",
            "read -P 7 2M 2M",
        ],
    )
    through = scratch / "through.raw"
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", nbd(daemon), through)
    got = through.read_bytes()
    assert set(got[images.MIB : 2 * images.MIB]) <= {0, 7}
    assert set(got[100 << 10 : (100 << 10) + 300]) <= {0, 7}
    qemu_io(nbd(daemon), ["write -P 8 1M 64k", "read -P 8 1M 64k", "flush"])
    daemon.stop()
    at_rest = images.flattened(image, image_format, scratch / "at-rest.raw").read_bytes()
    expected = bytearray(got)
    expected[images.MIB : images.MIB + 65536] = bytes([8]) * 65536
    assert at_rest == expected, "cache and image disagree about what was discarded"


def test_read_only_disk_refuses_writes(serve, scratch):
    """A read-only disk is read, and refuses writes, zeroes and discards."""
    need("qemu-io")
    image = images.raw(scratch / "a.raw", SIZE, seed=1)
    before = images.digest(image)
    daemon = serve([Disk("a", image, "raw", {"read_only": "true"})])
    done = run("qemu-io", "-r", "-f", "raw", nbd(daemon), "-c", "read 0 64k")
    assert "65536/65536" in done.stdout
    for command in ("write -P 1 0 4k", "write -z 0 4k", "discard 0 4k"):
        done = run("qemu-io", "-f", "raw", nbd(daemon), "-c", command, check=False)
        assert "4096/4096" not in done.stdout, command
    daemon.stop()
    assert images.digest(image) == before
