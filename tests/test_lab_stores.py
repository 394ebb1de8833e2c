"""The laboratory's databases: the shortest experiment with a real one in a container, and what the report says."""

import os
import sys

import pytest
from harness.programs import ROOT, built, need, need_root, run
from harness.volumes import need_loops

sys.path.insert(0, str(ROOT / "experiments"))

from databases import cells, derive, engines, report  # noqa: E402 - experiments/ is no package
from exclusive import store  # noqa: E402

LIMIT_S = 110


@pytest.mark.alone
def test_a_database_in_a_container_runs_on_an_ssd_store(scratch):
    """MariaDB on a disk of Undercroft with `store = "ssd"`: transactions, hits on the SSD, bytes written to it."""
    pytest.importorskip("matplotlib", reason="not installed: python3-matplotlib (make setup installs it)")
    need_root()
    need_loops()
    need("podman", "runc", "nbdkit", "nbdfuse", "sysbench", "gcc")
    # Long work folders would make socket paths that are too long; mounts are a namespace's of their own.
    run(
        sys.executable, ROOT / "experiments/databases/run.py", "--quick", "--only", "^mariadb-", "--arms", "none,ssd",
        "--repeat", 1, "--seconds", 1, "--warm-up", 2, "--data", 64, "--work", scratch / "work", "--out", scratch,
        "--undercroft", built("undercroft"), limit=LIMIT_S,
    )  # fmt: skip
    (cell,) = store.load(scratch / "stores.json.xz")["cells"].values()
    assert cell["complete"] and derive.waits(cell) == ["1000", "8000"]
    for wait in derive.waits(cell):
        measured = cell["arms"]["ssd"]["runs"][0][wait]
        assert measured["loads"][0]["transactions"] > 0
        assert measured["counted"]["disks"][0]["reads"] > 0, "the slow disk was read from"
        assert measured["containers"][0]["bytes"] <= cell["base_bytes"]["mariadb"]
    measured = [cell["arms"]["ssd"]["runs"][0][wait]["counted"] for wait in derive.waits(cell)]
    assert sum(counted["ssd_written_bytes"] for counted in measured) > 0
    assert sum(counted["caches"][0]["ssd_hit_blocks"] for counted in measured) > 0
    text = (scratch / "stores.md").read_text()
    assert "Undercroft, SSD" in text and "A disk that waits 8 ms" in text
    assert not os.path.ismount(scratch / "work/below/where-0") and not list((scratch / "work/below").glob("ssd"))


def measured(tps, hits=0, ssd_hits=0, misses=10):
    """What one wait made of an arm, as it is stored."""
    load = {"transactions": 10 * tps, "tps": tps, "mean_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}
    counted = {
        "time": 10.0, "machine_cpu_seconds": 10.0, "cpu_seconds": 1.0, "disks": [{"read_bytes": 4096 * misses}],
        "caches": [{"hit_blocks": hits, "miss_blocks": misses, "joined_blocks": 0, "ssd_hit_blocks": ssd_hits}],
    }  # fmt: skip
    return {"loads": [load], "counted": counted, "containers": []}


def a_cell(of_ours):
    """A cell whose page cache has 100 transactions a second."""
    arms = {
        "pagecache": {"title": "page cache", "runs": [{"load_average": 1.0, "1000": measured(100)}] * 2},
        "ram": {
            "title": "ours",
            "runs": [{"load_average": 1.0, "1000": measured(tps, hits=90, ssd_hits=5)} for tps in of_ours],
        },
    }
    return {
        "engines": ["mariadb"], "arms": arms, "title": "case", "ram_bytes": 64 << 20, "ssd_bytes": 128 << 20,
        "program_bytes": 10 << 20, "base_bytes": {"mariadb": 80 << 20}, "machine": {"cpus": 2}, "data_mib": 64,
        "repeat": 2, "seconds": 1, "warm_up": 1, "commit": "x", "quick": True,
    }  # fmt: skip


def test_losses_are_named_and_ratios_are_within_a_repetition():
    cell = a_cell([50, 90])
    assert derive.ratios(cell, "ram", "pagecache", "1000", 0) == [0.5, 0.9]
    assert derive.ratios(cell, "ram", "peer", "1000", 0) == []
    assert "Of 1 comparisons we lose 1" in report.losses([cell]) and "0.70 (0.50 to 0.90)" in report.losses([cell])
    assert "Of 1 comparisons we lose 0" in report.losses([a_cell([150, 90])])
    row = report.rows(cell, "1000")[1]
    assert row[1:3] == [154, "-"] and "90.0" in row and "5.0" in row


def test_goals_are_judged_by_the_median_of_turns():
    turns = [
        {"raw": {"iops": 1150.0, "p99_us": 100.0}, "hits": {"iops": 1000.0, "p99_us": 140.0, "load_average": 1.0}
         | dict.fromkeys(("cpu_us", "ssd_hit_part", "ram_hit_part"), 1.0)},
    ] * 3  # fmt: skip
    kills = [{"seconds": 0.4, "starts": 1, "cached_bytes": 0}, {"seconds": 1.4, "starts": 2, "cached_bytes": 0}]
    facts = {"image_mib": 1, "on_ssd_part": 1.0, "is_realtime": True}
    text = report.of_devices({"runs": [facts | {"turns": turns, "kills": kills}]})
    assert [line.count("not reached") for line in text.splitlines()[-3:]] == [0, 1, 1], text
    assert "qemu-storage-daemon" not in text, "it had no turns"
    turns = [turn | {"peer": {"iops": 1100.0, "p99_us": 70.0}} for turn in turns]
    text = report.of_devices({"runs": [facts | {"turns": turns, "kills": kills}]})
    rows = [line for line in text.splitlines() if "qemu-storage-daemon" in line]
    assert len(rows) == 2 and "1.10" in rows[0] and "2.00" in rows[1], text


def test_what_the_programs_print_is_read():
    said = "number of transactions actually processed: 42\nlatency average = 1.0 ms\ntps = 84.5 (without initial)\n"
    found = engines.PostgreSQL.read(said, [1.0] * 98 + [5.0, 9.0])
    assert found["transactions"] == 42 and found["tps"] == 84.5 and found["p95_ms"] == 1.0 and found["p99_ms"] == 5.0
    histogram = "".join(f"       {ms:.3f} |{'*' * n:40} {n}\n" for ms, n in ((1, 96), (2, 3), (9, 1)))
    said = f"{histogram}    transactions:    100    (50.00 per sec.)\n  avg:        1.10\n"
    assert engines.MariaDB.read(said) == {
        "transactions": 100, "tps": 50.0, "mean_ms": 1.1, "p95_ms": 1.0, "p99_ms": 2.0
    }  # fmt: skip


def test_the_stored_results_make_the_report_that_is_there():
    data = store.load(ROOT / "docs/results/stores.json.xz")
    names = sorted(path.name for path in (ROOT / "docs/results").glob("stores-*.svg"))
    text = (ROOT / "docs/results/stores.md").read_text(encoding="utf-8")
    pictures = [name for name in names if f"]({name})" in text]
    assert data["cells"] and pictures
    made = report.full(data, sorted(pictures, key=text.index))
    assert made == text, "make lab-stores LAB=--report"
    assert set(data["cells"]) <= {cell.id for quick in (True, False) for cell in cells.grid(quick)} | {"devices"}
