"""Pinned and locked blocks, against the daemon: what is pinned is never missed again, whatever else is read."""

import json
import signal
import subprocess

import pytest
from harness import images
from harness.daemon import until
from harness.nbdwire import READ, Wire
from harness.programs import built, run

MIB = images.MIB
BLOCK = 4096
SIZE = 96 * MIB
# What is pinned: less than a quarter of what the disk may keep.
PINNED = 2 * MIB
# More than the disk may keep, from here on.
FLOOD_FROM, FLOOD = 32 * MIB, 48 * MIB
# LRU forgets what was not read lately, and without read-ahead every block is counted as it is asked for.
KEYS = {"policy": '"lru"', "readahead": '"0"', "vhost_user": "false"}


def disk(image, **keys):
    """The disk of a test; keys beside `KEYS` as TOML values."""
    options = KEYS | keys
    lines = "".join(f"{key} = {value}\n" for key, value in options.items())
    return f'[[disk]]\nname = "d"\nimage = "{image}"\nformat = "raw"\nnbd = true\n{lines}'


@pytest.fixture
def image(scratch):
    """An image with contents."""
    return images.raw(scratch / "d.raw", SIZE, seed=1)


@pytest.fixture
def daemon(serve, image):
    """A daemon whose only disk may keep some 14 MiB."""
    return serve([], memory="16MiB", workers=1, extra=disk(image))


def read(daemon, *spans, name="d", piece=64 * 1024):
    """Reads bytes (where they begin, and how many) in pieces; returns the blocks that hit and those that missed."""
    before = daemon.disk(name)["counters"]
    with Wire(daemon.nbd_socket, limit=60) as wire:
        wire.handshake(name)
        for start, length in spans:
            for offset in range(start, start + length, piece):
                count = min(piece, start + length - offset)
                wire.request(READ, offset, count)
                assert wire.reply()[0] == 0
                assert len(wire.receive(count)) == count
    after = daemon.disk(name)["counters"]
    assert after["readahead_hit_blocks"] == 0
    return tuple(after[key] - before[key] for key in ("hit_blocks", "miss_blocks"))


def flood(daemon, name="d"):
    """Reads more than fits, so that nothing is left but what is locked."""
    read(daemon, (FLOOD_FROM, FLOOD), name=name)


def pins(daemon, name="d"):
    """What is pinned."""
    return json.loads(daemon.call("pin", name, "--json").stdout)


def locks_come_to(daemon, holds, what):
    """Waits until `holds` of what is locked; locks are given up step by step, while something is done."""

    def there():
        read(daemon, (90 * MIB, BLOCK))
        locks = daemon.disk("d")["locks"]
        return not locks["settling"] and holds(locks)

    until(there, what)


def test_what_is_pinned_is_never_missed_again(daemon):
    blocks = PINNED // BLOCK
    assert read(daemon, (0, PINNED)) == (0, blocks)
    flood(daemon)
    assert read(daemon, (0, PINNED)) == (0, blocks), "without a pin it is gone"
    said = daemon.call("pin", "d", "0..2MiB").stdout
    assert 'disk "d": 2MiB in 1 range pinned by hand' in said, said
    # It was cached, and is locked when it is read next.
    assert read(daemon, (0, PINNED)) == (blocks, 0)
    for _ in range(3):
        flood(daemon)
        assert read(daemon, (0, PINNED)) == (blocks, 0)
    locks = daemon.disk("d")["locks"]
    assert (locks["locked_bytes"], locks["pinned_bytes"]) == (PINNED, PINNED), locks
    assert PINNED < locks["budget_bytes"] < 4 * MIB and locks["mode"] == "off", locks
    cache = daemon.disk("d")["cache"]
    assert cache["cached_bytes"] <= cache["capacity_bytes"] < 16 * MIB, cache
    metrics = daemon.api("GET", "/metrics")[1]
    assert f'undercroft_locked_bytes{{disk="d",vm=""}} {PINNED}\n' in metrics
    assert "nothing is pinned" in daemon.call("pin", "d", "--clear").stdout
    flood(daemon)
    assert read(daemon, (0, PINNED)) == (0, blocks), "what was unpinned goes like any other"
    assert daemon.disk("d")["locks"]["locked_bytes"] == 0


