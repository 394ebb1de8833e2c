"""A thread of another process that does not run for a while, as if other work had all of the processors.

Owns the stop (ptrace, as debuggers do it; root, or a process that may be traced). Never stops the other threads.
Invariant: the thread runs again when the block is left.
"""

import ctypes
import os
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
# Waits for threads, too.
WAIT_ALL = 0x40000000


class StoppedThread:
    """Stops the thread of this name within a `with` block."""

    def __init__(self, process: int, name: str):
        named = [
            int(task.name)
            for task in Path(f"/proc/{process}/task").iterdir()
            if (task / "comm").read_text().strip() == name
        ]
        assert len(named) == 1, f"process {process} has {len(named)} threads '{name}'"
        self.thread = named[0]
        self.libc = ctypes.CDLL(None, use_errno=True)

    def trace(self, request: int) -> None:
        if self.libc.ptrace(request, self.thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace request {request:#x} for thread {self.thread}")

    def __enter__(self):
        self.trace(PTRACE_SEIZE)
        self.trace(PTRACE_INTERRUPT)
        os.waitpid(self.thread, WAIT_ALL)
        return self

    def __exit__(self, *_):
        self.trace(PTRACE_DETACH)
