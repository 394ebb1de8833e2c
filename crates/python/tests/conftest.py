"""What the tests share: the program to compare with, the shared traces, a limit on what hangs.

Owns no expectation. The package itself must be installed where pytest runs: scripts/python-package.sh does.
"""

import faulthandler
import json
import os
import pathlib
import subprocess

import matplotlib
import pytest

matplotlib.use("Agg")
ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def no_test_hangs_forever():
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def undercroft():
    """Runs the program with --json, and gives what it prints."""
    program = os.environ.get("UNDERCROFT_PROGRAM", str(ROOT / "target/debug/undercroft"))
    if not os.access(program, os.X_OK):
        pytest.fail(f"there is no {program} to compare with: cargo build -p undercroft, or set UNDERCROFT_PROGRAM")

    def run(*arguments, json_output=True):
        words = [program, *map(str, arguments), *(["--json"] if json_output else [])]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if json_output else done.stdout

    return run


@pytest.fixture(scope="session")
def shared():
    """The folder of the shared traces, beside the tree."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"the shared traces are not there ({folder})")
    return folder