def test_ranges_are_added_replaced_shown_and_written(daemon, scratch):
    daemon.call("pin", "d", "0..64KiB", "1MiB+4KiB")
    assert pins(daemon)["ranges"] == [[0, 16], [256, 1]]
    # Beside what there is, rounded to whole blocks, joined where it touches.
    daemon.call("pin", "d", "65536+1")
    assert pins(daemon)["ranges"] == [[0, 17], [256, 1]]
    shown = daemon.call("pin", "d").stdout.splitlines()
    assert shown[0].split() == ["FROM", "TO", "SIZE"] and shown[1].split() == ["0B", "68KiB", "68KiB"], shown
    dry = daemon.call("pin", "d", "2MiB+4KiB", "--replace", "--dry-run", "--write", scratch / "no").stdout
    assert "4KiB in 1 range would be pinned" in dry and not (scratch / "no").exists(), dry
    assert pins(daemon)["ranges"] == [[0, 17], [256, 1]]
    kept = scratch / "kept"
    said = daemon.call("pin", "d", "2MiB+4KiB", "--replace", "--write", kept).stdout
    assert f'pins = "{kept}"' in said and "before: 72KiB in 2 ranges" in said, said
    assert json.loads(kept.read_text()) == {"size_bytes": SIZE, "ranges": [[512, 1]]}
    daemon.call("pin", "d", "--clear")
    assert pins(daemon)["ranges"] == [] and pins(daemon)["origin"] is None
    daemon.call("pin", "d", "--blocks", "-", stdin=kept.read_text())
    assert pins(daemon)["ranges"] == [[512, 1]]
    ranges = {"disk": "d", "container": "c", "ranges": [{"offset_bytes": 4095, "length_bytes": 2}]}
    daemon.call("pin", "d", "--replace", "--ranges", "-", stdin=json.dumps(ranges))
    assert pins(daemon)["ranges"] == [[0, 2]]


