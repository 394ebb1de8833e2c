"""Shares that follow the load: VMs, containers and disks of one store, changed while they serve."""

import json
import subprocess
import time

import pytest
from harness import images
from harness.programs import built, finish_driver, run, start_driver

SIZE = 96 * images.MIB
MEMORY = 96 * images.MIB
WITHIN_S = 60


def vm(name, image, more="", disk=""):
    """A VM with one disk, `root`, over NBD."""
    return (
        f'[[vm]]\nname = "{name}"\n{more}\n[[vm.disk]]\nname = "root"\nimage = "{image}"\nformat = "raw"\nnbd = true\n'
        f"vhost_user = false\n{disk}\n"
    )


@pytest.fixture
def two(serve, scratch):
    """Two VMs, `web` and `db`, that divide 96 MiB anew every second."""
    web, db = (images.raw(scratch / f"{name}.raw", SIZE, seed=n) for n, name in enumerate(("web", "db"), 1))
    extra = '[shares]\ninterval = "1s"\n' + vm("web", web) + vm("db", db)
    return serve([], memory="96MiB", extra=extra)


def shares(daemon):
    """The nodes by name. Whatever moves, together they have no more than the store."""
    nodes = {n["name"]: n for n in json.loads(daemon.call("shares", "--json").stdout)["nodes"]}
    assert sum(n["share_bytes"] for n in nodes.values() if n["level"] == "disk") <= MEMORY
    store = daemon.status()["store"]
    assert store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"] <= store["memory_bytes"] == MEMORY
    return nodes


def counters_of(daemon, disk):
    """What a disk has counted."""
    (counters,) = [d["counters"] for d in daemon.status()["disks"] if d["name"] == disk]
    return counters


def misses_of_reads(daemon, disk, seconds):
    """The part of a disk's blocks that had to be read for somebody who waited, within the next seconds."""
    before = counters_of(daemon, disk)
    time.sleep(seconds)
    after = counters_of(daemon, disk)
    missed, hit = (after[name] - before[name] for name in ("miss_blocks", "hit_blocks"))
    assert missed + hit > 0, "nothing was read"
    return missed / (missed + hit)


def until(daemon, what, holds):
    """Waits until `holds` of the nodes."""
    end = time.monotonic() + WITHIN_S
    while not holds(nodes := shares(daemon)):
        assert time.monotonic() < end, f"{what}: {nodes}\n{daemon.call('why', 'host').stdout}"
        time.sleep(0.2)
    return nodes


def test_an_idle_share_is_lent_and_comes_back(two):
    """By weight, a VM that could use more than its half gets it while the other is idle, and gives it back when the other wants
    it; every move is explained."""
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
    """Of two busy VMs, one is served by a few MiB and the other could use all there is: it gets most of it, and the first
    goes on nearly without a miss, for good."""
    loads = [
        start_driver("run", two.nbd("web:root"), "--seconds", "120", "--depth", "8"),
        start_driver("run", two.nbd("db:root"), "--seconds", "120", "--depth", "8", "--length", "4MiB"),
    ]
    try:
        until(two, "web gets more", lambda n: n["web"]["target_bytes"] == n["web"]["share_bytes"] > 64 * images.MIB)
        # A few rounds may go by until what is measured of a small working set is exact.
        end = time.monotonic() + WITHIN_S
        while (ratio := misses_of_reads(two, "db:root", 3)) > 0.02:
            assert time.monotonic() < end, f"db misses {ratio:.3f} of its reads\n{two.call('why', 'db').stdout}"
        assert misses_of_reads(two, "db:root", 5) < 0.03
        assert shares(two)["web"]["share_bytes"] > 64 * images.MIB
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    # What db does not demand is lent in any case; more is moved where it pays.
    why = two.call("why", "web").stdout
    assert "web gets" in why and ("miss-ratio curves" in why or "shares go by weight" in why), why


