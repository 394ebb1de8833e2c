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


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
@pytest.mark.parametrize("unaligned", [False, True])
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


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["--indirect", "--segments", "8"],
        ["--no-event-idx"],
        ["--queues", "4"],
        ["--poll"],
        ["--indirect", "--queues", "2"],
    ],
    ids=["plain", "indirect", "no-event-idx", "queues", "poll", "indirect-queues"],
)
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
