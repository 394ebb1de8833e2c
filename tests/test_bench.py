"""The arithmetic and layout of the benchmark's tables, and that its cells are what they say."""

import sys

from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import builds  # noqa: E402 - bench/ is no package
import cells  # noqa: E402
import peers  # noqa: E402
import table  # noqa: E402


def run_of(iops: float, cpu: float) -> dict:
    """One repetition."""
    keys = ["mb_per_s", "p50_us", "p99_us", "memory_bytes", "disk_reads_per_io"]
    return {"iops": iops, "cpu_s_per_million": cpu, **dict.fromkeys(keys, 1.0)}


def results(ours: list, theirs: list) -> dict:
    """Results with one cell."""
    servers = {
        "undercroft": {"ours": True, "missing": "", "runs": [run_of(*r) for r in ours]},
        "peer": {"ours": False, "missing": "", "runs": [run_of(*r) for r in theirs]},
        "absent": {"ours": False, "missing": "not installed", "runs": []},
    }
    machine = {
        "cpu": "CPU",
        "cores": 2,
        "memory_gib": 4,
        "kernel": "6.1",
        "versions": {"QEMU": "7.2"},
        "server_core": 0,
        "driver_core": 1,
        "realtime": True,
        "repetitions": 3,
        "seconds": 1.0,
        "quick": False,
    }
    cell = {"key": table.README_ROWS[0], "work": "work", "protocol": "vhost", "reference": "peer", "servers": servers}
    return {"machine": machine, "cells": [cell]}


def test_ratios_are_within_repetitions():
    """A machine that slows down for both shows the same ratio."""
    assert table.ratios([100, 50, 210], [100, 50, 200]) == (1.0, 1.0, 1.05)
    assert table.ratios([1.0], [0.0]) is None


def test_losses_are_marked_and_gains_are_bold():
    """More IOPS is a gain, more CPU time a loss; within 5 % neither."""
    r = results([(200, 3.0)] * 3, [(100, 2.0)] * 3)
    text = "\n".join(table.short(r["cells"]))
    assert "**2.00 (2.00-2.00)**" in text and "▼ 1.50 (1.50-1.50)" in text
    assert "▼" not in "".join(table.short(results([(104, 2.0)] * 3, [(100, 2.0)] * 3)["cells"]))
    full = table.full(r)
    assert "not measured: not installed" in full


def test_table_goes_between_the_markers(tmp_path):
    """What stands around the table stays; without markers nothing is written."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.START}\nstale row\n{table.END}\nafter\n", encoding="utf-8")
    assert table.put_into(readme, results([(1, 1)], [(1, 1)]))
    text = readme.read_text(encoding="utf-8")
    assert (
        text.startswith("before\n")
        and text.endswith("\nafter\n")
        and "stale row" not in text
        and "| vhost-user: work" in text
    )
    readme.write_text("nothing", encoding="utf-8")
    assert not table.put_into(readme, results([(1, 1)], [(1, 1)]))
    assert readme.read_text(encoding="utf-8") == "nothing"


def test_the_readme_has_rows_that_there_are():
    """Five of the cells; a run without one of them shows the others."""
    keys = {c.key for c in cells.cells()}
    assert len(table.README_ROWS) == 5 and keys.issuperset(table.README_ROWS)
    other = results([(1, 1)], [(1, 1)])
    other["cells"][0]["key"] = "vhost/hits/rand4k/qd8"
    assert "| vhost-user: work" not in table.for_readme(other)


def test_every_cell_has_its_reference_and_a_key_of_its_own():
    """References are peers of the same protocol, and hits are never compared with a server that cannot hit."""
    all_cells = cells.cells()
    assert len({c.key for c in all_cells}) == len(all_cells) == 26
    for cell in all_cells:
        reference = [p for p in peers.PEERS if p.protocol == cell.protocol and p.name == cell.reference]
        assert len(reference) == 1 and not reference[0].ours
        assert not (reference[0].direct and cell.state == "hits")


def test_builds_are_compared_within_turns():
    """A build that is a tenth slower in every turn is 0.9, however much the machine changes between turns."""
    before, after = [100.0, 200.0, 50.0, 400.0], [90.0, 180.0, 45.0, 360.0]
    assert [round(r, 3) for r in builds.quarters(before, after)] == [0.9, 0.9, 0.9]
    assert builds.quarters([100.0, 0.0], [1.0, 1.0]) is None, "nothing to divide by"
    assert {builds.order(turn) for turn in range(2)} == {(0, 1), (1, 0)}, "one build always goes first"
    chosen = [c.key for c in cells.cells() if c.state == "hits"]
    assert {"vhost/hits/rand4k/qd1", "nbd/hits/seq256k/qd8"} <= set(chosen) and len(chosen) == 10, chosen
