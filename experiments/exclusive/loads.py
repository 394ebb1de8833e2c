"""What the guests do: the loads of the comparison, by name.

Owns the list. Never says how a load runs: the loads do. Invariant: a name, once measured, keeps its load.
"""

from .afresh import losses
from .beside import Clones, HostJob, Pair
from .load import Load
from .tree import Tree

__all__ = ["LOADS", "SEQUENTIAL", "UNIFORM", "ZIPF", "Load"]

UNIFORM = Load("uniform", "uniform", "uniform", 0.75)
ZIPF = Load("zipf", "Zipf .99", "zipf", 0.75, misses=0.2, ops=1, alpha=0.99)
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
    ]
}
