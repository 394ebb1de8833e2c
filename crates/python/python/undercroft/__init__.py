"""A cache laboratory: traces, simulations, miss-ratio curves, partitions, and policies written in Python.

>>> import undercroft as uc
>>> trace = uc.synth.zipf(keys=1000, requests=20_000, seed=1)
>>> result = uc.simulate(trace, policies=["lru", "s3-fifo"], sizes=["10%"])
>>> [row["policy"] for row in result.rows]
['lru', 's3-fifo']

What is read, simulated or computed happens in Undercroft's engine, without holding the interpreter: other threads go
on, and Ctrl-C ends it. numpy is needed; pandas, pyarrow, matplotlib and Dask only by what says so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from undercroft import synth
from undercroft._undercroft import Error, __version__
from undercroft.curves import Curve, curve
from undercroft.partitions import Partition, partition
from undercroft.policies import Policy
from undercroft.simulation import SimulationResult, policies, simulate
from undercroft.traces import Trace, formats, from_arrays, open_trace

if TYPE_CHECKING:
    from undercroft import plot, sweep

__all__ = [
    "Curve",
    "Error",
    "Partition",
    "Policy",
    "SimulationResult",
    "Trace",
    "__version__",
    "curve",
    "formats",
    "from_arrays",
    "open_trace",
    "partition",
    "plot",
    "policies",
    "simulate",
    "sweep",
    "synth",
]


def __getattr__(name: str) -> Any:
    # What needs more than numpy is imported when it is asked for.
    if name in ("plot", "sweep"):
        return importlib.import_module(f"undercroft.{name}")
    raise AttributeError(f"module 'undercroft' has no attribute {name!r}")
