"""The laboratory of processor caches and locked blocks: its report on what is stored, in Markdown and as a page."""

import html.parser
import itertools
import re
import sys

import pytest
from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

# experiments/ is no package
from locking import blocks, blocks_report, cells, measured_locks, page, plots, report, run  # noqa: E402
from rig.process import Stopped  # noqa: E402

RESULTS = ROOT / "docs" / "results"
STORED = RESULTS / "locking.json.xz"
PICTURES = plots.names(run.load(STORED))


def test_the_stored_results_make_the_report_that_is_there():
    """What was published says what was measured."""
    text = report.markdown(run.load(STORED), PICTURES)
    assert text == (RESULTS / "locking.md").read_text(encoding="utf-8")


def test_what_is_stored_names_no_place_of_a_machine():
    for name, cell in run.load(STORED).items():
        assert not [word for word in cell["words"] if word.startswith("/")], name
    inside = [cells.portable(str(ROOT / "build" / "a.zst")), cells.portable(str(cells.SHARED / "traces" / "b.zst"))]
    assert inside == ["build/a.zst", "../shared/traces/b.zst"]


class Seen(html.parser.HTMLParser):
    """Which elements a page has, and what it asks others for."""

    def __init__(self):
        super().__init__()
        self.rows, self.drawings, self.asked = 0, 0, []

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.drawings += tag == "svg"
        self.asked += [value for name, value in attrs if name == "src" or tag == "link"]


def test_the_page_has_all_tables_and_needs_no_other_file():
    text = (RESULTS / "locking.md").read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(page.page(text, RESULTS))
    # Every line of a table but that below its head.
    rows = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|:\- ]+", line)]
    assert (seen.rows, seen.drawings, seen.asked) == (len(rows), len(PICTURES), [])


def counted(policy, size, lock, misses):
    """A row as `undercroft lab blocks` has it."""
    rule = {"chosen": 0, "locks": 0, "unlocks": 0, "rests": 0, "epochs": 9} if lock.startswith("online") else None
    return {
        "policy": policy, "size": size, "capacity_blocks": 1000, "lock": lock, "reads": 10_000, "read_misses": misses,
        "locked_blocks": 0, "budget_blocks": 300, "locked_read_hits": 0, "buffer_hits": 0, "online": rule,
        "lock_bytes": 40_960 if rule else 0, "limit_blocks": 990 if rule else 1000, "cpu_ns": 40.0, "cpu_ratio": 1.0,
    }  # fmt: skip


FACTS = {
    "machine": {"cpu": "a cpu", "cpus": 2, "kernel": "6.1-x", "governor": None, "machine_type": "virtual"},
    "commit": "abc", "load_average": 0.25, "seeds": blocks.SEEDS, "day": "2026-11-30",
}  # fmt: skip


def test_what_is_said_of_locked_blocks_is_what_was_counted():
    """Also what locks cost, and where."""
    misses = {"none": 5000, "static:10%": 4000, "online:30%": 4990, "random:10%": 5200}
    data = {}
    for trace in blocks.TRACES:
        rows = []
        for policy, size, lock in itertools.product(blocks.POLICIES, blocks.SIZES, ("none", *blocks.LOCKS)):
            worst = (trace, policy, size, lock) == ("P6", "arc", "5%", "online:30%")
            row = counted(policy, size, lock, 5123 if worst else misses.get(lock, 5000))
            if lock.startswith(blocks.CHANCE):
                row["misses_by_seed"] = [row["read_misses"] + more for more in (0, 0, 0, 0, 9)]
            rows.append(row | {"cpu_ns": [40.0] * 3, "cpu_ratio": [1.3, 1.0, 1.1]})
        data[f"blocks-{trace}"] = {"rows": rows, "facts": FACTS}
    assert plots.names(data) == ["locking-blocks.svg"]
    text = blocks_report.part(data)
    # The worst seed of it.
    assert "At worst the rule costs **+1.32 points**" in text and "(P6, arc, 5%, `online:30%`)" in text
    assert "| static:10% | 48 | 0 | 0 | -10.00 | -10.00 (OLTP, lru, 1%) |" in text
    assert "| random:10% | 0 | 0 | 48 | +2.00 | +2.00 (OLTP, lru, 1%) | +2.09 (OLTP, lru, 1%) |" in text
    assert "| buffer:12 | 0 | 48 | 0 |" in text
    assert "1.10 (1.10 to 1.10)" in text and "1.0 to 1.0 % of these caches" in text
    assert "with 5 seeds" in text and "`random` by 0.09 points, the rule by 0.09 points" in text
    assert "Run on a cpu, 2 processors, Linux 6.1, governor none, machine virtual; commit abc; 2026-11-30;" in text
    assert "| +2.00 (+2.00 to +2.09) |" in text
    assert "than `random:10%` in 48 of 48, and more in 0" in text
    assert "In 144 of 144 caches it never locked anything" in text
    assert "Profiles that do not know" not in text
    every = text.partition("### All of them")[2]
    assert len([line for line in every.splitlines() if "| 1000 | 50.00 |" in line]) == 48
    data["blocks-half-w106"] = data["blocks-w106"]
    assert "Profiles that do not know what comes" in blocks_report.part(data)
    assert blocks_report.part({}) == ""


