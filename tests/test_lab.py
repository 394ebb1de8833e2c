"""The laboratory's pure parts: counters, computed caches, figures, report, and taking up a stopped run."""

import json
import struct
import sys

import pytest
from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

from exclusive import run as lab  # noqa: E402
from exclusive import cells, derive, experiments, loads, measure, perfect, reach, report, store  # noqa: E402
from rig.process import Stopped  # noqa: E402

MIB = 1 << 20


def guest_result(read_mib=100, seconds=10.0, reads=51200):
    """What the workload program prints, as it is stored."""
    device = {"read_ios": 100, "read_bytes": read_mib * MIB, "read_ms": 50, "write_ios": 0, "write_bytes": 0}
    return {
        "seconds": seconds,
        "reads": reads,
        "writes": 0,
        "read_bytes": 2 * read_mib * MIB,
        "cached_bytes": read_mib * MIB,
        "read_disk": {"count": 100, "mean_us": 200.0},
        "device": device,
    }


def record(title, disk_mib, **more):
    """One arm of a cell that read `disk_mib` for a guest's 100 MiB."""
    measured = {
        "time": 10.0,
        "read_bytes": [int(disk_mib * MIB)],
        "own": {},
        "records": [],
        "vmstat": {"pswpin": 0, "pswpout": 3},
        "group": {},
        "reclaim": {"scanned": 200, "reclaimed": 50},
        "cpu": {"seconds": 2.0, "threads": {}},
    }
    return {
        "title": title,
        "explains": title,
        "seconds": 30.0,
        "guest": {"kernel": "6.1", "total_bytes": 160 * MIB, "available_bytes": 128 * MIB, "mglru": False},
        "guests": [guest_result()],
        "limit_bytes": 52 * MIB,
        "extra": {},
        "measured": measured,
        "end": {"own": {}},
        "samples": [(0.5, 0, MIB, 4 * MIB), (1.0, 1, 3 * MIB, 6 * MIB)],
        "mean": {"cached_bytes": 3 * MIB, "memory_bytes": 6 * MIB, "cached_bytes_run": 2 * MIB},
    } | more


def exclusive_record(disk_mib):
    """The exclusive arm, with Undercroft's own counters."""
    exclusive = dict.fromkeys(
        ("hot_blocks", "probation_blocks", "cold_blocks", "evictions", "evictions_cached", "captures_tried", "captures",
         "early_tried", "early", "early_lapsed", "age_read", "age_write"), 0,
    )  # fmt: skip
    exclusive |= {"state": "delayed", "early_tried": 400, "early": 300, "hot_blocks": 1234}
    counters = {"hit_blocks": 30, "miss_blocks": 60, "joined_blocks": 10}
    own = {
        "process_read_bytes": int(disk_mib * MIB),
        "copying_seconds": 0.5,
        "disks": [{"counters": counters, "exclusive": exclusive}],
    }
    made = record("exclusive", disk_mib, end={"own": own})
    made["measured"]["own"] = own
    return made


MACHINE = {"cpu": "CPU", "cpus": 2, "kernel": "6.1-x", "qemu": "7.2", "accelerator": "tcg"}


def facts(load="uniform", n=0.25, kind="grid"):
    return {
        "load": load, "zeroing": True, "mglru": False, "n": n, "guest_mib": 192, "quick": False, "title": load,
        "explains": f"does {load}", "cache_bytes": 48 * MIB, "kind": kind, "machine": MACHINE,
    }  # fmt: skip


def results(tmp_path, ours=70, perfect_saved=400):
    """A store with one cell: the default reads more than it was asked for, LRU saves 5 %, exclusive what is left of
    `ours`."""
    s = store.Store(tmp_path / "exclusive.json")
    s.begin("a", facts())
    s.add(
        "a",
        "direct",
        record("O_DIRECT", 100, perfect=[(1000, perfect_saved)], inclusive_lru=[(1000, 50)], hits=[(1000, 0)]),
    )
    s.add("a", "default", record("page cache, host's read-ahead", 110, hits=[(1000, 20)]))
    s.add("a", "undercroft-lru", record("inclusive, LRU", 95))
    s.add("a", "undercroft-auto", exclusive_record(ours))
    s.finish("a")
    return s


# --- Counters


def test_a_processes_name_may_look_like_fields():
    stat = "12 (a) b 1 (c) S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20 0 1 0 100"
    assert measure.thread_name(stat) == "a) b 1 (c"
    assert measure.cpu_seconds(stat) == 400 / measure.TICK


