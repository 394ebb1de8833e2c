"""Clones that boot at once, and guests that read for a while: what is derived from the figures, and what the report
says of them. No guest is booted."""

import argparse
import itertools
import json
import re
import subprocess
import sys
import threading
import types

import pytest
from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

# experiments/ is no package
from locking import boot, boot_arms, boot_derive, boot_images, boot_other, boot_report, boot_rounds  # noqa: E402
from locking import boot_serving, page, run, steady, steady_report  # noqa: E402
from rig import machine, readahead  # noqa: E402
from rig.process import Stopped  # noqa: E402

MIB = 1 << 20
SIZES = {"clones": 3, "guest_mib": 128, "store_mib": 64, "floor_mib": 24, "boot_mib": 60, "work_mib": 32}
MACHINE = {"cpu": "a cpu", "cpus": 2, "accelerator": "tcg", "kernel": "6.1", "qemu": "7.2"}


def counted(base_mib=0, other_mib=0, hits=None):
    """Counters of a part of a run: `hits` of 100 blocks, if there is a daemon."""
    zero = {"hit_blocks": 0, "miss_blocks": 0, "joined_blocks": 0}
    clones = zero | {"hit_blocks": hits, "miss_blocks": 100 - hits} if hits is not None else None
    mibs = {"base": base_mib, "other": other_mib}
    disks = {name: {"reads": 16 * mib, "read_bytes": mib * MIB} for name, mib in mibs.items()}
    return {"disks": disks, "daemon": {"clones": clones, "other": zero} if clones else {}, "busy_seconds": 1.0}


def arm(base_mib, worst, other_mib=32, hits=50, locked_mib=0):
    """One arm in one repetition."""
    ups = [worst - 2, worst - 1, worst]
    disk = {"share_bytes": 4 * MIB, "locked_bytes": locked_mib * MIB}
    disks = {f"clone-{n}:root": disk for n in (1, 2, 3)} | {"other:root": {"share_bytes": 52 * MIB, "locked_bytes": 0}}
    boots = {"up_seconds": ups, "read_seconds": [1.0, 2.0, 4.0]}
    return {
        "load_average": 0.5,
        "first": boots | {"counted": counted(60, hits=hits)},
        "again": boots | {"counted": counted(base_mib, hits=hits)},
        # 2,048 reads of 64 KiB are 128 MiB.
        "random": {"reads": 2048, "seconds": 5.0, "counted": counted(other_mib=other_mib)},
        "beside": {"reads": 64, "mean_us": 100.0, "rate": 64.0, "counted": counted(other_mib=1)},
        "held_again": {"disks": disks} if hits is not None else None,
        "memory_bytes": 70 * MIB,
        "peak_bytes": 72 * MIB,
    }


def cell(arms, **more):
    """A stored cell."""
    facts = {
        "sizes": SIZES | {"other_stores": 4}, "machine": MACHINE, "commit": "abc", "random_kib": 64, "passes": 2,
        "beside_reads": 64, "lock_budget": "90%", "shares_interval": "1s", "read_ahead_kb": 128,
        "recorded": {"ranges": 300, "bytes": 61 * MIB}, "wait_ms": 2, "order": [*arms], "day": "2026-11-30",
        "settings": ["[pressure] watch = false"], "limit_mib": 74,
    }  # fmt: skip
    return {"words": ["boot", "x"], "facts": facts | more, "arms": arms}


def stored(none, kept, floor=60):
    """Repetitions; `none` and `kept` are what was read of the base in each, with which the times go."""
    of = {"none": none, "kept": kept, "floor": [floor] * len(none)}
    cells = ({key: arm(mibs[n], 40 + mibs[n] / 10) for key, mibs in of.items()} for n in range(len(none)))
    return {f"boot-2ms-{n}": cell(arms) for n, arms in enumerate(cells, 1)}


HIGH, LOW = [50, 55, 60, 58, 52], [1, 2, 3, 4, 5]