def test_what_cannot_be_pinned_is_refused_with_what_to_do(daemon, scratch):
    budget = pins(daemon)["budget_bytes"]
    assert 3 * MIB < budget < 4 * MIB, "it is told before anything is pinned"
    (scratch / "other").write_text(json.dumps({"size_bytes": SIZE + BLOCK, "ranges": [[0, 1]]}))
    (scratch / "text").write_text("hello")
    daemon.call("pin", "d", "0..4KiB")
    for words, code, says in (
        (("d", "0..8MiB"), 1, ("may be locked now", "--lock-budget", "--fit")),
        (("d", "95MiB..97MiB"), 1, ("95MiB..97MiB is not all on the disk", "96MiB")),
        (("d", "--blocks", scratch / "other"), 1, ("is of a disk of", "take the list of the same disk")),
        (("d", "--blocks", scratch / "text"), 1, ("hot-set", "no object")),
        (("d", "--ranges", scratch / "text"), 1, ("holds no list of ranges",)),
        (("d", "--recording", scratch / "text"), 1, ("undercroft record",)),
        (("e", "0..4KiB"), 1, ('there is no disk "e"',)),
        (("d", "5MiB"), 2, ("START..END",)),
        (("d", "0..64M"), 2, ("ambiguous; write 64MiB",)),
        (("d", "--replace"), 2, ("required",)),
        (("d", "0..4KiB", "--clear"), 2, ("cannot be used with",)),
    ):
        done = daemon.call("pin", *words, check=False)
        assert done.returncode == code, (words, done.stderr)
        assert all(text in done.stderr for text in says), (words, done.stderr)
    assert pins(daemon)["ranges"] == [[0, 1]], "nothing of all that has changed what is pinned"
    # The first ones that were named fit.
    done = daemon.call("pin", "d", "64MiB..65MiB", "0..8MiB", "--replace", "--fit")
    assert "are left out: they are past the budget" in done.stderr, done.stderr
    fit = pins(daemon)
    # All that may be, to the block; that is less by what the list itself takes of the share.
    assert fit["pinned_bytes"] == fit["budget_bytes"] // BLOCK * BLOCK and budget - fit["budget_bytes"] <= BLOCK
    assert fit["ranges"] == [[0, (fit["budget_bytes"] - MIB) // BLOCK], [64 * 256, 256]], fit
    # And with a larger budget all of it does.
    assert "lock_budget is 90% (before: 25%)" in daemon.call("set", "d", "--lock-budget", "90%").stdout
    daemon.call("pin", "d", "0..8MiB", "--replace")
    read(daemon, (0, 8 * MIB))
    flood(daemon)
    assert read(daemon, (0, 8 * MIB)) == (2048, 0)
    # A budget that shrinks beneath what is pinned takes the locks away that are too much, and no pin.
    daemon.call("set", "d", "--lock-budget", "10%")
    locks_come_to(daemon, lambda locks: locks["locked_bytes"] <= 2 * MIB, "locks are given up")
    assert pins(daemon)["pinned_bytes"] == 8 * MIB


def test_why_says_where_a_block_is_and_why(daemon):
    why = lambda at: daemon.call("why", "d", "--block", at).stdout  # noqa: E731
    assert "not in RAM: a read of it goes to the image" in why("0")
    daemon.call("pin", "d", "0..2MiB")
    said = why("1MiB")
    assert "pinned by hand, as a part of 0B..2MiB" in said and "locked when it is read next" in said, said
    read(daemon, (0, PINNED), (8 * MIB, 64 * 1024))
    said = why("1048577")
    assert "the block at 1MiB of disk" in said and "in RAM, and locked" in said, said
    said = why("8MiB")
    assert "lru decides when it goes" in said and "It was missed" in said and "pinned" not in said, said
    told = json.loads(daemon.call("why", "d", "--block", "1MiB", "--json").stdout)
    assert told["locked"] and told["pinned_by"] == {"offset_bytes": 0, "length_bytes": PINNED}, told
    # The budget is full: what is touched next stays an ordinary block.
    daemon.call("set", "d", "--lock-budget", "0.1%")
    locks_come_to(daemon, lambda locks: locks["locked_bytes"] <= locks["budget_bytes"], "locks are given up")
    read(daemon, (0, PINNED))
    block = lambda n: json.loads(daemon.api("GET", f"/v1/disks/d/blocks/{n * BLOCK}")[1])  # noqa: E731
    unlocked = [n for n in range(512) if not block(n)["locked"]]
    assert 500 < len(unlocked) < 512, len(unlocked)
    assert "the budget is full" in why(str(unlocked[0] * BLOCK))
    done = daemon.call("why", "d", "--block", SIZE, check=False)
    assert done.returncode == 1 and "it ends after" in done.stderr, done.stderr


def test_the_blocks_that_miss_most_are_known_of_disks_and_vms(serve, scratch):
    files = [images.raw(scratch / f"{n}.raw", SIZE, seed=n) for n in range(2)]
    keys = "".join(f"{key} = {value}\n" for key, value in KEYS.items() if key != "policy")
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{file}"\nformat = "raw"\nnbd = true\n{keys}'
        for n, file in enumerate(files)
    )
    daemon = serve([], memory="24MiB", workers=1, extra=f'[[vm]]\nname = "web"\npolicy = "lru"\n{disks}')
    assert daemon.disk("web:d0")["cache"]["pool"] == ["web:d0", "web:d1"]
    for n in range(6):
        read(daemon, (7 * BLOCK, BLOCK), name="web:d0")
        if n % 2:
            read(daemon, (9 * BLOCK, BLOCK), name="web:d1")
        # Both disks have one cache.
        flood(daemon, name="web:d1")

    def top(node):
        blocks = json.loads(daemon.call("misses", node, "--json").stdout)["blocks"]
        return [(b["disk"], b["offset_bytes"], b["misses"] - b["error"]) for b in blocks]

    assert top("web:d0")[0] == ("web:d0", 7 * BLOCK, 6)
    assert len(top("web:d0")) == 1, "no other block of this disk was read"
    both = top("web")
    assert len(both) == 20 and both == top("host") and ("web:d0", 7 * BLOCK, 6) in both, both
    shown = daemon.call("misses", "web:d0").stdout.splitlines()
    assert shown[1].split() == ["web:d0", "28KiB", "6", "6"], shown
    # As a list they are what `pin` and a profile take.
    listed = daemon.call("misses", "web:d0", "--list").stdout
    assert json.loads(listed) == {"size_bytes": SIZE, "ranges": [[7, 1]]}
    daemon.call("pin", "web:d0", "--blocks", "-", stdin=listed)
    assert pins(daemon, "web:d0")["ranges"] == [[7, 1]]
    done = daemon.call("misses", "web", "--list", check=False)
    assert done.returncode == 1 and "name one of them" in done.stderr, done.stderr
    daemon.call("set", "web:d0", "--miss-table", "0")
    assert "no table of misses" in daemon.call("misses", "web:d0").stdout
    assert daemon.call("misses", "nobody", check=False).returncode == 1


def test_pins_of_the_configuration_are_read_at_the_start_and_by_a_reload(serve, image, scratch):
    file = scratch / "hot"
    first = serve([], memory="16MiB", workers=1, extra=disk(image))
    first.call("pin", "d", "0..1MiB", "--write", file)
    first.stop()
    daemon = serve([], memory="16MiB", workers=1, extra=disk(image, pins=f'"{file}"'))
    now = pins(daemon)
    assert (now["ranges"], now["origin"], now["file"]) == ([[0, 256]], "file", str(file)), now
    read(daemon, (0, MIB))
    flood(daemon)
    assert read(daemon, (0, MIB)) == (256, 0)
    # By hand, in place of the file's, until the file is read again.
    daemon.call("pin", "d", "4MiB..5MiB", "--replace")
    assert pins(daemon)["origin"] == "hand"
    assert "pins read again" in daemon.call("reload").stdout
    assert pins(daemon)["ranges"] == [[0, 256]]
    assert "nothing has changed" in daemon.call("reload").stdout
    file.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[512, 256]]}))
    assert "pins read again" in daemon.call("reload").stdout
    assert pins(daemon)["ranges"] == [[512, 256]]
    # One that cannot be used is told, and changes nothing.
    for text, says in (
        (json.dumps({"size_bytes": SIZE + BLOCK, "ranges": [[0, 1]]}), "is of a disk of"),
        (json.dumps({"size_bytes": SIZE, "ranges": [[0, 8192]]}), "may be locked now"),
        ("hello", "holds no list of blocks"),
    ):
        file.write_text(text)
        done = daemon.call("reload", check=False)
        assert done.returncode == 1, done.stdout
        assert says in done.stdout and "the pins stay as they are" in done.stdout, done.stdout
        assert pins(daemon)["ranges"] == [[512, 256]] and says in pins(daemon)["problem"]
    file.unlink()
    checked = run(built("undercroft"), "check", daemon.config, check=False)
    said = checked.stdout
    assert checked.returncode == 1 and str(file) in said and "undercroft pin" in said, said


