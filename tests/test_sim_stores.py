"""`undercroft sim --ssd`: simulated stores take the memory of their tables, not of data.

Owns the measurement of the program's memory. Invariant: what is simulated stands for far more bytes than are allowed.
"""

import json
import subprocess
import sys

import pytest

from harness.programs import built

MIB = 1 << 20
# In a small process between: the peak of a child begins with what its parent has.
MEASURE = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


@pytest.mark.parametrize("admit", ["all", "second", "measured"])
def test_no_byte_of_data_is_held(tmp_path, admit):
    trace = tmp_path / "loop.u64le"
    program = built("undercroft")
    made = [program, "trace", "synth", "loop", str(trace), "-k", "300000", "-n", "1000000"]
    subprocess.run(made, check=True, capture_output=True)
    # 256 MiB of RAM over a SSD of 1 GiB, both full, and read again.
    stores = ["--size", "65536blocks", "--ssd", "1GiB", "--admit", admit, "--policy", "lru", "--json"]
    command = [sys.executable, "-c", MEASURE, str(program), "sim", str(trace), *stores]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row = json.loads(done.stdout)["results"][0]
    held = int(done.stderr) * 1024
    if admit == "all":
        assert row["ssd_blocks"] > 200_000
    # A round of 300,000 is longer than what `second` remembers of evictions.
    assert row["ssd_hits"] > 10_000 or admit == "second"
    assert row["mismatches"] == 0
    assert held < 100 * MIB, f"{held // MIB} MiB"
