"""fio writes random lengths at random places and verifies checksums, over NBD; the driver does the same over
vhost-user."""

import json

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, need, run

SIZE = 64 * images.MIB


def has_engine(name: str) -> bool:
    """Whether this fio has an engine."""
    return name in run("fio", "--enghelp").stdout.split()


# Each format, and each kind of size; at length each format with each kind.
@pytest.mark.parametrize(
    ("image_format", "unaligned"),
    [
        ("raw", False),
        ("qcow2", True),
        pytest.param("raw", True, marks=pytest.mark.long),
        pytest.param("qcow2", False, marks=pytest.mark.long),
    ],
)
def test_fio_verify_over_nbd(serve, scratch, image_format, unaligned):
    """crc32c over random block sizes, aligned to sectors and not at all."""
    need("fio", "qemu-img")
    if not has_engine("nbd"):
        pytest.skip("this fio has no nbd engine")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    sizes = ["--bsrange=512-64k", "--bs_unaligned"] if unaligned else ["--bsrange=4k-128k"]
    done = run(
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        f"--uri={daemon.nbd('a')}",
        "--rw=randwrite",
        *sizes,
        f"--size={SIZE}",
        "--io_size=96m",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_backlog=256",
        "--serialize_overlap=1",
        "--verify_state_save=0",
        "--randseed=7",
        "--output-format=json",
    )
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    assert job["error"] == 0
    assert job["write"]["total_ios"] > 500 and job["read"]["total_ios"] > 500, "nothing was verified"


# What of virtio the driver uses.
VIRTIO = {
    "plain": [],
    "indirect": ["--indirect", "--segments", "8"],
    "no-event-idx": ["--no-event-idx"],
    "queues": ["--queues", "4"],
    "poll": ["--poll"],
    "indirect-queues": ["--indirect", "--queues", "2"],
}
# The format makes no difference to a front end: with the other one, the least and the most; at length all.
OF_QCOW2 = ("plain", "indirect-queues")
CASES = [
    pytest.param(image_format, extra, id=f"{name}-{image_format}", marks=marks)
    for image_format in ("raw", "qcow2")
    for name, extra in VIRTIO.items()
    for marks in [() if image_format == "raw" or name in OF_QCOW2 else pytest.mark.long]
]


@pytest.mark.parametrize(("image_format", "extra"), CASES)
def test_driver_verifies_over_vhost_user(serve, scratch, image_format, extra):
    """Debian's fio has no vhost-user engine: the driver stamps every sector, and checks each answer and the image."""
    need("qemu-img")
    image = images.make(scratch, "a", image_format, SIZE)
    daemon = serve([Disk("a", image, image_format, {"size": '"16MiB"'})], memory="32MiB")
    journal = scratch / "journal"
    load = ["--journal", journal, "--block", "512", "--block-max", "64KiB", "--depth", "16", "--ops", "5000"]
    mix = ["--write-percent", "40", "--zero-percent", "5", "--discard-percent", "5", "--flush-every", "40"]
    driver("run", daemon.vhost("a"), *load, *mix, *extra)
    daemon.stop()
    at_rest = images.flattened(image, image_format, scratch / "at-rest.raw")
    findings = driver("audit", "--journal", journal, "--image", at_rest, "--strict")
    assert findings["ok"] and findings["totals"]["durable"] > 500
