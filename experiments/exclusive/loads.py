"""What the guests do: the loads of the comparison, by name.

Owns the list. Never says how a load runs: the loads do. Invariant: a name, once measured, keeps its load.
"""

from dataclasses import replace

from .afresh import losses
from .beside import Clones, HostJob, Pair
from .load import Load
from .tree import Tree

__all__ = ["LOADS", "SEQUENTIAL", "UNIFORM", "USUAL", "ZIPF", "Load"]

UNIFORM = Load("uniform", "uniform", "uniform", 0.75)
ZIPF = Load("zipf", "Zipf .99", "zipf", 0.75, misses=0.2, ops=1, alpha=0.99)
# For arms with a scanner, whose scans are 5 to 20 s apart: the same load ten times as long, measured for a minute.
LONG = [replace(load, key=f"{load.key}-long", title=f"{load.title}, a minute", ops=10 * load.ops, style="long")
        for load in (UNIFORM, ZIPF)]  # fmt: skip
SEQUENTIAL = Load("seq", "sequential loop 1.5x", "seq", 0, times=1.5)
LOADS = {
    load.key: load
    for load in [
        UNIFORM,
        ZIPF,
        SEQUENTIAL,
        Load("anon", "anonymous churn", "uniform", 0.75, anon=0.25),
        Load("write", "30 % writes", "uniform", 0.75, write_percent=30),
        Load("pool", "O_DIRECT pool", "pool", 0.9, pool=0.75),
        Tree(),
        *(
            Load(
                f"disks{n}", f"Zipf .8 on {n} disk{'s' * (n > 1)}", "zipf", 0.75, misses=0.3, ops=1, alpha=0.8, disks=n
            )
            for n in (1, 2, 4)
        ),
        *losses(ZIPF),
        *losses(UNIFORM),
        Pair(ZIPF, UNIFORM),
        HostJob(UNIFORM),
        Clones(),
        *LONG,
    ]
}
# What is measured unless loads are named.
USUAL = [key for key, load in LOADS.items() if load.style != "long"]
