"""What a program that does not end is doing, told before it is ended: its processes, their threads, its logs.

Owns nothing. Never changes what it looks at; what has gone meanwhile is left out.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def told(pid: int, logs: Path | None = None) -> str:
    """Processes below `pid`, itself included, with what each of their threads waits for and how much processor time it
    took in the last second; the state of Undercroft daemons among them; and the ends of all logs in the folder
    `logs`."""
    before = {thread: found for process in below(pid) for thread, found in _threads(process)}
    time.sleep(1)
    lines = []
    for process in below(pid):
        words = command(process)
        lines.append(f"{process}: {' '.join(words)[:300]}")
        for thread, (name, state, ticks, where) in _threads(process):
            took = (ticks - before[thread][2]) / TICKS if thread in before else 0
            lines.append(f"    {thread} {name:16} {state} {where:24} {took:4.0%} of a processor")
        lines += _status(words)
    for log in sorted(logs.glob("*.log")) if logs else []:
        lines.append(f"--- the end of {log.name}")
        lines.append(log.read_text(errors="replace")[-2000:])
    return "\n".join(lines)


def below(pid):
    """`pid` and all that descend from it, parents first."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += sorted(children.get(process, []))
    return found


def _threads(pid):
    """(number, (name, state, processor ticks, place in the kernel)) of each thread."""
    with contextlib.suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):
                stat = (task / "stat").read_text()
                fields = stat.rsplit(")", 1)[1].split()
                name = stat[stat.index("(") + 1 : stat.rindex(")")]
                yield int(task.name), (name, fields[0], int(fields[11]) + int(fields[12]), (task / "wchan").read_text())


def command(pid):
    """The words that started a process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def _status(words):
    """What a daemon started by the laboratory says of itself: its control socket is beside its configuration."""
    if "serve" not in words:
        return []
    socket = Path(words[words.index("serve") + 1]).parent / "control.sock"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = [words[0], "status", "--json", "--control", str(socket)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
        return [done.stdout + done.stderr]
    return ["does not answer"]
