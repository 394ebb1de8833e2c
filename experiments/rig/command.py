"""What every program here that needs root and can be stopped at any moment does: asks sudo, ends in order, gives files
back.

Owns signal handlers. Invariant: whatever ends the program, what it started ends first.
"""

import contextlib
import os
import shutil
import signal
import sys

from .process import Stopped


def become_root(name, why):
    """Starts again by sudo: control groups and dropping cached pages need it."""
    if os.geteuid() == 0:
        return
    if not shutil.which("sudo"):
        raise Stopped(f"{why} needs root: run this as root, or install sudo")
    print(f"{name}: {why} needs root; asking sudo", flush=True)
    os.execvp("sudo", ["sudo", sys.executable, *sys.argv])


def give_back(*folders):
    """Makes what was written belong to who called sudo."""
    if os.environ.get("SUDO_UID"):
        uid, gid = int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
        for folder in folders:
            for path in [folder, *folder.rglob("*")]:
                with contextlib.suppress(OSError):
                    os.chown(path, uid, gid, follow_symlinks=False)


def end_in_order():
    """Makes any signal that ends a program end this one in order, with nothing left behind."""

    def interrupt(*_):
        # Once is enough: a second one would cut the clearing up short.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, interrupt)