def test_weights_floors_and_ceilings_change_live(two):
    """What is set by hand is followed within seconds under any load, and what does not fit is refused with the remedy."""
    two.call("set", "host", "--controller", "static")
    loads = [start_driver("run", two.nbd(f"{name}:root"), "--seconds", "120", "--depth", "8") for name in ("web", "db")]
    try:
        two.call("set", "web", "--weight", "300")
        wanted = MEMORY * 3 // 4
        until(two, "3:1", lambda n: abs(n["web"]["share_bytes"] - wanted) < MEMORY // 32)
        two.call("set", "db:root", "--floor", "20MiB")
        two.call("set", "web", "--ceiling", "40MiB")
        until(two, "a ceiling", lambda n: n["web"]["share_bytes"] <= 40 * images.MIB and n["db"]["share_bytes"] > 50 * images.MIB)
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
    finish_driver(start_driver("run", two.nbd("web:root"), "--seconds", "4", "--depth", "8", "--length", "8MiB"))
    before = counters_of(two, "web:root")["miss_blocks"]
    for weight in ("40", "500", "100"):
        two.call("set", "web", "--weight", weight)
        finish_driver(start_driver("run", two.nbd("web:root"), "--seconds", "3", "--depth", "8", "--length", "8MiB"))
    assert counters_of(two, "web:root")["miss_blocks"] == before


def test_containers_share_what_their_vm_has(serve, scratch):
    """Disks of one container are one node: by weight 25:75 below a VM, whatever happens beside it."""
    files = [images.raw(scratch / f"{n}.raw", 32 * images.MIB, seed=n) for n in range(3)]
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{file}"\nformat = "raw"\nnbd = true\nvhost_user = false\ncontainer = "{c}"\n'
        for n, (file, c) in enumerate(zip(files, ("small", "large", "large")))
    )
    containers = '[[vm.container]]\nname = "small"\nweight = 25\n[[vm.container]]\nname = "large"\nweight = 75\n'
    extra = f'[shares]\ncontroller = "static"\ninterval = "1s"\n[[vm]]\nname = "web"\n{containers}{disks}'
    daemon = serve([], memory="96MiB", extra=extra)
    nodes = shares(daemon)
    assert nodes["web/small"]["entitled_bytes"] == MEMORY // 4
    assert nodes["web/large"]["entitled_bytes"] == MEMORY * 3 // 4
    assert nodes["web:d1"]["parent"] == "web/large"
    two_thirds = nodes["web:d1"]["entitled_bytes"] + nodes["web:d2"]["entitled_bytes"]
    assert two_thirds == nodes["web/large"]["entitled_bytes"]


def test_a_share_of_11_mib_caches_9(serve, scratch):
    """Each disk of a worker that has 11 MiB caches 9 of them, also after its share was larger: what operations take beyond a
    little is lent. Nor does the store hold more than it may while both are busy."""
    files = [images.raw(scratch / f"{n}.raw", 32 * images.MIB, seed=n) for n in range(2)]
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{file}"\nformat = "raw"\nnbd = true\nvhost_user = false\nsize = "11MiB"\n'
        for n, file in enumerate(files)
    )
    extra = f'[shares]\ncontroller = "static"\n[[vm]]\nname = "web"\n{disks}'
    daemon = serve([], memory="40MiB", workers=1, extra=extra)

    def cached():
        return [daemon.disk(f"web:d{n}")["cache"]["cached_bytes"] for n in range(2)]

    def fill():
        for load in [start_driver("run", daemon.nbd(f"web:d{n}"), "--ops", "2000", "--prefill", "--depth", "32") for n in range(2)]:
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


