"""Disks that are files outlive their daemon: upgrades, restarts and kill -9 under a service manager, with programs that
have the file open all the time, and with a file system on a loop device.

Owns nothing that lasts. Times are printed, and nothing is asserted of them.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Daemon, Disk, until
from harness.file_load import FileLoad
from harness.manager import wrap
from harness.pausing import go_on, pause
from harness.programs import built, need, run
from harness.volumes import Plugin, loops_of, mounts, need_fuse, need_loops, own

ROUNDS = 50 if os.environ.get("UNDERCROFT_LONG") else 12
SIZE = 32 * images.MIB
WORK = 16 * images.MIB


@pytest.fixture(autouse=True)
def _can_mount():
    """All of them mount."""
    need_fuse()


@pytest.fixture
def made(scratch):
    """made(disks, around=wrap): a daemon whose program is a copy, which may be replaced. It is stopped, and no mount of
    its file stays."""
    daemons = []

    def make(disks, **options):
        program = scratch / "undercroft"
        shutil.copy(built("undercroft"), program)
        own_program = lambda words: [str(program), *words[1:]]  # noqa: E731
        around = options.pop("around", list)
        daemon = Daemon(scratch / "d", disks, wrap=lambda words: around(own_program(words)), **options)
        daemon.program = program
        daemons.append(daemon)
        return daemon

    yield make
    for daemon in daemons:
        print(daemon.log())
        if daemon.process:
            daemon.stop()
    for line in mounts(scratch / "a.file"):
        run("umount", "-l", line.split()[4])


def file_of(scratch, **options):
    """A disk of zeroes that is a.file."""
    image = images.raw(scratch / "a.raw", SIZE)
    return Disk("a", image, "raw", {"fuse": f'"{scratch}/a.file"', "nbd": "false"} | options)


def end_clean(daemon, manager, scratch):
    """An orderly end leaves the file to the manager, whose end is the connection's; then nothing stays."""
    daemon.stop()
    assert len(manager.files()) == 1 and len(mounts(scratch / "a.file")) == 1
    for name in manager.files():
        manager.drop(name)
    with pytest.raises(OSError, match="not connected"):
        os.stat(scratch / "a.file")


def test_upgrades_under_load_are_not_noticed(made, scratch):
    """Several upgrades: no error, every byte is there, one mount, one descriptor."""
    daemon = made([file_of(scratch)]).start()
    path = scratch / "a.file"
    os.utime(path, (1, 2))
    with open(path, "rb") as held:
        load = FileLoad(path, WORK)
        (line,) = mounts(path)
        for _ in range(4):
            until(load.goes_on(), "the load goes on")
            daemon.upgrade()
        until(load.goes_on(), "the load goes on")
        assert mounts(path) == [line], "it is the same mount"
        about = os.fstat(held.fileno())
        assert (about.st_atime, about.st_size) == (1, SIZE) and about.st_mtime > 1e9
    load.finish()
    image = (scratch / "a.raw").read_bytes()
    assert image[:WORK] == bytes(load.copy)
    daemon.stop()
    assert mounts(path) == [] and not path.exists(), "it was made for the mount"


def test_an_upgrade_that_fails_is_not_noticed(made, scratch):
    """The next program ends at once, or when nobody serves: the load goes on."""
    other = images.raw(scratch / "b.raw", SIZE)
    daemon = made([file_of(scratch), Disk("b", other, "raw")]).start()
    load = FileLoad(scratch / "a.file", WORK)
    pid = daemon.pid
    good = daemon.program.with_name("good")
    daemon.program.rename(good)
    daemon.program.write_text("#!/bin/sh\nexit 1\n")
    daemon.program.chmod(0o755)
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "everything is served on" in said.stderr, said
    until(load.goes_on(), "the load goes on")
    daemon.program.unlink()
    good.rename(daemon.program)
    # It opens images when nobody serves: that of the other disk is gone from its place.
    aside = other.with_name("aside")
    other.rename(aside)
    threading.Timer(3, lambda: aside.rename(other)).start()
    said = daemon.call("upgrade", check=False)
    assert said.returncode == 1 and "does not serve" in said.stderr, said
    until(other.exists, "it is back")
    assert daemon.status()["pid"] == pid
    until(load.goes_on(), "the load goes on")
    assert len(mounts(scratch / "a.file")) == 1
    load.finish()


