"""Three ways to serve the same images to guests: Undercroft, and what people use today.

Owns the serving process and its control group. Each way says which QEMU arguments attach a disk and what it used;
how that is compared, and why it is fair, is in docs/decisions/0070-demo-and-measures.md.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from . import cgroup, control, process, programs
from .guest import ROOT

MIB = 1 << 20
# For programs, the same for all ways of serving: a control group has the size of the cache and this.
# qemu-storage-daemon takes about 3 MiB (the host page cache has the rest), Undercroft 7: code, stacks, rings, tables of
# qcow2. A 64th of the group has to stay free, or its store gives memory back; and the store holds everything else, I/O
# under way among it (decision 0180).
PROGRAM_BYTES = 10 * MIB


def vhost_user(index, socket, reconnect=False):
    """QEMU's arguments for disk `index` on a vhost-user-blk socket."""
    chardev = f"socket,id=chr{index},path={socket}" + (",reconnect=1" if reconnect else "")
    return ["-chardev", chardev, "-device", f"vhost-user-blk-pci,chardev=chr{index},num-queues=1"]


class Serving:
    """One way of serving. Use as a context manager; `start` after entering."""

    key = title = ""
    explains = ""
    disks_each = 1  # of a guest: disk I is of guest I // disks_each
    private_ram = False  # of guests: nothing but QEMU has it mapped

    def __init__(self, memory_bytes, logs, image_format="qcow2"):
        self.memory_bytes = memory_bytes
        self.logs = Path(logs)
        self.image_format = image_format
        self.group = None
        self.process = None
        self.started = []  # (process, log) of all that serve now
        self.run_dir = None

    def __enter__(self):
        # Sockets have paths of at most 107 bytes: a short folder, whatever the working directory is.
        self.run_dir = Path(tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None))
        return self

    def __exit__(self, *_):
        try:
            if self.process:
                process.end(self.process)
        finally:
            if self.group:
                self.group.close()
            if self.run_dir:
                shutil.rmtree(self.run_dir, ignore_errors=True)

    def start(self, disks):
        """Serves `disks`, paths of images, in order."""
        raise NotImplementedError

    def disk_args(self, index):
        """QEMU's arguments for disk `index`."""
        return vhost_user(index, self.socket(index))

    def socket(self, index):
        return self.run_dir / f"disk-{index + 1}.sock"

    def wrap_guest(self, argv):
        """How QEMU itself is started."""
        return argv

    def guests_ready(self, guests):
        """The guests have booted; their processes are known now."""

    def check(self):
        """Raises `Stopped` if a process that serves the disks has ended."""
        for served, log in self.started:
            if served.poll() is not None:
                full = self.group and self.group.killed()
                why = (
                    f" (the kernel killed it: the {self.group.limit_bytes >> 20} MiB of its control group are full)"
                    if full
                    else ""
                )
                raise process.Stopped(
                    f"{log.stem} ended with {served.returncode}{why}: {process.tail(log)} (all of it: {log})"
                )

    def memory_used(self):
        """Bytes of host memory that serving the disks takes now, page cache included, guests' RAM not."""
        return self.group.memory_bytes() if self.group else None

    def disk_reads(self):
        """What was read from the disk so far, by the kernel's count of the serving processes."""
        pids = self._pids()
        reads = {"process_bytes": sum(process_read_bytes(pid) for pid in pids)}
        counted = self.group.disk_reads() if self.group else None
        if counted:
            reads["group_ops"], reads["group_bytes"] = counted
        device = _device_reads(self.logs)
        if device:
            reads["device_ops"], reads["device_bytes"] = device
        return reads

    def _pids(self):
        return [self.process.pid]

    def _limited(self, name):
        """Makes the control group with the memory limit that the serving process is started in."""
        self.group = cgroup.Group(name, self.memory_bytes)

    def _launch(self, argv, log):
        programs.read(argv[0])
        argv = self.group.wrap([str(a) for a in argv]) if self.group else argv
        self.process = process.start(argv, log, cwd=self.run_dir)
        self.started = [(self.process, log)]


