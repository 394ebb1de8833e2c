"""Traces: files of any format, synthetic loads, arrays.

Owns what a trace is to Python. Never keeps a file's accesses: each pass reads it again. The formats, and what makes a
record a wrong one, are the engine's.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Union

import numpy as np
import numpy.typing as npt

from undercroft import _undercroft
from undercroft._needs import needed
from undercroft._undercroft import Error, Source, size_bytes

Progress = Optional[Callable[[int], object]]
Size = Union[int, str]
ArrayLike = Any
"""A numpy array, a list, or anything that speaks Arrow's PyCapsule interface: an array of pyarrow, a series of
polars."""

BATCH = 1 << 16
"""Accesses of a batch where nothing else is said."""

# The columns of accesses, and what numpy calls their numbers.
_COLUMNS: dict[str, type[np.generic]] = {
    "time_ns": np.uint64,
    "block": np.uint64,
    "bytes": np.uint32,
    "tenant": np.uint16,
    "write": np.bool_,
}


class Trace:
    """Accesses to blocks, in order, that can be read as often as is needed.

    Made by :func:`open_trace`, :func:`from_arrays` and :mod:`undercroft.synth`. Iterating gives dicts of numpy arrays,
    some 65536 accesses at a time: ``time_ns``, ``block``, ``bytes``, ``tenant`` and ``write``.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The path, the pattern, or as was said."""
        return self._source.name

    @property
    def block_bytes(self) -> Optional[int]:
        """Bytes that one block stands for, if the trace says so: None for traces of keys."""
        return self._source.block_bytes

    def __repr__(self) -> str:
        return f"<undercroft.Trace {self.name}>"

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        return self.batches()

    def batches(self, size: int = BATCH) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Dicts of arrays, `size` accesses at a time."""
        return iter(self._source.batches(as_count("size", size, 1)))

    def to_numpy(self, *columns: str) -> Any:
        """The whole trace: a dict of arrays, or the array of the one column that is named.

        >>> import undercroft as uc
        >>> uc.synth.loop(keys=3, requests=5).to_numpy("block")
        array([1, 2, 3, 1, 2], dtype=uint64)
        """
        wanted = columns or tuple(_COLUMNS)
        for name in wanted:
            if name not in _COLUMNS:
                raise Error(f"there is no column {name!r}: they are {', '.join(_COLUMNS)}")
        parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in wanted}
        for batch in self:
            for name in wanted:
                parts[name].append(batch[name])
        whole = {
            name: np.concatenate(arrays) if arrays else np.empty(0, _COLUMNS[name]) for name, arrays in parts.items()
        }
        return whole[columns[0]] if len(columns) == 1 else whole

    def to_arrow(self, batch_size: int = BATCH) -> Any:
        """A ``pyarrow.RecordBatchReader``, which reads the trace as it is read itself."""
        pa = needed("pyarrow", "to_arrow")
        schema = pa.schema([(name, pa.from_numpy_dtype(np.dtype(kind))) for name, kind in _COLUMNS.items()])

        def batches() -> Iterator[Any]:
            for batch in self.batches(batch_size):
                yield pa.record_batch([pa.array(batch[name]) for name in _COLUMNS], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of the whole trace."""
        return needed("pandas", "to_pandas").DataFrame(self.to_numpy())

    def info(self, *, progress: Progress = None) -> dict[str, Any]:
        """What the trace is like, as ``undercroft trace info --json`` has it: requests, accesses, footprint,
        tenants."""
        about: dict[str, Any] = json.loads(self._source.info(progress))
        return about

    def footprint(self, *, limit: Optional[int] = None, progress: Progress = None) -> int:
        """How many distinct blocks there are."""
        return _undercroft.footprint(self._source, limit=limit, progress=progress)


def open_trace(
    path: Union[str, os.PathLike[str]],
    format: Optional[str] = None,
    *,
    columns: Union[str, Mapping[str, Union[int, str]], None] = None,
    separator: Optional[str] = None,
    time_unit: str = "1s",
    offset_unit: Size = 1,
    size_unit: Size = 1,
    lenient: bool = False,
    block_size: Optional[Size] = None,
    key_size: Optional[Size] = None,
    event: str = "queue",
) -> Trace:
    """A trace in a file, compressed (zstd, gzip, xz) or not. It is opened when it is read, not before.

    :param format: one of :func:`formats`; by default the file's content or its name tells.
    :param columns: of a CSV file, by number from 1 or by name: ``{"time": 1, "offset": 4, "size": 5, "op": 3}``; also
        ``key``, ``keys`` and ``tenant``. `separator`, `time_unit`, `offset_unit` and `size_unit` are for CSV, too.
    :param lenient: leave out records that make no sense, and count them (see :meth:`Trace.info`).
    :param block_size: split requests into blocks of so many bytes, or ``"4KiB"``; by default 4096, what a recording
        says, and not at all for vscsi.
    :param key_size: of a trace of keys: a key is the number of a piece of a disk of this size.
    :param event: of blkparse and blktrace, which event counts: ``queue``, ``issue`` or ``complete``.
    :raises Error: the arguments do not go together. What is wrong with the file is raised when it is read: `OSError` by
        the system, else :class:`Error` with `file`, `record` and `offset`.
    """
    if isinstance(columns, Mapping):
        columns = ",".join(f"{what}={column}" for what, column in columns.items())
    return Trace(
        Source.file(
            os.fspath(path),
            format=format,
            columns=columns,
            separator=separator,
            time_unit=time_unit,
            offset_unit=str(offset_unit),
            size_unit=str(size_unit),
            lenient=lenient,
            block_size=None if block_size is None else as_bytes(block_size),
            key_size=None if key_size is None else as_bytes(key_size),
            event=event,
        )
    )


def from_arrays(
    block: ArrayLike,
    *,
    write: Optional[ArrayLike] = None,
    time_ns: Optional[ArrayLike] = None,
    bytes: Optional[ArrayLike] = None,
    tenant: Optional[ArrayLike] = None,
    name: str = "arrays",
) -> Trace:
    """A trace from arrays of one length, which are copied: numpy arrays, lists, or anything that speaks Arrow's
    PyCapsule interface (needs pyarrow).

    A table with a column ``block`` brings its columns ``write``, ``time_ns``, ``bytes`` and ``tenant`` with it, if it
    has them.

    >>> import undercroft as uc
    >>> uc.from_arrays([7, 8, 7]).footprint()
    2
    """
    given = {"block": block, "write": write, "time_ns": time_ns, "bytes": bytes, "tenant": tenant}
    table = _table(block)
    if table is not None:
        if "block" not in table.column_names:
            raise Error(f"the table has no column block; it has {', '.join(table.column_names)}")
        for column in _COLUMNS:
            if column in table.column_names and (column == "block" or given[column] is None):
                given[column] = table.column(column)
    columns = {key: None if values is None else _array(key, values) for key, values in given.items()}
    return Trace(Source.arrays(columns, name))


def as_trace(trace: Any) -> Trace:
    """What was given, as a trace: one already, a path, or blocks."""
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, (str, os.PathLike)):
        return open_trace(trace)
    return from_arrays(trace)


def as_bytes(size: Size) -> int:
    """The bytes in a size: a number, or a text like ``4KiB``."""
    return size_bytes(size) if isinstance(size, str) else as_count("a size", size)


def check_sizes(trace: Trace, sizes: Iterable[Any], block_size: Optional[Size]) -> None:
    """Refuses sizes in bytes where accesses are no blocks of one size, unless it is said what a block is."""
    in_bytes = [s for s in sizes if isinstance(s, str) and not s.strip().endswith(("%", "block", "blocks"))]
    if block_size is None and any(not s.strip().isdigit() for s in in_bytes):
        trace._source.check_sized()


def formats() -> dict[str, str]:
    """The formats of traces by name, each with what it is."""
    return dict(_undercroft.formats())


def as_count(what: str, number: Any, least: int = 0) -> int:
    """A whole number of at least so many, whoever made it."""
    try:
        count = number.__index__()
    except AttributeError:
        raise TypeError(f"{what} is a whole number, not {number!r}") from None
    if count < least:
        raise Error(f"{what} is {count}; give {least} or more")
    return int(count)


def _arrow(values: Any) -> Any:
    """What speaks Arrow as a ``pyarrow.ChunkedArray``; None otherwise. What numpy takes as one column, numpy takes."""
    stream, array = hasattr(values, "__arrow_c_stream__"), hasattr(values, "__arrow_c_array__")
    if getattr(values, "ndim", None) == 1 or not (stream or array):
        return None
    pa = needed("pyarrow", "reading Arrow")
    return pa.chunked_array(values) if stream else pa.chunked_array([pa.array(values)])


def _table(values: Any) -> Any:
    """What speaks Arrow and has columns, as a ``pyarrow.Table``; None otherwise."""
    arrow = _arrow(values)
    pa = needed("pyarrow", "reading Arrow") if arrow is not None else None
    return pa.Table.from_struct_array(arrow) if pa is not None and pa.types.is_struct(arrow.type) else None


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    """One column, checked and of the right kind."""
    kind = np.dtype(_COLUMNS[name])
    arrow = _arrow(values)
    if arrow is not None:
        if arrow.null_count:
            raise Error(f"{name} has {arrow.null_count} nulls; leave them out")
        values = arrow.to_numpy()
    array = np.asarray(values)
    if array.ndim != 1:
        raise Error(f"{name} has {array.ndim} dimensions; give an array of one")
    if array.size == 0:
        return np.empty(0, kind)
    if kind == np.bool_:
        if array.dtype != np.bool_:
            raise Error(f"{name} is an array of {array.dtype}; give one of bool")
    elif array.dtype.kind not in "iu":
        raise Error(f"{name} is an array of {array.dtype}; give whole numbers, like numpy.uint64")
    elif array.dtype != kind:
        least, most = int(array.min()), int(array.max())
        if least < 0 or most > np.iinfo(kind).max:
            raise Error(f"{name} has numbers from {least} to {most}; 0 to {np.iinfo(kind).max} are possible")
    return np.ascontiguousarray(array, kind)
