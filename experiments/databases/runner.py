"""Runs one cell on one arm: copies of the images, what lies below, containers, the load, and what was counted.

Owns the order of things. Never knows what an arm is. Invariant: an arm is warmed on a disk without wait, then measured
with each wait in turn; everything that was started has ended when `run` returns or raises.
"""

import concurrent.futures
import contextlib
import os
import time

from exclusive.measure import busy_seconds, difference
from rig import mounted

from . import containers
from .below import ARMS
from .cells import WAITS_US
from .containers import Container
from .engines import ENGINES
from .masters import run_dir


class Run:
    """Arms of a cell, one at a time."""

    def __init__(self, lab, cell):
        self.lab, self.cell = lab, cell
        self.engines = [ENGINES[key](lab.data_mib) for key in cell.engines]

    def run(self, key):
        """One run of an arm: for each wait (in us, as text), what was measured."""
        work = self.lab.work
        images = [self.lab.masters.copy(e, work / "images" / f"{e.key}.raw") for e in self.engines]
        arm = ARMS[key](self.cell.sizes, images, work / "below", work)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(run_dir()) for _ in self.engines]
            stack.enter_context(arm)
            servers = [stack.enter_context(self.serve(arm, n, sockets[n])) for n in range(len(images))]
            for n, server in enumerate(servers):
                server.wait(lambda n=n: self.engines[n].is_ready(sockets[n]))
                server.find_group()
            self.show(key, "warming")
            self.load(arm, sockets, self.lab.warm_up)
            record = {"load_average": os.getloadavg()[0]}
            for wait_us in WAITS_US:
                self.show(key, f"{wait_us // 1000} ms")
                arm.wait(wait_us)
                record[str(wait_us)] = self.measure(arm, servers, sockets)
            arm.wait(0)
        for image in images:
            image.unlink()
        return record

    def show(self, key, what):
        """Says what is going on."""
        self.lab.screen.status("stores", f"{self.cell.id} {ARMS[key].title}: {what}")

    def serve(self, arm, n, sockets):
        """The container of database `n`."""
        engine = self.engines[n]
        memory = engine.base_bytes + arm.container_extra_bytes()
        log = self.lab.work / f"{engine.key}.log"
        return Container(
            self.lab.podman, engine.key, engine.server(), arm.wheres[n], sockets, memory, log, engine.stop_signal
        )

    def load(self, arm, sockets, seconds):
        """Loads all databases at once; their figures, in order."""
        with concurrent.futures.ThreadPoolExecutor(len(sockets)) as pool:
            jobs = [
                pool.submit(engine.load, of, self.lab.work / f"load-{engine.key}", seconds)
                for engine, of in zip(self.engines, sockets, strict=True)
            ]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                # Clients of a server that is gone end at once; nobody waits for them.
                self.lab.podman.clear()
                # If what is below has died, that is why.
                arm.check()
                raise

    def take(self, arm, servers):
        """Every counter, now."""
        now = {"time": time.monotonic(), "machine_cpu_seconds": busy_seconds()}
        for server in servers:
            server.check()
        arm.check()
        return now | arm.counts()

    def measure(self, arm, servers, sockets):
        """What one wait makes of it."""
        before = self.take(arm, servers)
        loads = self.load(arm, sockets, self.lab.seconds)
        counted = difference(self.take(arm, servers), before)
        if "memory_bytes" in counted:
            counted["memory_bytes"] = arm.group.memory_bytes()
        return {"loads": loads, "counted": counted, "containers": [server.memory() for server in servers]}


def lacks(engines):
    """What this machine lacks to run these databases, in words."""
    packages = containers.lacks().union(*(ENGINES[key].lacks() for key in engines))
    return mounted.lacks(packages)
