"""A file, a web and a database server whose demands peak at different times.

Owns that load: the phased load of the simulator (crates/study/src/sim/tenants/loads.rs), its rates and working sets
scaled to a store in MiB. Every second each server gets as many requests as that second has for it, in every arm the
same ones in the same order, one server after the other: so misses can be compared, and counted by server in one
unpartitioned cache too.
"""

import time

from .clients import BLOCK, Load
from .experiment import Experiment
from .locality import shown
from .served import MIB, Disk, Vm

SERVERS = ("file", "web", "database")
# The simulator's numbers: (rate, blocks of the working set) by phase, of 1000 requests and 6144 blocks.
PHASES = {
    "database": {"file": (25, 400), "web": (50, 300), "database": (1000, 5000)},
    "web": {"file": (25, 400), "web": (1000, 6000), "database": (50, 400)},
    "file": {"file": (1000, 5000), "web": (50, 300), "database": (50, 400)},
    "database and web": {"file": (25, 400), "web": (900, 3000), "database": (900, 3000)},
}
DISK_MIB = 448
# What is read once only begins here.
ONCE_AT = 128 * MIB
# More than a busy server reaches with its part by weight: where all are busy it cannot be kept, and parts go by weight.
GOAL = "hit 70%"


class Phased(Experiment):
    """One cache for all, and every controller."""

    id, title = "c-phased", "Three servers in phases"
    # An arm takes over a minute, and its requests are the same ones each time.
    repeated = 1 / 3
    arms = {
        "unified": "one cache for all", "fixed": "equal static shares", "static": "`static`: equal weights, idle lent",
        "donor": "`donor`",
        "utility": "`utility`", "target": f"`target`, each with {GOAL}",
    }  # fmt: skip

    def __init__(self, lab):
        super().__init__(lab)
        self.store_mib = 64 if lab.quick else 96
        self.rate = 4000 if lab.quick else 10000
        self.seconds = 4 if lab.quick else 20
        # Blocks of data that the store has room for beside what operations may take: the simulator's 6144.
        self.blocks = (self.store_mib - 16) * MIB // BLOCK

    def explains(self):
        return (
            f"a store of {self.store_mib} MiB, {len(PHASES)} phases ({', '.join(PHASES)}) of {self.seconds} s; a busy"
            f" server gets {self.rate} reads a second at depth 4 over a working set of"
            f" {5000 * self.blocks // 6144 * BLOCK // MIB} MiB, an idle one {self.rate * 50 // 1000} over about"
            f" {400 * self.blocks // 6144 * BLOCK // MIB} MiB"
        )

    def numbers(self):
        return {
            "store_mib": self.store_mib,
            "phases": list(PHASES),
            "phase_seconds": self.seconds,
            "servers": list(SERVERS),
        }

    def mix(self, server, rate, blocks, disk, at):
        """(operations of one second, load) for what a server does."""
        length = blocks * self.blocks // 6144 * BLOCK
        operations = rate * self.rate // 1000

        def part(percent, pattern, size=length, **more):
            return operations * percent // 100, Load(disk, pattern, size, offset=at, depth=4, **more)

        def once(percent):
            return operations * percent // 100, Load(
                disk, "seq", DISK_MIB * MIB - ONCE_AT, offset=at + ONCE_AT, depth=4, once=True
            )

        if server == "file":
            return [part(50, "zipf", theta=0.6), part(35, "rand"), once(15)]
        if server == "web":
            return [part(93, "zipf", theta=0.7), once(7)]
        return [part(25, "rand", max(length // 16 // BLOCK, 1) * BLOCK), part(65, "rand"), once(10)]

    def run(self, arm):
        if arm == "unified":
            vms = [Vm("all", [Disk("root", self.lab.image("servers", DISK_MIB * len(SERVERS)))])]
            places = {server: ("all:root", i * DISK_MIB * MIB) for i, server in enumerate(SERVERS)}
        else:
            fixed = f'size = "{self.store_mib // len(SERVERS)}MiB"' if arm == "fixed" else ""
            goal = GOAL if arm == "target" else ""
            vms = [
                Vm(server, [Disk("root", self.lab.image(server, DISK_MIB), options=fixed)], goal=goal)
                for server in SERVERS
            ]
            places = {server: (f"{server}:root", 0) for server in SERVERS}
        controller = "static" if arm in ("unified", "fixed") else arm
        with self.lab.serve(self.store_mib, vms, controller=controller) as served, self.lab.clients(served) as clients:
            return self.phases(served, clients, places, arm)

    def phases(self, served, clients, places, arm):
        """All phases: what each server met in each second, and what it had."""
        began = time.monotonic()
        seconds, once = [], dict.fromkeys(SERVERS, 0)
        for p, (phase, activities) in enumerate(PHASES.items()):
            for second in range(self.seconds):
                slot = p * self.seconds + second
                time.sleep(max(0.0, began + slot - time.monotonic()))
                self.lab.screen.status(arm, f"{phase}, second {second + 1} of {self.seconds}")
                servers = {}
                for server, (rate, blocks) in activities.items():
                    turns = []
                    for i, (operations, load) in enumerate(self.mix(server, rate, blocks, *places[server])):
                        if operations:
                            turns.append(
                                clients.turn(server, load, operations, seed=1 + 10 * slot + i, done=once[server])
                            )
                            once[server] += operations if load.once else 0
                    servers[server] = summed(turns)
                seconds.append(
                    {"at": time.monotonic() - began, "phase": phase, "servers": servers, "disks": shown(served)}
                )
        return {"seconds": seconds, "why": served.why(last=60), "errors": served.errors()}


def summed(turns):
    """The turns of one second as one: reads, hits, misses, and the time that all reads took together."""
    reads = sum(t["operations"] for t in turns)
    return {
        "reads": reads,
        "hits": sum(t["hit_blocks"] for t in turns),
        "misses": sum(t["miss_blocks"] + t["joined_blocks"] for t in turns),
        "us": round(sum(t["mean_us"] * t["operations"] for t in turns), 1),
    }