def test_figures_of_an_arm():
    found = boot_derive.figures(arm(30, 44, hits=80, locked_mib=20), 64)
    assert (found["up_median"], found["up_worst"], found["reading"]) == (43, 44, 2.0)
    assert (found["base_mib"], found["base_reads"], found["hits"]) == (30, 480, 80)
    assert (found["random_missed"], found["beside_missed"]) == (25, 25)
    assert (found["clones_mib"], found["other_mib"], found["locked_mib"]) == (12, 52, 20)
    without = boot_derive.figures(arm(30, 44, hits=None), 64)
    assert {without[name] for name in ("hits", "clones_mib", "other_mib", "locked_mib", "fetched_mib")} == {None}


def test_what_was_fetched_before_a_round_is_part_of_what_it_read():
    found = arm(3, 44) | {
        "fetched_first": {"seconds": 9.0, "missing_bytes": 0, "counted": counted(58)},
        "fetched_again": {"seconds": 8.0, "missing_bytes": 2 * MIB, "counted": counted(40)},
    }
    figures = boot_derive.figures(found, 64)
    assert (figures["base_mib"], figures["fetched_mib"], figures["all_mib"]) == (3, 40, 43)
    assert (figures["first_all_mib"], figures["fetched_seconds"], figures["lacking_mib"]) == (118, 8.0, 2)
    without = boot_derive.figures(arm(3, 44), 64)
    assert (without["all_mib"], without["first_all_mib"], without["lacking_mib"]) == (3, 60, None)
    assert boot_report.SAID["all_mib"] and "base_mib" not in boot_report.SAID and "all_mib" in boot_derive.MAIN


def test_the_rank_test_is_exact():
    assert boot_derive.rank_p([1, 2, 3], [4, 5, 6]) == boot_derive.least_p(3) == pytest.approx(0.1)
    assert boot_derive.rank_p(LOW, HIGH) == boot_derive.least_p(5) == pytest.approx(2 / 252)
    assert boot_derive.rank_p(HIGH, LOW) == pytest.approx(2 / 252)
    # Two ways of 252 are as they are, and of those with one figure on the other side two are as far.
    assert boot_derive.rank_p([1, 2, 3, 4, 6], [5, 7, 8, 9, 10]) == pytest.approx(4 / 252)
    assert boot_derive.rank_p([5] * 5, [5] * 5) == boot_derive.rank_p([1, 4], [2, 3]) == 1
    # As many repetitions as are made by default are enough to tell arms apart.
    assert boot_derive.least_p(boot_arms.REPETITIONS) <= boot_derive.level() <= boot_derive.FALSE / 6
    assert boot_derive.least_p(boot_arms.REPETITIONS) <= boot_derive.level(steady_report.PAIRS, steady_report.MAIN)


@pytest.mark.parametrize(
    ("none", "kept", "side"), [(HIGH, LOW, -1), (LOW, HIGH, 1), ([5] * 5, [5] * 5, 0)], ids=["less", "more", "same"]
)
def test_what_is_told_has_its_side_and_its_p(none, kept, side):
    cells = boot_derive.cells_by_wait(stored(none, kept))[2]
    p = boot_derive.rank_p(none, kept)
    assert boot_derive.told(cells, "kept", "none", "base_mib") == (side, p)
    assert boot_derive.told(cells, "none", "kept", "base_mib") == (-side, p)
    assert boot_derive.told(cells, "kept", "none", "fetched_mib") is None


def test_the_verdict_follows_the_figures():
    def said(*of):
        return boot_report.verdict(boot_derive.cells_by_wait(stored(*of))[2])

    helps, harms = said(HIGH, LOW), said(LOW, HIGH)
    not_told = said([50, 55, 60, 58, 52], [1, 2, 56, 3, 4])
    beside = "*pins, held, floor* beside *nothing*: "
    assert f"{beside}less is read of the base in the second round, fetching included (p = 0.008), the last" in helps
    assert "the last clone is up sooner (p = 0.008)" in helps and "*pins, held, floor* beside *floor*: less" in helps
    assert f"{beside}what is read of the base is not told apart (p = 0.0" in not_told
    assert f"{beside}more is read of the base" in harms and "the last clone is up later (p = 0.008)" in harms
    # Three repetitions that are wholly apart are one chance in ten: nothing is said.
    few = boot_report.verdict(boot_derive.cells_by_wait(stored(HIGH[:3], LOW[:3]))[2])
    assert "p is 0.100 at least" in few and "there is no verdict" in few
    assert "6 comparisons for each wait" in boot_report.rule() and "is 5 % at most" in boot_report.rule()


