"""Traces through caches: every policy at every size, in one pass.

Owns what a result is to Python. Never simulates by itself but for policies written in Python. Invariant: rows are in
the order of sizes, and for each size in the order of policies, with the fields of ``undercroft sim --json``.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

from undercroft import _undercroft
from undercroft._needs import needed
from undercroft._undercroft import Error
from undercroft.policies import Maker, Running, name_of
from undercroft.traces import Progress, Size, Trace, as_bytes, as_count, as_trace, check_sizes

BLOCK_BYTES = 4096
"""What a block stands for where neither the trace nor the caller says."""


@dataclass
class SimulationResult:
    """What became of one trace."""

    trace: str
    block_bytes: int
    accesses: int
    """Accesses read, warm-up included."""
    footprint_blocks: Optional[int]
    """Distinct blocks, if they were counted or given."""
    complete: bool
    """Whether the whole trace was read, or as much as was asked for."""
    seconds: float
    rows: list[dict[str, Any]] = field(repr=False)
    """For each size and policy: policy, size, capacity_blocks, accesses, misses, miss_ratio, reads, read_misses,
    writes, write_misses."""

    def miss_ratio(self, policy: str, size: Union[Size, None] = None) -> float:
        """The miss ratio of a policy, at a size as it was written, if there is more than one."""
        text = f"{size}blocks" if isinstance(size, int) else size
        found = [r for r in self.rows if r["policy"] == policy and text in (None, r["size"])]
        if len(found) != 1:
            there = ", ".join(f"{r['policy']} at {r['size']}" for r in self.rows)
            raise Error(f"{len(found)} results are of {policy} at {text or 'any size'}; there are {there}")
        ratio: float = found[0]["miss_ratio"]
        return ratio

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with the rows, and the trace's name before them."""
        frame = needed("pandas", "to_pandas").DataFrame(self.rows)
        frame.insert(0, "trace", self.trace)
        return frame

    def to_arrow(self) -> Any:
        """The same as a ``pyarrow.Table``."""
        return needed("pyarrow", "to_arrow").Table.from_pylist([{"trace": self.trace, **r} for r in self.rows])


def policies(list: str = "all") -> list[str]:
    """The names in a list: ``all`` for the engine's policies, ``disk`` for those that a disk of the daemon may have.
    Beside them, traces may be put through ``opt`` and ``opt-bypass``, the fewest misses that there can be."""
    return _undercroft.policies(list)