def test_a_list_that_cannot_be_used_keeps_no_disk_from_being_served(serve, image, scratch):
    """Neither one that is not there nor one past the budget; a larger budget has the latter pinned after all."""
    file = scratch / "hot"
    daemon = serve([], memory="16MiB", workers=1, extra=disk(image, pins=f'"{file}"'))
    assert read(daemon, (0, MIB)) == (0, 256)
    assert "cannot be read" in daemon.disk("d")["locks"]["problem"] and "served without" in daemon.log()
    daemon.stop()
    file.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[0, 2048]]}))
    again = serve([], memory="16MiB", workers=1, extra=disk(image, pins=f'"{file}"'))
    problem = again.disk("d")["locks"]["problem"]
    assert all(text in problem for text in (str(file), "8MiB", "may be locked now")), problem
    assert "served without" in again.log()
    assert "not pinned" in again.call("status", "d").stdout
    assert pins(again)["ranges"] == []
    again.call("set", "d", "--lock-budget", "90%")
    assert pins(again)["ranges"] == [[0, 2048]] and again.disk("d")["locks"]["problem"] is None


def test_a_disk_with_a_list_of_another_one_is_not_attached(daemon, scratch):
    other = images.raw(scratch / "e.raw", 8 * MIB, seed=2)
    hot = scratch / "hot"
    hot.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[0, 1]]}))
    body = {"name": "e", "image": str(other), "format": "raw", "nbd": True, "vhost_user": False, "pins": str(hot)}
    code, text = daemon.api("POST", "/v1/disks", body)
    assert code == 400 and str(hot) in text and "undercroft pin e --write" in text, text
    assert len(daemon.status()["disks"]) == 1
    code, text = daemon.api("POST", "/v1/disks", body | {"pins": None, "lock_profile": str(hot)})
    assert code == 400 and "lock = " in text, text