def test_an_upgrade_to_a_configuration_that_says_something_else_is_refused(made, scratch):
    """No file any more, another place, or read-only: it says so, and the file stays what it is."""
    disk, path = file_of(scratch, nbd="true"), scratch / "a.file"
    daemon = made([disk]).start()
    load = FileLoad(path, WORK)
    pid = daemon.pid
    for options, needle in [
        ({"fuse": None}, "the configuration says something else"),
        ({"fuse": f'"{scratch}/b.file"'}, "the configuration says something else"),
        ({"read_only": "true"}, "the disk is read-only now, and was writable"),
    ]:
        changed = {k: v for k, v in (disk.options | options).items() if v}
        daemon.write_config([Disk("a", disk.image, "raw", changed)])
        said = daemon.call("upgrade", check=False)
        assert said.returncode == 1 and daemon.status()["pid"] == pid
        assert needle in daemon.log(), daemon.log()
        until(load.goes_on(), "the load goes on")
    assert len(mounts(path)) == 1 and not (scratch / "b.file").exists()
    load.finish()


def test_restarts_under_a_manager_are_not_noticed(made, manager, scratch):
    """Stopped, killed and upgraded in turns, with a load: no error, every byte is there."""
    daemon = made([file_of(scratch)], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    path, dice = scratch / "a.file", random.Random(5)
    (name,) = manager.files()
    assert name.endswith("-a") and len(manager.kept[name]) == 2
    load = FileLoad(path, WORK)
    (line,) = mounts(path)
    for n in range(ROUNDS):
        until(load.goes_on(), "the load goes on", 60)
        time.sleep(dice.random() / 10)
        how = ["kill", "stop", "kill", "upgrade"][n % 4]
        if how == "upgrade":
            daemon.upgrade()
        elif how == "kill":
            daemon.kill()
        else:
            daemon.process.send_signal(signal.SIGTERM)
            assert daemon.process.wait(60) == 0, daemon.log()
        if how != "upgrade":
            manager.start(daemon)
        assert mounts(path) == [line] and manager.files() == [name], how
    until(load.goes_on(), "the load goes on")
    load.finish()
    assert (scratch / "a.raw").read_bytes()[:WORK] == bytes(load.copy)
    end_clean(daemon, manager, scratch)
    # The next start takes the dead mount away.
    manager.start(daemon)
    assert len(mounts(path)) == 1
    with open(path, "rb") as f:
        assert f.read(WORK) == load.copy
    daemon.stop()
    for name in manager.files():
        manager.drop(name)


@pytest.fixture
def upstream(scratch):
    """A server of an image, its process and URI. (nbdkit 1.32 may die with a client that has requests under way.)"""
    need("qemu-nbd")
    image, place = images.raw(scratch / "upstream.raw", SIZE), scratch / "upstream.sock"
    process = subprocess.Popen(["qemu-nbd", "--persistent", "--shared=8", "-f", "raw", "-k", place, image])
    until(place.exists, "the server listens")
    yield process, f"nbd+unix:///?socket={place}"
    process.kill()
    process.wait()


def test_what_was_received_and_not_answered_is_done_after_a_kill(made, manager, scratch, upstream):
    """The image's server answers nothing, and the daemon is killed meanwhile; so again: each request is answered in the
    end."""
    server, uri = upstream
    path = scratch / "a.file"
    daemon = made([Disk("a", uri, "", {"fuse": f'"{path}"', "nbd": "false"})], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    fd = os.open(path, os.O_RDWR)
    for a, b in (b"ab", b"cd"):
        results = {}

        def ask(results, name, call, *words):
            try:
                results[name] = call(fd, *words)
            except OSError as e:
                results[name] = e

        first, second = bytes([a]) * 70_000, bytes([b]) * (1 << 20)
        calls = [("first", os.pwrite, first, 4096), ("second", os.pwrite, second, 8 << 20)]
        calls += [("third", os.pread, 4096, (20 << 20) + a * 65536), ("flush", os.fsync)]
        pause(server.pid)
        threads = [threading.Thread(target=ask, args=(results, *call), daemon=True) for call in calls]
        [t.start() for t in threads]
        time.sleep(0.7)
        daemon.kill()
        assert results == {}, "none was answered"
        go_on(server.pid)
        manager.start(daemon)
        [t.join(20) for t in threads]
        if any(t.is_alive() for t in threads):
            # Who waits for an answer that never comes could not be ended else. It is in use, but its connection ends.
            subprocess.run(["umount", "-f", path], check=False)
        assert results == {"first": 70_000, "second": 1 << 20, "third": bytes(4096), "flush": None}
        assert os.pread(fd, 70_000, 4096) == first and os.pread(fd, 1 << 20, 8 << 20) == second
    os.close(fd)


def test_a_mounted_file_system_carries_on(made, manager, scratch):
    """ext4 on a loop device on a disk that `mount` made a file, of which no configuration says anything: it is written
    through kill -9, restart and upgrade, and is sound in the end."""
    need_loops()
    need("mkfs.ext4", "e2fsck")
    name, where = own("a"), scratch / "where"
    where.mkdir()
    image = images.raw(scratch / f"{name}.raw", 4 * SIZE)
    daemon = made([Disk(name, image, "raw")], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    try:
        daemon.call("mount", name, where, "--mkfs", "ext4")
        load_path = where / "data"
        load_path.write_bytes(bytes(WORK))
        load = FileLoad(load_path, WORK, threads=2)
        for how in ["kill", "upgrade", "stop", "kill", "upgrade"]:
            until(load.goes_on(), "the load goes on", 60)
            os.sync()
            if how == "upgrade":
                daemon.upgrade()
                continue
            if how == "kill":
                daemon.kill()
            else:
                daemon.process.send_signal(signal.SIGTERM)
                assert daemon.process.wait(60) == 0, daemon.log()
            manager.start(daemon)
            assert daemon.disk(name)["file"] == f"{daemon.directory}/mounted/{name}"
        until(load.goes_on(), "the load goes on", 60)
        load.finish()
        # So that it is read from the disk.
        run("umount", where)
        assert loops_of(name) == []
        daemon.call("mount", name, where)
        assert load_path.read_bytes() == bytes(load.copy)
        daemon.call("umount", where)
        until(lambda: loops_of(name) == [], "no loop device stays")
        assert "file" not in daemon.disk(name) and manager.files() == []
        daemon.stop()
        run("e2fsck", "-fn", image)
    finally:
        while mounts(where):
            run("umount", "--lazy", where)


def test_a_file_that_the_configuration_does_not_name_any_more_is_taken_away(made, manager, scratch):
    """It is gone, who had it open is told, and the manager keeps nothing."""
    disk, path = file_of(scratch, nbd="true"), scratch / "a.file"
    daemon = made([disk], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    fd = os.open(path, os.O_RDWR)
    daemon.kill()
    daemon.write_config([Disk("a", disk.image, "raw")])
    manager.start(daemon)
    assert mounts(path) == [] and not path.exists() and manager.files() == []
    with pytest.raises(OSError, match="not connected"):
        os.pread(fd, 1, 0)
    os.close(fd)
    assert "the configuration does not name it any more" in daemon.log()
    # The same of a disk that is gone as a whole.
    daemon.call("set", "a", "--fuse", path)
    assert len(manager.files()) == 1
    daemon.kill()
    other = images.raw(scratch / "b.raw", SIZE)
    daemon.write_config([Disk("b", other, "raw")])
    manager.start(daemon)
    assert mounts(path) == [] and not path.exists() and manager.files() == []


def test_a_disk_that_is_attached_again_goes_on(made, manager, scratch):
    """As the volume plugin does it, a moment after a start: whoever has the file open waits, and notices no more."""
    daemon = made([Disk("b", images.raw(scratch / "b.raw", SIZE), "raw")], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    path, image = scratch / "a.file", images.raw(scratch / "a.raw", SIZE)
    attach = ["attach", "a", image, "--format", "raw", "--no-vhost-user", "--fuse", path, "--keep"]
    daemon.call(*attach)
    load = FileLoad(path, WORK)
    for _ in range(2):
        until(load.goes_on(), "the load goes on")
        daemon.kill()
        manager.start(daemon)
        assert len(mounts(path)) == 1 and "a" not in [d["name"] for d in daemon.status()["disks"]]
        time.sleep(1)
        daemon.call(*attach)
    until(load.goes_on(), "the load goes on")
    load.finish()
    daemon.call("detach", "a")
    until(lambda: manager.files() == [], "it is not kept any more")
    assert mounts(path) == [] and not path.exists()


def test_a_volume_carries_on(made, manager, scratch):
    """The plugin attaches its volumes again after a start: whoever uses one waits, and notices no more."""
    need_loops()
    need("blkid", "mkfs.ext4")
    name = own("db")
    daemon = made([Disk("b", images.raw(scratch / "b.raw", SIZE), "raw")], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    plugin = Plugin(scratch, daemon.control).start()
    try:
        plugin.ask("VolumeDriver.Create", Name=name, Opts={"size": "64MiB"})
        place = Path(plugin.ask("VolumeDriver.Mount", Name=name, ID="one")["Mountpoint"])
        (place / "data").write_bytes(bytes(WORK))
        load = FileLoad(place / "data", WORK, threads=2)
        for _ in range(2):
            until(load.goes_on(), "the load goes on", 60)
            os.sync()
            daemon.kill()
            manager.start(daemon)
        until(load.goes_on(), "the load goes on", 60)
        load.finish()
        plugin.ask("VolumeDriver.Unmount", Name=name, ID="one")
        plugin.ask("VolumeDriver.Remove", Name=name)
        assert loops_of(name) == [] and manager.files() == []
    finally:
        plugin.stop()
        for place in plugin.images.glob("*/fs"):
            while mounts(place):
                run("umount", "--lazy", place)


@pytest.mark.parametrize("what", ["size", "read_only"])
def test_a_disk_that_is_another_one_is_another_file(made, manager, scratch, what):
    """Of another size, or read-only now: who had it open is told, and the file is made anew."""
    disk, path = file_of(scratch), scratch / "a.file"
    daemon = made([disk], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"x" * 4096, 0)
    daemon.kill()
    if what == "size":
        os.truncate(disk.image, 2 * SIZE)
    else:
        disk.options["read_only"] = "true"
        daemon.write_config([disk])
    manager.start(daemon)
    assert len(mounts(path)) == 1 and len(manager.files()) == 1
    with pytest.raises(OSError, match="not connected"):
        os.pread(fd, 1, 0)
    os.close(fd)
    with open(path, "rb") as f:
        assert f.read(4096) == b"x" * 4096
    assert path.stat().st_size == (2 * SIZE if what == "size" else SIZE)
    reason = "the disk has 67108864 bytes now, and had 33554432" if what == "size" else "the disk is read-only now"
    assert reason in daemon.log()


def test_what_is_taken_away_in_order_is_not_kept(made, manager, scratch):
    """Unmounted by hand, taken away by `set`, detached: the manager keeps no descriptor."""
    disk, path = file_of(scratch, nbd="true"), scratch / "a.file"
    daemon = made([disk], around=wrap)
    manager.start(daemon)
    assert len(manager.files()) == 1
    run("umount", path)
    until(lambda: manager.files() == [], "it is not kept any more")
    daemon.call("set", "a", "--fuse", path)
    (second,) = manager.files()
    assert path.stat().st_size == SIZE, "the port of the new one was not taken for that of the old one"
    other = scratch / "b.file"
    daemon.call("set", "a", "--fuse", other)
    until(lambda: len(manager.files()) == 1 and manager.files() != [second], "the new one is kept, and no other")
    daemon.call("set", "a", "--fuse", "none")
    until(lambda: manager.files() == [], "it is not kept any more")
    daemon.call("set", "a", "--fuse", path)
    daemon.call("detach", "a")
    until(lambda: manager.files() == [], "it is not kept any more")
    assert mounts(path) == [] and mounts(other) == []


def test_a_file_that_was_unmounted_while_nobody_served_is_made_anew(made, manager, scratch):
    """Its connection is of no more use."""
    disk, path = file_of(scratch), scratch / "a.file"
    daemon = made([disk], around=wrap)
    manager.start(daemon)
    daemon.expect_death = True
    daemon.kill()
    run("umount", "-l", path)
    manager.start(daemon)
    assert len(mounts(path)) == 1 and len(manager.files()) == 1 and path.stat().st_size == SIZE
    # A thread of its own writes the log.
    until(lambda: "it was unmounted" in daemon.log(), "the log says so")
