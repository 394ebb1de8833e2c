"""Synthetic loads: the same arguments make the same trace on every machine, as ``undercroft trace synth`` does.

Keys count from 1. Of all, `requests` is how many there are, `keys` how many distinct blocks, `writes` the part of
requests that write (0 to 1), `rate` how many come in a second.
"""

from __future__ import annotations

from undercroft._undercroft import Source
from undercroft.traces import Trace

__all__ = ["loop", "mixed", "phased", "scan", "uniform", "zipf"]


def _load(
    pattern: str,
    keys: int,
    requests: int,
    seed: int,
    writes: float,
    rate: int,
    alpha: float = 1.0,
    phase: int = 100_000,
    mix: str = "zipf=70,loop=20,scan=10",
) -> Trace:
    return Trace(
        Source.synth(
            pattern,
            keys=keys,
            requests=requests,
            alpha=alpha,
            phase=phase,
            mix=mix,
            rate=rate,
            writes=writes,
            seed=seed,
        )
    )


def zipf(
    keys: int = 100_000,
    requests: int = 1_000_000,
    alpha: float = 1.0,
    *,
    seed: int = 42,
    writes: float = 0.0,
    rate: int = 10_000,
) -> Trace:
    """Independent requests; the key of rank r in proportion to 1 / r^alpha."""
    return _load("zipf", keys, requests, seed, writes, rate, alpha)


def uniform(
    keys: int = 100_000, requests: int = 1_000_000, *, seed: int = 42, writes: float = 0.0, rate: int = 10_000
) -> Trace:
    """Independent requests, all keys alike."""
    return _load("uniform", keys, requests, seed, writes, rate)


def scan(requests: int = 1_000_000, *, seed: int = 42, writes: float = 0.0, rate: int = 10_000) -> Trace:
    """Key after key, none twice."""
    return _load("scan", 1, requests, seed, writes, rate)


def loop(
    keys: int = 100_000, requests: int = 1_000_000, *, seed: int = 42, writes: float = 0.0, rate: int = 10_000
) -> Trace:
    """Key after key, from the first again after the last."""
    return _load("loop", keys, requests, seed, writes, rate)


def phased(
    keys: int = 100_000,
    requests: int = 1_000_000,
    alpha: float = 1.0,
    *,
    phase: int = 100_000,
    seed: int = 42,
    writes: float = 0.0,
    rate: int = 10_000,
) -> Trace:
    """As :func:`zipf`; every `phase` requests, half of the keys are new ones."""
    return _load("phased", keys, requests, seed, writes, rate, alpha, phase)


def mixed(
    keys: int = 100_000,
    requests: int = 1_000_000,
    alpha: float = 1.0,
    *,
    zipf: int = 70,
    loop: int = 20,
    scan: int = 10,
    seed: int = 42,
    writes: float = 0.0,
    rate: int = 10_000,
) -> Trace:
    """Of Zipf, loop and scan by these shares, each with keys of its own."""
    mix = f"zipf={zipf},loop={loop},scan={scan}"
    return _load("mixed", keys, requests, seed, writes, rate, alpha, mix=mix)
