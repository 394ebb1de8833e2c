"""A real guest: Debian's cloud kernel in QEMU, with a busybox that runs what it is sent.

Owns the QEMU process and the two serial lines: the console goes to a log, commands go over the other one (see
experiments/guest/init). Never knows who serves the disk: it is given QEMU's arguments for it.
"""

import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from . import process
from .process import Stopped

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "guest"


def build(tools=False, *, is_guest=True, backports=False):
    """Makes kernel and initramfs if they are missing or old; with `tools`, those with mkfs.ext4 and e2fsck, with fio
    and with dm-crypt, too; with `backports`, the newer kernel, which has ublk. Without guests, only what makes a disk
    slow and what logs transfers."""
    script = ROOT / "experiments" / "guest" / "build.sh"
    option = ["--tools"] if tools else ["--backports"] if backports else [] if is_guest else ["--libraries"]
    done = subprocess.run([script, *option], stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Stopped("the guest could not be built (the line above says why)")


def accelerator():
    """`kvm` if a guest comes up with it, else `tcg`. /dev/kvm may be there and still not work, so it is tried once per
    boot of the host. UNDERCROFT_ACCEL overrides."""
    if os.environ.get("UNDERCROFT_ACCEL"):
        return os.environ["UNDERCROFT_ACCEL"]
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = BUILT / "accelerator"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        was, result = known.read_text().split()
        if was == boot:
            return result
    except (OSError, ValueError):
        pass
    with Guest("kvm-probe", [], BUILT, accel="kvm") as guest:
        try:
            guest.wait_ready(8)
            result = "kvm"
        except Stopped:
            result = "tcg"
    known.write_text(f"{boot} {result}\n")
    return result


def emulator(kernel):
    """The beginning of QEMU's command line for a kernel that `build` makes. Debian 12's QEMU emulates something wrong
    that the newer kernel needs: that faulted in four of ten boots (decision 0209)."""
    if kernel != "vmlinuz-backports":
        return ["qemu-system-x86_64"]
    unpacked = BUILT / "qemu-backports" / "usr"
    data = [word for name in ("qemu", "seabios") for word in ("-L", unpacked / "share" / name)]
    return [unpacked / "bin" / "qemu-system-x86_64", *data]


class Guest:
    """One guest. `disk` are QEMU's arguments for its disk, `append` goes to its kernel's command line; logs go to the
    folder `logs`. `private` RAM is seen by nobody but QEMU, as with a disk that needs no vhost-user. With `reboots` a
    reboot, or a panic, does not end QEMU; with `balloons` it has a balloon, with `grows` room for more memory; with
    `migrates` it can be sent to another one, which was made with `incoming`, the socket that it comes over. `kernel` is
    one of those that `build` makes, with the `initramfs` of its own. `check` is called every second while the guest is
    waited for: it raises `Stopped` if nobody serves the disk any more, for which a guest would wait for ever."""

    def __init__(
        self, name, disk, logs, ram_mib=128, accel="tcg", initramfs="initramfs", wrap=lambda argv: argv, append="",
        check=lambda: None, private=False, reboots=False, balloons=False, grows=False,
        migrates=False, incoming=None, kernel="vmlinuz",
    ):  # fmt: skip
        self.name = name
        self.check = check
        self.console = Path(logs) / f"{name}-console.log"
        self.log = Path(logs) / f"{name}-qemu.log"
        self.log.unlink(missing_ok=True)
        self.kernel = None
        ram = f"{ram_mib}M"
        self.ram_bytes = ram_mib << 20
        # Paths of sockets have at most 107 bytes, whatever the folder of the logs is.
        self.control_dir = Path(tempfile.mkdtemp(prefix="undercroft-guest-")) if balloons or grows or migrates else None
        control = ["-qmp", f"unix:{self.control_dir}/qmp,server=on,wait=off"] if self.control_dir else []
        backend = "memory-backend-ram" if private else "memory-backend-memfd"
        argv = [
            *emulator(kernel), "-name", name, "-machine", "q35,memory-backend=ram", "-accel", accel, "-cpu", "max",
            # vhost-user shares the guest's memory. It is touched here, so that no page of it is ever charged to the
            # control group of the process that serves the disk.
            "-m", f"{ram},slots=2,maxmem=4G" if grows else ram,
            "-object", f"{backend},id=ram,size={ram},share={'off' if private else 'on'},prealloc=on",
            "-nodefaults", "-no-user-config", "-display", "none", *([] if reboots else ["-no-reboot"]),
            "-serial", f"file:{self.console}", "-serial", "stdio",
            "-kernel", BUILT / kernel, "-initrd", BUILT / initramfs,
            # Under emulation on a busy host the kernel's check that the timer ticks can fail, which it takes for a
            # broken board.
            "-append", f"console=ttyS0 quiet panic=-1 no_timer_check {append}".rstrip(),
            *(["-device", "virtio-balloon-pci"] if balloons else []), *control,
            *(["-incoming", f"unix:{incoming}"] if incoming else []),
            *disk,
        ]  # fmt: skip
        self.qemu = process.start(
            wrap([str(a) for a in argv]), self.log, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        """Moves lines from the guest into the queue; None at the end."""
        rest = b""
        while chunk := self.qemu.stdout.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self.lines.put(line.decode(errors="replace").rstrip("\r"))
        self.lines.put(None)

    def _line(self, deadline, what):
        while True:
            left = deadline - time.monotonic()
            try:
                line = self.lines.get(timeout=max(0.01, min(1, left)))
                break
            except queue.Empty:
                self.check()
                if left <= 0:
                    raise Stopped(
                        f"{self.name}: {what} took too long; its console: {process.tail(self.console)}"
                    ) from None
        if line is None:
            self.lines.put(None)
            self.check()
            raise Stopped(
                f"{self.name}: QEMU stopped during {what}: {process.tail(self.log)} {process.tail(self.console)}"
            )
        return line

    def wait_ready(self, seconds=240):
        """Waits for the guest to have booted, with its disk there if it has one."""
        deadline = time.monotonic() + seconds
        while self.kernel is None:
            line = self._line(deadline, "boot")
            if line.startswith("@ready "):
                self.kernel = line.split()[1]

    def send(self, line):
        """Sends one line: a command, or input of the one that runs."""
        try:
            self.qemu.stdin.write(line.encode() + b"\n")
        except OSError as e:
            raise Stopped(f"{self.name}: QEMU stopped: {process.tail(self.log)}") from e

    def output(self, command, seconds):
        """The lines of a command that was sent, as they come; ends with its `@exit` and returns the exit status."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline, f"`{command}`")
            if line.startswith("@exit "):
                return int(line.split()[1])
            yield line

    def run(self, command, seconds=60, check=True):
        """Runs a shell command and returns (status, output). Unless `check` is off, a failure is an error."""
        self.send(command)
        lines = []
        output = self.output(command, seconds)
        while True:
            try:
                lines.append(next(output))
            except StopIteration as end:
                status = end.value
                break
        text = "\n".join(lines)
        if check and status:
            raise Stopped(f"{self.name}: `{command}` ended with status {status}: {text[-2000:]}")
        return status, text

    def events(self, command, seconds=300):
        """Sends a command that prints JSON objects and yields them; wrong data and failures are errors."""
        self.send(command)
        output = self.output(command, seconds)
        status, other = 0, []
        while True:
            try:
                line = next(output)
            except StopIteration as end:
                status = end.value
                break
            if line.startswith("{"):
                event = json.loads(line)
                if event["event"] == "error":
                    raise Stopped(f"{self.name}: {event['message']}")
                yield event
            else:
                other.append(line)
        if status:
            raise Stopped(f"{self.name}: `{command}` ended with status {status}: {' | '.join(other[-3:])}")

    def power_off(self, seconds=30):
        """Ends the guest in order: its file systems must have been unmounted."""
        self.send("exec poweroff -f")
        try:
            self.qemu.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Stopped(f"{self.name}: did not power off; its console: {process.tail(self.console)}") from None

    def reboot(self):
        """Resets the guest, as its own kernel asks for it, and waits until it has booted again; it was made with
        `reboots`."""
        self.kernel = None
        self.send("exec reboot -f")
        self.wait_ready()

    @contextlib.contextmanager
    def _control(self, seconds):
        """A function that has QEMU do a command and returns what it answers."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(seconds)
            control.connect(str(self.control_dir / "qmp"))
            answers = control.makefile()

            def answer():
                # Events come between, and even before the greeting: QEMU holds them back only from who was greeted.
                while line := answers.readline():
                    if "event" not in (said := json.loads(line)):
                        return said
                raise Stopped(f"{self.name}: QEMU closed its control socket: {process.tail(self.log)}")

            def ask(command, **arguments):
                control.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
                said = answer()
                if "error" in said:
                    raise Stopped(f"{self.name}: {command}: {said['error']['desc']}")
                return said["return"]

            answer()  # the greeting
            ask("qmp_capabilities")
            yield ask

    def balloon(self, bytes_taken, seconds=60):
        """Has the balloon take so much of the guest's memory, 0 for nothing, and waits until it has; it was made with
        `balloons`."""
        with self._control(seconds) as ask:
            left = self.ram_bytes - bytes_taken
            ask("balloon", value=left)
            end = time.monotonic() + seconds
            while (now := ask("query-balloon")["actual"]) != left:
                if time.monotonic() > end:
                    raise Stopped(f"{self.name}: the balloon left {now >> 20} MiB in {seconds} s, not {left >> 20}")
                time.sleep(0.05)

    def grow(self, more, seconds=60):
        """Plugs in `more` bytes of memory, and waits until the guest uses them; it was made with `grows`."""

        def total():
            return int(self.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo")[1]) << 10

        before = total()
        self.run("echo online_kernel > /sys/devices/system/memory/auto_online_blocks")
        with self._control(seconds) as ask:
            backend = {"qom-type": "memory-backend-memfd", "id": "more", "size": more, "share": True, "prealloc": True}
            ask("object-add", **backend)
            ask("device_add", driver="pc-dimm", id="dimm", memdev="more")
        end = time.monotonic() + seconds
        while (now := total()) < before + more * 3 // 4:
            if time.monotonic() > end:
                raise Stopped(f"{self.name}: it uses {now >> 20} MiB after {seconds} s, and {before >> 20} before")
            time.sleep(0.1)

    def migrate(self, to, over, seconds=240):
        """Sends the guest to `to`, which waits at the socket `over`, and waits until it runs there; both were made with
        `migrates`. Returns what QEMU says of the migration. What the guest prints comes from `to` afterwards."""
        with self._control(seconds) as ask:
            # As much of a processor as it takes: the guest must not write faster than its memory is sent.
            ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40, "downtime-limit": 1000})
            ask("migrate", uri=f"unix:{over}")
            end = time.monotonic() + seconds
            while (said := ask("query-migrate")).get("status") != "completed":
                if said.get("status") in ("failed", "cancelled") or time.monotonic() > end:
                    raise Stopped(f"{self.name}: not migrated: {said}; {process.tail(self.log)}")
                time.sleep(0.05)
        with to._control(seconds) as ask:
            while ask("query-status")["status"] != "running":
                if time.monotonic() > end:
                    raise Stopped(f"{to.name}: does not run: {process.tail(to.log)}")
                time.sleep(0.02)
        to.kernel = self.kernel
        return said

    def cancel_migration(self, over, seconds=60):
        """Begins to send the guest to whoever waits at `over`, and calls it off."""
        with self._control(seconds) as ask:
            ask("migrate-set-parameters", **{"max-bandwidth": 1 << 20})
            ask("migrate", uri=f"unix:{over}")
            time.sleep(0.5)
            ask("migrate_cancel")
            while ask("query-migrate").get("status") != "cancelled":
                time.sleep(0.05)

    def held_bytes(self):
        """Host memory behind the guest's RAM, by the kernel's count of its memfd."""
        for fd in Path(f"/proc/{self.qemu.pid}/fd").iterdir():
            if os.readlink(fd).startswith("/memfd:memory-backend-memfd"):
                return os.stat(fd).st_blocks * 512
        raise Stopped(f"{self.name}: QEMU has no memfd")

    def close(self):
        """Ends QEMU, whatever it does."""
        if self.qemu.poll() is None:
            self.qemu.kill()
        self.qemu.wait()
        for pipe in (self.qemu.stdin, self.qemu.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        if self.control_dir:
            shutil.rmtree(self.control_dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
