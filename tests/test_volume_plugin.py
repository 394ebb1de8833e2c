"""The volume plugin: its protocol, what outlives it and the daemon, and Podman from Debian on top of it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import images
from harness.daemon import until
from harness.programs import need, need_root, run
from harness.volumes import Plugin, loops_of, mounts, need_loops, own

DB = own("db")


@pytest.fixture(autouse=True)
def _can_mount():
    """All of them mount."""
    need_root()
    need_loops()
    need("blkid", "mkfs.ext4")


@pytest.fixture
def plugin(serve, scratch):
    """A plugin beside a daemon without disks; whatever is mounted in the end goes."""
    daemon = serve([], memory="64MiB")
    made = Plugin(scratch, daemon.control)
    made.daemon = daemon
    yield made.start()
    try:
        made.stop()
    finally:
        for place in made.images.glob("*/fs"):
            while mounts(place):
                run("umount", "--lazy", place)


def create(plugin, name: str = DB, **options: str) -> None:
    plugin.ask("VolumeDriver.Create", Name=name, Opts={"size": "32MiB"} | options)


def attached(plugin) -> list[str]:
    """The daemon's disks."""
    return [d["name"] for d in plugin.daemon.status()["disks"]]


def test_a_volume_from_birth_to_death(plugin):
    """Made, mounted by two users, unmounted with the last one, removed; a node of the tree of shares all the time."""
    assert plugin.ask("Plugin.Activate") == {"Implements": ["VolumeDriver"]}
    assert plugin.ask("VolumeDriver.Capabilities")["Capabilities"] == {"Scope": "local"}
    create(plugin, weight="200", policy="arc")
    node = plugin.daemon.api("GET", "/v1/nodes/" + DB)[1]
    assert '"weight":200' in node and '"policy":"arc"' in node
    shown = plugin.ask("VolumeDriver.Get", Name=DB)["Volume"]
    assert shown["Status"] == {"size": "32MiB", "fs": "ext4", "weight": "200", "policy": "arc", "users": "0"}
    assert shown["Mountpoint"] == "" and shown["CreatedAt"].endswith("Z")
    places = {plugin.ask("VolumeDriver.Mount", Name=DB, ID=who)["Mountpoint"] for who in ("one", "two", "two")}
    (place,) = map(Path, places)
    assert os.listdir(place) == [], "not even lost+found"
    (place / "data").write_text("kept", encoding="utf-8")
    assert plugin.ask("VolumeDriver.Path", Name=DB)["Mountpoint"] == str(place)
    assert "in use by 2" in plugin.refused("VolumeDriver.Remove", Name=DB)
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="one")
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="nobody")
    assert (place / "data").read_text(encoding="utf-8") == "kept"
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="two")
    assert not place.exists() and loops_of(DB) == []
    assert plugin.ask("VolumeDriver.List")["Volumes"] == [{"Name": DB, "Mountpoint": ""}]
    plugin.ask("VolumeDriver.Mount", Name=DB, ID="three")
    assert (place / "data").read_text(encoding="utf-8") == "kept"
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="three")
    plugin.ask("VolumeDriver.Remove", Name=DB)
    assert attached(plugin) == [] and os.listdir(plugin.images) == [".lock"]


def test_bad_requests_are_answered_with_words_and_nothing_is_lost(plugin):
    """Names, options, bodies, methods, paths; what there is stays as it is."""
    create(plugin)
    before = sorted(p.name for p in plugin.images.rglob("*"))
    for name in ("no", "a" * 65, "a/b", "../db", "", ".db", "d\0b"):
        for what in ("Get", "Path", "Remove", "Mount", "Unmount"):
            error = plugin.refused(f"VolumeDriver.{what}", Name=name, ID="x")
            assert "there is no volume" in error or "cannot be the name" in error
    for options, needle in [
        ({}, "-o size=8GiB"),
        ({"size": "1kB"}, "too small"),
        ({"size": "much"}, "size"),
        ({"size": "64MiB", "wight": "1"}, 'did you mean "weight"?'),
        ({"size": "64MiB", "weight": "0"}, "weight"),
        ({"size": "64MiB", "policy": "none"}, "policy"),
        ({"size": "64MiB", "floor": "1TiB"}, "floor"),
        ({"size": "64MiB", "fs": "vfat"}, "ext4 or xfs"),
    ]:
        error = plugin.refused("VolumeDriver.Create", Name="new", Opts=options)
        assert needle in error, (options, error)
    assert "other options" in plugin.refused("VolumeDriver.Create", Name=DB, Opts={"size": "64MiB"})
    create(plugin)
    for body in (b"", b"[]", b"{", b'{"Name": 7}', b'{"Name": "db"' + b" " * 70_000 + b"}", b"\xff" * 10):
        status, answer = plugin.raw("POST", "/VolumeDriver.Remove", body)
        assert status == 400 and answer["Err"], answer
    assert plugin.raw("GET", "/VolumeDriver.List", b"")[0] == 405
    assert plugin.raw("POST", "/VolumeDriver.Format", b"{}")[0] == 404
    assert attached(plugin) == [DB] and sorted(p.name for p in plugin.images.rglob("*")) == before
    # A disk of the daemon that is no volume, and a folder that is somebody else's.
    plugin.daemon.call("attach", "mine", images.raw(plugin.images.parent / "mine.raw", 32 << 20), "--format", "raw")
    assert "that is no volume" in plugin.refused("VolumeDriver.Create", Name="mine", Opts={"size": "32MiB"})
    (plugin.images / "theirs").mkdir()
    assert "no volume of this plugin" in plugin.refused("VolumeDriver.Create", Name="theirs", Opts={"size": "32MiB"})
    assert attached(plugin) == [DB, "mine"]