def test_the_rule_is_said_to_save_where_it_does_at_worst():
    none = counted("lru", "1%", "none", 5000)
    for misses, words in ((4900, "still saves **-1.00 points**"), (5000, "changes nothing"), (5100, "costs **+1.00")):
        row = counted("lru", "1%", "online:30%", misses)
        assert words in blocks_report.at_worst(blocks_report.Compared("OLTP", none, row))


def half_cell():
    """A cell of blocks."""
    folder = cells.SHARED / "traces" / "block"
    return next(cell for cell in blocks.block_cells(folder) if cell.id == "blocks-half-OLTP")


def asks(monkeypatch, cell, lock, misses):
    """Runs a cell whose runs count these misses of reads, one after the other."""
    misses, seeds, ratios = list(misses), list(blocks.SEEDS), [1.2, 1.1, 1.4, 1.0, 1.0, 1.0]

    def asked(_undercroft, words):
        assert words == [*cell.words, "--seed", str(seeds.pop(0))] and "first-half" in words
        row = counted("lru", "1%", lock, misses.pop(0)) | {"cpu_ratio": ratios.pop(0), "change": 0.0}
        return {"accesses": 9, "footprint_blocks": 4, "results": [row]}

    monkeypatch.setattr(cells, "asked", asked)
    return cell.run("undercroft", None)


def test_a_cell_of_blocks_is_counted_with_every_seed(monkeypatch):
    cell = half_cell()
    done = asks(monkeypatch, cell, "none", [7] * 6)
    (row,) = done["rows"]
    assert row["cpu_ratio"] == [1.2, 1.1, 1.4, 1.0, 1.0, 1.0] and row["read_misses"] == 7 and "change" not in row
    assert "misses_by_seed" not in row
    assert done["words"][1] == "../shared/traces/block/arc-OLTP.lis.zst" and done["footprint_blocks"] == 4
    assert {"machine", "commit", "day", "load_average", "seeds"} == {*done["facts"]}
    # Of the same seed twice the same, of others by chance not.
    (row,) = asks(monkeypatch, cell, "random:10%", [7, 7, 8, 9, 5, 6])["rows"]
    assert (row["read_misses"], row["misses_by_seed"]) == (7, [7, 8, 9, 5, 6])
    for lock, misses in (("random:10%", [7, 8, 7, 7, 7, 7]), ("static:10%", [7, 7, 7, 8, 7, 7])):
        with pytest.raises(Stopped, match="has not counted the same twice"):
            asks(monkeypatch, cell, lock, misses)


def test_response_times_with_locks_have_a_row_for_each_kind():
    assert measured_locks.section({}) == ""
    rows = []
    for wait, arm in itertools.product(measured_locks.WAITS, measured_locks.ARMS):
        misses = 10 if arm == "none" else 5
        times = {"miss_us": 100.0 + 1000 * wait, "hit_us": 20.0, "mean_us": 20.0 + misses * (0.8 + 10 * wait)}
        rows.append({"wait_ms": wait, "lock": arm, "misses": misses, "references": 100, "said": 7, **times})
    text = measured_locks.section({"measured-locks-gzip": {"rows": rows, "facts": FACTS}})
    assert "| gzip | none | 7 | 10.00 | 28.0 (28.0 to 28.0) / 28.0; 20.0 |" in text
    assert "|  | online | 7 | 5.00 | 24.0 (24.0 to 24.0) / 24.0; 20.0 | 74.0 (74.0 to 74.0) / 74.0;" in text
    assert "Measured on a cpu, 2 processors" in text


def test_the_kinds_of_locks_are_the_only_difference_of_response_times():
    lines = measured_locks.ARMS
    assert all(line.startswith("miss_table = 0\n") for line in lines.values()) and lines["none"] == "miss_table = 0\n"
    assert [cell.id for cell in measured_locks.measured_locks_cells(cells.SHARED)] == [
        f"measured-locks-{name}" for name in ("gzip", "mp3", "sortQ")
    ]