def simulate(
    trace: Any,
    policies: Union[str, Maker, Sequence[Union[str, Maker]]] = ("lru", "s3-fifo"),
    sizes: Union[Size, Sequence[Size]] = ("10%",),
    *,
    block_size: Optional[Size] = None,
    footprint: Optional[int] = None,
    warm_up: int = 0,
    limit: Optional[int] = None,
    jobs: Optional[int] = None,
    progress: Progress = None,
) -> SimulationResult:
    """Every policy at every size on one trace, as ``undercroft sim`` does.

    :param trace: a :class:`Trace`, a path, or blocks: whatever :func:`from_arrays` takes.
    :param policies: names, lists of names as on the command line (``"lru,arc"``, ``"disk"``, ``"all"``), and classes
        like :class:`Policy`.
    :param sizes: blocks (``1000``, ``"1000blocks"``), bytes (``"512MiB"``), or shares of the trace's distinct blocks
        (``"10%"``), which take a pass of their own unless `footprint` gives their number.
    :param block_size: bytes that a block stands for; by default what the trace says, or 4096.
    :param warm_up: accesses at the beginning that fill the caches and are not counted.
    :param limit: end after so many accesses, warm-up included.
    :param jobs: threads; by default one for each processor.
    :param progress: called a few times a second with the number of accesses done.
    :raises Error: something makes no sense, or the trace is damaged: then `result` of the exception is of what comes
        before the damage.

    >>> import undercroft as uc
    >>> uc.simulate(uc.synth.loop(keys=100, requests=10_000), ["lru", "mru"], "50%").miss_ratio("lru")
    1.0
    """
    trace = as_trace(trace)
    wanted: list[Union[str, Maker]] = [policies] if isinstance(policies, str) or callable(policies) else [*policies]
    all_sizes: list[Any] = [*sizes] if hasattr(sizes, "__iter__") and not isinstance(sizes, str) else [sizes]
    texts = [size if isinstance(size, str) else as_count("a size", size) for size in all_sizes]
    block_bytes = as_bytes(block_size) if block_size is not None else trace.block_bytes or BLOCK_BYTES
    if not 0 < block_bytes < 1 << 32:
        raise Error(f"block_size={block_size!r} is not from 1B to 4GiB")
    check_sizes(trace, all_sizes, block_size)
    order = _each_once(wanted)
    if not order or not texts:
        raise Error("give at least one policy and one size")
    makers = [one for one in order if not isinstance(one, str)]
    if makers and trace._source.only_once:
        raise Error(f"{trace.name} can be read only once, and policies in Python take a pass of their own: give a file")
    document, broken = _undercroft.simulate(
        trace._source,
        policies=[one for one in order if isinstance(one, str)],
        sizes=texts,
        block_bytes=block_bytes,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        footprint=footprint,
        warm_up=warm_up,
        limit=limit,
        jobs=jobs,
        progress=progress,
    )
    about: dict[str, Any] = json.loads(document)
    rows, seconds = about["results"], about["seconds"]
    if makers and broken is None:
        cells = _undercroft.cells(texts, block_bytes=block_bytes, footprint=about["footprint_blocks"])
        begun = time.monotonic()
        own = _in_python(trace, makers, cells, warm_up, limit)
        seconds += time.monotonic() - begun
        rows = _in_order(rows, own, order, len(cells))
    result = SimulationResult(
        trace=about["trace"],
        block_bytes=block_bytes,
        accesses=about["accesses"],
        footprint_blocks=about["footprint_blocks"],
        complete=about["complete"],
        seconds=seconds,
        rows=rows,
    )
    if broken is not None:
        broken.result = result  # type: ignore[attr-defined]
        raise broken
    return result


def _each_once(wanted: list[Union[str, Maker]]) -> list[Union[str, Maker]]:
    """The policies of lists of names, and those written in Python, in their order."""
    order: list[Union[str, Maker]] = []
    for one in wanted:
        names = _undercroft.policies(one) if isinstance(one, str) else [one]
        order += [name for name in names if name not in order]
    return order


def _in_python(
    trace: Trace, makers: list[Maker], cells: list[tuple[str, int]], warm_up: int, limit: Optional[int]
) -> list[dict[str, Any]]:
    """The rows of policies that are written in Python: for each size, each."""
    running = [(text, Running(maker, blocks)) for text, blocks in cells for maker in makers]
    done = 0
    for batch in trace.batches():
        left = len(batch["block"]) if limit is None else min(len(batch["block"]), limit - done)
        if left <= 0:
            break
        blocks, writes = batch["block"][:left].tolist(), batch["write"][:left].tolist()
        cold = min(max(warm_up - done, 0), left)
        for _, cache in running:
            cache.take(blocks, writes, cold)
        done += left
    return [_row(text, cache) for text, cache in running]


def _row(text: str, cache: Running) -> dict[str, Any]:
    accesses, misses = cache.reads + cache.writes, cache.read_misses + cache.write_misses
    return {
        "policy": cache.name,
        "size": text,
        "capacity_blocks": cache.capacity,
        "accesses": accesses,
        "misses": misses,
        "miss_ratio": misses / max(accesses, 1),
        "reads": cache.reads,
        "read_misses": cache.read_misses,
        "writes": cache.writes,
        "write_misses": cache.write_misses,
    }


def _in_order(
    engine: list[dict[str, Any]], own: list[dict[str, Any]], order: list[Union[str, Maker]], sizes: int
) -> list[dict[str, Any]]:
    """The rows of both, as the policies were asked for."""
    from_engine, from_python = iter(engine), iter(own)
    return [next(from_engine if isinstance(one, str) else from_python) for _ in range(sizes) for one in order]


__all__ = ["BLOCK_BYTES", "SimulationResult", "name_of", "policies", "simulate"]