def test_two_plugins_do_not_share_a_socket_or_a_folder(plugin, scratch):
    """The second one says so and ends; the first goes on."""
    for options, needle in [({"images": scratch / "other"}, "in use"), ({"socket": scratch / "b.sock"}, "another")]:
        said = run(*plugin.command(**options), check=False)
        assert said.returncode == 1 and needle in said.stderr, said.stderr
    create(plugin)


def test_volumes_outlive_the_plugin_and_the_daemon(plugin, scratch):
    """Both killed while a volume is mounted, in either order; data that was synced, users and attachments are there."""
    daemon = plugin.daemon
    create(plugin)
    place = Path(plugin.ask("VolumeDriver.Mount", Name=DB, ID="one")["Mountpoint"])
    (place / "data").write_text("kept", encoding="utf-8")
    plugin.kill()
    plugin.start()
    assert plugin.ask("VolumeDriver.Get", Name=DB)["Volume"]["Status"]["users"] == "1"
    plugin.ask("VolumeDriver.Mount", Name=DB, ID="two")
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="one")
    assert (place / "data").read_text(encoding="utf-8") == "kept"
    run("sync", "-f", place)
    daemon.kill()
    assert "no daemon answers" in plugin.refused("VolumeDriver.Remove", Name=DB)
    assert "no daemon answers" in plugin.refused("VolumeDriver.Create", Name="new", Opts={"size": "32MiB"})
    assert plugin.ask("VolumeDriver.List")["Volumes"][0]["Name"] == DB
    daemon.start()
    until(lambda: attached(plugin) == [DB], "the new daemon is given the volume")
    # What was mounted answers no more: the next user has it anew, and so have those that come back.
    assert Path(plugin.ask("VolumeDriver.Mount", Name=DB, ID="three")["Mountpoint"]) == place
    assert (place / "data").read_text(encoding="utf-8") == "kept"
    for who in ("two", "three"):
        plugin.ask("VolumeDriver.Unmount", Name=DB, ID=who)
    assert mounts(place.parent) == []
    # The same without anybody who mounts it again.
    plugin.ask("VolumeDriver.Mount", Name=DB, ID="four")
    daemon.kill()
    plugin.ask("VolumeDriver.Unmount", Name=DB, ID="four")
    assert mounts(place.parent) == []
    until(lambda: loops_of(DB) == [], "the loop device is gone")
    daemon.start()
    until(lambda: attached(plugin) == [DB], "the new daemon is given the volume")
    daemon.call("reload")
    assert attached(plugin) == [DB], "a reload keeps it"
    plugin.ask("VolumeDriver.Remove", Name=DB)


def test_a_plugin_that_is_killed_half_way_leaves_a_volume_or_none(plugin):
    """At another moment each time: what engines were told of is there, and the rest can be asked for again."""
    for n in range(10):
        request = subprocess.Popen(
            ["curl", "-s", "--unix-socket", plugin.socket, "-d", f'{{"Name": "{DB}", "Opts": {{"size": "32MiB"}}}}']
            + ["http://plugin/VolumeDriver.Create"],
            stdout=subprocess.PIPE,
        )
        try:
            answer = request.communicate(timeout=0.01 * n + 0.001)[0]
        except subprocess.TimeoutExpired:
            answer = b""
        plugin.kill()
        request.kill()
        request.wait()
        plugin.start()
        left = [v["Name"] for v in plugin.ask("VolumeDriver.List")["Volumes"]]
        assert left == [DB] or b'"Err":""' not in answer
        assert {p.name for p in plugin.images.iterdir()} <= {".lock", DB}
        create(plugin)
        plugin.ask("VolumeDriver.Mount", Name=DB, ID="one")
        plugin.ask("VolumeDriver.Unmount", Name=DB, ID="one")
        plugin.ask("VolumeDriver.Remove", Name=DB)