def test_goals_are_kept_and_what_they_take_is_said(two):
    """A hit ratio that is asked for is reached and no more than it takes is given; goals that do not fit are told so."""
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
    """Reads that hit are faster than those that miss by far: a p99 between them takes nearly everything that is read, and a rate
    that is reached already takes nothing."""
    two.call("set", "host", "--controller", "target")
    two.call("set", "web", "--goal", "p99 1us")
    two.call("set", "db", "--goal", "iops 1")
    loads = [start_driver("run", two.nbd(f"{vm}:root"), "--seconds", "180", "--length", "24MiB") for vm in ("web", "db")]
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
        assert json.loads(two.call("shares", "--json").stdout)["intervals"] > intervals + 2, "there was something to say"
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
    load = lambda: finish_driver(start_driver("run", two.nbd("web:root"), "--ops", "3000", "--length", "8MiB"))  # noqa: E731
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
    """`willneed`, as posix_fadvise has it: reads that come later find it, and all that was read from the disk is the hint's."""
    cached = lambda: {d["name"]: d["cache"]["cached_bytes"] for d in two.status()["disks"]}["web:root"]  # noqa: E731
    assert cached() == 0
    two.call("set", "web:root", "--hint", "willneed")
    until(two, "the beginning of the disk is there", lambda _: cached() >= 16 * images.MIB)
    finish_driver(start_driver("run", two.nbd("web:root"), "--ops", "2000", "--length", "16MiB"))
    counters = counters_of(two, "web:root")
    assert counters["miss_blocks"] == 0
    assert counters["hit_blocks"] >= 2000


def node(daemon, name, *, socket=None):
    """One node, as the API tells it."""
    nodes = json.loads(run(built("undercroft"), "shares", "--json", "--control", socket or daemon.control).stdout)["nodes"]
    return next(n for n in nodes if n["name"] == name)


SETTINGS = ("weight", "floor_bytes", "ceiling_bytes", "controller", "version")


def settings(daemon):
    """What is set for every node, with its version."""
    return {name: tuple(n[key] for key in SETTINGS) for name, n in shares(daemon).items()}


@pytest.fixture
def scoped(serve, scratch):
    """VM `web` with two containers and a control socket of its own, and VM `db`, whose name it must not learn."""
    files = [images.raw(scratch / f"{n}.raw", 16 * images.MIB, seed=n) for n in range(3)]
    containers = '[[vm.container]]\nname = "shop"\nweight = 25\n[[vm.container]]\nname = "blog"\nweight = 75\n'
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{files[n]}"\nformat = "raw"\nnbd = true\nvhost_user = false\ncontainer = "{c}"\n'
        for n, c in enumerate(("shop", "blog"))
    )
    own = scratch / "web.sock"
    web = f'[[vm]]\nname = "web"\ncontrol_socket = "{own}"\n{containers}{disks}'
    extra = '[shares]\ncontroller = "static"\ninterval = "1s"\n' + web + vm("db", files[2])
    daemon = serve([], memory="96MiB", extra=extra)
    daemon.web = own
    return daemon