def process_read_bytes(pid):
    """Bytes that a process caused to be read from storage (proc(5), /proc/PID/io)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, value = line.split(":")
        if name == "read_bytes":
            return int(value)
    raise process.Stopped(f"/proc/{pid}/io has no read_bytes: this kernel does not count I/O per process")


def _device_reads(folder):
    """(operations, bytes) read from the block device under `folder`, whoever read; None if it is not on one."""
    number = os.stat(folder).st_dev
    try:
        fields = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
    except FileNotFoundError:
        return None
    return int(fields[0]), int(fields[2]) * 512


class Direct(Serving):
    """QEMU opens the image itself with O_DIRECT: `cache=none`, the usual advice."""

    key, title = "none", "cache=none"
    explains = "QEMU reads the image with O_DIRECT and io_uring; the host caches nothing"

    def start(self, disks):
        self.disks = disks
        self.qemus = []
        self.group = cgroup.Group("none")
        self.cached_at_boot = 0

    def disk_args(self, index):
        return ["-drive", f"file={self.disks[index]},format={self.image_format},if=virtio,cache=none,aio=io_uring"]

    def wrap_guest(self, argv):
        return self.group.wrap(argv)

    def guests_ready(self, guests):
        self.qemus = [guest.qemu.pid for guest in guests]
        # Kernel and initramfs that QEMU read; no part of serving disks.
        self.cached_at_boot = self.group.page_cache_bytes()

    def memory_used(self):
        return max(0, self.group.page_cache_bytes() - self.cached_at_boot)

    def _pids(self):
        return self.qemus


class PageCache(Serving):
    """qemu-storage-daemon over the host page cache, in a memory control group."""

    key, title = "pagecache", "host page cache"
    explains = "qemu-storage-daemon, writeback, io_uring, in a memory control group"
    direct = "off"

    def start(self, disks):
        self._limited(self.key)
        argv = ["qemu-storage-daemon"]
        for i, disk in enumerate(disks):
            argv += [
                "--blockdev", f"driver=file,node-name=file{i},filename={disk},cache.direct={self.direct},aio=io_uring",
                "--blockdev", f"driver={self.image_format},node-name=disk{i},file=file{i},cache.direct={self.direct}",
                "--export", f"type=vhost-user-blk,id=export{i},node-name=disk{i},addr.type=unix,"
                            f"addr.path={self.socket(i)},writable=on,num-queues=1",
            ]  # fmt: skip
        log = self.logs / "qemu-storage-daemon.log"
        self._launch(argv, log)
        process.wait_for_sockets([self.socket(i) for i in range(len(disks))], self.process, log)


class DirectDaemon(PageCache):
    """qemu-storage-daemon with O_DIRECT: what cache=none does, where there is no QEMU to do it."""

    key, title = "none", "cache=none"
    explains = "qemu-storage-daemon with O_DIRECT and io_uring; the host caches nothing"
    direct = "on"


class Undercroft(Serving):
    """Undercroft over a RAM store of its own, in a control group of the same size."""

    key, title = "undercroft", "Undercroft"
    explains = "undercroft serve: its own store in RAM, O_DIRECT below it, in a control group of the same size"
    binary = ROOT / "target" / "release" / "undercroft"

    def __init__(
        self, memory_bytes, logs, image_format="qcow2", limited=True, disk_options="", reconnect=False,
        store_bytes=None,
        daemon_options="",
        store_options="",
    ):  # fmt: skip
        super().__init__(memory_bytes, logs, image_format)
        self.store_bytes = store_bytes or memory_bytes - (PROGRAM_BYTES if limited else 0)
        self.limited = limited
        self.disk_options = disk_options
        self.daemon_options = daemon_options
        self.store_options = store_options
        self.reconnect = reconnect
        self.log = self.logs / "undercroft.log"

    def start(self, disks):
        if self.limited:
            self._limited("undercroft")
        self.disks = disks
        self.config = self.run_dir / "demo.toml"
        self.control = self.run_dir / "control.sock"
        lines = [
            f'[store]\nmemory = "{self.store_bytes >> 20}MiB"\n{self.store_options}\n',
            f'[daemon]\ncontrol = "{self.control}"\nruntime_dir = "{self.run_dir}"\n{self.daemon_options}',
        ]
        for i, disk in enumerate(disks):
            vm, name = self.names(i)
            if name == "root":
                lines.append(f'[[vm]]\nname = "{vm}"\n{self.vm_options(i // self.disks_each)}')
            lines.append(
                f'[[vm.disk]]\nname = "{name}"\nimage ='
                f' "{disk}"\n{self.format_option()}{self.port_options(i)}{self.disk_options}'
            )
        self.config.write_text("\n".join(lines))
        self.serve()

    def names(self, index):
        """What the virtual machine of disk `index` is called, and the disk within it."""
        vm, of_vm = divmod(index, self.disks_each)
        return f"guest-{vm + 1}", f"data-{of_vm}" if of_vm else "root"

    def vm_options(self, index):
        """Lines for virtual machine `index`."""
        return ""

    def format_option(self):
        """The line with the images' format."""
        return f'format = "{self.image_format}"\n'

    def port_options(self, index):
        """Lines that say how disk `index` is reached."""
        return f'socket = "{self.socket(index)}"\n'

    def sockets(self):
        """The sockets on which disks are reached."""
        return [self.socket(i) for i in range(len(self.disks))]

    def serve(self):
        """Starts the daemon; also again, after it was killed."""
        log = self.log
        self._launch([self.binary, "serve", self.config], log)
        # A killed daemon leaves its socket files behind, so that they are there proves nothing.
        process.wait_for_answer(self.control, self.process, log)
        process.wait_for_sockets(self.sockets(), self.process, log)

    def restart(self):
        """Starts it again after it was killed, as its systemd unit does: a second later, and again if that fails. The
        kernel may hold a killed program's image and lock for a moment, until its io_uring is gone."""
        for attempt in range(5):
            time.sleep(1)
            try:
                return self.serve()
            except process.Stopped:
                if attempt == 4:
                    raise

    def disk_args(self, index):
        return vhost_user(index, self.socket(index), self.reconnect)

    def ctl(self, *arguments):
        """Runs an `undercroft` command against the daemon and returns what it prints."""
        argv = [self.binary, *arguments, "--control", self.control]
        return process.run(argv, f"undercroft {' '.join(arguments)}", seconds=60)

    def get(self, path):
        """What the daemon answers on its control socket. A command tells the same, and starts the program for it."""
        return control.get(self.control, path)

    def status(self):
        """The daemon's own numbers."""
        return self.get("/v1/status")

    def disk_reads(self):
        disks = [disk["counters"] for disk in self.status()["disks"]]
        return super().disk_reads() | {
            "own_ops": sum(disk["backend_reads"] for disk in disks),
            "own_bytes": sum(disk["backend_read_bytes"] for disk in disks),
            "own_hit_blocks": sum(disk["hit_blocks"] for disk in disks),
            "own_blocks": sum(disk["hit_blocks"] + disk["miss_blocks"] + disk["joined_blocks"] for disk in disks),
        }


WAYS = [Direct, PageCache, Undercroft]


def host():
    """What this machine is, for the record."""
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True).stdout.splitlines()
    return {
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "qemu": qemu[0].removeprefix("QEMU emulator version ") if qemu else "?",
    }