def test_files_and_modes_change_live(daemon, scratch):
    hot = scratch / "hot"
    hot.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[0, 256]]}))
    bad = scratch / "bad"
    bad.write_text(json.dumps({"size_bytes": BLOCK, "ranges": [[0, 1]]}))
    locked = lambda: daemon.disk("d")["locks"]["locked_bytes"]  # noqa: E731
    daemon.call("set", "d", "--pins", hot)
    read(daemon, (0, MIB))
    assert locked() == MIB
    done = daemon.call("set", "d", "--pins", bad, check=False)
    assert done.returncode == 1 and "is of a disk of 4096 bytes" in done.stderr, done.stderr
    assert pins(daemon)["file"] == str(hot) and pins(daemon)["problem"] is None, "all is as it was"
    daemon.call("set", "d", "--pins", "none")
    locks_come_to(daemon, lambda locks: locks["locked_bytes"] == 0, "nothing is locked any more")
    assert pins(daemon)["ranges"] == []
    # A profile is for one mode.
    done = daemon.call("set", "d", "--lock-profile", hot, check=False)
    assert done.returncode == 1 and "lock = " in done.stderr, done.stderr
    done = daemon.api("PUT", "/v1/disks/d/lock-profile", {"size_bytes": SIZE, "ranges": [[0, 1]]})
    assert done[0] == 409 and "--lock static" in done[1], done
    daemon.call("set", "d", "--lock", "static", "--lock-profile", hot)
    read(daemon, (0, MIB))
    flood(daemon)
    assert read(daemon, (0, MIB)) == (256, 0) and locked() == MIB
    assert "The profile of the disk names it" in daemon.call("why", "d", "--block", "0").stdout
    # What is past the budget is not locked, and no reason to refuse it.
    code, text = daemon.api("PUT", "/v1/disks/d/lock-profile", {"size_bytes": SIZE, "ranges": [[0, 4096]]})
    assert code == 200 and json.loads(text)["named_bytes"] == 16 * MIB > json.loads(text)["budget_bytes"], text
    daemon.call("set", "d", "--lock", "online", "--lock-profile", "none")
    locks_come_to(daemon, lambda locks: locks["locked_bytes"] == 0, "the profile is of no use any more")
    assert daemon.disk("d")["locks"]["online"]["rests"] == 0
    daemon.call("set", "d", "--lock", "off")
    assert daemon.disk("d")["locks"]["online"] is None


def test_a_disk_that_is_detached_takes_its_pins_with_it(daemon, image):
    daemon.call("pin", "d", "0..1MiB")
    daemon.call("detach", "d")
    daemon.call("attach", "d", image, "--format", "raw", "--nbd", "--no-vhost-user", "--policy", "lru")
    assert pins(daemon)["ranges"] == []
    read(daemon, (0, MIB), piece=MIB)
    assert daemon.disk("d")["locks"]["locked_bytes"] == 0


def test_pins_by_hand_stay_over_an_upgrade(serve, image, scratch):
    hot = scratch / "hot"
    hot.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[8192, 16]]}))
    extra = disk(image, pins=f'"{hot}"')
    daemon = serve([], memory="16MiB", workers=1, store="keep = true", extra=extra)
    daemon.call("pin", "d", "0..1MiB", "--replace")
    read(daemon, (0, MIB))
    daemon.upgrade()
    now = pins(daemon)
    assert (now["ranges"], now["origin"]) == ([[0, 256]], "hand"), now
    assert read(daemon, (0, MIB)) == (256, 0), "what was cached is"
    flood(daemon)
    assert read(daemon, (0, MIB)) == (256, 0)
    # So they do under a budget that only the process before knew: what comes first of them is locked.
    daemon.call("set", "d", "--lock-budget", "90%")
    daemon.call("pin", "d", "0..7MiB", "--replace")
    daemon.upgrade()
    now = pins(daemon)
    assert (now["ranges"], now["origin"]) == ([[0, 1792]], "hand"), now
    assert now["budget_bytes"] < 4 * MIB and "7MiB of it are pinned by hand" in daemon.log(), now
    read(daemon, (0, 7 * MIB))
    flood(daemon)
    # Those locked first go first when the budget becomes less, which is a part of what the disk's own memory leaves.
    hits, misses = read(daemon, (0, MIB))
    assert hits + misses == 256 and misses <= 4, (hits, misses)
    # What a file says needs no word from the process before.
    daemon.call("reload")
    daemon.upgrade()
    assert pins(daemon)["origin"] == "file" and pins(daemon)["ranges"] == [[8192, 16]]


