"""The servers that are compared: how each is started.

Owns processes and their files. Never measures. Invariant: a server that was started is stopped, whatever happens in
between, and every server runs on the same core with the same priority.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNDERCROFT = str(ROOT / "target" / "release" / "undercroft")
EXPORT = "disk"
SOCKET = "disk.sock"
STARTS_WITHIN_S = 20.0
STOPS_WITHIN_S = 20.0


class Missing(Exception):
    """A server cannot be compared here; says why."""


@dataclass(frozen=True)
class Placement:
    """Where servers and the driver run, all alike."""

    server_core: int
    driver_core: int
    realtime: bool

    def command(self, core: int) -> list[str]:
        """What goes before a command so that it runs there."""
        priority = ["chrt", "--rr", "1"] if self.realtime else []
        return [*priority, "taskset", "--cpu-list", str(core)]


@dataclass
class Server:
    """A running server."""

    name: str
    target: str
    image: Path
    process: subprocess.Popen
    directory: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Asks it to end, and makes it end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True)
class Peer:
    """A kind of server."""

    name: str
    protocol: str  # "vhost" or "nbd"
    program: str
    # (directory to use, image, memory in bytes that a cache of its own may take) -> the command
    command: Callable[[Path, Path, int], list[str]]
    ours: bool = False
    direct: bool = False  # goes round the host's page cache and has no cache of its own: never hits

    def start(self, placement: Placement, image: Path, memory: int, directory: Path) -> Server:
        """Starts one on `image`, with its files in `directory`, which is made."""
        if not shutil.which(self.program):
            raise Missing(f"{Path(self.program).name} is not installed")
        directory.mkdir(parents=True)
        log = directory / "log"
        command = [*placement.command(placement.server_core), *self.command(directory, image, memory)]
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        path = directory / SOCKET
        target = str(path) if self.protocol == "vhost" else f"nbd+unix:///{EXPORT}?socket={path}"
        server = Server(self.name, target, image, process, directory)
        end = time.monotonic() + STARTS_WITHIN_S
        while not listening(path):
            if process.poll() is not None or time.monotonic() > end:
                text = log.read_text(errors="replace")[-2000:].strip()
                server.stop()
                raise Missing(f"{self.name} did not start: {text}")
            time.sleep(0.02)
        return server


def listening(path: Path) -> bool:
    """Whether someone listens on a socket. It is not connected to: vhost-user servers take one front end at a time."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        # The fourth column holds the flags; 00010000 is "listening".
        return any(line.split()[3] == "00010000" and line.rstrip().endswith(f" {path}") for line in table)


def undercroft(protocol: str, poll: str) -> Callable[[Path, Path, int], list[str]]:
    """Undercroft with a bound of polling; its other socket goes by another name."""
    sockets = {"vhost": "vhost.sock", "nbd": "nbd.sock"} | {protocol: SOCKET}

    def command(directory: Path, image: Path, memory: int) -> list[str]:
        config = directory / "config.toml"
        config.write_text(
            f"""
            [store]
            memory = {memory}
            [daemon]
            control = "{directory}/control.sock"
            runtime_dir = "{directory}"
            workers = 1
            poll = "{poll}"
            [nbd]
            unix = "{directory}/{sockets["nbd"]}"
            [[disk]]
            name = "{EXPORT}"
            image = "{image}"
            format = "raw"
            socket = "{directory}/{sockets["vhost"]}"
            nbd = true
            """,
            encoding="utf-8",
        )
        return [UNDERCROFT, "serve", str(config)]

    return command


def storage_daemon(protocol: str, direct: bool) -> Callable[[Path, Path, int], list[str]]:
    """qemu-storage-daemon with io_uring."""

    def command(directory: Path, image: Path, memory: int) -> list[str]:
        path = directory / SOCKET
        cache = f"cache.direct={'on' if direct else 'off'}"
        block = f"driver=file,filename={image},node-name={EXPORT},aio=io_uring,discard=unmap,{cache}"
        argv = ["qemu-storage-daemon", "--blockdev", block]
        if protocol == "vhost":
            export = f"type=vhost-user-blk,id=export,node-name={EXPORT},writable=on"
            return [*argv, "--export", f"{export},addr.type=unix,addr.path={path}"]
        export = f"type=nbd,id=export,node-name={EXPORT},name={EXPORT},writable=on"
        return [*argv, "--nbd-server", f"addr.type=unix,addr.path={path}", "--export", export]

    return command


def qemu_nbd(direct: bool) -> Callable[[Path, Path, int], list[str]]:
    """qemu-nbd with io_uring."""

    def command(directory: Path, image: Path, memory: int) -> list[str]:
        cache = "--cache=none" if direct else "--cache=writeback"
        common = ["--persistent", "--shared=8", "--format=raw", "--aio=io_uring", cache]
        return ["qemu-nbd", *common, f"--export-name={EXPORT}", f"--socket={directory / SOCKET}", str(image)]

    return command


def nbdkit(*filters: str) -> Callable[[Path, Path, int], list[str]]:
    """nbdkit's file plugin."""

    def command(directory: Path, image: Path, memory: int) -> list[str]:
        argv = ["nbdkit", "--foreground", "--unix", str(directory / SOCKET), "--exportname", EXPORT]
        options = []
        if "cache" in filters:
            argv.append("--filter=cache")
            options.append("cache-on-read=true")
        return [*argv, "file", str(image), *options]

    return command


# In the order of the tables.
PEERS = [
    Peer("undercroft", "vhost", UNDERCROFT, undercroft("vhost", "0us"), ours=True),
    Peer("undercroft, polling 50us", "vhost", UNDERCROFT, undercroft("vhost", "50us"), ours=True),
    Peer("qemu-storage-daemon writeback", "vhost", "qemu-storage-daemon", storage_daemon("vhost", False)),
    Peer("qemu-storage-daemon direct", "vhost", "qemu-storage-daemon", storage_daemon("vhost", True), direct=True),
    Peer("undercroft", "nbd", UNDERCROFT, undercroft("nbd", "0us"), ours=True),
    Peer("undercroft, polling 50us", "nbd", UNDERCROFT, undercroft("nbd", "50us"), ours=True),
    Peer("nbdkit file", "nbd", "nbdkit", nbdkit()),
    Peer("nbdkit file + cache", "nbd", "nbdkit", nbdkit("cache")),
    Peer("qemu-storage-daemon writeback", "nbd", "qemu-storage-daemon", storage_daemon("nbd", False)),
    Peer("qemu-nbd writeback", "nbd", "qemu-nbd", qemu_nbd(False)),
    Peer("qemu-nbd direct", "nbd", "qemu-nbd", qemu_nbd(True), direct=True),
]
