"""Runs cells: all arms of each, one after the other.

Owns the folder that images and logs are in, locked against a second run. Invariant: when a cell has been run, every arm that
was asked for is in the store, as a result or as absent from this build.
"""

import datetime
import fcntl

from rig import guest as guests, machine
from rig.process import Stopped

from . import arms as arm_module, derive
from .loads import LOADS
from .runner import Run


class Session:
    """What is the same for all cells of a run."""

    def __init__(self, work, store, screen):
        self.work, self.store, self.screen = work, store, screen
        (work / "images").mkdir(parents=True, exist_ok=True)
        # Held until the program ends.
        self.lock = open(work / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stopped(f"another run works in {work}: wait for it, or give this one a folder of its own by --work") from None
        guests.build()
        self.accel = guests.accelerator()
        self.machine = machine.facts(work / "images", self.accel)
        self.commit = machine.commit(guests.ROOT)

    def run_cell(self, cell, arms, repeat=1):
        """All arms of a cell, one after the other, `repeat` times (A B C A B C ...)."""
        load, store = LOADS[cell.load], self.store
        facts = {
            "load": cell.load, "zeroing": cell.zeroing, "mglru": cell.mglru, "n": cell.n, "guest_mib": cell.guest_mib,
            "quick": cell.quick, "title": load.title, "explains": load.explains(cell), "cache_bytes": cell.cache_bytes,
            "kind": load.style, "machine": self.machine,
            "commit": self.commit, "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "repeat": repeat,
        }  # fmt: skip
        memory = load.guests * cell.cache_bytes + load.cache_extra_bytes + arm_module.PROGRAM_BYTES
        store.begin(cell.id, facts)
        records = {}
        for turn, key in ((turn, key) for turn in range(repeat) for key in arms):
            kind = arm_module.ARMS[key]
            try:
                arm = kind(memory, self.work, load.format, load.guests)
            except arm_module.Absent as e:
                store.add(cell.id, key, {"title": kind.title, "explains": kind.explains, "absent": str(e)})
                if turn:
                    continue
                self.screen.say(f"  {kind.title:20} not in this build: {e}")
                continue
            arm.limit_bytes = memory + load.limit_extra_bytes
            record = Run(arm, cell, load, self.work, self.accel, self.screen).run()
            records.setdefault(key, []).append(record)
            store.add(cell.id, key, derive.together(records[key]))
            load.same(store.data["cells"][cell.id]["arms"].values())
            alone = {"arms": {key: record}}
            self.screen.say(f"  {f'{turn + 1}/{repeat} ' if repeat > 1 else ''}{kind.title:24} {derive.line(alone, key)}")
        store.finish(cell.id)
