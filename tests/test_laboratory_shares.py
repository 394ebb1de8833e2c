"""The laboratory's experiments on shares: a short one with a live daemon, and the report on what is stored."""

import json
import sys

import pytest
from harness.programs import ROOT, built, run

sys.path.insert(0, str(ROOT / "lab"))

from shares import derive, reach, report  # noqa: E402 - lab/ is no package
from shares.clients import BLOCK, Load  # noqa: E402

LIMIT_S = 110


def test_shares_follow_weights_live(scratch):
    """Two VMs with two and three containers: by weight when all contend, lent while idle, and by new weights after a change."""
    pytest.importorskip("matplotlib", reason="not installed: python3-matplotlib (make setup installs it)")
    options = ("--quick", "--only", "b", "--work", scratch / "work", "--out", scratch, "--build", "test")
    run(sys.executable, ROOT / "lab/shares/run.py", *options, "--undercroft", built("undercroft"), "--driver", built("undercroft-driver"), limit=LIMIT_S)
    cell = json.loads((scratch / "shares.json").read_text())["cells"]["b-derivative"]
    steps = cell["arms"]["static"]["runs"][0]["steps"]
    assert [s["title"] for s in reach.contended({"steps": steps})] == ["all contend", "VM two busy again", "VMs 67:33", "two/c1 from 25 to 75"]
    for step in reach.contended({"steps": steps}):
        assert abs(reach.step_error(step)) < 0.1, step
    (lent,) = [s for s in steps if "lent" in s]
    assert lent["measured"]["one"] > lent["wanted"]["one"] + lent["wanted"]["two"] / 2, lent
    text = (scratch / "shares.md").read_text()
    assert all(step["title"] in text for step in steps)
    assert (scratch / "shares-derivative.svg").exists()


def turn(load, hits, misses, us):
    """One turn of a load, as it is stored."""
    return {
        "load": load, "began": 0.0, "operations": hits + misses, "seconds": 1.0, "mean_us": us, "p99_us": 10 * us, "hit_blocks": hits,
        "miss_blocks": misses, "joined_blocks": 0, "readahead_hit_blocks": 0, "backend_read_bytes": misses * BLOCK,
    }  # fmt: skip


def locality(utility_misses):
    """An experiment whose dynamic arm misses so often."""

    def arm(title, popular_misses):
        turns = [turn("low locality", 100, 900, 200.0), turn("high locality", 1000 - popular_misses, popular_misses, 50.0)]
        return {"title": title, "runs": [{"turns": turns, "samples": [{"high:root": [0, 1 << 20]}]}] * 2}

    facts = {"policy": "lru", "title": "case", "explains": "it does", "quick": False, "build": "test", "repeat": 2, "machine": MACHINE}
    return facts | {"arms": {"unified": arm("one for all", 500), "static": arm("halves", 200), "utility": arm("follows", utility_misses)}}


MACHINE = {"cpu": "CPU", "cpus": 2, "kernel": "6.1-x"}


def test_the_report_names_every_arm_and_says_losses():
    cells = {"a-locality-lru": locality(utility_misses=400)}
    text = report.full(cells, [])
    for title in ("one for all", "halves", "follows"):
        assert title in text
    assert "high locality +100.0 %" in text
    judged = {row[1]: row[4] for row in reach.verdicts(cells)}
    assert judged["misses of `utility` against `static`"] is False
    assert judged["a dynamic one more than a static one"] is False
    assert [ok for row, ok in judged.items() if row == "all of it"] == [None]
    better = {row[1]: row[4] for row in reach.verdicts({"a-locality-lru": locality(utility_misses=100)})}
    assert better["misses of `utility` against `static`"] is better["a dynamic one more than a static one"] is True


def test_changes_are_taken_within_a_repetition():
    cell = locality(utility_misses=100)
    assert derive.compared(cell, "utility", "static", derive.turn_misses) == 1000 / 1100
    assert derive.compared(cell, "absent", "static", derive.turn_misses) is None


def test_what_is_read_once_goes_on_and_comes_round():
    load = Load("d", "seq", 100 * BLOCK, offset=10 * BLOCK, once=True)
    places = [load.place(20, done) for done in (0, 20, 60, 80)]
    assert places == [(at * BLOCK, 20 * BLOCK) for at in (10, 30, 70, 10)]


def test_the_stored_results_make_a_report_with_every_arm():
    cells = json.loads((ROOT / "docs/results/shares.json").read_text())["cells"]
    text = report.full(cells, [])
    for cell in cells.values():
        assert cell["title"] in text
        for record in cell["arms"].values():
            assert record["title"] in text
    assert "not run" not in {row[3] for row in reach.verdicts(cells)}


def test_misses_of_a_server_are_compared_with_equal_shares():
    def run(misses):
        server = {"reads": 1000, "hits": 1000 - misses, "misses": misses, "us": 1000 * 100.0}
        return {"seconds": [{"at": 9.0, "phase": "p", "servers": {"web": server}, "disks": {"web:root": [8 << 20, 0]}}]}

    cell = {"arms": {"fixed": {"runs": [run(400)]}, "utility": {"runs": [run(100)]}}}
    assert derive.server_change(cell, "utility", "misses", "web", base="fixed") == -0.75
    assert derive.server_figure(cell, "utility", "computed_us", "web") == 500 - 480 * 0.9
    assert derive.seconds_without_room(run(1), "web") == (1, 8 << 20)
