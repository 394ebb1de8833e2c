"""Programs, run with a time limit, and skipped over visibly where they are missing.

Owns nothing. Never installs anything: `make setup` does.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from . import stuck

ROOT = Path(__file__).resolve().parents[2]
# How many times as long as on a machine of today everything may take: within an emulated guest, say.
PATIENCE = float(os.environ.get("UNDERCROFT_PATIENCE", "1"))
# How many times as long a program may compute that only has to come to its end: a test beside others has a part of the
# processors. What is promised of the daemon, to start, answer and stop in time, has no more time beside others.
BESIDE = 4 if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1 else 1
TIME_LIMIT_S = 120 * PATIENCE * BESIDE


def built(name: str) -> str:
    """The path of one of our own programs: the release build, else the debug build."""
    variable = name.upper().replace("-", "_") + "_PROGRAM"
    # undercroft-ranges is built for a target of its own, statically: scripts/build-ranges.sh.
    places = ("x86_64-unknown-linux-gnu/release",) if name == "undercroft-ranges" else ("release", "debug")
    candidates = [ROOT / "target" / place / name for place in places]
    if given := os.environ.get(variable):
        candidates.insert(0, Path(given))
    for path in candidates:
        if path.exists():
            return str(path)
    how = (
        "scripts/build-ranges.sh"
        if name == "undercroft-ranges"
        else "cargo build --release -p undercroft -p undercroft-bench-driver"
    )
    pytest.fail(f"{name} is not built: {how}")


def need(*names: str) -> None:
    """Skips the test, and says why, if a program is missing."""
    missing = [n for n in names if not shutil.which(n)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make setup installs it)")


def need_root() -> None:
    """Skips the test, and says why, for anyone but root."""
    if os.geteuid() != 0:
        pytest.skip("this needs root")


def run(
    *command: object,
    check: bool = True,
    stdin: str | None = None,
    limit: float = TIME_LIMIT_S,
    logs: Path | None = None,
):
    """Runs a program; with `check` it must succeed. One that does not end within `limit` seconds fails the test, which
    shows what it was doing, and the ends of the logs in the folder `logs`."""
    words = [str(c) for c in command]
    need(words[0])
    given = None if stdin is None else subprocess.PIPE
    with subprocess.Popen(words, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(stdin, timeout=limit)
        except subprocess.TimeoutExpired:
            doing = stuck.told(process.pid, logs)
            # In order, if it can: what it has started goes with it.
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            pytest.fail(f"{' '.join(words)}\ndid not end within {limit} s\n{out[-4000:]}{err[-4000:]}\n{doing}")
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check and done.returncode != 0:
        pytest.fail(f"{' '.join(words)}\nended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done


def driver(*arguments: object, check: bool = True, limit: float = TIME_LIMIT_S) -> dict | list:
    """Runs the benchmark's driver and returns its report, with the exit code as `exit` if it is an object."""
    done = run(built("undercroft-driver"), *arguments, check=check, limit=limit)
    if not done.stdout.strip():
        return {"exit": done.returncode, "error": done.stderr.strip()}
    report = json.loads(done.stdout)
    if isinstance(report, dict):
        report["exit"] = done.returncode
        report["error"] = done.stderr.strip()
    return report


def start_driver(*arguments: object) -> subprocess.Popen:
    """Starts the driver; `finish_driver` waits for it."""
    words = [built("undercroft-driver"), *(str(a) for a in arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish_driver(process: subprocess.Popen, limit: float = TIME_LIMIT_S, check: bool = True) -> dict:
    """The report of a driver that was started."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"the driver did not end within {limit} s")
    if check and process.returncode != 0:
        pytest.fail(f"the driver ended with {process.returncode}: {err.strip()}\n{out[-3000:]}")
    report = json.loads(out) if out.strip() else {}
    return {**report, "exit": process.returncode, "error": err.strip()}
