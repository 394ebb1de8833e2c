"""Images with a database each, made once and copied for every run.

Owns the folder of masters. Invariant: a master is whole (made beside and renamed) and says in its name what it was made
from; every run starts from the same bytes, none of them in the page cache.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from rig import mounted, process
from rig.images import drop_cached

from .containers import USER, Container

MIB = 1 << 20


class Masters:
    """The masters in `folder`, of databases of `data_mib`."""

    def __init__(self, folder, podman, data_mib, say):
        self.folder, self.podman, self.data_mib, self.say = Path(folder), podman, data_mib, say

    def image(self, engine):
        """The master of an engine (an object), made if it is not there."""
        made = hashlib.sha256(Path(__file__).with_name("engines.py").read_bytes()).hexdigest()[:12]
        path = self.folder / f"{engine.key}-{self.data_mib}-{made}.raw"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob(f"{engine.key}-*"):
                old.unlink()
            self.say(f"making {self.data_mib} MiB of {engine.title}")
            self.make(engine, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        return path

    def make(self, engine, path):
        """Makes one: a file system, and in it the database, filled."""
        with open(path, "wb") as f:
            f.truncate((3 * self.data_mib + 448) * MIB)
        mkfs = [mounted.program("mkfs.ext4"), "-q", "-F", "-b", "4096", "-m", "0"]
        process.run([*mkfs, "-E", "lazy_itable_init=0,lazy_journal_init=0", path], "mkfs.ext4")
        log = self.folder / f"{engine.key}.log"
        with mounted.FileSystem(path, self.folder / "where") as system, run_dir() as sockets:
            os.chown(system.where, USER, USER)
            for command in engine.creates():
                name = f"make-{engine.key}"
                process.run(
                    self.podman.run(name, command, system.where, sockets, detached=False), str(command[0]), 120
                )
            server = Container(
                self.podman, engine.key, engine.server(), system.where, sockets, 512 * MIB, log, engine.stop_signal
            )
            with server:
                server.wait(lambda: engine.is_ready(sockets))
                engine.fill(sockets)

    def copy(self, engine, path):
        """A copy to run on."""
        path.parent.mkdir(parents=True, exist_ok=True)
        process.run(["cp", "--sparse=always", "--reflink=auto", self.image(engine), path], "cp")
        for file in (self.image(engine), path):
            drop_cached(file)
        return path


@contextlib.contextmanager
def run_dir():
    """A short folder for the sockets of a database, with what MariaDB is to do when it starts."""
    path = Path(tempfile.mkdtemp(prefix="undercroft-", dir="/run" if os.access("/run", os.W_OK) else None))
    try:
        os.chmod(path, 0o755)
        (path / "start.sql").write_text("CREATE DATABASE IF NOT EXISTS sbtest;\n")
        for each in (path, path / "start.sql"):
            os.chown(each, USER, USER)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
