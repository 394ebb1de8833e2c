"""Stopping a process for a while: a server that answers nothing, a daemon that hears nothing.

Owns nothing. Invariant: when `pause` returns, no thread of the process runs. The kernel tells one thread of a process
that it is to stop and that thread tells the others: one that is awake meanwhile still answers what comes.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from .daemon import until


def pause(pid: int) -> None:
    """Stops a process; returns when all its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _states(pid) == {"T"}, f"all threads of process {pid} have stopped")


def go_on(pid: int) -> None:
    """Has it go on."""
    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """It is stopped until the block ends, however it ends."""
    pause(pid)
    try:
        yield
    finally:
        go_on(pid)


def _states(pid: int) -> set[str]:
    """What the threads of a process do: T is stopped."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.add((thread / "stat").read_text().rsplit(") ", 1)[1][0])
    return found
