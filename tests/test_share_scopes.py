"""Who has and who changes what within a VM: containers, their ranges of a disk, and scopes of control."""

import json
import subprocess

import pytest
from harness import images
from harness.nodes import MEMORY, SIZE, counters_of, shares, until, vm
from harness.programs import built, finish_driver, run, start_driver


def test_containers_share_what_their_vm_has(serve, scratch):
    """Disks of one container are one node: by weight 25:75 below a VM, whatever happens beside it."""
    files = [images.raw(scratch / f"{n}.raw", 32 * images.MIB, seed=n) for n in range(3)]
    disks = "".join(
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{file}"\nformat = "raw"\nnbd = true\nvhost_user = false\ncontainer ='
        f' "{c}"\n'
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


def node(daemon, name, *, socket=None):
    """One node, as the API tells it."""
    nodes = json.loads(run(built("undercroft"), "shares", "--json", "--control", socket or daemon.control).stdout)[
        "nodes"
    ]
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
        f'[[vm.disk]]\nname = "d{n}"\nimage = "{files[n]}"\nformat = "raw"\nnbd = true\nvhost_user = false\ncontainer ='
        f' "{c}"\n'
        for n, c in enumerate(("shop", "blog"))
    )
    own = scratch / "web.sock"
    web = f'[[vm]]\nname = "web"\ncontrol_socket = "{own}"\n{containers}{disks}'
    extra = '[shares]\ncontroller = "static"\ninterval = "1s"\n' + web + vm("db", files[2])
    daemon = serve([], memory="96MiB", extra=extra)
    daemon.web = own
    return daemon


def test_two_scopes_do_not_touch_each_other(scoped):
    """Whoever runs the VM sets what is below it, on a socket that shows nothing else; whoever runs the host sets VMs;
    neither changes what the other has set."""

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
    assert (
        4 * images.MIB <= squeezed["floor_bytes"] <= 20 * images.MIB
        and squeezed["version"] == node(scoped, "web/shop")["version"]
    )
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
        ("shares",), ("shares", "--json"), ("why", "web"), ("why", "web:d0"), ("why", "db"),
        ("set", "db", "--weight", "1"),
        ("set", "web", "--weight", "1"), ("set", "web/shop", "--floor", "90MiB"),
        ("set", "host", "--controller", "static"),
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


def test_a_vm_sets_nothing_that_takes_from_others(scoped):
    """Of all keys of a disk that change live, those on the VM's own socket move what the VM has, and no more: others
    keep what they are entitled to whatever is tried there, and what is the host's is refused with its socket named."""
    tried = {
        "size": "80MiB", "poll": "10ms", "readahead": "4MiB", "exclusive": "capture",
        "weight": 10000, "floor": "8MiB", "ceiling": "90MiB", "policy": "lru", "hint": "willneed", "store": "ram",
    }  # fmt: skip
    entitled = shares(scoped)["db"]["entitled_bytes"]
    assert entitled == MEMORY // 2
    refused = set()
    for key, value in tried.items():
        code, text = scoped.api("PATCH", "/v1/nodes/web:d0", {key: value}, on=scoped.web)
        assert code in (200, 403), (key, text)
        if code == 403:
            refused.add(key)
            assert f"{key} of" in text and f"the host's control socket, {scoped.control}, may do it" in text, text
        assert shares(scoped)["db"]["entitled_bytes"] == entitled, key
    assert refused == {"size", "poll", "readahead", "exclusive"}
    assert scoped.api("PUT", "/v1/nodes/d0", {"size": "80MiB"}, on=scoped.web)[0] == 403
    # The host may do all of it.
    scoped.call("set", "web:d0", "--size", "8MiB", "--poll", "1us")
    # What the host has fixed stays so.
    for body in ({"weight": 300}, {"floor": "0"}, {"ceiling": "90MiB", "policy": "lru"}):
        code, text = scoped.api("PATCH", "/v1/nodes/web:d0", body, on=scoped.web)
        assert code == 403 and "has a size" in text, text
    assert scoped.api("PUT", "/v1/nodes/web:d0", {"policy": "lru"}, on=scoped.web)[0] == 200
    assert shares(scoped)["web:d0"]["share_bytes"] == 8 * images.MIB


