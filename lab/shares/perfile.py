"""The per-file experiments: a random and a sequential reader beside each other.

Owns that load (Page cache management, section 5.7, "rand-seq"): both working sets are at least twice the cache.
"""

from .clients import Load
from .experiment import Experiment
from .locality import paced, shown
from .served import MIB, Disk, Vm

# A round; the controllers decide once a second.
EVERY_S = 0.5


class PerFile(Experiment):
    """One LRU for both files, as a page cache has, and a cache for each file, sized in three ways."""

    id, title = "d-per-file", "Random and sequential readers"
    # Key: title, policy, controller.
    ways = {
        "unified": ("one LRU for both", "lru", "static"),
        "fixed": ("one each, of half the store", "lru", "static"),
        "static": ("one each, `static`", "lru", "static"),
        "utility": ("one each, `utility`", "lru", "utility"),
        "paper": ("one each, CAR, `paper`", "car", "paper"),
    }
    arms = {key: way[0] for key, way in ways.items()}

    def __init__(self, lab):
        super().__init__(lab)
        self.store_mib = 48 if lab.quick else 64
        self.random_mib, self.sequential_mib = (96, 192) if lab.quick else (128, 256)
        self.warm, self.measured = (10, 4) if lab.quick else (18, 10)
        self.operations = {"random": 2048, "sequential": 8192}

    def explains(self):
        return (
            f"a store of {self.store_mib} MiB; in turn, {self.operations['random']} random reads over {self.random_mib} MiB and "
            f"{self.operations['sequential']} sequential ones that go round {self.sequential_mib} MiB, both of 4 KiB at depth 1; {self.warm} rounds "
            f"to warm up, {self.measured} measured, one every {EVERY_S} s"
        )

    def numbers(self):
        return {"store_mib": self.store_mib}

    def run(self, arm):
        _, policy, controller = self.ways[arm]
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
        with self.lab.serve(self.store_mib, vms, controller=controller, policy=policy) as served, self.lab.clients(served) as clients:
            for round_ in paced(self.warm + self.measured, EVERY_S):
                for i, (name, load) in enumerate(loads.items()):
                    operations = self.operations[name]
                    done = clients.turn(name, load, operations, seed=1000 * i + round_ + 1, done=round_ * operations)
                    if round_ >= self.warm:
                        turns.append(done)
                if round_ >= self.warm:
                    samples.append(shown(served))
            return {"turns": turns, "samples": samples, "why": served.why(), "errors": served.errors()}
