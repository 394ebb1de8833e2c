"""A service manager with one service: it listens at NOTIFY_SOCKET, keeps the descriptors that it is given, and passes
them on to the next process, as systemd does (sd_notify(3), sd_listen_fds(3)).

Owns what it keeps. Invariant: what is said is heard at once, in order, and before the next process is started.
"""

import os
import select
import socket
import sys
import threading

# Becomes the daemon with what was kept as descriptors 3 and on: the rest of the environment is what pytest set.
PASS_ON = """
import os, sys
numbers = [int(n) for n in os.environ["KEPT"].split(":") if n]
high = [os.dup2(fd, 200 + n) for n, fd in enumerate(numbers)]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)))
os.closerange(3 + len(high), 200 + len(high))
os.execv(sys.argv[1], sys.argv[1:])
"""


def wrap(words: list[str]) -> list[str]:
    """How a daemon is started that is passed what was kept."""
    return [sys.executable, "-c", PASS_ON, *words]


class Manager:
    """See the head of the file. `kept` are the descriptors under each name."""

    def __init__(self, scratch, monkeypatch):
        self.path, self.monkeypatch = scratch / "notify", monkeypatch
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)
        self.kept: dict[str, list[int]] = {}
        self.lock, self.over = threading.Lock(), False
        # One that does not listen all the time would keep what is to be kept no longer.
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self):
        while not self.over:
            if select.select([self.socket], [], [], 0.05)[0]:
                self.hear()

    def hear(self):
        """Takes what was said: keeps what is to be kept, and drops what is not."""
        with self.lock:
            while True:
                try:
                    said, fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
                except BlockingIOError:
                    return
                fields = dict(line.split("=", 1) for line in said.decode().splitlines())
                name = fields.get("FDNAME", "stored")
                assert len(name) <= 255 and name.isprintable() and name.isascii() and ":" not in name, name
                if fields.get("FDSTORE") == "1":
                    self.kept.setdefault(name, []).extend(fds)
                elif fields.get("FDSTOREREMOVE") == "1":
                    self.drop(name)

    def drop(self, name):
        """Keeps no longer what it keeps under a name."""
        for fd in self.kept.pop(name, []):
            os.close(fd)

    def files(self) -> list[str]:
        """The names under which it keeps files of disks."""
        self.hear()
        return [name for name in self.kept if name.startswith("undercroft-file-")]

    def launch(self, daemon):
        """Starts the daemon with what is kept, and does not wait until it is ready."""
        self.hear()
        every = [(name, fd) for name, fds in self.kept.items() for fd in fds]
        environment = {
            "NOTIFY_SOCKET": str(self.path),
            "KEPT": ":".join(str(fd) for _, fd in every),
            "LISTEN_FDNAMES": ":".join(name for name, _ in every),
        }
        for name, value in environment.items():
            self.monkeypatch.setenv(name, value)
        daemon.pass_fds = tuple(fd for _, fd in every)

    def start(self, daemon):
        """Starts the daemon with what is kept, and waits until it serves."""
        self.launch(daemon)
        daemon.start()
        self.hear()
        return daemon

    def close(self):
        """Ends it, with all that it keeps."""
        self.hear()
        self.over = True
        self.thread.join()
        for name in list(self.kept):
            self.drop(name)
        self.socket.close()