def test_the_section_has_all_arms_and_is_left_out_without_cells():
    assert boot_report.section({"sizes-gzip": {}}) == ""
    data = stored(HIGH, LOW) | {f"boot-0ms-{n}": cell({"none": arm(60, 20)}, wait_ms=0) for n in (1, 2, 3)}
    text = boot_report.section(data)
    assert "waits 2 ms" in text and "without a wait" in text
    assert "| pins, held, floor | 39.3 (39.1 to 39.5) | 40.3 (40.1 to 40.5) |" in text
    assert "*pins, held, floor* beside *nothing*: read of the base, fetching included, 3.0 and 55.0 MiB (p = " in text
    words = " ".join(text.split())
    assert "`[pressure] watch = false`" in words and "same limit of memory, 74 MiB" in words
    assert "runs on the same processors" in words and "processors busy, s" in text
    assert max(len(line) for line in text.splitlines() if line[:1] not in "-|") <= 120
    assert page.page(f"# x\n{text}", ROOT).count("<table>") == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": MACHINE | {"accelerator": "kvm"}}, "the machine is"),
        ({"sizes": SIZES | {"other_stores": 4, "clones": 9}}, "sizes is"),
        ({"commit": "def"}, "commit is def and abc"),
        ({"settings": []}, "settings is"),
    ],
)
def test_figures_that_were_not_measured_alike_are_refused(change, said):
    data = stored(HIGH, LOW)
    data["boot-2ms-3"]["facts"] |= change
    with pytest.raises(Stopped, match=f"boot-2ms-3 and boot-2ms-1 cannot be reported together: {said}"):
        boot_report.section(data)


def test_cells_with_other_arms_are_refused():
    data = stored(HIGH, LOW)
    del data["boot-2ms-2"]["arms"]["floor"]
    with pytest.raises(Stopped, match="only one has floor"):
        boot_derive.cells_by_wait(data)


def test_arms_are_in_rows_of_a_balanced_square():
    keys = tuple(boot_arms.ARMS)
    for count in range(1, len(keys) + 1):
        orders = [boot_arms.order(keys[:count], n) for n in range(1, boot_arms.REPETITIONS + 1)]
        assert all(sorted(order) == sorted(keys[:count]) for order in orders)
    assert len({order[0] for order in orders}) == boot_arms.REPETITIONS
    pairs = [pair for order in orders for pair in itertools.pairwise(order)]
    assert max(map(pairs.count, pairs)) <= 2


def test_arms_set_what_they_say():
    sizes = boot_arms.USUAL
    lines = {key: (arm.disk_lines("a.pins"), arm.vm_lines(sizes)) for key, arm in boot_arms.ARMS.items()}
    budget = f'lock_budget = "{boot_arms.BUDGET}"\n'
    pins, floor = f'pins = "a.pins"\n{budget}', f'floor = "{sizes.floor_mib}MiB"\n'
    assert (lines["none"], lines["floor"], lines["pinned"]) == (("", ""), ("", floor), (pins, ""))
    assert lines["held"] == (f"{pins}lock_held = true\n", "")
    assert lines["kept"] == lines["fetched"] == (f"{pins}lock_held = true\n", floor)


