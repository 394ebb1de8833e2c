"""Pieces of a sweep: one trace through some policies at some sizes, on whichever machine.

Owns what a worker does, and what tells whether a result is of the trace as it is now. Never writes results. Invariant:
a piece that cannot be done says why, and keeps nobody from doing the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional

from undercroft._needs import needed
from undercroft._undercroft import __version__
from undercroft.simulation import simulate
from undercroft.traces import open_trace

# What stores call the time or the tag of an object's last change, the best first.
_CHANGES = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "date_time", "created")


@dataclass(frozen=True)
class Options:
    """What a result depends on besides trace, policy and size."""

    open: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of :func:`undercroft.open_trace`."""
    block_size: Optional[int] = None
    warm_up: int = 0
    limit: Optional[int] = None

    def text(self) -> str:
        """The same as text, the same for the same options."""
        parts = [sorted(self.open.items()), self.block_size, self.warm_up, self.limit]
        return json.dumps(parts, sort_keys=True, default=str)


@dataclass(frozen=True)
class Piece:
    """One trace, and what is to be simulated of it in one pass."""

    url: str
    identity: str
    """Size and last change of the trace when the sweep was planned."""
    policies: tuple[str, ...]
    sizes: tuple[str, ...]
    options: Options
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the store needs besides the address, like credentials; no result depends on it."""
    jobs: int = 1
    """Threads."""

    @property
    def name(self) -> str:
        """The trace's name, without its folder."""
        return self.url.split("::")[0].rstrip("/").rsplit("/", 1)[-1]

    @property
    def key(self) -> str:
        """Another for any other trace, policy, size or option."""
        return digest(self.identity, self.url, *self.policies, "", *self.sizes, self.options.text())


@dataclass(frozen=True)
class Outcome:
    """What became of a piece: rows, or why there are none."""

    rows: list[dict[str, Any]]
    error: Optional[str] = None


def digest(*parts: str) -> str:
    """A short name for these texts, and this version of the engine."""
    return hashlib.sha256(json.dumps([__version__, *parts]).encode()).hexdigest()[:32]


def cell_key(piece: Piece, policy: str, size: str) -> str:
    """The name of one result."""
    return digest(piece.identity, piece.url, policy, size, piece.options.text())


def place(url: str, storage: Mapping[str, Any]) -> tuple[Any, str]:
    """The file system that an address is on, and the path there."""
    fs, path = needed("fsspec", "a sweep").core.url_to_fs(url, **storage)
    return fs, path


def identity(url: str, storage: Mapping[str, Any]) -> str:
    """What changes when the trace does: its size, and when it was written or the store's tag for that."""
    fs, path = place(url, storage)
    info = fs.info(path)
    change = next((info[key] for key in _CHANGES if info.get(key) is not None), None)
    return f"{info.get('size')} {change}"


def is_local(fs: Any) -> bool:
    """Whether paths are those of this machine."""
    return type(fs).__name__ == "LocalFileSystem"


@contextlib.contextmanager
def at_hand(url: str, storage: Mapping[str, Any]) -> Iterator[str]:
    """A path on this machine with what the address has, for as long as it is needed."""
    fs, path = place(url, storage)
    if is_local(fs):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="undercroft-") as folder:
        # the name tells the format
        copy = os.path.join(folder, os.path.basename(path.rstrip("/")) or "trace")
        fs.get_file(path, copy)
        yield copy


def run_piece(piece: Piece) -> Outcome:
    """Does a piece. What goes wrong with the trace is in the outcome; what does not is raised, like
    KeyboardInterrupt."""
    try:
        with at_hand(piece.url, piece.storage) as path:
            result = simulate(
                open_trace(path, **piece.options.open),
                list(piece.policies),
                list(piece.sizes),
                block_size=piece.options.block_size,
                warm_up=piece.options.warm_up,
                limit=piece.options.limit,
                jobs=piece.jobs,
            )
    except Exception as e:  # whatever it is, the other traces are not to blame
        said = str(e) or type(e).__name__
        return Outcome([], said if piece.name in said else f"{piece.url}: {said}")
    rows = [
        {
            "key": cell_key(piece, row["policy"], row["size"]),
            "url": piece.url,
            "identity": piece.identity,
            **row,
            "block_bytes": result.block_bytes,
            "footprint_blocks": result.footprint_blocks,
            "warm_up": piece.options.warm_up,
            "limit": piece.options.limit,
            "options": piece.options.text(),
            "version": __version__,
        }
        for row in result.rows
    ]
    return Outcome(rows)
