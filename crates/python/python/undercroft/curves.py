"""Miss-ratio curves: misses by the size of the cache.

Owns what a curve is to Python. Never computes one: the engine does. Invariant: a curve never changes; what changes it
gives another.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from undercroft import _undercroft
from undercroft._needs import needed
from undercroft._undercroft import Error
from undercroft.simulation import BLOCK_BYTES
from undercroft.traces import Progress, Size, as_bytes, as_count, as_trace, check_sizes

SIZES: tuple[str, ...] = ("0.1%", "0.2%", "0.5%", "1%", "2%", "5%", "10%", "20%", "30%", "50%", "70%", "100%")
"""The sizes that are shown where nothing else is said."""

Sizes = Union[Size, Sequence[Size], npt.NDArray[Any]]


class Curve:
    """Misses by size in blocks, with straight lines between points. Made by :func:`curve`, or from points.

    `sizes`, `misses` and `miss_ratios` are arrays of the sizes that were asked for; :meth:`points` has all that is
    known.
    """

    def __init__(self, requests: float, sizes: Any, misses: Any, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Through points of size in blocks and misses; at size 0 all requests miss."""
        blocks = np.ascontiguousarray(sizes, np.uint64)
        native = _undercroft.Curve(float(requests), blocks, np.ascontiguousarray(misses, np.float64))
        self._set(native, block_bytes=block_bytes, sizes=np.unique(blocks[blocks > 0]))

    def _set(self, native: _undercroft.Curve, **about: Any) -> None:
        self._native = native
        self.block_bytes: int = about.get("block_bytes", BLOCK_BYTES)
        self.method: Optional[str] = about.get("method")
        self.policy: Optional[str] = about.get("policy")
        self.trace: Optional[str] = about.get("trace")
        self.footprint_blocks: Optional[int] = about.get("footprint_blocks")
        """Distinct blocks, as far as they are known."""
        self.footprint_exact: bool = about.get("footprint_exact", False)
        self.simulated: bool = about.get("simulated", False)
        """Whether the curve is known at a few sizes only, which were simulated."""
        self.zipf: Optional[dict[str, float]] = about.get("zipf")
        """The fit of Zipf's law, if it was asked for: alpha, error, distance, ranks, part."""
        self.windows: Optional[dict[str, npt.NDArray[np.uint64]]] = about.get("windows")
        """The working set over time, if it was asked for: arrays of first_request, start_ns, requests, writes, blocks,
        new_blocks, one number for each window."""
        self.sizes: npt.NDArray[np.uint64] = about["sizes"]
        self.errors: npt.NDArray[np.float64] = about.get("errors", np.zeros(len(self.sizes)))
        """How far each of `miss_ratios` may be off: half of the interval that holds it with a probability of 95 %; 0
        where nothing was sampled."""
        self.sampled: Optional[tuple[int, str]] = about.get("sampled")
        """How many blocks or requests the sample has, and which of the two; None without one."""
        self.enough_from_blocks: Optional[int] = about.get("enough_from_blocks", 0)
        """Sizes below this have too few of them; None if all sizes have."""
        self.misses = native.misses_at(self.sizes)
        self.miss_ratios = native.miss_ratio_at(self.sizes)

    @classmethod
    def _of(cls, native: _undercroft.Curve, **about: Any) -> Curve:
        made = cls.__new__(cls)
        made._set(native, **about)
        return made

    def _like(self, native: _undercroft.Curve) -> Curve:
        return Curve._of(
            native,
            block_bytes=self.block_bytes,
            trace=self.trace,
            footprint_blocks=self.footprint_blocks,
            footprint_exact=self.footprint_exact,
            simulated=self.simulated,
            sizes=self.sizes,
        )

    def __repr__(self) -> str:
        of = f" of {self.trace}" if self.trace else ""
        how = f" by {self.method}" if self.method else ""
        return f"<undercroft.Curve{of}{how}: {self.requests:.0f} requests, {len(self.points()[0])} points>"

    @property
    def requests(self) -> float:
        """Requests that the misses are of."""
        return self._native.requests

    def points(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
        """All points: sizes in blocks, rising from 0, and misses."""
        return self._native.points()

    def blocks(self, size: Sizes) -> npt.NDArray[np.uint64]:
        """What sizes come to in blocks: ``1000``, ``"512MiB"``, ``"10%"`` of the footprint."""
        if isinstance(size, np.ndarray):
            if size.dtype.kind not in "iu" or (size.size and int(size.min()) < 0):
                raise Error("sizes are whole numbers of blocks, 0 or more")
            return np.ascontiguousarray(size, np.uint64)
        sizes = [size] if isinstance(size, (str, int, np.integer)) else list(size)
        in_blocks = _undercroft.blocks(
            [s for s in sizes if isinstance(s, str)], self.block_bytes, self.footprint_blocks
        )
        texts = iter(in_blocks)
        return np.array([next(texts) if isinstance(s, str) else as_count("a size", s) for s in sizes], np.uint64)

    def at(self, size: Sizes) -> Any:
        """The miss ratio at a size, or an array of them at several."""
        ratios = self._native.miss_ratio_at(np.atleast_1d(self.blocks(size)))
        return float(ratios[0]) if isinstance(size, (str, int, np.integer)) else ratios

    def misses_at(self, size: Sizes) -> Any:
        """Misses at a size, or an array of them at several."""
        misses = self._native.misses_at(np.atleast_1d(self.blocks(size)))
        return float(misses[0]) if isinstance(size, (str, int, np.integer)) else misses

    def marginal(self, size: Size, blocks: int = 1) -> float:
        """Misses that each of `blocks` further blocks saves at a size: what growing is worth."""
        return self._native.marginal(int(self.blocks(size)[0]), blocks)

    def size_for(self, miss_ratio: float) -> Optional[int]:
        """The smallest size in blocks with at most this miss ratio; None if no size does it."""
        return self._native.size_for(miss_ratio * self.requests)

    def working_set(self, slack: float = 0.01) -> int:
        """The smallest size in blocks that misses at most this part of all requests more than the best does."""
        return self._native.working_set(slack)

    def hull(self) -> Curve:
        """The largest convex curve nowhere above this one: what a cache that may be divided reaches (Talus, HPCA
        2015)."""
        return self._like(self._native.hull())

    def scaled(self, requests: float) -> Curve:
        """The same shape for another number of requests."""
        return self._like(self._native.scaled_to(requests))

    def stretched(self, factor: float) -> Curve:
        """The same misses at sizes `factor` times as large."""
        return self._like(self._native.stretched(factor))

    def merge(self, *others: Curve, how: str = "shared") -> Curve:
        """One curve of several tenants.

        :param how: ``shared``: of one LRU queue for all, if their requests come evenly mixed; ``partitioned``: of all
            under the best division of the space.
        """
        ways = {"shared": _undercroft.Curve.shared, "partitioned": _undercroft.Curve.partitioned}
        if how not in ways:
            raise Error(f"how={how!r} merges nothing; take shared or partitioned")
        curves = (self, *others)
        if any(c.block_bytes != self.block_bytes for c in curves):
            raise Error("curves with blocks of different sizes cannot be merged; make them with one block_size")
        known = [c.footprint_blocks for c in curves]
        merged = ways[how]([c._native for c in curves])
        return Curve._of(
            merged,
            block_bytes=self.block_bytes,
            footprint_blocks=None if None in known else sum(f or 0 for f in known),
            footprint_exact=all(c.footprint_exact for c in curves),
            simulated=any(c.simulated for c in curves),
            sizes=np.unique(np.concatenate([c.sizes for c in curves])),
        )

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of the sizes that were asked for: blocks, bytes, misses, miss_ratio,
        miss_ratio_error."""
        return needed("pandas", "to_pandas").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """The same as a ``pyarrow.Table``."""
        return needed("pyarrow", "to_arrow").table(self._columns())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        size_bytes = self.sizes * np.uint64(self.block_bytes)
        return {
            "blocks": self.sizes,
            "bytes": size_bytes,
            "misses": self.misses,
            "miss_ratio": self.miss_ratios,
            "miss_ratio_error": self.errors,
        }

    def windows_to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of the working set over time."""
        if self.windows is None:
            raise Error('no windows were asked for; give curve(..., window="60s") or window=100_000 requests')
        return needed("pandas", "windows_to_pandas").DataFrame(self.windows)


def curve(
    trace: Any,
    method: str = "exact",
    *,
    policy: Optional[str] = None,
    sizes: Union[Size, Sequence[Size]] = SIZES,
    rate: float = 0.01,
    samples: Optional[int] = None,
    seed: int = 1,
    of: str = "all",
    window: Union[int, str, None] = None,
    zipf: bool = False,
    block_size: Optional[Size] = None,
    progress: Progress = None,
) -> Curve:
    """The miss-ratio curve of a trace, as ``undercroft curve`` makes it.

    :param trace: a :class:`Trace`, a path, or blocks: whatever :func:`from_arrays` takes.
    :param method: ``exact``, ``shards``, ``paired``, ``aet``, ``mini``; a policy after a colon, like
        ``"mini:s3-fifo"``, is the same as `policy`. exact and mini know every policy, the others LRU.
    :param sizes: what is shown, and what is simulated where caches are: blocks (``1000``), bytes (``"512MiB"``), or
        parts of the footprint (``"10%"``).
    :param rate: the part of blocks or requests that is sampled; for mini at least (see ``undercroft curve --help``).
    :param samples: for shards: at most so many blocks, at a rate that falls, instead of `rate`.
    :param seed: chooses the sample; how far the curve may be off, `errors` say.
    :param of: which requests' misses count: ``all``, ``reads``, ``writes``; exact and LRU only.
    :param window: the working set over time too, in windows of so many requests (``100_000``) or so much time
        (``"60s"``).
    :param zipf: fit Zipf's law, too.
    :param block_size: bytes that a block stands for; by default what the trace says, or 4096.

    >>> import undercroft as uc
    >>> uc.curve(uc.synth.loop(keys=100, requests=10_000)).at(100)
    0.01
    """
    trace = as_trace(trace)
    name, _, after = method.partition(":")
    if after and policy not in (None, after):
        raise Error(f"method={method!r} names another policy than policy={policy!r}; leave one out")
    policy = after or policy or "lru"
    block_bytes = as_bytes(block_size) if block_size is not None else trace.block_bytes or BLOCK_BYTES
    if block_bytes <= 0:
        raise Error("a block has at least 1 byte")
    all_sizes = [sizes] if isinstance(sizes, (str, int)) else list(sizes)
    check_sizes(trace, all_sizes, block_size)
    native, about = _undercroft.estimate(
        trace._source,
        method=name,
        policy=policy,
        sizes=[s if isinstance(s, str) else as_count("a size", s) for s in all_sizes],
        block_bytes=block_bytes,
        rate=rate,
        samples=samples,
        seed=seed,
        of=of,
        window=None if window is None else str(window),
        zipf=zipf,
        progress=progress,
    )
    known = {
        key: about[key]
        for key in (
            "footprint_blocks",
            "footprint_exact",
            "simulated",
            "sizes",
            "errors",
            "sampled",
            "enough_from_blocks",
            "zipf",
            "windows",
        )
    }
    return Curve._of(native, trace=trace.name, method=name, policy=policy, block_bytes=block_bytes, **known)
