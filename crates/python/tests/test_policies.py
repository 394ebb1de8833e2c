"""Policies written in Python: the same counts as the engine's own; what goes wrong in one is told as Python tells
it."""

import collections
import traceback

import pytest

import undercroft as uc


class Lru(uc.Policy):
    name = "my-lru"

    def __init__(self, capacity):
        self.queue = collections.OrderedDict()

    def hit(self, block):
        self.queue.move_to_end(block)

    def insert(self, block):
        self.queue[block] = None

    def evict(self):
        return self.queue.popitem(last=False)[0]


class Sieve(uc.Policy):
    """SIEVE, as the paper has it: a queue with the newest first, and a hand that moves from the oldest to the
    newest."""

    def __init__(self, capacity):
        self.queue = []  # the oldest first
        self.visited = {}
        self.hand = 0

    def hit(self, block):
        self.visited[block] = True

    def insert(self, block):
        self.queue.append(block)
        self.visited[block] = False

    def evict(self):
        while self.visited[self.queue[self.hand]]:
            self.visited[self.queue[self.hand]] = False
            self.hand = (self.hand + 1) % len(self.queue)
        victim = self.queue.pop(self.hand)
        del self.visited[victim]
        self.hand %= max(len(self.queue), 1)
        return victim


class Twice(uc.Policy):
    """Evicts a block twice."""

    def __init__(self, capacity):
        self.first = None

    def insert(self, block):
        self.first = block if self.first is None else self.first

    def evict(self):
        return self.first


@pytest.mark.parametrize("load", ["zipf", "mixed", "loop"])
def test_lru_and_sieve_in_python_count_as_the_engine(load):
    arguments = {} if load == "loop" else {"alpha": 0.9}
    trace = getattr(uc.synth, load)(keys=300, requests=20_000, writes=0.25, seed=11, **arguments)
    sizes = [1, 2, 17, "10%", 5000]
    result = uc.simulate(trace, [Sieve, "sieve", Lru, "lru"], sizes, warm_up=1000, limit=19_000)
    assert [r["policy"] for r in result.rows] == ["Sieve", "sieve", "my-lru", "lru"] * len(sizes)
    own = [{**r, "policy": ""} for r in result.rows[0::2]]
    engine = [{**r, "policy": ""} for r in result.rows[1::2]]
    assert own == engine and own[0]["accesses"] == 18_000 and own[2]["write_misses"] > 0


def test_a_cache_of_nothing_misses_everything():
    assert uc.simulate([1, 1], [Lru, "lru"], "1B").miss_ratio("my-lru") == 1.0


def test_an_exception_comes_out_with_its_traceback():
    class Broken(Lru):
        def hit(self, block):
            raise KeyError(f"lost {block}")

    with pytest.raises(KeyError, match="lost 7") as caught:
        uc.simulate([7, 7], Broken, 2)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.name, frame.filename) == ("hit", __file__)


def test_evicting_what_is_not_cached_is_an_error_that_names_policy_and_block():
    with pytest.raises(uc.Error, match=r"Twice.evict\(\) gave 1, which is not cached"):
        uc.simulate([1, 2, 3, 4], Twice, 2)

    class Nothing(Lru):
        def evict(self):
            return None

    with pytest.raises(uc.Error, match=r"my-lru.evict\(\) gave None"):
        uc.simulate([1, 2, 3], Nothing, 2)


def test_a_policy_without_its_methods_says_which_is_missing():
    class Half(uc.Policy):
        def insert(self, block):
            pass

    with pytest.raises(NotImplementedError, match=r"Half has no method evict\(\)"):
        uc.simulate([1, 2, 3], Half, 2)


def test_misses_are_told_before_evictions():
    told = []

    class Told(Lru):
        def miss(self, block):
            told.append(("miss", block))

        def evict(self):
            told.append(("evict", victim := super().evict()))
            return victim

        def insert(self, block):
            told.append(("insert", block))
            super().insert(block)

    uc.simulate([1, 2], [Told], [1])
    assert told == [("miss", 1), ("insert", 1), ("miss", 2), ("evict", 1), ("insert", 2)]