def test_settings_of_containers_without_ranges_are_kept_for_a_while(two):
    """What is set for a container stays while its list is empty, as it is when the container is made anew; of those
    that do not come back, only the last ones are remembered: their names are the guest's, and their number has no
    end."""

    def put(container, ranges):
        body = {"disk": "web:root", "container": container, "ranges": ranges}
        assert two.api("PUT", "/v1/ranges", body)[0] == 200

    def set_for():
        return [name for name, n in shares(two).items() if name.startswith("web/") and n["weight"] == 200]

    some = [{"offset_bytes": 0, "length_bytes": 8192}]
    put("shop", some)
    two.call("set", "web/shop", "--weight", "200")
    put("shop", [])
    assert set_for() == ["web/shop"] and node(two, "web/shop")["share_bytes"] == 0
    put("shop", some)
    assert set_for() == ["web/shop"] and node(two, "web/shop")["share_bytes"] > 0
    put("shop", [])
    for n in range(34):
        put(f"c{n}", some)
        two.call("set", f"web/c{n}", "--weight", "200")
        put(f"c{n}", [])
    kept = set_for()
    assert len(kept) == 32 and "web/c2" in kept and "web/c1" not in kept and "web/shop" not in kept
    # They go with the VM's last disk.
    two.call("detach", "web:root")
    assert set_for() == []


def test_two_writers_of_one_node(scoped):
    """The last one wins and is told what it replaced; one that says which version it has seen changes nothing
    unseen."""
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
        subprocess.Popen(
            [*words, str(100 + n), "--if-version", version], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(6)
    ]
    outcomes = [(t.communicate()[1], t.returncode)[1] for t in tries]
    assert sorted(outcomes) == [0, 1, 1, 1, 1, 1]
    assert node(scoped, "web/shop")["weight"] == 100 + outcomes.index(0)


def test_a_container_that_vanishes_while_it_is_changed(scoped):
    """Reloads that take a container away and bring it back, while it is changed: each change happens or is refused with
    the reason, and everything else stays as it was set."""
    text = scoped.config.read_text()
    gone = text.replace('container = "shop"', 'container = "blog"').replace(
        '[[vm.container]]\nname = "shop"\nweight = 25\n', ""
    )
    before = settings(scoped)
    stale = before["web/shop"][-1]
    answers = []
    for n in range(12):
        scoped.config.write_text(gone if n % 2 == 0 else text)
        reload = subprocess.Popen(
            [built("undercroft"), "reload", "--control", scoped.control], stdout=subprocess.DEVNULL
        )
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
    """A list is sent as the program inside the guest prints it; what overlaps is refused, and the rest of the stream
    goes on."""
    web = images.raw(scratch / "web.raw", SIZE, seed=1)
    daemon = serve([], memory="96MiB", extra=vm("web", web))

    def listed(container, *ranges):
        ranges = [{"offset_bytes": o, "length_bytes": n} for o, n in ranges]
        return json.dumps({"disk": "web:root", "container": container, "ranges": ranges})

    lists = scratch / "lists"
    lists.write_text(
        "\n".join([listed("shop", (0, 8192), (8192, 100)), listed("blog", (4096, 1)), listed("blog", (12288, 1))])
    )
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
    """Two containers on one disk are leaves beside what is left of it: served in full within their shares, weighed
    against each other, and one disk again when their lists are taken away; nothing that was kept is lost by any of
    it."""
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
        return start_driver(
            "run", two.nbd("web:root"), "--seconds", "120", "--depth", "8", "--offset", at, "--length", length
        )

    loads = [load(name) for name in halves]
    try:
        two.call("set", "web/shop", "--weight", "300")
        two.call("set", "web:root", "--ceiling", "12MiB")

        def by_weight(n):
            # The idle VM's and the idle rest's are lent: the one of greater weight has all it can use, the other what
            # is left.
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
