"""The databases: how each is made, served and loaded, with every setting that decides a figure.

Owns their settings and the reading of what pgbench and sysbench print. Never knows what lies below the data folder.
Invariant: both databases acknowledge a transaction when it is durable, read files through the page cache, and have
buffers of their own that are small, so that what is below them matters.
"""

import math
import re
import socket
from pathlib import Path

from rig import mounted, process

from .containers import DATA, RUN

MIB = 1 << 20
CLIENTS = 8
FOLDER = f"{DATA}/db"
LATENCIES = ("mean_ms", "p95_ms", "p99_ms")


def quantile(times, part):
    """A time that `part` of the times stay at or below; None if there are none."""
    return times[min(len(times) - 1, math.ceil(part * len(times)) - 1)] if times else None


def newest(pattern):
    """The folder of the highest version, or None."""
    found = [path for path in Path("/").glob(pattern) if path.is_dir()]
    return max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], default=None)


class PostgreSQL:
    """PostgreSQL under pgbench: single rows, some parts of the table more often; one in 20 transactions changes one."""

    key, title = "postgresql", "PostgreSQL, pgbench"
    base_bytes = 48 * MIB  # what its container has for programs and connections
    stop_signal = "SIGINT"  # in order, without waiting for clients
    folder = newest("usr/lib/postgresql/*/bin")
    settings = {
        "shared_buffers": "8MB", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
        "max_wal_size": "128MB", "min_wal_size": "32MB", "checkpoint_timeout": "15min", "autovacuum": "off",
        "max_connections": "20", "max_parallel_workers_per_gather": "0", "jit": "off", "huge_pages": "off",
    }  # fmt: skip
    skew = 3  # half of what is asked for is in a fifth of the rows
    programs = {}

    @classmethod
    def lacks(cls):
        """Packages that are missing here."""
        return set() if cls.folder and (cls.folder / "pgbench").exists() else {"postgresql", "postgresql-contrib"}

    @classmethod
    def explains(cls):
        """The load and every setting, in words."""
        settings = ", ".join(f"{k}={v}" for k, v in cls.settings.items())
        return (
            f"pgbench with {CLIENTS} clients on its own tables: single rows by `random_exponential` (parameter"
            f" {cls.skew}: half of them in a fifth of the table); 19 of 20 transactions read one, the 20th changes one."
            f" {settings}."
        )

    def __init__(self, data_mib):
        self.scale = max(1, round(data_mib / 16))

    def creates(self):
        """Commands, each in a container, that make an empty database."""
        return [
            [self.folder / "initdb", "-D", FOLDER, "-U", "postgres", "-A", "trust", "-N", "--wal-segsize=4"]
        ]

    def server(self):
        """The command in the container."""
        settings = [word for k, v in self.settings.items() for word in ("-c", f"{k}={v}")]
        return [self.folder / "postgres", "-D", FOLDER, "-k", RUN, "-c", "listen_addresses=", *settings]

    def is_ready(self, run_dir):
        """Whether it answers on its socket in the folder."""
        try:
            process.run([self.folder / "pg_isready", "-q", "-h", run_dir], "pg_isready")
        except process.Stopped:
            return False
        return True

    def fill(self, run_dir):
        """Makes the tables."""
        options = ["-i", "-q", "-s", self.scale, "-I", "dtgvp"]
        process.run([self.folder / "pgbench", *options, "-h", run_dir, "-U", "postgres", "postgres"], "pgbench -i")

    def load(self, run_dir, folder, seconds):
        """Loads it for so long; its throughput and latencies."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("log.*"):
            old.unlink()
        pick = f"\\set aid random_exponential(1, 100000 * :scale, {self.skew})\n"
        reads, changes = folder / "reads.sql", folder / "changes.sql"
        reads.write_text(pick + "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n")
        changes.write_text(pick + "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n")
        options = ["-n", "-s", self.scale, "-c", CLIENTS, "-j", 1, "-M", "prepared", "-T", seconds]
        options += ["-f", f"{reads}@19", "-f", f"{changes}@1", "-l", f"--log-prefix={folder}/log"]
        said = process.run(
            [self.folder / "pgbench", *options, "-h", run_dir, "-U", "postgres", "postgres"], "pgbench", seconds + 120
        )
        lines = (line.split() for path in folder.glob("log.*") for line in path.read_text().splitlines())
        return self.read(said, sorted(int(fields[2]) / 1000 for fields in lines))

    @staticmethod
    def read(said, times_ms):
        """The figures in what pgbench prints, and in its log of single transactions (times in ms, sorted)."""
        return {
            "transactions": int(re.search(r"transactions actually processed: (\d+)", said)[1]),
            "tps": float(re.search(r"tps = ([\d.]+)", said)[1]),
            "mean_ms": sum(times_ms) / len(times_ms) if times_ms else None,
            "p95_ms": quantile(times_ms, 0.95),
            "p99_ms": quantile(times_ms, 0.99),
        }


class MariaDB:
    """MariaDB under sysbench: 20 rows by Pareto's law are read and one is changed in a transaction."""

    key, title = "mariadb", "MariaDB, sysbench"
    base_bytes = 80 * MIB
    stop_signal = "SIGTERM"
    settings = {
        "innodb-buffer-pool-size": "8M", "innodb-flush-method": "fsync", "innodb-flush-log-at-trx-commit": "1",
        "innodb-doublewrite": "1", "innodb-log-file-size": "32M", "innodb-use-native-aio": "0",
        "innodb-buffer-pool-dump-at-shutdown": "0", "innodb-buffer-pool-load-at-startup": "0", "skip-log-bin": None,
        "performance-schema": "0", "max-connections": "20", "key-buffer-size": "1M",
        "aria-pagecache-buffer-size": "1M",
    }  # fmt: skip
    programs = {"mariadbd": "mariadb-server-core", "sysbench": "sysbench"}
    skew = 0.3  # half of what is asked for is in a tenth of the rows

    @classmethod
    def lacks(cls):
        """Packages that are missing here."""
        return {package for name, package in cls.programs.items() if not mounted.program(name)}

    @classmethod
    def explains(cls):
        """The load and every setting, in words."""
        settings = ", ".join(k if v is None else f"{k}={v}" for k, v in cls.settings.items())
        return (
            f"sysbench oltp_read_write with {CLIENTS} threads, without range queries, deletes and inserts: each"
            f" transaction reads 20 rows by Pareto's law (h = {cls.skew}: half of them in a tenth of the table) and"
            f" changes one. {settings}."
        )

    def __init__(self, data_mib):
        self.rows = max(1000, data_mib * MIB // 240)

    def creates(self):
        """Commands, each in a container, that make an empty database."""
        # Without tables of rights (`skip-grant-tables`) the server makes everything else itself when it first starts.
        return [["mkdir", "-p", FOLDER, f"{DATA}/tmp"]]

    def server(self):
        """The command in the container."""
        settings = [f"--{k}" if v is None else f"--{k}={v}" for k, v in self.settings.items()]
        places = [f"--datadir={FOLDER}", f"--tmpdir={DATA}/tmp", f"--socket={RUN}/sock", f"--pid-file={RUN}/pid"]
        start = ["--skip-networking", "--skip-grant-tables", f"--init-file={RUN}/start.sql"]
        return [mounted.program("mariadbd"), "--no-defaults", *places, *start, *settings]

    def is_ready(self, run_dir):
        """Whether it greets who connects to its socket in the folder."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(f"{run_dir}/sock")
                return bool(client.recv(1))
            except OSError:
                return False

    def _sysbench(self, run_dir, *words):
        tables = ["--tables=1", f"--table-size={self.rows}", "--db-driver=mysql", f"--mysql-socket={run_dir}/sock"]
        queries = ["--point-selects=20", "--range-selects=off", "--index-updates=0", "--non-index-updates=1"]
        queries.append("--delete-inserts=0")
        rows = ["--rand-type=pareto", f"--rand-pareto-h={self.skew}", "--mysql-user=root"]
        return ["sysbench", "oltp_read_write", *tables, *queries, *rows, *words]

    def fill(self, run_dir):
        """Makes the table."""
        process.run(self._sysbench(run_dir, "prepare"), "sysbench prepare")

    def load(self, run_dir, folder, seconds):
        """Loads it for so long; its throughput and latencies."""
        del folder
        words = [f"--threads={CLIENTS}", f"--time={seconds}", "--events=0", "--histogram=on", "run"]
        return self.read(process.run(self._sysbench(run_dir, *words), "sysbench run", seconds + 120))

    @staticmethod
    def read(said):
        """The figures in what sysbench prints: quantiles of its histogram, whose steps are some percent wide."""
        bins = [(float(ms), int(n)) for ms, n in re.findall(r"^\s+([\d.]+) \|.*?(\d+)$", said, re.MULTILINE)]
        count = sum(n for _, n in bins)

        def at(part):
            seen = 0
            for ms, n in bins:
                seen += n
                if seen >= part * count:
                    return ms
            return None

        transactions, tps = re.search(r"transactions:\s+(\d+)\s+\(([\d.]+) per sec", said).groups()
        mean = re.search(r"avg:\s+([\d.]+)", said)
        return {
            "transactions": int(transactions), "tps": float(tps), "mean_ms": float(mean[1]), "p95_ms": at(0.95),
            "p99_ms": at(0.99),
        }  # fmt: skip


ENGINES = {engine.key: engine for engine in (PostgreSQL, MariaDB)}
