"""The per-file experiments: a random and a sequential reader beside each other.

Owns that load (Page cache management, section 5.7, "rand-seq"): both working sets are at least twice the cache. The
thesis does not say how many requests came from each reader; its hit ratio of 0.622 for one cache is about that of equal
numbers, the sequential ones hits by read-ahead and few of the random ones, so both ask equally often here.
"""

from .clients import Load
from .experiment import Experiment
from .locality import paced, shown
from .served import MIB, Disk, Vm

# A round; the controllers decide once a second.
EVERY_S = 0.6
# Requests of each reader in a round.
REQUESTS = 4096


class PerFile(Experiment):
    """One LRU for both files, as a page cache has, and a cache for each file, sized in three ways."""

    id, title = "d-per-file", "Random and sequential readers"
    # Key: title, policy, controller, part of the store.
    ways = {
        "unified": ("one LRU for both", "lru", "static", 1),
        "fixed": ("one each, of half the store", "lru", "static", 1),
        "static": ("one each, `static`", "lru", "static", 1),
        "utility": ("one each, `utility`", "lru", "utility", 1),
        "paper": ("one each, CAR, `paper`", "car", "paper", 1),
    }
    arms = {key: way[0] for key, way in ways.items()}

    def __init__(self, lab):
        super().__init__(lab)
        # What operations may take, 8 MiB a disk, is a small part of it only.
        self.store_mib = 48 if lab.quick else 128
        self.random_mib, self.sequential_mib = (96, 192) if lab.quick else (256, 512)
        self.warm, self.measured = (10, 4) if lab.quick else (24, 8)

    def explains(self):
        return (
            f"a store of {self.store_mib} MiB; in turn, {REQUESTS} random reads over {self.random_mib} MiB and as many"
            f" sequential ones that go round {self.sequential_mib} MiB, both of 4 KiB at depth 1; {self.warm} rounds to"
            f" warm up, {self.measured} measured, one every {EVERY_S} s"
        )

    def numbers(self):
        return {"store_mib": self.store_mib}

    def run(self, arm):
        _, policy, controller, part = self.ways[arm]
        random, sequential = self.random_mib * MIB, self.sequential_mib * MIB
        if arm == "unified":
            vms = [Vm("both", [Disk("root", self.lab.image("files", self.random_mib + self.sequential_mib))])]
            loads = {
                "random": Load("both:root", "rand", random),
                "sequential": Load("both:root", "seq", sequential, offset=random, once=True),
            }
        else:
            fixed = f'size = "{self.store_mib // 2}MiB"' if arm == "fixed" else ""
            vms = [
                Vm("files", [
                    Disk("random", self.lab.image("random", self.random_mib), "random", fixed),
                    Disk("sequential", self.lab.image("sequential", self.sequential_mib), "sequential", fixed),
                ])
            ]  # fmt: skip
            loads = {
                "random": Load("files:random", "rand", random),
                "sequential": Load("files:sequential", "seq", sequential, once=True),
            }
        turns, samples = [], []
        store_mib = round(part * self.store_mib)
        with self.lab.serve(store_mib, vms, controller=controller, policy=policy) as served, self.lab.clients(
            served
        ) as clients:
            for round_ in paced(self.warm + self.measured, EVERY_S):
                for i, (name, load) in enumerate(loads.items()):
                    done = clients.turn(name, load, REQUESTS, seed=1000 * i + round_ + 1, done=round_ * REQUESTS)
                    if round_ >= self.warm:
                        turns.append(done)
                if round_ >= self.warm:
                    samples.append(shown(served))
            return {"turns": turns, "samples": samples, "why": served.why(), "errors": served.errors()}


class Tenth(PerFile):
    """What the thesis says literally: a tenth of the cache for the same rate. Sizes are its own, and working sets of
    twice its memory."""

    id, title = "d-tenth", "Random and sequential readers, a tenth of the cache"
    repeated = 2 / 3
    ways = {
        "unified": ("one LRU for both, the whole store", "lru", "static", 1),
        "utility": ("one each, `utility`, a tenth of the store", "lru", "utility", 0.1),
    }
    arms = {key: way[0] for key, way in ways.items()}

    def __init__(self, lab):
        super().__init__(lab)
        # A tenth must have room for what two disks' operations may take.
        self.store_mib = 240 if lab.quick else 400
        self.random_mib = self.sequential_mib = 2 * self.store_mib
        # Enough to have filled the whole store before anything is measured.
        self.warm, self.measured = (10, 4) if lab.quick else (18, 8)

    def explains(self):
        return super().explains().replace(" MiB;", f" MiB for one LRU, {self.store_mib // 10} MiB for a cache each;", 1)
