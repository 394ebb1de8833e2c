"""undercroft-ranges where it cannot tell: overlays, loop devices, memory. A real guest's disk is in
guest/test_ranges.py."""

import contextlib

import pytest
from harness import images
from harness.programs import built, need, need_root, run


@contextlib.contextmanager
def mounted(*arguments, at):
    """Something mounted; skips the test, and says why, where this machine does not permit it."""
    at.mkdir(parents=True, exist_ok=True)
    done = run("mount", *arguments, at, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        run("umount", at)


def refused(*arguments):
    done = run(built("undercroft-ranges"), "--table", *arguments, check=False)
    assert done.returncode == 1 and done.stdout == "", done.stdout + done.stderr
    return done.stderr


def test_an_overlay_names_the_directories_below_it(scratch):
    """A container's merged directory has no blocks; what it is made of is named."""
    need_root()
    upper, lower, work = (scratch / name for name in ("upper", "lower", "work"))
    for directory in (upper, lower, work):
        directory.mkdir()
    (lower / "file").write_bytes(b"x" * 8192)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    with mounted("-t", "overlay", "overlay", "-o", options, at=scratch / "merged") as merged:
        for path in (merged, merged / "file"):
            said = refused(path)
            assert "overlayfs" in said and f"upper {upper}, lower {lower}" in said, said


def test_a_loop_device_is_no_virtual_disk(scratch):
    """Its file system can tell, but places on a file are none on a disk."""
    need_root()
    need("losetup", "mke2fs")
    image = images.raw(scratch / "loop.img", 8 * images.MIB)
    run("mke2fs", "-q", "-F", "-t", "ext4", image)
    with mounted("-o", "loop", image, at=scratch / "mnt") as path:
        (path / "file").write_bytes(b"x" * 8192)
        said = refused(path)
        assert "loop device" in said and str(image) in said, said


def test_files_in_memory_are_refused(scratch):
    """tmpfs has no disk."""
    need_root()
    with mounted("-t", "tmpfs", "tmpfs", at=scratch / "tmpfs") as path:
        assert "in memory" in refused(path)


def test_files_that_cannot_be_read_are_named_and_the_rest_is_printed(scratch):
    """Exit code 3: the list is there, what is missing in it is said."""
    need_root()
    need("setpriv")
    files = scratch / "files"
    files.mkdir()
    (files / "open").write_bytes(b"x" * 8192)
    (files / "closed").write_bytes(b"x" * 8192)
    (files / "closed").chmod(0)
    scratch.chmod(0o755)
    program = scratch / "undercroft-ranges"
    program.write_bytes(open(built("undercroft-ranges"), "rb").read())
    program.chmod(0o755)
    done = run("setpriv", "--reuid=65534", "--clear-groups", program, "--table", files, check=False)
    if "no block device" in done.stderr or "FIEMAP" in done.stderr or "device-mapper" in done.stderr:
        pytest.skip(f"the tests' directory is on no such disk: {done.stderr.strip()}")
    assert done.returncode == 3 and "closed: Permission denied" in done.stderr, done.stdout + done.stderr
    assert "/open\n" in done.stdout and "1 files" in done.stdout