def test_a_profile_by_hand_stays_over_an_upgrade(serve, image):
    extra = disk(image, lock='"static"')
    daemon = serve([], memory="16MiB", workers=1, store="keep = true", extra=extra)
    code, text = daemon.api("PUT", "/v1/disks/d/lock-profile", {"size_bytes": SIZE, "ranges": [[0, 256]]})
    assert code == 200, text
    daemon.upgrade()
    assert "The profile of the disk names it" in daemon.call("why", "d", "--block", "0").stdout
    read(daemon, (0, MIB))
    flood(daemon)
    assert read(daemon, (0, MIB)) == (256, 0)


def test_lists_that_do_not_answer_keep_nobody(serve, image, scratch, stalling):
    """One on a file system that does not answer is a fault of its disk, which is served, as all others are."""
    hot = stalling.where / "hot"
    stalling.stall()
    other = images.raw(scratch / "e.raw", 8 * MIB, seed=2)
    extra = disk(image, pins=f'"{hot}"') + disk(other).replace('name = "d"', 'name = "e"')
    daemon = serve([], memory="16MiB", workers=1, extra=extra)
    assert "does not answer" in daemon.disk("d")["locks"]["problem"]
    daemon.call("set", "e", "--lock-budget", "30%")
    daemon.call("pin", "e", "0..4KiB")
    # By the API: a command would look at the path itself.
    code, text = daemon.api("PATCH", "/v1/nodes/e", {"pins": str(hot)})
    assert code == 400 and "does not answer" in text, text
    assert pins(daemon, "e")["ranges"] == [[0, 1]]
    third = images.raw(scratch / "f.raw", 8 * MIB, seed=3)
    daemon.call("attach", "f", third, "--format", "raw", "--nbd", "--no-vhost-user")
    assert "does not answer" in daemon.call("reload", check=False).stdout


def test_the_owner_of_a_vm_pins_what_is_below_it(serve, scratch):
    files = [images.raw(scratch / f"{n}.raw", SIZE, seed=n) for n in range(2)]
    own = scratch / "web.sock"
    keys = "".join(f"{key} = {value}\n" for key, value in KEYS.items())
    vms = "".join(
        f'[[vm]]\nname = "{vm}"\n{more}\n[[vm.disk]]\nname = "root"\nimage = "{file}"\nformat = "raw"\n'
        f"nbd = true\n{keys}"
        for vm, more, file in (("web", f'control_socket = "{own}"', files[0]), ("db", "", files[1]))
    )
    daemon = serve([], memory="32MiB", workers=1, extra=vms)

    def web(command, *words, check=True):
        return run(built("undercroft"), command, *words, "--control", own, check=check)

    for name, ranges in (("root", "0..1MiB"), ("web:root", "1MiB..2MiB")):
        assert "pinned by hand" in web("pin", name, ranges).stdout
    assert pins(daemon, "web:root")["ranges"] == [[0, 512]]
    read(daemon, (0, 2 * MIB), name="web:root")
    assert "in RAM, and locked" in web("why", "root", "--block", "0").stdout
    assert "web:root" in web("misses", "web").stdout and "web:root" in web("misses", "root").stdout
    assert "lock is online (before: off)" in web("set", "root", "--lock", "online", "--lock-budget", "40%").stdout
    assert daemon.disk("web:root")["locks"]["mode"] == "online"
    for words in (
        ("pin", "db:root", "0..4KiB"),
        ("pin", "db:root"),
        ("why", "db:root", "--block", "0"),
        ("misses", "db"),
    ):
        done = web(*words, check=False)
        assert done.returncode == 1 and "there is no" in done.stderr, (words, done.stderr)
    assert pins(daemon, "db:root")["ranges"] == []
    # Files of the host are not for whoever runs a VM, and neither are recordings.
    for words in (("set", "web:root", "--pins", "/etc/passwd"), ("pin", "web:root", "--boot")):
        done = web(*words, check=False)
        assert done.returncode == 1 and "the host's control socket" in done.stderr, (words, done.stderr)
    hot = scratch / "hot"
    hot.write_text(json.dumps({"size_bytes": SIZE, "ranges": [[0, 1]]}))
    daemon.call("set", "web:root", "--pins", hot)
    told = web("pin", "root", "--json").stdout + web("pin", "root").stdout
    assert '"file"' in told and str(hot) not in told, told