def test_tables_of_counters_skip_what_is_no_number():
    text = "pgscan 5\nbroken\nname with 3\npgsteal -2\nother x\n"
    assert measure.table(text) == {"pgscan": 5, "pgsteal": -2}
    assert measure.chosen(text, ("pgscan", "absent")) == {"pgscan": 5}


def test_differences_go_into_nested_tables():
    before = {"a": 1, "list": [1, {"b": 2}], "name": "x", "gone": 4}
    after = {"a": 4, "list": [2, {"b": 2.5}], "name": "y", "new": 7, "none": None, "flag": True}
    wanted = {"a": 3, "list": [1, {"b": 0.5}], "name": "y", "new": 7, "none": None, "flag": True}
    assert measure.difference(after, before) == wanted


def test_reclaim_is_counted_for_the_serving_process_only():
    lines = [
        "  qemu-3 ( 77) [000] ..... 1.0: mm_vmscan_lru_shrink_inactive: nid=0 nr_scanned=32 nr_reclaimed=30 nr_dirty=0",
        "  other-9 ( 9) [000] ..... 1.0: mm_vmscan_lru_shrink_inactive: nid=0 nr_scanned=64 nr_reclaimed=64 nr_dirty=0",
        "  <...>-9 (-------) [000] ..... 1.0: mm_vmscan_lru_shrink_inactive: nid=0 nr_scanned=64 nr_reclaimed=64",
        "cut off in the mi",
    ]
    trace = measure.ReclaimTrace({77})
    trace.add(lines)
    assert (trace.scanned, trace.reclaimed) == (32, 30)
    assert trace.counted() is None, "no thread has read anything: not counted is not 0"


def test_samples_keep_their_ends():
    thin = measure.thinned(list(range(1000)), 60)
    assert len(thin) == 60 and thin[0] == 0 and thin[-1] == 999
    assert measure.thinned([1, 2], 60) == [1, 2]


# --- Computed caches. A record: (guest page, block, read or write, hit).


def reads(*pairs):
    return [(page, block, perfect.READ, perfect.MISS) for page, block in pairs]


def test_a_block_is_saved_once_its_page_was_reused():
    """Page 1 holds block 10, then 11: 10 has left the guest, and reading it is saved; 11 was never seen to leave."""
    records = reads((1, 10), (1, 11), (2, 10), (3, 11))
    assert perfect.exclusive(records, 0, 10) == (4, 1)
    assert perfect.exclusive(records, 2, 10) == (2, 1), "only what comes after the warm-up counts"


def test_a_block_that_was_read_is_no_longer_in_the_exclusive_cache():
    records = reads((1, 10), (1, 11), (2, 10), (3, 10))
    assert perfect.exclusive(records, 0, 10) == (4, 1)


def test_a_block_that_another_page_holds_has_not_left():
    records = reads((1, 10), (2, 10), (1, 11), (3, 10))
    assert perfect.exclusive(records, 0, 10) == (4, 0)


def test_transfers_that_are_kept_are_those_that_were_logged(tmp_path):
    """In the format of `undercroft_study::sim::transfer_log`, whose tests make the same bytes."""
    records = [(1 << 40, 10, perfect.READ, perfect.UNKNOWN), (2 << 12, 11, perfect.WRITE, perfect.MISS)]
    perfect.keep(records, 1, tmp_path / "new" / "kept")
    kept = (tmp_path / "new" / "kept").read_bytes()
    assert kept[:16] == (2).to_bytes(8, "little") + (1).to_bytes(8, "little")
    assert kept[16:32] == (1 << 40).to_bytes(8, "little") + (10).to_bytes(4, "little") + bytes([0, 2, 0, 0])
    assert kept[32:] == (2 << 12).to_bytes(8, "little") + (11).to_bytes(4, "little") + bytes([1, 0, 0, 0])


def test_a_write_makes_the_cached_copy_old_and_its_page_holds_the_new_one():
    records = [*reads((1, 10), (1, 11)), (2, 10, perfect.WRITE, 0), *reads((3, 10), (2, 12), (3, 13), (4, 10))]
    # Written from page 2 and read into page 3; both are reused later: then block 10 has left, and is saved once.
    assert perfect.exclusive(records, 0, 10) == (6, 1)


def test_the_exclusive_cache_keeps_the_youngest():
    records = reads((1, 10), (1, 11), (1, 12), (2, 10), (2, 11))
    assert perfect.exclusive(records, 3, 1) == (2, 1)
    assert perfect.exclusive(records, 3, 2) == (2, 2)


def test_inclusive_lru_is_lru():
    records = reads((1, 10), (1, 11), (1, 10), (1, 12), (1, 11), (1, 10))
    assert perfect.inclusive_lru(records, 0, 2) == (6, 1)
    assert perfect.inclusive_lru(records, 0, 3) == (6, 3)