@pytest.mark.parametrize("sizes", [boot_arms.USUAL, boot_arms.QUICK])
def test_the_store_is_large_enough_for_the_pins_and_smaller_than_the_scan(sizes):
    """Each disk has a like part of the store at first, of which its pins have to fit into the budget; a floor holds a
    part of the boot set, the rest of which is held in common."""
    budget = float(re.match(r"\d+", boot_arms.BUDGET)[0]) / 100
    share = sizes.store_mib / (sizes.clones + 1)
    assert budget * (share - 4) > sizes.boot_mib * 1.05
    assert sizes.floor_mib * sizes.clones < sizes.store_mib < sizes.other_mib
    assert sizes.work_mib > sizes.floor_mib


def test_what_a_boot_reads():
    sizes = boot_images.boot_files(60 * MIB)
    assert 60 * MIB <= sum(sizes) < 61 * MIB + (1 << 20) and 200 < len(sizes) < 600
    assert min(sizes) == 4096 and max(sizes) <= 1 << 20 and all(size % 4096 == 0 for size in sizes)
    names = boot_images.read_order(len(sizes))
    assert sorted(names) == [f"boot/{n:04}" for n in range(len(sizes))] != names
    assert boot_images.boot_files(60 * MIB) == sizes


def disk(cached_mib, locked_mib=0, pinned_mib=60, budget_mib=80, read=0):
    """What the status says of a clone."""
    locks = {"pinned_bytes": pinned_mib * MIB, "locked_bytes": locked_mib * MIB, "budget_bytes": budget_mib * MIB}
    return {"locks": locks, "cache": {"cached_bytes": cached_mib * MIB}, "counters": {"backend_read_bytes": read}}


class Fetching(boot_serving.Clones):
    """One clone whose status says one thing after the other, the last one for good, a second apart."""

    def __init__(self, *said):
        self.said, self.now, self.count, self.pins = list(said), 0.0, 1, None

    def status(self):
        return {"disks": [self.said.pop(0) if len(self.said) > 1 else self.said[0]]}


def fetched(monkeypatch, *said):
    """What fetching comes to."""
    way, now = Fetching(*said), [0.0]
    monkeypatch.setattr(boot_serving, "warm", lambda *_: None)
    monkeypatch.setattr(
        boot_serving, "time",
        types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 1.0)),
    )  # fmt: skip
    return way.fetch()


def test_a_pause_is_not_taken_for_the_end_of_fetching(monkeypatch):
    pause = [disk(20, 20, read=1)] * 10
    done = fetched(monkeypatch, *pause, disk(60, 60, read=2))
    assert (done["missing_bytes"], done["cached_bytes"]) == (0, 60 * MIB)
    # It ends where no more comes, and says what lacks; of a budget that is too small what it allows is enough.
    assert fetched(monkeypatch, disk(40, 40, read=1))["missing_bytes"] == 20 * MIB
    assert fetched(monkeypatch, disk(60, 30, read=1))["missing_bytes"] == 30 * MIB
    assert fetched(monkeypatch, disk(60, 30, budget_mib=30, read=1))["missing_bytes"] == 0
    with pytest.raises(Stopped, match="is not fetched in"):
        fetched(monkeypatch, *(disk(20, 20, read=n) for n in range(1000)))


def test_what_does_not_end_is_said(monkeypatch, tmp_path):
    def late(argv, **options):
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    monkeypatch.setattr(boot_serving.subprocess, "run", late)
    (tmp_path / "pins").touch()
    way = types.SimpleNamespace(binary="undercroft", control="socket")
    with pytest.raises(Stopped, match="undercroft warm clone-1:root did not end within"):
        boot_serving.warm(way, "clone-1:root", tmp_path / "pins")
    # Reads beside the boots of which one never ends.
    monkeypatch.setattr(boot_other, "LONGEST_BESIDE", -9.9)
    hangs, ends = boot_other.Other(None, None, boot_arms.QUICK), threading.Event()
    monkeypatch.setattr(hangs, "drive", lambda *_: ends.wait(60))
    with boot_other.Beside(hangs) as beside:
        pass
    with pytest.raises(Stopped, match="do not end"):
        beside.done()
    ends.set()


