"""`undercroft sim --ssd`: simulated stores take the memory of their tables, not of data.

Owns the measurement of the program's memory. Invariant: what is simulated stands for far more bytes than are allowed.
"""

import json
import os
import subprocess

import pytest

from harness.programs import built

MIB = 1 << 20


@pytest.mark.parametrize("admit", ["all", "second"])
def test_no_byte_of_data_is_held(tmp_path, admit):
    trace = tmp_path / "loop.u64le"
    program = built("undercroft")
    made = [program, "trace", "synth", "loop", str(trace), "-k", "300000", "-n", "1000000"]
    subprocess.run(made, check=True, capture_output=True)
    # 256 MiB of RAM over a SSD of 1 GiB, both full, and read again.
    stores = ["--size", "65536blocks", "--ssd", "1GiB", "--admit", admit, "--policy", "lru", "--json"]
    with open(tmp_path / "out", "w+b") as out:
        child = subprocess.Popen([program, "sim", str(trace), *stores], stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        out.seek(0)
        row = json.load(out)["results"][0]
    if admit == "all":
        assert row["ssd_blocks"] > 200_000
    assert row["ssd_hits"] > 10_000
    assert row["mismatches"] == 0
    assert usage.ru_maxrss * 1024 < 200 * MIB, f"{usage.ru_maxrss // 1024} MiB"
