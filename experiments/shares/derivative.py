"""Derivative clouds: two VMs with two and three containers, weights at both levels, changed while all are busy.

Owns that experiment (Derivative clouds, section 2.1: 33:67 between the VMs, 25:75 below; what the paper puts on an SSD
is in RAM here, so that both VMs divide one store). Invariant: shares are compared with the weights themselves, not with
what the daemon says a node is entitled to.
"""

import time

from .clients import BLOCK, Load, counted
from .experiment import Experiment
from .served import MIB, Disk, Vm

EVERY_S = 0.5
WITHIN = 0.03
# Warming up takes so long at most.
WARM_SECONDS = 90
TREE = {"one": {"c1": 25, "c2": 75}, "two": {"c1": 25, "c2": 25, "c3": 50}}
WEIGHTS = {"one": 33, "two": 67}


class Derivative(Experiment):
    """One time line."""

    id, title, repeated = "b-derivative", "Two VMs with two and three containers", 0
    arms = {"static": "weights"}

    def __init__(self, lab):
        super().__init__(lab)
        self.store_mib = 96 if lab.quick else 256
        self.disk_mib = 120 if lab.quick else 320
        # At most so long for a step to settle, and so long is then measured.
        self.patience, self.hold = (15, 1) if lab.quick else (20, 6)

    def explains(self):
        return (
            f"a store of {self.store_mib} MiB, VMs 33:67, containers 25:75 and 25:25:50, a disk of {self.disk_mib} MiB"
            " each; loads are uniform over a whole disk at depth 4, so that all of them contend once each has read its"
            f" disk through; a sample every {EVERY_S} s"
        )

    def numbers(self):
        return {"store_mib": self.store_mib, "within": WITHIN}

    def run(self, arm):
        vms = [
            Vm(vm, [Disk(c, self.lab.image(f"{vm}-{c}", self.disk_mib), container=c) for c in tree], WEIGHTS[vm], tree)
            for vm, tree in TREE.items()
        ]
        with self.lab.serve(self.store_mib, vms, controller=arm, workers=2) as served, self.lab.clients(
            served
        ) as clients:
            line = TimeLine(self, served)
            loads = {}

            def begin(vm):
                for container in TREE[vm]:
                    load = Load(f"{vm}:{container}", "rand", self.disk_mib * MIB, depth=4)
                    loads[vm, container] = clients.start(load, seed=len(loads) + 1, seconds=3600)

            def stop(vm):
                for container in TREE[vm]:
                    clients.stop(loads.pop((vm, container)))

            weights, tree = dict(WEIGHTS), {vm: dict(t) for vm, t in TREE.items()}
            begin("one")
            begin("two")
            line.warmed()
            line.step("all contend", wanted(weights, tree))
            stop("two")
            line.lent("VM two idle", "one", "two", wanted(weights, tree))
            begin("two")
            line.step("VM two busy again", wanted(weights, tree))
            weights = {"one": 67, "two": 33}
            for vm, weight in weights.items():
                served.command("set", vm, "--weight", weight)
            line.step("VMs 67:33", wanted(weights, tree))
            tree["two"]["c1"] = 75
            served.command("set", "two/c1", "--weight", 75)
            line.step("two/c1 from 25 to 75", wanted(weights, tree))
            return {"samples": line.samples, "steps": line.steps, "why": served.why(last=60), "errors": served.errors()}


def wanted(weights, tree):
    """The part of the store that each VM and each container is to have, by the weights alone."""
    parts = {}
    for vm, weight in weights.items():
        parts[vm] = weight / sum(weights.values())
        for container, below in tree[vm].items():
            parts[f"{vm}/{container}"] = parts[vm] * below / sum(tree[vm].values())
    return parts


class TimeLine:
    """Samples, and the steps that were waited for."""

    def __init__(self, experiment, served):
        self.experiment, self.served = experiment, served
        self.began = time.monotonic()
        self.samples, self.steps = [], []

    def sample(self, doing):
        """One sample, at the next half of a second: parts of the store by node, and cached bytes by node."""
        at = time.monotonic() - self.began
        time.sleep(EVERY_S - at % EVERY_S)
        nodes = self.served.nodes()
        store = self.experiment.store_mib * MIB
        parts = {
            name: node["share_bytes"] / store for name, node in nodes.items() if node["level"] in ("vm", "container")
        }
        cached = {name: disk["cache"]["cached_bytes"] for name, disk in self.served.disks().items()}
        now = {"at": round(time.monotonic() - self.began, 2), "parts": parts, "cached": cached}
        self.samples.append(now)
        self.experiment.lab.screen.status(
            doing, ", ".join(f"{name} {100 * part:.1f} %" for name, part in parts.items())
        )
        return now

    def warmed(self):
        """Waits until every load has read as much as its disk holds. Before that most misses are first reads, which no
        share saves, and a disk whose misses no share saves has no demand yet: what it does not demand is lent, by
        weight or not."""
        blocks, end = self.experiment.disk_mib * MIB // BLOCK, time.monotonic() + WARM_SECONDS
        while time.monotonic() < end:
            self.sample("warming up")
            if all(c["hit_blocks"] + c["miss_blocks"] >= blocks for c in counted(self.served).values()):
                break

    def step(self, title, parts):
        """Waits until every node is within the bound of its part, and measures for a while then."""
        self._step(title, parts, lambda now: all(abs(now[name] / part - 1) <= WITHIN for name, part in parts.items()))

    def lent(self, title, busy, idle, parts):
        """Waits until the busy VM has at least half of what the idle one does not use."""
        self._step(title, parts, lambda now: now[busy] >= parts[busy] + parts[idle] / 2, lent=[busy, idle])

    def _step(self, title, parts, holds, **facts):
        began, settled = time.monotonic() - self.began, None
        while time.monotonic() - self.began < began + self.experiment.patience:
            now = self.sample(title)
            if not holds(now["parts"]):
                settled = None
            elif settled is None:
                settled = now["at"]
            elif now["at"] - settled >= 1.0:
                break
        first = len(self.samples)
        for _ in range(round(self.experiment.hold / EVERY_S)):
            self.sample(title)
        held = self.samples[first:]
        measured = {name: sum(s["parts"][name] for s in held) / len(held) for name in parts}
        self.steps.append(
            {
                "title": title, "began": began, "ended": self.samples[-1]["at"], "wanted": parts, "measured": measured,
                "worst": {n: max((s["parts"][n] / part - 1 for s in held), key=abs) for n, part in parts.items()},
                "settled_seconds": None if settled is None else settled - began,
            } | facts
        )  # fmt: skip