def test_the_pace_beside_the_boots_is_measured(monkeypatch):
    other = boot_other.Other(None, None, boot_arms.QUICK)
    turn = {"reads": 64, "seconds": 0.1, "mean_us": 50.0, "p99_us": 60.0}
    ran = threading.Event()
    monkeypatch.setattr(other, "drive", lambda *_: ran.set() or turn)
    with boot_other.Beside(other) as beside:
        assert ran.wait(60)
    done = beside.done()
    assert done["reads"] == 64 * done["turns"] and done["mean_us"] == 50.0
    assert done["rate"] == pytest.approx(done["reads"] / beside.seconds, rel=0.01)


def test_a_recorded_boot_set_that_lacks_something_is_refused(tmp_path):
    pins = tmp_path / "boot.pins"
    pins.write_text(json.dumps({"ranges": [[0, 60 * 256], [90_000, 3]]}))
    assert boot_rounds.recorded(pins, boot_arms.USUAL) == {"ranges": 2, "bytes": 60 * MIB + 3 * 4096}
    pins.write_text(json.dumps({"ranges": [[0, 59 * 256]]}))
    with pytest.raises(Stopped, match="were recorded, and it reads 60 MiB"):
        boot_rounds.recorded(pins, boot_arms.USUAL)


def test_it_waits_until_it_is_recorded(monkeypatch):
    way = Fetching(None)
    answers = [[], [{"running": False}], [{"running": True}]]
    monkeypatch.setattr(way, "get", lambda _: answers.pop(0), raising=False)
    way.wait_until_recording(types.SimpleNamespace(poll=lambda: None), "log")
    assert answers == []
    monkeypatch.setattr(way, "get", lambda _: [])
    with pytest.raises(Stopped, match="does not record"):
        way.wait_until_recording(types.SimpleNamespace(poll=lambda: 1), "log")


def test_the_stand_in_for_the_storage_has_to_be_in_memory(monkeypatch, tmp_path):
    volume = tmp_path / "base.volume"
    volume.write_bytes(b"x" * MIB)
    disks = boot_images.Disks(types.SimpleNamespace(volumes={"base": volume}), 0)
    there, kept = iter([4096, MIB, MIB, MIB, MIB, MIB - 4096]), []
    monkeypatch.setattr(boot_images, "resident", lambda _: next(there))
    keep = readahead.kept_cached
    monkeypatch.setattr(readahead, "kept_cached", lambda path: kept.append(path) or keep(path))
    # Read, since only what mounting it has read is there; then there, and at the end of an arm not all of it.
    disks.fill()
    assert disks.filled == {volume: MIB}
    disks.fill()
    with pytest.raises(Stopped, match="base.volume: 4 KiB"):
        disks.check_filled()
    monkeypatch.setattr(boot_images, "resident", lambda _: 0)
    with pytest.raises(Stopped, match="not in the page cache"):
        disks.fill()
    assert kept == [volume]
    disks.stack.close()


@pytest.mark.parametrize(
    ("state", "action", "takes"), [("on", "pageout", True), ("off", "pageout", False), ("on", "stat", False)]
)
def test_a_kernel_that_takes_idle_pages_is_seen(tmp_path, state, action, takes):
    assert machine.takes_idle_pages(tmp_path) is machine.takes_idle_pages(tmp_path / "none") is False
    scheme = tmp_path / "0" / "contexts" / "0" / "schemes" / "0"
    scheme.mkdir(parents=True)
    (tmp_path / "nr_kdamonds").write_text("1\n")
    (tmp_path / "0" / "state").write_text(f"{state}\n")
    (scheme / "action").write_text(f"{action}\n")
    assert machine.takes_idle_pages(tmp_path) is takes
    data = stored(HIGH, LOW)
    for of in data.values():
        of["facts"]["machine"] = MACHINE | {"takes_idle_pages": takes}
    assert ("(DAMON)" in boot_report.section(data)) is takes


def test_all_ways_of_serving_have_the_same_limit(tmp_path):
    sizes = boot_arms.USUAL
    ways = [boot_serving.way(key, sizes, tmp_path, None) for key in boot_arms.ARMS]
    assert {way.memory_bytes for way in ways} == {boot_serving.limit_bytes(sizes)}
    assert all(way.limited and way.store_bytes == sizes.store_mib * MIB for way in ways if way.key == "clones")


