"""Runs cells: all arms of each, one after the other.

Owns the folder that images and logs are in, locked against a second run. Invariant: when a cell has been run, every arm
that was asked for is in the store, as a result or as absent from this build.
"""

import datetime
import fcntl

from rig import guest as guests, machine, readahead, serving
from rig.process import Stopped

from . import arms as arm_module, cells as cell_module, derive
from .loads import LOADS
from .runner import Run


class Session:
    """What is the same for all cells of a run."""

    def __init__(self, work, store, screen, keep_transfers=None):
        self.work, self.store, self.screen, self.keep_transfers = work, store, screen, keep_transfers
        (work / "images").mkdir(parents=True, exist_ok=True)
        # Held until the program ends.
        self.lock = open(work / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stopped(
                f"another run works in {work}: wait for it, or give this one a folder of its own by --work"
            ) from None
        readahead.put_back()
        guests.build()
        self.accel = guests.accelerator()
        self.machine = machine.facts(work / "images", self.accel)
        self.commit = machine.commit(guests.ROOT)

    def run_cells(self, cells, arms, repeat=1, loads=LOADS):
        """All arms of cells of one run (`cells.grouped`), one after the other, `repeat` times (A B C A B C ...)."""
        store, first = self.store, loads[cells[0].load]
        memory = first.guests * cells[0].cache_bytes + first.cache_extra_bytes + serving.PROGRAM_BYTES
        for cell in cells:
            store.begin(cell.id, self._facts(cell, loads[cell.load], repeat))
        records = {}
        for turn, key in ((turn, key) for turn in range(repeat) for key in arms):
            kind = arm_module.ARMS[key]
            try:
                arm = kind(memory, self.work, first.format, first.guests)
            except arm_module.Absent as e:
                if not turn:
                    self.screen.say(f"  {kind.title:36} cannot be measured here: {e}")
                    for cell in cells:
                        store.add(cell.id, key, {"title": kind.title, "explains": kind.explains, "absent": str(e)})
                continue
            arm.limit_bytes = memory + first.limit_extra_bytes
            of_turn = f"{turn + 1}/{repeat} " if repeat > 1 else ""

            def each(cell, record, key=key, title=f"{of_turn}{kind.title}"):
                records.setdefault((cell.id, key), []).append(record)
                store.add(cell.id, key, derive.together(records[cell.id, key]))
                loads[cell.load].same(store.data["cells"][cell.id]["arms"].values())
                disk = "" if cell.wait_us is None else f", {cell_module.shown_wait(cell.wait_us)}"
                self.screen.say(f"  {f'{title}{disk}':36} {derive.line({'arms': {key: record}}, key)}")

            of_cells = [(cell, loads[cell.load]) for cell in cells]
            Run(arm, of_cells, self.work, self.accel, self.screen, self.keep_transfers).run(each)
        for cell in cells:
            store.finish(cell.id)

    def _facts(self, cell, load, repeat):
        return {
            "load": cell.load, "zeroing": cell.zeroing, "mglru": cell.mglru, "n": cell.n, "guest_mib": cell.guest_mib,
            "quick": cell.quick, "wait_us": cell.wait_us, "title": load.title, "explains": load.explains(cell),
            "cache_bytes": cell.cache_bytes, "program_bytes": serving.PROGRAM_BYTES, "kind": load.style,
            "machine": self.machine,
            "commit": self.commit, "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "repeat": repeat,
        }  # fmt: skip