def test_logs_say_when_records_are_missing(tmp_path):
    log = perfect.Log(tmp_path / "log", records=2)
    with open(log.path, "r+b") as f:
        f.write(struct.pack("<QQQIBBxx", 1, 0, 77, 5, perfect.READ, perfect.HIT))
    assert log.read() == [(77, 5, perfect.READ, perfect.HIT)]
    assert perfect.hits(log.read()) == (1, 1)
    with open(log.path, "r+b") as f:
        f.write(struct.pack("<Q", 3))
    assert log.read() is None
    log.close()
    assert not log.path.exists()


def test_hits_that_the_kernel_could_not_tell_are_not_misses():
    assert perfect.hits([(1, 1, perfect.READ, perfect.UNKNOWN)]) is None
    assert perfect.hits([(1, 1, perfect.WRITE, perfect.UNKNOWN)]) == (0, 0)


# --- Cells and command line


def test_every_cell_has_an_id_of_its_own():
    a = lab.arguments([])
    ids = [cell.id for cell in a.cells]
    assert len(set(ids)) == len(ids)
    assert "uniform-zero1-mglru0-n0.25-192MiB" in ids and "zipf-zero1-mglru1-n0.5-192MiB" in ids
    assert {cell.load for cell in a.cells} == set(loads.USUAL)
    assert not any(cell.quick for cell in a.cells) and a.out.name == "results"


def test_quick_is_small_and_goes_elsewhere():
    a = lab.arguments(["--quick"])
    assert [c.id for c in a.cells] == [
        f"{load}-zero1-mglru0-n{n}-192MiB-quick" for load in ("uniform", "zipf") for n in (0.25, 0.5)
    ]
    assert a.out.name == "lab", "a quick run never writes over the results that are committed"


@pytest.mark.parametrize(
    "argv, named",
    [
        (["--loads", "uniform,zip"], "zip"),
        (["--arms", "defualt"], "defualt"),
        (["--n", "0.5,x"], "0.5,x"),
        (["--n", "0"], "16 times"),
        (["--guest-memory", "192MB"], "192MB"),
        (["--guest-memory", "64"], "112 MiB"),
        (["--only", "nothing"], "nothing"),
        (["--only", "("], "--only"),
    ],
)
def test_wrong_arguments_are_named(argv, named, capsys):
    with pytest.raises(SystemExit) as stopped:
        lab.arguments(argv)
    assert stopped.value.code == 2
    assert named in capsys.readouterr().err


def test_every_arm_gets_the_same_work():
    """A load's command depends on its cell alone; more host cache means a longer warm-up, not other measured work."""
    for load in loads.LOADS.values():
        if not isinstance(load, loads.Load):
            continue
        small, large = (cells.Cell(load.key, True, False, n) for n in (0.25, 1))
        assert load.command(small) == load.command(small)
        assert load.counts(small)[1] == load.counts(large)[1]
        assert load.counts(small)[0] <= load.counts(large)[0]
        assert load.bytes(small) > small.usable_mib * MIB * (load.pool or 1), "it must not fit into the guest"


# --- Figures and report


def test_saved_counts_bytes(tmp_path):
    cell = results(tmp_path).data["cells"]["a"]
    saved = {key: round(derive.saved(r), 6) for key, r in cell["arms"].items()}
    assert saved == {"direct": 0, "default": -0.1, "undercroft-lru": 0.05, "undercroft-auto": 0.3}
    assert derive.perfect(cell) == 0.4
    f = derive.figures(cell["arms"]["default"])
    assert (f["hit_blocks"], f["scan_efficiency"], f["swapped"], f["cpu_share"]) == (0.02, 0.25, 3, 0.2)


def test_the_report_marks_what_was_not_reached(tmp_path):
    good = report.full(results(tmp_path).data, ["a.svg"])
    assert "| zeroing | 0.25 | 0.0 % | -10.0 % | 5.0 % | **30.0 %** | 40.0 % | 75 % |" in good
    assert "2x the best inclusive | 10.0 % | 30.0 % | reached" in good
    assert "80 % of perfect exclusive | 32.0 % | 30.0 % | **not reached**" in good
    assert (
        "| a | exclusive | delayed | 0 | 0 | 0 of 0 (-) | 300 of 400 (75 %) | 0 | 0 / 0 | 1,234 / 0 / 0 | 5.0 % |"
        in good
    )
    assert "Nowhere by more than a point." in good and "![a.svg](a.svg)" in good
    bad = report.full(
        results(tmp_path, ours=97).data, [], why=[{"cells": "^a$", "against": ["undercroft-lru"], "text": "Because."}]
    )
    assert "inclusive, LRU saved 5.0 %, exclusive 3.0 %. Because." in bad
    assert "*Not explained yet.*" not in bad
    assert "Not explained yet" in report.full(results(tmp_path, ours=97).data, [], why=[])