def test_a_wait_that_makes_no_sense_is_refused():
    assert (boot.wait_ms("0"), boot.wait_ms("1000")) == (0, 1000)
    for text in ("-1", "1001", "2.5", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="no number of milliseconds"):
            boot.wait_ms(text)


# ---- guests that read for a while ----


def steady_arm(base_mib, disk_us, rule=False):
    """One arm in one repetition."""
    latencies = {"count": 100, "mean_us": disk_us, "p50_us": disk_us, "p99_us": 3 * disk_us}
    guest = {"seconds": 9.0, "reads": 200, "read_all": latencies | {"count": 200}, "read_disk": latencies}
    disks = {f"clone-{n}:root": {"share_bytes": 4 * MIB, "locked_bytes": MIB} for n in (1, 2, 3)}
    online = {"chosen_blocks": 3, "locks": 7, "unlocks": 4, "rests": 0, "epochs": 5} if rule else None
    return {
        "guests": [guest] * 3, "seconds": 10.0, "counted": counted(base_mib, hits=70), "load_average": 0.2,
        "held": {"disks": disks, "locks": {"online": online}}, "peak_bytes": 260 * MIB,
    }  # fmt: skip


def test_steady_loads_have_verdicts_and_a_table():
    assert steady_report.section({"boot-2ms-1": {}}) == ""
    data = {}
    for n in range(5):
        arms = {"plain": steady_arm(HIGH[n], 900 + n), "online": steady_arm(LOW[n], 800 + n, rule=True)}
        facts = {"warm": 10, "reads": 20, "alpha": 0.9, "recorded": [4096, 900, 3000]}
        data[f"steady-2ms-{n + 1}"] = cell(arms, **facts)
    text = steady_report.section(data)
    words = " ".join(text.split())
    assert "*online* beside *no locks*: less is read of the base (p = 0.008), reads of the disk take less (p" in words
    assert "A profile names 900 to 4,096 blocks" in words
    assert "| online | 3.0 (1.0 to 5.0) | 70.00 (70.00 to 70.00) | 802 (800 to 804) |" in text
    assert "| 7 (7 to 7) |" in text and "victim buffer" not in text
    assert max(len(line) for line in text.splitlines() if line[:1] not in "-|") <= 120


def test_arms_of_steady_loads_differ_in_locks_alone():
    lines = {key: arm.disk_lines("a.profile") for key, arm in steady.ARMS.items()}
    off = 'exclusive = "off"\n'
    assert lines["plain"] == off and lines["default"] == ""
    assert lines["online"] == f'{off}lock = "online"\nlock_budget = "30%"\n'
    assert lines["static"] == f'lock_profile = "a.profile"\n{off}lock = "static"\nlock_budget = "30%"\n'
    assert lines["buffer"] == f"{off}victim_buffer = 12\n"
    assert {arm for pair in steady_report.PAIRS for arm in pair} < {*steady.ARMS}
    sizes = steady.SIZES
    # A file is larger than a clone's part of the store and its guest's memory together.
    assert sizes.work_mib > sizes.store_mib / (sizes.clones + 1) + sizes.guest_mib


def test_a_profile_is_what_missed_most_in_order_of_the_disk():
    blocks = [{"offset_bytes": 4096 * n} for n in (7, 3, 4, 8, 20)]
    assert steady.blocks_of({"blocks": blocks}) == [[3, 2], [7, 2], [20, 1]]
    assert steady.blocks_of({"blocks": []}) == []


def test_guests_are_run_only_when_asked_for():
    cells = [*boot.boot_cells(), *steady.steady_cells()]
    assert all(run.has_guests(cell) for cell in cells) and len({cell.id for cell in cells}) == len(cells) == 15
    assert len([cell for cell in cells if cell.id.startswith("boot-2ms-")]) == boot_arms.REPETITIONS
