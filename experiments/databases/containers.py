"""Containers without an image: Podman runs the host's own programs, read-only, in a control group with a memory limit.

Owns Podman's storage folder, the root file system (a few files of /etc, and /usr bound read-only) and the containers
in it. Needs root. Invariant: containers of this storage end with the object, and those that a killed run has left go
when the next one begins; no registry is asked for anything.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path

from rig import mounted, process
from rig.process import Stopped

# Nobody: databases refuse root, and no package's user has to be there.
USER = 65534
DATA = "/data"
RUN = "/run/db"
PROGRAMS = {"podman": "podman", "runc": "runc"}


def lacks():
    """Packages that are missing here."""
    return {package for name, package in PROGRAMS.items() if not mounted.program(name)}


class Podman:
    """Podman with a storage of its own in `folder`."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.root = self.folder / "root"
        self.names = 0

    def __enter__(self):
        for name in ("etc", "usr", "proc", "sys", "dev", "tmp", "run/db", "data", "var/tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if not (self.root / name).is_symlink():
                (self.root / name).symlink_to(f"usr/{name}")
        for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"/etc/{name}", self.root / "etc" / name)
        os.chmod(self.root / "tmp", 0o1777)
        self.clear()
        return self

    def __exit__(self, *_):
        self.clear()

    def clear(self):
        """Ends every container of this storage."""
        with contextlib.suppress(Stopped):
            self.call("rm", "--all", "--force", "--time", "0")

    def command(self, *words):
        """A command line of Podman. crun, which it prefers, does not start where control groups are of both
        versions."""
        options = ["--root", self.folder / "storage", "--runroot", self.folder / "podman", "--storage-driver", "vfs"]
        options += ["--runtime", mounted.program("runc"), "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        return [str(word) for word in (mounted.program("podman"), *options, *words)]

    def call(self, *words, seconds=60):
        """Runs a command of Podman and returns what it prints."""
        return process.run(self.command(*words), f"podman {words[0]}", seconds=seconds)

    def run(self, name, argv, data, run_dir, memory_bytes=None, detached=True, stop_signal="SIGTERM"):
        """The command line that runs `argv` with the folders `data` and `run_dir`."""
        limit = [] if memory_bytes is None else ["--memory", memory_bytes, "--memory-swap", memory_bytes]
        binds = ["-v", "/usr:/usr:ro", "-v", f"{data}:{DATA}", "-v", f"{run_dir}:{RUN}"]
        return self.command(
            "run", "--rm", *(["-d"] if detached else []), "--name", name, "--network", "none", "--user", USER, *limit,
            "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined", "--stop-signal",
            stop_signal, "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", *binds, "--env", "LC_ALL=C",
            "--workdir", DATA, "--rootfs", self.root, *argv,
        )  # fmt: skip


class Container:
    """A server in a container, from entering until leaving; `log` has what it says."""

    def __init__(self, podman, name, argv, data, run_dir, memory_bytes, log, stop_signal="SIGTERM"):
        self.podman, self.log, self.memory_bytes = podman, Path(log), memory_bytes
        podman.names += 1
        self.name = f"{name}-{podman.names}"
        self.argv = podman.run(self.name, argv, data, run_dir, memory_bytes, False, stop_signal)
        self.process = self.group = None

    def __enter__(self):
        self.process = process.start(self.argv, self.log)
        return self

    def find_group(self):
        """Finds its control group once it runs, and checks that its memory is limited."""
        pid = int(self.podman.call("inspect", "--format", "{{.State.Pid}}", self.name))
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                self.group, file = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
                break
            if number == "0" and (Path("/sys/fs/cgroup" + path) / "memory.max").exists():
                self.group, file = Path("/sys/fs/cgroup" + path), "memory.max"
        if not self.group:
            raise Stopped(f"{self.name} has no memory control group")
        seen = (self.group / file).read_text().strip()
        if seen != str(self.memory_bytes):
            raise Stopped(f"{self.name}: its memory should be limited to {self.memory_bytes} bytes, and is to {seen}")

    def memory(self):
        """Bytes of memory charged to it, and bytes of page cache among these."""
        version_2 = (self.group / "memory.current").exists()
        usage = (self.group / ("memory.current" if version_2 else "memory.usage_in_bytes")).read_text()
        stat = dict(line.split() for line in (self.group / "memory.stat").read_text().splitlines())
        cache, shared = ("file", "shmem") if version_2 else ("total_cache", "total_shmem")
        return {"bytes": int(usage), "page_cache_bytes": int(stat[cache]) - int(stat.get(shared, 0))}

    def check(self):
        """Raises `Stopped` if it has ended."""
        if self.process.poll() is not None:
            raise Stopped(
                f"{self.name} ended with {self.process.returncode}: {process.tail(self.log)} (all of it: {self.log})"
            )

    def wait(self, is_ready, seconds=60):
        """Waits until its server answers."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise Stopped(f"{self.name} does not answer after {seconds} s: {process.tail(self.log)}")
            time.sleep(0.05)

    def __exit__(self, *_):
        with contextlib.suppress(Stopped):
            self.podman.call("stop", "--time", "20", self.name)
        process.end(self.process, 25)