def recordings(daemon):
    """The last recording, if there is one."""
    return json.loads(daemon.api("GET", "/v1/recordings")[1])


def boot(daemon, *words):
    """`undercroft pin d --boot`, begun: what is read from now on is recorded."""
    command = [built("undercroft"), "pin", "d", "--boot", *map(str, words), "--control", str(daemon.control)]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: any(r["running"] for r in recordings(daemon)), "it records")
    return begun


def test_what_a_guest_reads_when_it_starts_is_pinned(daemon, scratch):
    kept = scratch / "boot"
    begun = boot(daemon, "--quiet", "2s", "--for", "60s", "--write", kept)
    read(daemon, (5 * MIB, 64 * 1024), (0, 8 * BLOCK), (40 * MIB, BLOCK))
    out, err = begun.communicate(timeout=120)
    assert begun.returncode == 0, err
    wanted = [[0, 8], [5 * 256, 16], [40 * 256, 1]]
    assert pins(daemon)["ranges"] == wanted and f'pins = "{kept}"' in out, out
    assert json.loads(kept.read_text())["ranges"] == wanted
    assert not any(r["running"] for r in recordings(daemon))
    # What others pin meanwhile stays.
    begun = boot(daemon, "--quiet", "2s", "--for", "60s")
    daemon.call("pin", "d", "60MiB+4KiB")
    read(daemon, (50 * MIB, BLOCK))
    out, err = begun.communicate(timeout=120)
    assert begun.returncode == 0, err
    wanted += [[50 * 256, 1], [60 * 256, 1]]
    assert pins(daemon)["ranges"] == wanted
    # A list that may be cut is said to be.
    begun = boot(daemon, "--quiet", "60s", "--for", "10s", "--dry-run")
    read(daemon, (0, BLOCK))
    out, err = begun.communicate(timeout=120)
    assert begun.returncode == 0 and "wait longer with --for" in err, err
    # Nothing is read: nothing is pinned, and what was stays.
    begun = boot(daemon, "--quiet", "1s", "--for", "2s", "--replace")
    out, err = begun.communicate(timeout=120)
    assert begun.returncode == 1 and "nothing was read" in err, err
    assert pins(daemon)["ranges"] == wanted


def test_a_boot_that_is_interrupted_pins_nothing(daemon):
    begun = boot(daemon, "--quiet", "60s")
    read(daemon, (0, 64 * 1024))
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130 and "nothing was pinned" in err, (out, err)
    assert pins(daemon)["ranges"] == []
    until(lambda: not any(r["running"] for r in recordings(daemon)), "the recording has ended")


def test_blocks_of_a_recording_are_pinned(daemon, scratch):
    file = scratch / "d.parquet"
    command = [built("undercroft"), "record", str(file), "--disk", "d", "--control", str(daemon.control)]
    record = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: any(r["running"] for r in recordings(daemon)), "it records")
    read(daemon, (2 * MIB, 2 * BLOCK), (7 * MIB, BLOCK))
    flood(daemon)
    read(daemon, (7 * MIB, BLOCK))
    record.send_signal(signal.SIGINT)
    assert record.wait(60) == 0

    def would_be(*words):
        dry = daemon.call("pin", "d", "--recording", file, *words, "--dry-run", "--json", check=False)
        return json.loads(dry.stdout)["ranges"] if dry.returncode == 0 else dry.stderr

    everything = would_be("--first", "60min")
    assert everything == would_be() and sum(count for _, count in everything) == 3 + FLOOD // BLOCK
    assert would_be("--first", "1us") == [], "the recording began before anything was read"
    assert "names no block" in would_be("--first", "1us", "--replace")
    assert would_be("--most-read", "1") == would_be("--most-missed", "1") == [[7 * 256, 1]]
    assert pins(daemon)["ranges"] == []
    daemon.call("pin", "d", "--recording", file, "--most-missed", "1")
    assert pins(daemon)["ranges"] == [[7 * 256, 1]]
    daemon.call("set", "d", "--lock-budget", "30%")
    assert pins(daemon)["ranges"] == [[7 * 256, 1]], "what is set beside them leaves them as they are"