def test_two_scopes_do_not_touch_each_other(scoped):
    """Whoever runs the VM sets what is below it, on a socket that shows nothing else; whoever runs the host sets VMs; neither
    changes what the other has set."""

    def web(command, *arguments, check=True):
        return run(built("undercroft"), command, *arguments, "--control", scoped.web, check=check)

    before = settings(scoped)
    assert "weight 60" in web("set", "web/shop", "--weight", "60").stdout
    web("set", "blog", "--floor", "8MiB")
    web("set", "web", "--controller", "utility")
    below = settings(scoped)
    assert {n for n in below if below[n] != before[n]} == {"web/shop", "web/blog", "web"}
    assert below["web"][:3] == before["web"][:3]
    # The host's part: the VM alone, whatever is set.
    scoped.call("set", "web", "--weight", "300", "--ceiling", "80MiB")
    after = settings(scoped)
    assert {n for n in after if after[n] != below[n]} == {"web"}
    assert node(scoped, "web", socket=scoped.web)["weight"] == 300
    # Policies, too: the VM's for all below it, then one container's.
    policies = lambda: [scoped.disk(f"web:d{n}")["cache"]["policy"] for n in range(2)]  # noqa: E731
    web("set", "web", "--policy", "lru")
    assert policies() == ["lru", "lru"]
    web("set", "shop", "--policy", "arc")
    assert policies() == ["arc", "lru"] and scoped.disk("db:root")["cache"]["policy"] == "s3-fifo"

    # What was promised below is no reason to refuse the host anything: it is kept as far as it goes, and comes back.
    web("set", "web/shop", "--floor", "30MiB")
    scoped.call("set", "web", "--ceiling", "20MiB")
    squeezed = node(scoped, "web/shop")
    assert 4 * images.MIB <= squeezed["floor_bytes"] <= 20 * images.MIB and squeezed["version"] == node(scoped, "web/shop")["version"]
    assert "of 30MiB" in web("shares").stdout
    until(scoped, "the VM gives", lambda n: n["web"]["share_bytes"] <= 20 * images.MIB)
    refused = web("set", "web/blog", "--floor", "16MiB", check=False)
    assert refused.returncode == 1 and "db" not in refused.stderr, refused.stderr
    scoped.call("set", "web", "--ceiling", "80MiB")
    assert node(scoped, "web/shop")["floor_bytes"] == 30 * images.MIB
    web("set", "web/shop", "--floor", "0")
    after = settings(scoped)

    loads = [start_driver("run", scoped.nbd(f"web:d{n}"), "--seconds", "3", "--depth", "8") for n in range(2)]
    for load in loads:
        finish_driver(load)
    said = [web(*words, check=False) for words in (
        ("shares",), ("shares", "--json"), ("why", "web"), ("why", "web:d0"), ("why", "db"), ("set", "db", "--weight", "1"),
        ("set", "web", "--weight", "1"), ("set", "web/shop", "--floor", "90MiB"), ("set", "host", "--controller", "static"),
        ("status",), ("set", "--memory", "16MiB"), ("reload",), ("stop",),
    )]  # fmt: skip
    texts = [done.stdout + done.stderr for done in said]
    assert [done.returncode for done in said] == [0] * 4 + [1] * 9, texts
    for text in texts[6:7] + texts[9:]:
        assert f"the host's control socket, {scoped.control}, may do it" in text, text
    # Names that are not below the VM do not exist there: others' and the host's alike.
    for text, name in zip(texts[4:6] + texts[8:9], ("db", "db", "host")):
        assert f'there is no VM, container or disk "{name}"' in text, text
    # "db" is in what was asked alone, not in any answer.
    assert not any('"db"' in text or "db:root" in text for text in texts[:4] + texts[6:]), texts
    assert settings(scoped) == after
    assert scoped.running()


