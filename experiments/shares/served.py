"""A daemon that serves a tree of VMs, containers and disks, and what it says about them.

Owns the daemon's process and its folder of sockets. Invariant: when the context is left, the process has ended and the
folder is gone.
"""

import http.client
import json
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rig import process

MIB = 1 << 20


@dataclass
class Disk:
    """A disk of a VM, over NBD; `options` are further lines of its table."""

    name: str
    image: Path
    container: str = ""
    options: str = ""


@dataclass
class Vm:
    """A VM. `containers` maps names to weights."""

    name: str
    disks: list[Disk]
    weight: int = 100
    containers: dict[str, int] = field(default_factory=dict)
    goal: str = ""


class Connection(http.client.HTTPConnection):
    """HTTP on the control socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Served:
    """`undercroft serve` with O_DIRECT images. Content that is equal is not held once here: every load pays for its own
    blocks."""

    def __init__(self, binary, store_mib, vms, controller="static", policy="s3-fifo", workers=1, log="undercroft.log"):
        self.binary, self.store_mib, self.vms = binary, store_mib, vms
        self.controller, self.policy, self.workers, self.log = controller, policy, workers, Path(log)

    def __enter__(self):
        # Sockets have paths of at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None))
        self.control = self.folder / "control.sock"
        self.process = None
        try:
            config = self.folder / "undercroft.toml"
            config.write_text(self.config(), encoding="utf-8")
            self.log_from = self.log.stat().st_size if self.log.exists() else 0
            self.process = process.start([self.binary, "serve", config], self.log, cwd=self.folder)
            process.wait_for_answer(self.control, self.process, self.log)
            process.wait_for_sockets([self.folder / "nbd.sock"], self.process, self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self.process:
                process.end(self.process, 30)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def config(self):
        """The configuration file."""
        lines = [
            "[store]", f'memory = "{self.store_mib}MiB"', "deduplicate = false",
            "[daemon]", f'control = "{self.control}"', f'runtime_dir = "{self.folder}"', f"workers = {self.workers}",
            "[nbd]", f'unix = "{self.folder / "nbd.sock"}"',
            "[pressure]", "watch = false",
            "[shares]", f'controller = "{self.controller}"', 'interval = "1s"',
        ]  # fmt: skip
        for vm in self.vms:
            lines += ["[[vm]]", f'name = "{vm.name}"', f"weight = {vm.weight}"]
            lines += [f'goal = "{vm.goal}"'] if vm.goal else []
            for name, weight in vm.containers.items():
                lines += ["[[vm.container]]", f'name = "{name}"', f"weight = {weight}"]
            for disk in vm.disks:
                lines += [
                    "[[vm.disk]]", f'name = "{disk.name}"', f'image = "{disk.image}"', 'format = "raw"', "nbd = true",
                    "vhost_user = false", f'policy = "{self.policy}"',
                ]  # fmt: skip
                lines += [f'container = "{disk.container}"'] if disk.container else []
                lines += [disk.options] if disk.options else []
        return "\n".join([*lines, ""])

    def target(self, disk):
        """The URI of a disk, for a client."""
        return f"nbd+unix:///{disk}?socket={self.folder / 'nbd.sock'}"

    def get(self, path):
        """What the API answers."""
        if self.process.poll() is not None:
            raise process.Stopped(
                f"undercroft ended with {self.process.returncode}: {process.tail(self.log)} (all of it: {self.log})"
            )
        connection = Connection(self.control)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise process.Stopped(f"GET {path}: {answer.status} {body.decode(errors='replace').strip()}")
            return json.loads(body)
        finally:
            connection.close()

    def disks(self):
        """What each disk has cached and counted, by name."""
        return {disk["name"]: disk for disk in self.get("/v1/status")["disks"]}

    def nodes(self):
        """The nodes of the tree by name, without their curves."""
        shown = ("level", "parent", "weight", "entitled_bytes", "share_bytes", "target_bytes", "requests", "misses")
        return {node["name"]: {key: node[key] for key in shown} for node in self.get("/v1/shares")["nodes"]}

    def command(self, *arguments):
        """Runs an `undercroft` command against the daemon and returns what it prints."""
        argv = [self.binary, *arguments, "--control", self.control]
        return process.run(argv, f"undercroft {' '.join(map(str, arguments))}")

    def why(self, node="host", last=20):
        """What the daemon says about the moves of a node, line by line."""
        return self.command("why", node, "--last", last).splitlines()

    def errors(self):
        """Errors that this daemon has logged: how many, and the first one."""
        with open(self.log, "rb") as f:
            f.seek(self.log_from)
            found = [line.decode(errors="replace").strip() for line in f if b" ERROR " in line]
        return {"count": len(found), "first": found[0].partition(" ERROR ")[2] if found else None}
