"""The daemon under test: a configuration, a process, and what must hold when it ends.

Owns the process and its directory of sockets. Invariant: `stop` holds the daemon to exit code 0, no panic, and no
socket left behind, whichever test uses it.
"""

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .programs import PATIENCE, built, run

READY_WITHIN_S = 20 * PATIENCE
STOPS_WITHIN_S = 30 * PATIENCE


@dataclass
class Disk:
    """A disk of the configuration. `options` are further keys, as TOML values; without the key for `None`."""

    name: str
    image: object
    format: str = ""
    options: dict[str, str | None] = field(default_factory=dict)

    def toml(self, directory: Path) -> str:
        lines = ["[[disk]]", f'name = "{self.name}"', f'image = "{self.image}"']
        if self.format:
            lines.append(f'format = "{self.format}"')
        options = {"socket": f'"{directory}/{self.name}.sock"', "nbd": "true"} | self.options
        return "\n".join([*lines, *(f"{k} = {v}" for k, v in options.items() if v is not None), ""])


class Successor:
    """A process that was started by the one before it, with what tests use of a `Popen`. It becomes our child when that
    one has ended, since this process takes in the children of its children."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None

    @staticmethod
    def take_in() -> None:
        """From now on, children of children that have ended are ours."""
        PR_SET_CHILD_SUBREAPER = 36
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")

    @classmethod
    def of(cls, before, upgrade: Callable[[], str]) -> "Successor":
        """The process that `upgrade` says serves from now on; the one before it has ended in order."""
        cls.take_in()
        after = cls(int(upgrade().split()[1]))
        assert before.wait(STOPS_WITHIN_S) == 0, "the process before has not ended in order"
        return after

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a daemon that took over", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Daemon:
    """A running `undercroft serve`."""

    def __init__(
        self,
        directory: Path,
        disks: list[Disk],
        memory: str = "128MiB",
        poll: str = "50us",
        workers: int = 2,
        store: str = "",
        extra: str = "",
        keys: str = "",
        wrap=list,
    ):
        """`store` is added to [store], `keys` to [daemon], `extra` to the file; `wrap` puts a command that starts the
        daemon's around it."""
        self.store, self.extra, self.keys, self.wrap = store, extra, keys, wrap
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.memory, self.poll, self.workers = memory, poll, workers
        self.config = directory / "undercroft.toml"
        self.control = directory / "control.sock"
        self.nbd_socket = directory / "nbd.sock"
        self.log_path = directory / "log"
        # What the process that serves has logged begins here.
        self.log_from = 0
        self.expect_death = False
        # Descriptors that the process is given under their own numbers.
        self.pass_fds: tuple[int, ...] = ()
        self.write_config(disks)
        self.process: subprocess.Popen | Successor | None = None

    def write_config(self, disks: list[Disk]) -> None:
        """Writes the configuration file; a running daemon reads it on SIGHUP."""
        head = f"""[store]
memory = "{self.memory}"
{self.store}
[daemon]
control = "{self.control}"
runtime_dir = "{self.directory}"
poll = "{self.poll}"
workers = {self.workers}
{self.keys}
[nbd]
unix = "{self.nbd_socket}"
tcp = "127.0.0.1:0"
{self.extra}
"""
        self.config.write_text(head + "".join(d.toml(self.directory) for d in disks), encoding="utf-8")

    def launch(self) -> None:
        """Starts the process."""
        self.log_from = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            command = [built("undercroft"), "serve", str(self.config)]
            self.process = subprocess.Popen(
                self.wrap(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=self.pass_fds
            )

    def start(self) -> "Daemon":
        """Starts the process and waits until it serves."""
        self.launch()
        end = time.monotonic() + READY_WITHIN_S
        while not self.ready():
            if self.process.poll() is not None:
                pytest.fail(f"the daemon ended with {self.process.returncode}:\n{self.log()}")
            if time.monotonic() > end:
                pytest.fail(f"the daemon was not ready after {READY_WITHIN_S} s:\n{self.log()}")
            time.sleep(0.02)
        return self

    def answers(self) -> bool:
        """Whether it tells its status."""
        try:
            return self.api("GET", "/v1/status")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def ready(self) -> bool:
        """Whether it serves: it says so in its log, and answers. Lines are written by a thread of their own, in order:
        what was logged before this one is in the file, too."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_from)
            said = b" ready: " in log.read()
        return said and self.answers()

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        """Whether the process is still there."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """What the daemon has written."""
        return self.log_path.read_text(errors="replace")[-8000:] if self.log_path.exists() else ""

    def vhost(self, disk: str) -> str:
        """The vhost-user socket of a disk."""
        return f"{self.directory}/{disk}.sock"

    def nbd(self, disk: str) -> str:
        """The URI of a disk on the unix socket."""
        return f"nbd+unix:///{disk}?socket={self.nbd_socket}"

    def nbd_tcp(self, disk: str) -> str:
        """The URI of a disk on TCP."""
        address = next(a for a in self.status()["nbd"] if a.startswith("tcp:"))
        return f"nbd://{address.removeprefix('tcp:')}/{disk}"

    def call(self, command: str, *arguments: object, check: bool = True, stdin: str | None = None):
        """Runs a command of `undercroft` against this daemon."""
        return run(built("undercroft"), command, *arguments, "--control", self.control, check=check, stdin=stdin)

    def api(self, method: str, path: str, body: dict | None = None, on: Path | None = None) -> tuple[int, str]:
        """A request to the control socket, or to that of a VM (`on`): status and text of the answer."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(60 * PATIENCE)
            connection.sock.connect(str(on or self.control))
            connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> dict:
        """What the API tells, which must answer. Commands tell the same, but each of them starts our program, which
        takes far more of a processor than the answer does."""
        try:
            status, text = self.api("GET", path)
        except (OSError, http.client.HTTPException) as e:
            pytest.fail(f"no daemon answers {path} at {self.control}: {e}")
        if status != 200:
            pytest.fail(f"GET {path} was answered with {status}: {text[-4000:]}")
        return json.loads(text)

    def status(self) -> dict:
        """What `undercroft status --json` says."""
        return self.get("/v1/status")

    def disk(self, name: str) -> dict:
        """What the status says of one disk."""
        return next(d for d in self.status()["disks"] if d["name"] == name)

    def set(self, disk: str, **changes: str) -> None:
        """Changes a disk live: size="32MiB", policy="arc"."""
        self.call("set", disk, *(word for k, v in changes.items() for word in (f"--{k}", v)))

    def reload(self) -> None:
        """SIGHUP; the test then waits for what it expects."""
        self.process.send_signal(signal.SIGHUP)

    def upgrade(self) -> None:
        """`undercroft upgrade`; the process is another one then, and everybody who was connected is again."""
        self.log_from = self.log_path.stat().st_size
        self.process = Successor.of(self.process, lambda: self.call("upgrade").stdout)
        # The command is answered when the new process has everything, a moment before that one begins.
        until(self.ready, "the process that took over is ready")

    def rss(self, kind: str = "VmRSS") -> int:
        """Resident memory in bytes."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            for line in f:
                if line.startswith(f"{kind}:"):
                    return int(line.split()[1]) * 1024
        return 0

    def kill(self) -> None:
        """SIGKILL: no promises about exit code or sockets any more."""
        self.expect_death = True
        self.process.kill()
        self.process.wait()

    def sockets(self) -> list[Path]:
        """The sockets that are there now."""
        return [p for p in self.directory.iterdir() if p.is_socket()]

    def stop(self) -> None:
        """SIGTERM; holds the daemon to an orderly end."""
        if self.process is None:
            return
        if self.running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                pytest.fail(f"the daemon did not stop within {STOPS_WITHIN_S} s of SIGTERM:\n{self.log()}")
        process, self.process = self.process, None
        text = self.log()
        assert "panicked" not in text, f"the daemon panicked:\n{text}"
        if not self.expect_death:
            assert process.returncode == 0, f"the daemon ended with {process.returncode}:\n{text}"
            assert self.sockets() == [], f"sockets were left behind: {self.sockets()}"


def until(condition, what: str, limit: float = 20.0) -> None:
    """Waits until something holds; fails if it never does."""
    limit *= PATIENCE
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {limit} s for this: {what}")
        time.sleep(0.02)


def fails_to_serve(*arguments: object, environment: dict | None = None, prefix: tuple = ()) -> str:
    """Runs `undercroft serve` with something wrong; returns what it says. It must end by itself, with exit code 1."""
    words = [*prefix, built("undercroft"), "serve", *(str(a) for a in arguments)]
    env = {**os.environ, **(environment or {})}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        out, err = process.communicate(timeout=READY_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it serves instead of refusing: {' '.join(words)}\n{out}{err}")
    assert process.returncode == 1, f"exit code {process.returncode} instead of 1:\n{out}{err}"
    assert "panicked" not in err, err
    return err
