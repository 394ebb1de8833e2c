"""Who should get how much of a memory, by curves.

Owns names and bounds. Never searches: the engine does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from undercroft import _undercroft
from undercroft._needs import needed
from undercroft._undercroft import Error
from undercroft.curves import Curve
from undercroft.traces import Size


@dataclass
class Partition:
    """A division of a memory among tenants."""

    method: str
    total_blocks: int
    block_bytes: int
    misses: float
    """Of all tenants together."""
    equal_misses: float
    """With equal parts."""
    proportional_misses: float
    """With parts in proportion to requests."""
    shared_queue_misses: float
    """Of one LRU queue without parts, if the tenants' requests come evenly mixed."""
    rows: list[dict[str, Any]] = field(repr=False)
    """For each tenant: name, requests, blocks, bytes, misses, miss_ratio, and what equal and proportional parts
    give."""

    @property
    def blocks(self) -> dict[str, int]:
        """Each tenant's part, in blocks."""
        return {row["name"]: row["blocks"] for row in self.rows}

    @property
    def left_blocks(self) -> int:
        """What would save nobody a miss."""
        return self.total_blocks - sum(self.blocks.values())

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each tenant."""
        return needed("pandas", "to_pandas").DataFrame(self.rows)


def partition(
    curves: Mapping[str, Curve],
    size: Size,
    method: str = "dp",
    *,
    floors: Optional[Mapping[str, Size]] = None,
    ceilings: Optional[Mapping[str, Size]] = None,
) -> Partition:
    """Divides a memory such that all tenants together miss least, as ``undercroft partition`` does.

    :param curves: a curve at every size for each tenant: not of mini or another simulation, which know a few.
    :param size: what there is to divide: blocks, or bytes like ``"4GiB"``.
    :param method: ``dp``: dynamic programming, the best in steps of a 4096th; ``greedy`` along the convex hulls;
        ``lookahead`` as the daemon's controller does.
    :param floors: what a tenant gets in any case, by name.
    :param ceilings: what a tenant gets at most, by name.

    >>> import undercroft as uc
    >>> small, large = (uc.curve(uc.synth.loop(keys=k, requests=10_000)) for k in (100, 300))
    >>> uc.partition({"small": small, "large": large}, 350).blocks
    {'small': 100, 'large': 0}
    """
    if not curves:
        raise Error("give a curve for at least one tenant")
    simulated = [name for name, c in curves.items() if c.simulated]
    if simulated:
        raise Error(
            f"a division needs curves at every size, which {simulated[0]}'s is not; make it by exact, shards, paired"
            " or aet"
        )
    block_bytes = next(iter(curves.values())).block_bytes
    if any(c.block_bytes != block_bytes for c in curves.values()):
        raise Error("the curves have blocks of different sizes; make them with one block_size")
    for name in [*(floors or {}), *(ceilings or {})]:
        if name not in curves:
            raise Error(f"no tenant is called {name}; there are {', '.join(curves)}")

    def in_blocks(bound: Size, up: bool) -> int:
        if not isinstance(bound, str):
            return int(bound)
        size_bytes = _undercroft.size_bytes(bound)
        return -(-size_bytes // block_bytes) if up else size_bytes // block_bytes

    total = in_blocks(size, up=False)
    low = {name: in_blocks(bound, up=True) for name, bound in (floors or {}).items()}
    high = {name: in_blocks(bound, up=False) for name, bound in (ceilings or {}).items()}
    method = method.replace("-", "")
    tenants = [(name, c._native, low.get(name, 0), high.get(name)) for name, c in curves.items()]
    done = _undercroft.divide(tenants, total, method=method)

    def row(name: str, part: int, equal: int, proportional: int) -> dict[str, Any]:
        # the native curve takes sizes of 0, too
        misses = _misses(curves[name], part, equal, proportional)
        requests = curves[name].requests
        return {
            "name": name,
            "requests": requests,
            "blocks": part,
            "bytes": part * block_bytes,
            "misses": misses[0],
            "miss_ratio": misses[0] / requests if requests else 0.0,
            "equal_blocks": equal,
            "equal_misses": misses[1],
            "proportional_blocks": proportional,
            "proportional_misses": misses[2],
        }

    parts = zip(curves, done["parts"], done["equal"], done["proportional"])
    return Partition(
        method=method,
        total_blocks=total,
        block_bytes=block_bytes,
        misses=done["misses"],
        equal_misses=done["equal_misses"],
        proportional_misses=done["proportional_misses"],
        shared_queue_misses=done["shared_queue_misses"],
        rows=[row(*part) for part in parts],
    )


def _misses(curve: Curve, *blocks: int) -> list[float]:
    import numpy as np

    return [float(m) for m in curve.misses_at(np.array(blocks, np.uint64))]