def test_two_writers_of_one_node(scoped):
    """The last one wins and is told what it replaced; one that says which version it has seen changes nothing unseen."""
    seen = node(scoped, "web/shop")["version"]
    first = scoped.call("set", "web/shop", "--weight", "40", "--if-version", str(seen))
    assert f"before: weight 25, floor 0B, ceiling none (version {seen})" in first.stdout
    second = scoped.call("set", "web/shop", "--floor", "8MiB", "--if-version", str(seen), check=False)
    now = node(scoped, "web/shop")
    assert second.returncode == 1 and now["version"] > seen
    assert f"weight 40, floor 0B, ceiling none (version {now['version']})" in second.stderr, second.stderr
    assert f"try again with version {now['version']}" in second.stderr
    assert now["floor_bytes"] < 8 * images.MIB
    scoped.call("set", "web/shop", "--floor", "8MiB", "--if-version", str(now["version"]))
    assert "before: weight 40, floor 8MiB" in scoped.call("set", "web/shop", "--weight", "50").stdout
    # Many at once, each on what it has seen: every one that succeeds has been seen by the next.
    words = [built("undercroft"), "set", "web/shop", "--control", scoped.control, "--weight"]
    version = str(node(scoped, "web/shop")["version"])
    tries = [
        subprocess.Popen([*words, str(100 + n), "--if-version", version], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(6)
    ]
    outcomes = [(t.communicate()[1], t.returncode)[1] for t in tries]
    assert sorted(outcomes) == [0, 1, 1, 1, 1, 1]
    assert node(scoped, "web/shop")["weight"] == 100 + outcomes.index(0)


def test_a_container_that_vanishes_while_it_is_changed(scoped):
    """Reloads that take a container away and bring it back, while it is changed: each change happens or is refused with the
    reason, and everything else stays as it was set."""
    text = scoped.config.read_text()
    gone = text.replace('container = "shop"', 'container = "blog"').replace('[[vm.container]]\nname = "shop"\nweight = 25\n', "")
    before = settings(scoped)
    stale = before["web/shop"][-1]
    answers = []
    for n in range(12):
        scoped.config.write_text(gone if n % 2 == 0 else text)
        reload = subprocess.Popen([built("undercroft"), "reload", "--control", scoped.control], stdout=subprocess.DEVNULL)
        for weight in range(4):
            done = scoped.call("set", "web/shop", "--weight", str(200 + weight), check=False)
            answers.append(done)
            assert done.returncode == 0 or 'there is no VM, container or disk "web/shop"' in done.stderr, done.stderr
        assert reload.wait(30) == 0
        assert ("web/shop" in shares(scoped)) == (n % 2 == 1)
        if n % 2 == 0:
            refused = scoped.call("set", "web/shop", "--weight", "7", "--if-version", str(stale), check=False)
            assert refused.returncode == 1 and '"web/shop"' in refused.stderr
        elif n == 1:
            # It is another one now: what was known of the first one holds no more.
            refused = scoped.call("set", "web/shop", "--weight", "7", "--if-version", str(stale), check=False)
            assert refused.returncode == 1 and "is not of version" in refused.stderr, refused.stderr
    assert any(a.returncode == 1 for a in answers) and any(a.returncode == 0 for a in answers)
    after = settings(scoped)
    assert {n for n in after if after[n][:4] != before[n][:4]} <= {"web/shop"}
    assert len(scoped.status()["disks"]) == 3


def test_ranges_of_a_disk(serve, scratch):
    """A list is sent as the program inside the guest prints it; what overlaps is refused, and the rest of the stream goes on."""
    web = images.raw(scratch / "web.raw", SIZE, seed=1)
    daemon = serve([], memory="96MiB", extra=vm("web", web))

    def listed(container, *ranges):
        ranges = [{"offset_bytes": o, "length_bytes": n} for o, n in ranges]
        return json.dumps({"disk": "web:root", "container": container, "ranges": ranges})

    lists = scratch / "lists"
    lists.write_text("\n".join([listed("shop", (0, 8192), (8192, 100)), listed("blog", (4096, 1)), listed("blog", (12288, 1))]))
    done = daemon.call("set", "--ranges", lists)
    assert 'container "shop" has 8.1KiB in 1 ranges of disk "web:root"' in done.stdout, done.stdout
    assert "overlap bytes 0 to 8291" in done.stderr and 'container "blog" has' in done.stdout
    for text, said in (
        (listed("blog", (SIZE, 1)), "not all on disk"),
        (listed("blog", (0, 0)), "is empty"),
        ("nonsense", "holds no list of ranges"),
        (listed("blog").replace("web:root", "web:rot"), 'did you mean "web:root"?'),
    ):
        lists.write_text(text)
        refused = daemon.call("set", "--ranges", lists, check=False)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr


def test_containers_by_ranges_of_one_disk_have_shares_of_their_own(two):
    """Two containers on one disk are leaves beside what is left of it: served in full within their shares, weighed against each
    other, and one disk again when their lists are taken away; nothing that was kept is lost by any of it."""
    mib = images.MIB
    halves = {"shop": (0, 48 * mib), "mail": (48 * mib, 40 * mib)}

    def put(container, ranges):
        body = {"disk": "web:root", "container": container}
        body["ranges"] = [{"offset_bytes": at, "length_bytes": length} for at, length in ranges]
        return two.call("set", "--ranges", "-", stdin=json.dumps(body) + "\n")

    two.call("set", "host", "--controller", "static")
    # Kept from before: what belongs to a container from now on.
    finish_driver(start_driver("run", two.nbd("web:root"), "--ops", "4000", "--pattern", "seq", "--length", "12MiB"))
    for name, where in halves.items():
        put(name, [where])
    nodes = shares(two)
    assert {"web/shop", "web/mail", "web:root[shop]", "web:root[mail]"} <= nodes.keys()
    assert nodes["web:root[shop]"]["parent"] == "web/shop" and nodes["web/shop"]["parent"] == "web"
    before = counters_of(two, "web:root")["miss_blocks"]
    finish_driver(start_driver("run", two.nbd("web:root"), "--ops", "3000", "--length", "12MiB"))
    assert counters_of(two, "web:root")["miss_blocks"] == before, "what was kept is kept"

    def load(container):
        at, length = halves[container]
        return start_driver("run", two.nbd("web:root"), "--seconds", "120", "--depth", "8", "--offset", at, "--length", length)

    loads = [load(name) for name in halves]
    try:
        two.call("set", "web/shop", "--weight", "300")
        two.call("set", "web:root", "--ceiling", "12MiB")

        def by_weight(n):
            # The idle VM's and the idle rest's are lent: the one of greater weight has all it can use, the other what is left.
            measured = all(n[f"web:root[{name}]"]["requests"] > 0 for name in halves)
            return measured and n["web/shop"]["share_bytes"] > 44 * mib > n["web/mail"]["share_bytes"] > 12 * mib

        nodes = until(two, "by weight", by_weight)
        assert nodes["web:root"]["share_bytes"] <= 12 * mib
        two.call("set", "web/shop", "--ceiling", "8MiB")
        until(two, "a ceiling", lambda n: n["web/shop"]["share_bytes"] <= 8 * mib < n["web/mail"]["share_bytes"])
        refused = two.call("set", "web:root", "--size", "32MiB", check=False)
        assert refused.returncode == 1 and "ranges" in refused.stderr, refused.stderr
    finally:
        for started in loads:
            started.terminate()
            started.wait()
    assert counters_of(two, "web:root")["errors"] == 0
    put("mail", [])
    assert "web:root[mail]" not in shares(two)
    put("shop", [])
    assert not [name for name in shares(two) if "[" in name]
    assert two.status()["disks"]


def test_a_policy_of_a_vm_is_that_of_its_disks_at_once(two):
    """`set VM --policy` changes what its disks have, by themselves they can differ, and `inherit` ends that."""

    def policies():
        return [two.disk(f"{vm}:root")["cache"]["policy"] for vm in ("web", "db")]

    finish_driver(start_driver("run", two.nbd("web:root"), "--seconds", "2"))
    kept = two.disk("web:root")["cache"]["cached_bytes"]
    assert "policy lru" in two.call("set", "web", "--policy", "lru").stdout
    assert policies() == ["lru", "s3-fifo"]
    now = two.disk("web:root")["cache"]
    # Its load has ended, so its share is lent bit by bit.
    assert now["cached_bytes"] >= min(kept, now["capacity_bytes"]) > 0, "what is kept stays"
    two.call("set", "web:root", "--policy", "arc")
    assert policies() == ["arc", "s3-fifo"]
    assert "before: weight 100" in two.call("set", "web:root", "--policy", "inherit", "--weight", "200").stdout
    assert policies() == ["lru", "s3-fifo"]
    two.call("set", "web", "--policy", "inherit")
    assert policies() == ["s3-fifo", "s3-fifo"]
    refused = two.call("set", "wbe", "--policy", "arc", check=False)
    assert refused.returncode == 1 and 'did you mean "web"?' in refused.stderr


def test_the_ceiling_holds_while_shares_move_between_workers(two):
    """Each VM's disk has a worker of its own. Whoever grows waits for the memory that the other gives, until the kernel has it
    back: at no moment do both have more than the store."""
    two.call("set", "host", "--controller", "static")
    loads = [start_driver("run", two.nbd(f"{name}:root"), "--seconds", "120", "--depth", "8") for name in ("web", "db")]
    most = 0
    try:
        # By weight, in steps; then by hand, at once.
        changes = [("web", "--weight", "500"), ("web", "--weight", "20")] * 3 + [("web:root", "--size", f"{mib}MiB") for mib in (16, 76) * 3]
        for change in changes:
            two.call("set", *change)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                store = two.status()["store"]
                used = store["data_bytes"] + store["metadata_bytes"] + store["io_bytes"]
                if used > most:
                    most, at = used, (change, 3 - (end - time.monotonic()), store)
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