def test_what_perfect_does_not_reach_either_says_so(tmp_path):
    s = results(tmp_path)
    s.add("a", "undercroft-lru", record("inclusive, LRU", 75))
    said = report.full(s.data, [])
    assert "2x the best inclusive | 50.0 % | 30.0 % | **not reached**; perfect: 40.0 %" in said
    assert "80 % of perfect exclusive | 32.0 % | 30.0 % | **not reached** |" in said


def test_a_report_without_the_exclusive_arm_says_so(tmp_path):
    s = results(tmp_path)
    s.data["cells"]["a"]["arms"]["undercroft-auto"] = {"title": "exclusive", "explains": "", "absent": "no such key"}
    text = report.full(s.data, [])
    assert "not in this build" in text and "there is nothing to judge" in text
    assert reach.verdicts(s.data["cells"]["a"]) == []
    assert "Nothing has been measured yet." in report.full({"cells": {}}, [])


def test_disagreeing_counts_are_shown(tmp_path):
    s = results(tmp_path)
    s.data["cells"]["a"]["arms"]["undercroft-auto"]["measured"]["own"]["process_read_bytes"] = 80 * MIB
    s.data["cells"]["a"]["arms"]["direct"]["measured"]["read_bytes"] = [50 * MIB]
    text = report.full(s.data, [])
    assert "a, exclusive: 70.0 MiB by its own count, 80.0 MiB by the kernel's" in text
    assert "a: O_DIRECT read 50.0 MiB where the guest read 100.0 MiB" in text
    assert derive.saved(s.data["cells"]["a"]["arms"]["undercroft-auto"]) == pytest.approx(
        0.2
    ), "the kernel's count is what counts"


def test_how_many_guests_fit_is_interpolated(tmp_path):
    assert experiments.needed_n([(0.5, 0.1), (0.25, -0.1), (1, 0.3)], 0.2) == pytest.approx(0.75)
    assert experiments.needed_n([(0.25, 0.4)], 0.2) == pytest.approx(0.125)
    assert experiments.needed_n([(0.25, 0.1)], 0.2) is None
    s = results(tmp_path)
    s.begin("b", facts(n=1))
    s.add("b", "undercroft-lru", record("inclusive, LRU", 45))
    fit = experiments.fit(s.data["cells"], "uniform")
    n, guests, _ = fit["arms"]["undercroft-lru"]
    assert n == pytest.approx(0.625) and guests == int(8192 // (192 * 1.625))
    assert fit["arms"]["undercroft-auto"][:2] == (0.25, int(8192 // (192 * 1.25)))
    assert fit["arms"]["default"][0] is None


# --- The store


def test_a_stopped_run_is_taken_up_by_whole_cells(tmp_path):
    s = results(tmp_path)
    arms = ["direct", "default", "undercroft-lru", "undercroft-auto"]
    again = store.Store(s.path)
    assert json.loads(json.dumps(again.data)) == json.loads(json.dumps(s.data))
    assert again.done("a", arms, arms)
    assert not again.done("a", [*arms, "fadvise"], arms), "an arm that was not asked for then is missing now"
    assert not again.done("b", arms, arms)
    again.begin("a", facts())
    again.add("a", "direct", record("O_DIRECT", 100))
    assert not store.Store(s.path).done("a", ["direct"], ["direct"]), "stopped in the middle: all arms again"


def test_an_arm_that_has_come_since_is_measured(tmp_path):
    s = results(tmp_path)
    s.data["cells"]["a"]["arms"]["undercroft-auto"] = {"title": "exclusive", "explains": "", "absent": "no such key"}
    s.save()
    arms = ["default", "undercroft-auto"]
    assert store.Store(s.path).done("a", arms, ["default"])
    assert not store.Store(s.path).done("a", arms, arms)


def test_results_of_another_version_are_left_alone(tmp_path):
    path = tmp_path / "exclusive.json"
    path.write_text('{"version": 0, "cells": {}}')
    with pytest.raises(ValueError, match="move it away"):
        store.Store(path)


def test_guests_that_counted_differently_stop_the_run():
    tree = loads.LOADS["tree"]
    same = [{"guests": [{"counts": ["3", "4"]}]}, {"guests": [{"counts": ["3", "4"]}]}, {"absent": "x"}]
    tree.same(same)
    with pytest.raises(Stopped, match="differently"):
        tree.same([*same, {"guests": [{"counts": ["3", "5"]}]}])