@pytest.fixture
def podman(plugin, scratch):
    """Podman with storage of its own, the plugin, and an image with busybox: calls it."""
    need("podman", "runc", "busybox")
    config = scratch / "containers.conf"
    config.write_text(
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        f'[engine.volume_plugins]\nundercroft = "{plugin.socket}"\n[containers]\n'
        'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n',
        encoding="utf-8",
    )
    # crun, which Podman prefers, does not start where control groups are of both versions.
    storage = ["--root", scratch / "storage", "--runroot", scratch / "run", "--storage-driver", "vfs"]
    storage += ["--runtime", shutil.which("runc")]
    environment = {**os.environ, "CONTAINERS_CONF": str(config)}

    def call(*words: object, check: bool = True) -> subprocess.CompletedProcess:
        command = ["podman", *map(str, storage), *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done

    yield call
    call("rm", "--all", "--force", "--time", "0", check=False)
    call("volume", "rm", "--all", "--force", check=False)


def test_podman_makes_shows_and_removes_volumes(podman, plugin):
    """`podman volume`: options, errors, lists."""
    podman("volume", "create", "--driver", "undercroft", "-o", "size=32MiB", "-o", "weight=200", DB)
    assert "undercroft" in podman("volume", "ls").stdout
    said = podman("volume", "inspect", DB).stdout
    assert '"Driver": "undercroft"' in said
    assert '"weight":200' in plugin.daemon.api("GET", "/v1/nodes/" + DB)[1]
    bad = podman("volume", "create", "--driver", "undercroft", "-o", "wieght=1", "-o", "size=32MiB", "x", check=False)
    assert bad.returncode != 0 and "did you mean" in bad.stderr
    bad = podman("volume", "create", "--driver", "undercroft", "y", check=False)
    assert bad.returncode != 0 and "size" in bad.stderr
    podman("volume", "rm", DB)
    assert attached(plugin) == []


def test_a_container_keeps_its_data_over_restarts_of_the_daemon(podman, plugin, scratch):
    """Written in a container, the daemon stopped and started, read in another one; two at once share it."""
    root = scratch / "root"
    (root / "bin").mkdir(parents=True)
    for name in ("sh", "cat", "sleep", "sync", "df", "busybox"):
        run("cp", "/bin/busybox", root / "bin" / name)
    archive = scratch / "root.tar"
    run("tar", "-C", root, "-cf", archive, ".")
    podman("import", archive, "busybox")
    flags = ["--rm", "--network", "none", "--security-opt", "seccomp=unconfined"]
    ran = podman("run", *flags, "busybox", "/bin/sh", "-c", "echo works", check=False)
    if ran.returncode != 0:
        pytest.skip(f"podman runs no containers here: {ran.stderr.strip().splitlines()[-1]}")
    podman("volume", "create", "--driver", "undercroft", "-o", "size=64MiB", "-o", "weight=200", DB)

    def inside(command: str) -> str:
        return podman("run", *flags, "-v", f"{DB}:/data", "busybox", "/bin/sh", "-c", command).stdout

    inside("echo kept > /data/file")
    assert "/dev/loop" in inside("df /data")
    assert loops_of(DB) == []
    plugin.daemon.stop()
    plugin.daemon.start()
    until(lambda: attached(plugin) == [DB], "the new daemon is given the volume")
    assert inside("cat /data/file") == "kept\n"
    podman("run", "-d", "--name", "long", *flags[1:], "-v", f"{DB}:/data", "busybox", "/bin/sleep", "600")
    assert inside("cat /data/file") == "kept\n"
    assert len(loops_of(DB)) == 1, "who runs has it still"
    assert podman("volume", "rm", DB, check=False).returncode != 0
    # The daemon is killed under it: the next container has it anew.
    podman("exec", "long", "/bin/sh", "-c", "echo more >> /data/file; sync")
    plugin.daemon.process.send_signal(signal.SIGKILL)
    plugin.daemon.expect_death = True
    plugin.daemon.process.wait()
    plugin.daemon.start()
    until(lambda: attached(plugin) == [DB], "the new daemon is given the volume")
    podman("rm", "--force", "--time", "0", "long")
    assert inside("cat /data/file") == "kept\nmore\n"
    podman("volume", "rm", DB)
    assert attached(plugin) == [] and loops_of(DB) == []
