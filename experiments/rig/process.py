"""Child processes that cannot outlive this one.

Owns how children are started and ended. Never leaves one behind: the kernel kills them when this process dies
(PR_SET_PDEATHSIG), and they sit in sessions of their own, so that Ctrl-C reaches this process first, which ends them in
order.
"""

import ctypes
import os
import signal
import socket
import stat
import subprocess
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Stopped(Exception):
    """Something that should be running is not, or did not come up; the message names it and where its output is."""


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(argv, log, **kwargs):
    """Starts `argv` with its output appended to the file `log`, unless `kwargs` say otherwise."""
    with open(log, "ab") as out:
        options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out} | kwargs
        return subprocess.Popen([str(a) for a in argv], start_new_session=True, preexec_fn=_die_with_parent, **options)


def end(process, seconds=10):
    """Ends a child: SIGTERM, then SIGKILL after `seconds`. Returns its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def run(argv, what, seconds=None):
    """Runs `argv` to its end and returns its output; on failure says that `what` failed, and what it printed last. It
    fails if it takes more than `seconds`."""
    try:
        done = subprocess.run(
            [str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise Stopped(f"{what} did not end within {seconds} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise Stopped(f"{what} failed: {last}")
    return done.stdout


def tail(log, lines=3):
    """The last lines of a log, on one line, for an error message."""
    try:
        with open(log, errors="replace") as f:
            return " | ".join(line.strip() for line in f.readlines()[-lines:])
    except OSError:
        return ""


def wait_for_sockets(paths, process, log, seconds=20):
    """Waits until every unix socket in `paths` is there, or says why not. `log` is named after the program."""
    wait_for_files(paths, process, log, seconds, _is_socket)


def wait_for_files(paths, process, log, seconds=20, there=os.path.exists):
    """Waits until everything in `paths` is there, or says why not. `log` is named after the program."""
    deadline = time.monotonic() + seconds
    for path in paths:
        while not there(path):
            if process.poll() is not None:
                raise Stopped(f"{log.stem} stopped before it served {path}: {tail(log)} (all of it: {log})")
            if time.monotonic() > deadline:
                raise Stopped(f"{log.stem} did not serve {path} within {seconds} s: {tail(log)} (all of it: {log})")
            time.sleep(0.02)


def wait_for_answer(path, process, log, seconds=20):
    """Waits until somebody accepts connections on the unix socket `path`, or says why not."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                return client.connect(str(path))
            except OSError as e:
                error = e
        if process.poll() is not None:
            raise Stopped(f"{log.stem} stopped before it answered on {path}: {tail(log)} (all of it: {log})")
        if time.monotonic() > deadline:
            raise Stopped(f"{log.stem} does not answer on {path} after {seconds} s: {error} (its log: {log})")
        time.sleep(0.02)


def _is_socket(path):
    """Whether `path` is a socket file. Connecting to find out more would take a vhost-user socket's only turn."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
