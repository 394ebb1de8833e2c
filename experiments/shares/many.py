"""What a thousand disks, and what measures them, cost a hit in RAM.

Owns running crates/cache's example `many_disks` and what is kept of its rows. Never judges.
"""

import json

from rig import process

from .experiment import Absent, Experiment


class ManyDisks(Experiment):
    """One disk, a thousand disks and one of 64 parts, with the same blocks in all."""

    id, title, repeated = "f-many-disks", "A thousand disks", 0
    arms = {"hits": "hits in RAM"}
    program = None

    def __init__(self, lab):
        super().__init__(lab)
        self.rounds = 11 if lab.quick else 101

    def explains(self):
        return (
            f"reads of 4 KiB that hit, on one processor, {self.rounds} rounds in turn: `cargo run --release -p"
            " undercroft-cache --example many_disks`"
        )

    def run(self, arm):
        if not self.program.exists():
            raise Absent(
                f"{self.program.name} is not built: cargo build --release -p undercroft-cache --example many_disks"
            )
        lines = process.run([self.program, "--json", str(self.rounds)], self.program.name).splitlines()
        return {"rows": [json.loads(line) for line in lines]}
