"""The order in which tests run, and how they are handed out."""

from pathlib import Path

from harness import order

TESTS = Path(__file__).parent


def test_files_that_take_long_are_there_and_come_first():
    files = {path.name: path for path in TESTS.rglob("test_*.py")}
    assert set(order.LONGEST) <= files.keys(), "a file was renamed: tests/harness/order.py"
    ranks = [order.rank(files[name]) for name in (*order.LONGEST, "test_guest.py", "test_order.py")]
    assert ranks == sorted(set(ranks)), "each before the next, guests before what is left"


def test_workers_are_given_what_they_do_and_the_next(monkeypatch):
    from xdist.scheduler import LoadScheduling as scheduling

    given = []
    monkeypatch.setattr(scheduling, "__init__", lambda self, *_: setattr(self, "node2pending", {"a": [], "b": [7, 8]}))
    monkeypatch.setattr(scheduling, "_send_tests", lambda self, node, num: given.append((node, num)))
    made = order.one_by_one(None, None)
    made._send_tests("a", 36)
    made._send_tests("b", 36)
    assert given == [("a", 2), ("b", 0)]
