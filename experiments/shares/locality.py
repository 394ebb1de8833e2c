"""The paper's case: a load of low locality and a high rate beside one of high locality and a moderate rate.

Owns that load (Derivative clouds, section 2.2): the two are scheduled in turn, the first asks for half as many blocks
as the cache has in each of its turns, the second for half of that. Taking turns is also what makes it possible to say
whose hits the hits of one unpartitioned disk are.
"""

import time

from .clients import BLOCK, Load
from .experiment import Experiment
from .served import MIB, Disk, Vm


# A round; the controllers decide once a second.
EVERY_S = 0.4


class Locality(Experiment):
    """Unified, static and dynamic under one replacement policy."""

    arms = {"unified": "one cache for both", "static": "static, equal weights", "utility": "dynamic (`utility`)"}

    def __init__(self, lab, policy):
        super().__init__(lab)
        self.policy = policy
        self.id = f"a-locality-{policy}"
        self.title = f"The paper's case, {policy}"
        self.store_mib = 48 if lab.quick else 64
        self.scanned_mib, self.popular_mib = (384, 32) if lab.quick else (1024, 48)
        self.warm, self.measured = (10, 4) if lab.quick else (20, 8)
        # Half of what the cache has room for, so that an interval has turns of both.
        self.turn = (self.store_mib - 16) * MIB // BLOCK // 2

    def explains(self):
        return (
            f"a store of {self.store_mib} MiB; in turn, {self.turn} reads at depth 8, uniform over {self.scanned_mib}"
            f" MiB, and {self.turn // 2} reads at depth 1, Zipf (0.8) over {self.popular_mib} MiB; {self.warm} rounds"
            f" to warm up, {self.measured} measured, one every {EVERY_S} s"
        )

    def numbers(self):
        return {"store_mib": self.store_mib, "policy": self.policy}

    def run(self, arm):
        scanned, popular = self.scanned_mib * MIB, self.popular_mib * MIB
        if arm == "unified":
            vms = [Vm("both", [Disk("root", self.lab.image("both", self.scanned_mib + self.popular_mib))])]
            loads = {
                "low locality": Load("both:root", "rand", scanned, depth=8),
                "high locality": Load("both:root", "zipf", popular, offset=scanned, theta=0.8),
            }
        else:
            vms = [
                Vm("low", [Disk("root", self.lab.image("low", self.scanned_mib))]),
                Vm("high", [Disk("root", self.lab.image("high", self.popular_mib))]),
            ]
            loads = {
                "low locality": Load("low:root", "rand", scanned, depth=8),
                "high locality": Load("high:root", "zipf", popular, theta=0.8),
            }
        turns, samples = [], []
        controller = "static" if arm == "unified" else arm
        with self.lab.serve(self.store_mib, vms, controller=controller, policy=self.policy) as served, self.lab.clients(
            served
        ) as clients:
            for round_ in paced(self.warm + self.measured, EVERY_S):
                for i, (name, load) in enumerate(loads.items()):
                    done = clients.turn(name, load, self.turn // (1 + i), seed=1000 * i + round_ + 1)
                    if round_ >= self.warm:
                        turns.append(done)
                samples.append(shown(served))
            return {"turns": turns, "samples": samples, "why": served.why(), "errors": served.errors()}


def paced(rounds, seconds):
    """0, 1, 2 ..., each so many seconds after the one before it, or later."""
    began = time.monotonic()
    for n in range(rounds):
        time.sleep(max(0.0, began + n * seconds - time.monotonic()))
        yield n


def shown(served):
    """Share and cached bytes of each disk now."""
    return {
        name: [disk["cache"]["share_bytes"], disk["cache"]["cached_bytes"]] for name, disk in served.disks().items()
    }
