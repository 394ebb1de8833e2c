"""Replacement policies written in Python.

Owns the contract, and the loop that drives such a policy. Never decides. Invariant: what is cached is what was inserted
and not evicted, at most `capacity` blocks, whatever the policy does. Some ten million accesses a minute: to try an idea
out.
"""

from __future__ import annotations

from typing import Any, Callable

from undercroft._undercroft import Error


class Policy:
    """A replacement policy of your own; pass the class to :func:`undercroft.simulate`.

    For each access, one of two things happens. The block is cached: `hit`. It is not: `miss`; then, if the cache is
    full, `evict`, which names the block that goes; then `insert`. So the engine drives its own policies.

    >>> import undercroft as uc
    >>> class Fifo(uc.Policy):
    ...     def __init__(self, capacity):
    ...         self.queue = []
    ...     def insert(self, block):
    ...         self.queue.append(block)
    ...     def evict(self):
    ...         return self.queue.pop(0)
    >>> result = uc.simulate([1, 2, 3, 1, 2], policies=[Fifo], sizes=[2])
    >>> result.rows[0]["policy"], result.rows[0]["misses"]
    ('Fifo', 5)
    """

    def __init__(self, capacity: int) -> None:
        """An empty cache of `capacity` blocks, 1 or more."""

    def hit(self, block: int) -> None:
        """A cached block is asked for."""

    def miss(self, block: int) -> None:
        """A block that is not cached is asked for: the time to look at ghosts."""

    def insert(self, block: int) -> None:
        """That block is cached now."""
        raise NotImplementedError(f"{type(self).__name__} has no method insert(block)")

    def evict(self) -> int:
        """Names the cached block that goes; it is gone when this returns."""
        raise NotImplementedError(f"{type(self).__name__} has no method evict()")


Maker = Callable[[int], Any]
"""Makes a policy for a capacity: a class, or a function."""


def name_of(maker: Maker) -> str:
    """What results call it: its attribute `name`, or its own name."""
    name = getattr(maker, "name", None)
    return name if isinstance(name, str) else getattr(maker, "__name__", type(maker).__name__)


class Running:
    """A policy with its cache, and what was counted."""

    def __init__(self, maker: Maker, capacity: int) -> None:
        self.name = name_of(maker)
        self.capacity = capacity
        self.policy = maker(capacity) if capacity > 0 else None
        self.cached: set[int] = set()
        self.reads = self.read_misses = self.writes = self.write_misses = 0

    def take(self, blocks: list[int], writes: list[bool], cold: int) -> None:
        """Takes accesses; the first `cold` of them are not counted."""
        missed = [self._access(block) for block in blocks]
        for write, miss in zip(writes[cold:], missed[cold:]):
            if write:
                self.writes += 1
                self.write_misses += miss
            else:
                self.reads += 1
                self.read_misses += miss

    def _access(self, block: int) -> bool:
        """Whether it missed."""
        policy, cached = self.policy, self.cached
        if policy is None:
            return True
        if block in cached:
            policy.hit(block)
            return False
        policy.miss(block)
        if len(cached) >= self.capacity:
            victim = policy.evict()
            if victim not in cached:
                raise Error(
                    f"{self.name}.evict() gave {victim!r}, which is not cached; give a block that was inserted and has"
                    " not been evicted since"
                )
            cached.remove(victim)
        cached.add(block)
        policy.insert(block)
        return True
