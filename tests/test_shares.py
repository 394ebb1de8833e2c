"""Shares that follow the load: VMs and disks of one store, changed while they serve."""

import json
import time

import pytest
from harness import images
from harness.nodes import MEMORY, SIZE, WITHIN_S, counters_of, misses_of_reads, shares, until, vm
from harness.programs import finish_driver, start_driver


def test_an_idle_share_is_lent_and_comes_back(two):
    """By weight, a VM that could use more than its half gets it while the other is idle, and gives it back when the
    other wants it; every move is explained."""
    two.call("set", "host", "--controller", "static")
    entitled = shares(two)["web"]["entitled_bytes"]
    assert entitled == MEMORY // 2
    loads = [start_driver("run", two.nbd("web:root"), "--seconds", "120", "--depth", "8")]
    try:
        lent = until(two, "web borrows", lambda n: n["web"]["share_bytes"] > entitled + 24 * images.MIB)
        assert lent["db"]["share_bytes"] <= entitled - 23 * images.MIB
        assert "web gets" in two.call("why", "web").stdout
        loads.append(start_driver("run", two.nbd("db:root"), "--seconds", "120", "--depth", "8"))
        until(two, "db gets its half back", lambda n: n["db"]["share_bytes"] > entitled - 4 * images.MIB)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    counters = {d["name"]: d["counters"] for d in two.status()["disks"]}
    assert all(c["errors"] == 0 and c["hit_blocks"] > 0 for c in counters.values())


def test_space_goes_where_it_saves_misses(two):
    """Of two busy VMs, one is served by a few MiB and the other could use all there is: it gets most of it, and the
    first goes on nearly without a miss, for good."""
    loads = [
        start_driver("run", two.nbd("web:root"), "--seconds", "120", "--depth", "8"),
        start_driver("run", two.nbd("db:root"), "--seconds", "120", "--depth", "8", "--length", "4MiB"),
    ]
    try:
        until(two, "web gets more", lambda n: n["web"]["target_bytes"] == n["web"]["share_bytes"] > 64 * images.MIB)
        # A few rounds may go by until what is measured of a small working set is exact; and until all that web shall
        # have has been moved, db misses nothing because it has too much.
        end, calm = time.monotonic() + WITHIN_S, 0
        while calm < 3:
            ratio = misses_of_reads(two, "db:root", 3)
            calm = calm + 1 if ratio < 0.03 and shares(two)["db"]["share_bytes"] < 16 * images.MIB else 0
            assert time.monotonic() < end, f"db misses {ratio:.3f} of its reads\n{two.call('why', 'db').stdout}"
        assert shares(two)["web"]["share_bytes"] > 64 * images.MIB
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    # What db does not demand is lent in any case; more is moved where it pays.
    why = two.call("why", "web").stdout
    assert "web gets" in why and ("miss-ratio curves" in why or "shares go by weight" in why), why


