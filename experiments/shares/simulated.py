"""The same questions, answered by the simulator: every load and every arm, without a disk or a clock.

Owns running crates/study's example `shares_table` and what is kept of its rows.
"""

import json

from rig import process

from .experiment import Absent, Experiment

POLICIES = ("lru", "s3-fifo")


class Simulated(Experiment):
    """Every load of the simulator, under two policies."""

    id, title, repeated = "e-simulated", "Simulated", 0
    arms = {policy: policy for policy in POLICIES}
    program = None

    def explains(self):
        return "every load and arm of `cargo run --release -p undercroft-study --example shares_table`"

    def run(self, arm):
        if not self.program.exists():
            raise Absent(
                f"{self.program.name} is not built: cargo build --release -p undercroft-study --example shares_table"
            )
        rows = []
        for line in process.run([self.program, "--json", "--policy", arm], self.program.name).splitlines():
            row = json.loads(line)
            rows.append({key: row[key] for key in ("load", "arm", "requests", "misses", "tenants", "moved_blocks")})
        return {"rows": rows}