def test_weights_floors_and_ceilings_change_live(two):
    """What is set by hand is followed within seconds under any load, and what does not fit is refused with the
    remedy."""
    two.call("set", "host", "--controller", "static")
    loads = [start_driver("run", two.nbd(f"{name}:root"), "--seconds", "120", "--depth", "8") for name in ("web", "db")]
    try:
        two.call("set", "web", "--weight", "300")
        wanted = MEMORY * 3 // 4
        until(two, "3:1", lambda n: abs(n["web"]["share_bytes"] - wanted) < MEMORY // 32)
        two.call("set", "db:root", "--floor", "20MiB")
        two.call("set", "web", "--ceiling", "40MiB")
        until(
            two,
            "a ceiling",
            lambda n: n["web"]["share_bytes"] <= 40 * images.MIB and n["db"]["share_bytes"] > 50 * images.MIB,
        )
        two.call("set", "web", "--ceiling", "none")
        until(two, "3:1 again", lambda n: abs(n["web"]["share_bytes"] - wanted) < MEMORY // 32)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    for arguments, said in (
        (("db:root", "--floor", "1GiB"), "too little for floors"),
        (("web", "--ceiling", "1MiB"), "floor"),
        (("web", "--weight", "0"), "1 to 10000"),
        (("wbe", "--weight", "7"), 'did you mean "web"?'),
        (("host", "--weight", "7"), "the host has no weight"),
        (("web:root", "--controller", "static"), "nothing below it"),
        (("web", "--controller", "magic"), "known are static"),
    ):
        refused = two.call("set", *arguments, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
    assert two.call("why", "nobody", check=False).returncode == 1


def test_what_was_kept_survives_moves(two):
    """A share that shrinks and grows again keeps what fits: reads of that never wait for the disk."""
    load = ["run", two.nbd("web:root"), "--depth", "8", "--length", "8MiB"]
    # All of it first, in order: at random, a slow machine has not come to each block in any time that one would wait.
    finish_driver(start_driver(*load, "--seconds", "1", "--prefill"))
    before = counters_of(two, "web:root")["miss_blocks"]
    for weight in ("40", "500", "100"):
        two.call("set", "web", "--weight", weight)
        finish_driver(start_driver(*load, "--seconds", "3"))
    assert counters_of(two, "web:root")["miss_blocks"] == before


def test_a_share_of_11_mib_caches_9(serve, scratch):
    """Each disk of a worker that has 11 MiB caches 9 of them, also after its share was larger: what operations take
    beyond a little is lent. Nor does the store hold more than it may while both are busy."""
    files = [images.raw(scratch / f"{n}.raw", 32 * images.MIB, seed=n) for n in range(2)]
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{file}"\nformat = "raw"\nnbd = true\nvhost_user = false\nsize ='
        ' "11MiB"\n'
        for n, file in enumerate(files)
    )
    extra = f'[shares]\ncontroller = "static"\n[[vm]]\nname = "web"\n{disks}'
    daemon = serve([], memory="40MiB", workers=1, extra=extra)

    def cached():
        return [daemon.disk(f"web:d{n}")["cache"]["cached_bytes"] for n in range(2)]

    def fill():
        for load in [
            start_driver("run", daemon.nbd(f"web:d{n}"), "--ops", "2000", "--prefill", "--depth", "32")
            for n in range(2)
        ]:
            finish_driver(load)
        store = daemon.status()["store"]
        assert store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"] <= store["memory_bytes"]

    fill()
    assert min(cached()) >= 9 * images.MIB, cached()
    daemon.call("set", "web:d0", "--size", "24MiB")
    fill()
    assert cached()[0] >= 20 * images.MIB and cached()[1] >= 9 * images.MIB, cached()
    daemon.call("set", "web:d0", "--size", "11MiB")
    end = time.monotonic() + WITHIN_S
    while cached()[0] > 11 * images.MIB:
        assert time.monotonic() < end, cached()
        time.sleep(0.1)
    fill()
    assert min(cached()) >= 9 * images.MIB, cached()
    # And one that comes again.
    daemon.call("detach", "web:d1")
    daemon.call("attach", "later", str(files[1]), "--format", "raw", "--nbd", "--size", "11MiB")
    finish_driver(start_driver("run", daemon.nbd("later"), "--ops", "2000", "--prefill", "--depth", "32"))
    assert daemon.disk("later")["cache"]["cached_bytes"] >= 9 * images.MIB


def test_a_ceiling_holds_at_once_whatever_comes(serve, scratch):
    """A disk that comes to a VM with a ceiling, by hand or by the file, has its share out of what the VM may have: the
    next interval is ten minutes away."""
    files = [images.raw(scratch / f"{n}.raw", 32 * images.MIB, seed=n) for n in range(4)]
    ceiling = 24 * images.MIB
    web = '[shares]\ninterval = "600s"\n' + vm("web", files[0], f'ceiling = "{ceiling}"')
    daemon = serve([], memory="96MiB", extra=web + vm("db", files[1], 'ceiling = "40MiB"'))

    def holds(disks):
        end = time.monotonic() + 10
        while (web := shares(daemon)["web"])["share_bytes"] > ceiling:
            assert time.monotonic() < end, web
            time.sleep(0.2)
        assert len(daemon.status()["disks"]) == disks

    holds(2)
    daemon.call("attach", "web:more", str(files[2]), "--format", "raw", "--nbd")
    holds(3)
    one = f'[[vm.disk]]\nname = "more"\nimage = "{files[2]}"\nformat = "raw"\nnbd = true\n'
    two = f'[[vm.disk]]\nname = "last"\nimage = "{files[3]}"\nformat = "raw"\nnbd = true\nvhost_user = false\n'
    daemon.config.write_text(daemon.config.read_text().replace('[[vm]]\nname = "db"', f'{one}{two}[[vm]]\nname = "db"'))
    daemon.call("reload")
    holds(4)
    daemon.call("set", "web:last", "--floor", "5MiB")
    holds(4)


def test_goals_are_kept_and_what_they_take_is_said(two):
    """A hit ratio that is asked for is reached and no more than it takes is given; goals that do not fit are told
    so."""
    two.call("set", "host", "--controller", "target")
    two.call("set", "web", "--goal", "hit 60%")
    assert "hit 60%" in two.call("set", "web", "--weight", "100").stdout
    loads = [
        start_driver("run", two.nbd("web:root"), "--seconds", "180", "--depth", "8", "--length", "64MiB"),
        start_driver("run", two.nbd("db:root"), "--seconds", "180", "--depth", "8"),
    ]
    try:
        end = time.monotonic() + 2 * WITHIN_S
        held = 0
        while held < 3:
            hits = 1 - misses_of_reads(two, "web:root", 2)
            held = held + 1 if abs(hits - 0.6) <= 0.05 else 0
            assert time.monotonic() < end, f"hits {hits:.3f}\n{two.call('why', 'web').stdout}"
        assert "a hit ratio of 60.0 % takes web" in two.call("why", "web").stdout
        two.call("set", "web", "--goal", "hit 99%")
        two.call("set", "db:root", "--goal", "hit 99%")
        two.call("set", "db", "--goal", "hit 99%")
        end = time.monotonic() + WITHIN_S
        while "all goals together" not in (why := two.call("why", "web").stdout):
            assert time.monotonic() < end, why
            time.sleep(0.5)
        # degraded by weight: neither is starved for the other
        until(two, "parts by weight", lambda n: all(n[vm]["share_bytes"] > 36 * images.MIB for vm in ("web", "db")))
    finally:
        for load in loads:
            load.terminate()
            load.wait()


def test_a_goal_for_latency_and_one_for_rate_are_weighed_by_what_was_measured(two):
    """Reads that hit are faster than those that miss by far: a p99 between them takes nearly everything that is read,
    and a rate that is reached already takes nothing."""
    two.call("set", "host", "--controller", "target")
    two.call("set", "web", "--goal", "p99 1us")
    two.call("set", "db", "--goal", "iops 1")
    loads = [
        start_driver("run", two.nbd(f"{vm}:root"), "--seconds", "180", "--length", "24MiB") for vm in ("web", "db")
    ]
    try:
        # no hit is that fast, so no size is enough
        end = time.monotonic() + WITHIN_S
        while "out of reach" not in (why := two.call("why", "web").stdout):
            assert time.monotonic() < end, why
            time.sleep(0.5)
        # one that anything reaches: nothing more is said of it, and nothing was ever said of the other's
        two.call("set", "web", "--goal", "p99 60s")
        intervals = json.loads(two.call("shares", "--json").stdout)["intervals"]
        time.sleep(6)
        assert (
            json.loads(two.call("shares", "--json").stdout)["intervals"] > intervals + 2
        ), "there was something to say"
        late = [e for e in json.loads(two.call("why", "host", "--json").stdout) if e["interval"] > intervals + 1]
        assert not [e["text"] for e in late if "out of reach" in e["text"]]
        everything = json.loads(two.call("why", "db", "--last", "1000", "--json").stdout)
        assert not [e["text"] for e in everything if "requests per second" in e["text"] and "out of reach" in e["text"]]
    finally:
        for load in loads:
            load.terminate()
            load.wait()


def test_hints_hold_until_others_are_given(two):
    """Of a disk that is not wanted nothing is kept, whoever reads it; afterwards it is a disk like others."""
    cached = lambda: {d["name"]: d["cache"]["cached_bytes"] for d in two.status()["disks"]}["web:root"]  # noqa: E731
    load = lambda: finish_driver(
        start_driver("run", two.nbd("web:root"), "--ops", "3000", "--length", "8MiB")
    )  # noqa: E731
    load()
    assert cached() > 4 * images.MIB
    assert "hint dontneed" in two.call("set", "web:root", "--hint", "dontneed").stdout
    load()
    assert cached() == 0
    (node,) = [n for n in json.loads(two.call("shares", "--json").stdout)["nodes"] if n["name"] == "web:root"]
    assert node["hint"] == "dontneed"
    two.call("set", "web:root", "--hint", "normal")
    load()
    assert cached() > 4 * images.MIB
    for arguments, said in (
        (("web:root", "--hint", "nouse"), 'did you mean "noreuse"?'),
        (("web", "--hint", "random"), "hints are for disks"),
        (("host", "--goal", "hit 9%"), "the host has no weight"),
        (("web", "--goal", "fast"), "give `hit 90%`"),
    ):
        refused = two.call("set", *arguments, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr


def test_what_will_be_needed_is_fetched_before_it_is_asked_for(two):
    """`willneed`, as posix_fadvise has it: reads that come later find it, and all that was read from the disk is the
    hint's."""
    cached = lambda: {d["name"]: d["cache"]["cached_bytes"] for d in two.status()["disks"]}["web:root"]  # noqa: E731
    assert cached() == 0
    two.call("set", "web:root", "--hint", "willneed")
    until(two, "the beginning of the disk is there", lambda _: cached() >= 16 * images.MIB)
    finish_driver(start_driver("run", two.nbd("web:root"), "--ops", "2000", "--length", "16MiB"))
    counters = counters_of(two, "web:root")
    assert counters["miss_blocks"] == 0
    assert counters["hit_blocks"] >= 2000


def test_a_policy_of_a_vm_is_that_of_its_disks_at_once(two_still):
    """`set VM --policy` changes what its disks have, by themselves they can differ, and `inherit` ends that."""

    def policies():
        return [two_still.disk(f"{vm}:root")["cache"]["policy"] for vm in ("web", "db")]

    finish_driver(start_driver("run", two_still.nbd("web:root"), "--ops", "1", "--prefill", "--length", "24MiB"))
    kept = two_still.disk("web:root")["cache"]["cached_bytes"]
    assert "policy lru" in two_still.call("set", "web", "--policy", "lru").stdout
    assert policies() == ["lru", "s3-fifo"]
    assert two_still.disk("web:root")["cache"]["cached_bytes"] >= kept > 16 * images.MIB, "what is kept stays"
    two_still.call("set", "web:root", "--policy", "arc")
    assert policies() == ["arc", "s3-fifo"]
    assert "before: weight 100" in two_still.call("set", "web:root", "--policy", "inherit", "--weight", "200").stdout
    assert policies() == ["lru", "s3-fifo"]
    two_still.call("set", "web", "--policy", "inherit")
    assert policies() == ["s3-fifo", "s3-fifo"]
    refused = two_still.call("set", "wbe", "--policy", "arc", check=False)
    assert refused.returncode == 1 and 'did you mean "web"?' in refused.stderr


def test_the_ceiling_holds_while_shares_move_between_workers(two):
    """Each VM's disk has a worker of its own. Whoever grows waits for the memory that the other gives, until the kernel
    has it back: at no moment do both have more than the store."""
    two.call("set", "host", "--controller", "static")
    loads = [start_driver("run", two.nbd(f"{name}:root"), "--seconds", "120", "--depth", "8") for name in ("web", "db")]
    most = 0
    try:
        # By weight, in steps; then by hand, at once.
        changes = [("web", "--weight", "500"), ("web", "--weight", "20")] * 2 + [
            ("web:root", "--size", f"{mib}MiB") for mib in (16, 76) * 2
        ]
        for change in changes:
            two.call("set", *change)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                store = two.status()["store"]
                used = store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"]
                if used > most:
                    most, at = used, (change, 3 - (end - time.monotonic()), store)
                time.sleep(0.01)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    assert most <= MEMORY, f"{(most - MEMORY) >> 10} KiB too much after {at}"
    assert most > MEMORY * 3 // 4, "the store was in use"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_size_set_by_hand_is_had_at_once(serve, scratch, workers):
    """Although others have to give first, whose blocks and tables go step by step, and nobody reads meanwhile."""
    images_of = {name: images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate(("web", "db"), 1)}
    extra = "".join(vm(name, image) for name, image in images_of.items())
    daemon = serve([], memory="96MiB", workers=workers, extra=extra)
    had = daemon.disk("web:root")["cache"]["capacity_bytes"]
    for size in ("72MiB", "20MiB", "64MiB"):
        daemon.set("web:root", size=size)
        cache = daemon.disk("web:root")["cache"]
        # The rest is for operations under way and metadata.
        wanted = int(size.removesuffix("MiB")) * images.MIB
        assert wanted * 7 // 8 < cache["capacity_bytes"] < wanted == cache["share_bytes"], (size, had, cache)
    assert "cannot change its share" not in daemon.log()


def test_disks_that_share_a_cache_take_for_operations_what_one_disk_takes(serve, scratch):
    """So that what a VM caches does not depend on how many disks it has."""

    def cached(disks):
        made = [images.raw(scratch / f"{disks}-{n}.raw", SIZE, seed=n) for n in range(disks)]
        more = "".join(
            f'[[vm.disk]]\nname = "more{n}"\nimage = "{image}"\nformat = "raw"\nnbd = true\nvhost_user = false\n'
            for n, image in enumerate(made[1:])
        )
        daemon = serve([], memory="96MiB", extra=vm("web", made[0]) + more)
        cache = daemon.disk("web:root")["cache"]
        assert len(cache["pool"]) == (disks if disks > 1 else 0)
        return cache["capacity_bytes"]

    one, four = cached(1), cached(4)
    assert one - images.MIB // 2 < four <= one


def test_a_disk_that_leaves_the_cache_of_its_vm_has_its_part_at_once(serve, scratch):
    """By a weight of its own; the other disk of the VM has the rest, and both are what `status` shows."""
    root, data = (images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate(("root", "data"), 1))
    second = f'[[vm.disk]]\nname = "data"\nimage = "{data}"\nformat = "raw"\nnbd = true\nvhost_user = false\n'
    daemon = serve([], memory="96MiB", extra=vm("web", root) + second)
    assert daemon.disk("web:root")["cache"]["pool"] == ["web:root", "web:data"]
    daemon.set("web:root", weight="50")
    parts = {name: daemon.disk(f"web:{name}")["cache"] for name in ("root", "data")}
    assert parts["root"]["share_bytes"] * 2 == parts["data"]["share_bytes"]
    for cache in parts.values():
        assert cache["pool"] == [] and cache["share_bytes"] * 7 // 8 < cache["capacity_bytes"], cache
    assert "cannot change its share" not in daemon.log()
