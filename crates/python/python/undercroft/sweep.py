"""Sweeps beyond one machine: many traces, policies and sizes, on Dask.

Owns the plan, what is kept of it, and the command line (``python -m undercroft.sweep --help``). What a worker does is
in :mod:`undercroft.pieces`. Results are one Parquet data set, a folder that pandas and pyarrow read at once. Invariant:
what is in the folder is whole: a piece is written beside and renamed when it is done; and a result is of the trace as
it was when the sweep was planned, or is removed by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from undercroft import _undercroft
from undercroft._needs import needed
from undercroft._undercroft import Error
from undercroft.pieces import Options, Outcome, Piece, cell_key, identity, is_local, place, run_piece
from undercroft.traces import Size, as_bytes, as_count

__all__ = ["Outcome", "Piece", "Summary", "Sweep", "main", "plan", "run", "run_piece"]

Said = Optional[Callable[[str], object]]
Address = Union[str, "os.PathLike[str]"]


@dataclass
class Summary:
    """What became of a sweep."""

    output: str
    done: int = 0
    """Results made by this run."""
    kept: int = 0
    """Results that were there."""
    failed: dict[str, str] = field(default_factory=dict)
    """Traces that could not be read, each with the reason."""

    def to_pandas(self) -> Any:
        """All results there are, as a ``pandas.DataFrame``."""
        return needed("pandas", "to_pandas").read_parquet(self.output)


class Sweep:
    """A plan: pieces that are still to be done, and where their results go. Made by :func:`plan`."""

    def __init__(self, store: _Store, pieces: list[Piece], summary: Summary) -> None:
        self._store = store
        self.pieces = pieces
        self.summary = summary

    def keep(self, piece: Piece, outcome: Outcome) -> None:
        """Writes what became of a piece."""
        if outcome.error is not None:
            self.summary.failed[piece.url] = outcome.error
            return
        self._store.write(piece, outcome.rows)
        self.summary.done += len(outcome.rows)


def plan(
    traces: Union[Address, Sequence[Address]],
    policies: Union[str, Sequence[str]],
    sizes: Union[Size, Sequence[Size]],
    output: Address,
    *,
    block_size: Optional[Size] = None,
    warm_up: int = 0,
    limit: Optional[int] = None,
    open_options: Optional[Mapping[str, Any]] = None,
    storage_options: Optional[Mapping[str, Any]] = None,
    policies_per_piece: Optional[int] = None,
    jobs: int = 1,
) -> Sweep:
    """Looks at traces and at what there is of them already. See :func:`run` for the arguments."""
    storage = dict(storage_options or {})
    names = [n for one in ([policies] if isinstance(policies, str) else policies) for n in _undercroft.policies(one)]
    names = list(dict.fromkeys(names))
    given = [sizes] if isinstance(sizes, (str, int)) else list(sizes)
    texts = list(dict.fromkeys(s if isinstance(s, str) else f"{as_count('a size', s)}blocks" for s in given))
    if not names or not texts:
        raise Error("give at least one policy and one size")
    _undercroft.cells(texts, block_bytes=4096, footprint=1)  # sizes that make no sense are told before anything is done
    group = policies_per_piece if policies_per_piece is not None else len(names)
    if group < 1:
        raise Error("policies_per_piece= is 1 or more")
    options = Options(
        open=dict(open_options or {}),
        block_size=None if block_size is None else as_bytes(block_size),
        warm_up=warm_up,
        limit=limit,
    )
    store = _Store(os.fspath(output), storage)
    summary = Summary(store.url)
    there = store.read()
    pieces: list[Piece] = []
    patterns = [traces] if isinstance(traces, (str, os.PathLike)) else traces
    for url in dict.fromkeys(url for one in patterns for url in _expand(one, storage)):
        try:
            now = identity(url, storage)
        except Exception as e:  # a trace that cannot be found does not keep the others from being done
            summary.failed[url] = f"{url}: {str(e) or type(e).__name__}"
            continue
        store.remove([path for path, of, was in there.files if of == url and was != now])
        whole = Piece(url, now, tuple(names), tuple(texts), options, storage, jobs)
        missing = {s: tuple(p for p in names if cell_key(whole, p, s) not in there.keys) for s in texts}
        summary.kept += len(names) * len(texts) - sum(map(len, missing.values()))
        for wanted in dict.fromkeys(w for w in missing.values() if w):
            same = tuple(s for s in texts if missing[s] == wanted)
            for at in range(0, len(wanted), group):
                pieces.append(Piece(url, now, wanted[at : at + group], same, options, storage, jobs))
    return Sweep(store, pieces, summary)


def run(
    traces: Union[Address, Sequence[Address]],
    policies: Union[str, Sequence[str]],
    sizes: Union[Size, Sequence[Size]],
    output: Address,
    *,
    scheduler: Optional[str] = None,
    workers: Optional[int] = None,
    say: Said = None,
    **options: Any,
) -> Summary:
    """Every policy at every size on every trace, on a Dask cluster; what was done before is not done again.

    In a script, call it below ``if __name__ == "__main__":``, for the workers of a local cluster read the script, too.

    :param traces: paths and addresses (``s3://bucket/*.zst``) as fsspec knows them; ``*`` stands for what it does
        there. Workers must reach them. What is not on a worker's own disk is copied there while it is simulated.
    :param policies: names; lists like ``"lru,arc"`` and ``"disk"`` or ``"all"``.
    :param sizes: as for :func:`undercroft.simulate`.
    :param output: the folder of the results, or its address in a store. Only this process writes there.
    :param scheduler: the address of a cluster, like ``tcp://10.0.0.1:8786``; a local one is started by default.
    :param workers: processes of the local cluster; by default one for each processor.
    :param say: called with a sentence about each piece that is done, like ``print``.
    :param options: `block_size`, `warm_up` and `limit` as for :func:`undercroft.simulate`; `open_options`, a dict of
        arguments of :func:`undercroft.open_trace`; `storage_options`, a dict for fsspec, like credentials;
        `policies_per_piece` to spread large traces over workers; `jobs`, threads of a piece.
    :raises Error: the arguments make no sense. Traces that cannot be read are in the summary, and the others are done.
    """
    job = plan(traces, policies, sizes, output, **options)
    say = say or (lambda _: None)
    for error in job.summary.failed.values():
        say(error)
    if not job.pieces:
        return job.summary
    distributed = needed("distributed", "a sweep")
    with _client(distributed, scheduler, workers) as client:
        waiting = {client.submit(run_piece, p, key=f"undercroft-{p.key}", pure=False): p for p in job.pieces}
        count = len(waiting)
        for n, future in enumerate(distributed.as_completed(list(waiting), loop=client.loop), start=1):
            piece = waiting.pop(future)
            try:
                outcome = future.result()
            except Exception as e:  # a worker that died, and took the piece with it as often as Dask tries
                outcome = Outcome([], f"{piece.url}: {str(e) or type(e).__name__}")
            future.release()
            job.keep(piece, outcome)
            say(f"{n}/{count} {outcome.error or piece.name}")
    return job.summary


@contextlib.contextmanager
def _client(distributed: Any, scheduler: Optional[str], workers: Optional[int]) -> Iterator[Any]:
    if scheduler is not None:
        with distributed.Client(scheduler, set_as_default=False) as client:
            yield client
        return
    count = workers or len(os.sched_getaffinity(0))
    # pieces are of one thread each, and hold the interpreter only in between
    with distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster, set_as_default=False) as client:
            yield client


def _expand(given: Address, storage: Mapping[str, Any]) -> list[str]:
    """The addresses that a pattern stands for, in order."""
    url = os.fspath(given)
    if not re.search(r"[*?\[]", url):
        return [url]
    fs, path = place(url, storage)
    found = sorted(fs.glob(path))
    if not found:
        raise Error(f"nothing is called {url}; check the pattern")
    if is_local(fs):
        return found
    first, *rest = url.split("::")
    protocol = first.split("://")[0]
    return ["::".join([f"{protocol}://{one}", *rest]) for one in found]


@dataclass
class _There:
    """What a store has."""

    keys: set[str]
    files: list[tuple[str, str, str]]
    """Path, trace, and the identity that this had."""


class _Store:
    """The data set: a folder for each trace, a file for each piece."""

    def __init__(self, url: str, storage: Mapping[str, Any]) -> None:
        self.url = url
        self._fs, self._root = place(url, storage)

    def read(self) -> _There:
        dataset = needed("pyarrow.dataset", "a sweep")
        if not self._fs.exists(self._root):
            return _There(set(), [])
        found: list[str] = [p for p in self._fs.find(self._root) if _visible(p) and p.endswith(".parquet")]
        keys: set[str] = set()
        files = []
        filesystem = None if is_local(self._fs) else self._fs
        for path in found:
            try:
                table = dataset.dataset(path, format="parquet", filesystem=filesystem).to_table(
                    ["key", "url", "identity"]
                )
            except (KeyError, ValueError, OSError) as e:
                raise Error(f"{path} is no result of a sweep: {e}; give another folder as output") from e
            keys.update(table.column("key").to_pylist())
            urls, identities = (table.column(name).to_pylist() for name in ("url", "identity"))
            files += [(path, url, was) for url, was in set(zip(urls, identities))]
        return _There(keys, files)

    def write(self, piece: Piece, rows: list[dict[str, Any]]) -> None:
        parquet = needed("pyarrow.parquet", "a sweep")
        table = needed("pyarrow", "a sweep").Table.from_pylist(rows, schema=_schema())
        folder = f"{self._root.rstrip('/')}/trace={_slug(piece.name)}"
        path = f"{folder}/{piece.key}.parquet"
        self._fs.makedirs(folder, exist_ok=True)
        if not is_local(self._fs):
            # an object is there as a whole, or is not
            buffer = io.BytesIO()
            parquet.write_table(table, buffer, compression="zstd")
            self._fs.pipe_file(path, buffer.getvalue())
            return
        beside = f"{folder}/.{piece.key}.{os.getpid()}.tmp"
        try:
            parquet.write_table(table, beside, compression="zstd")
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(beside)
            raise

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._fs.rm_file(path)


def _visible(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name) or "trace"


def _schema() -> Any:
    pa = needed("pyarrow", "a sweep")
    texts = ["key", "url", "identity", "policy", "size"]
    counts = ["capacity_blocks", "accesses", "misses", "reads", "read_misses", "writes", "write_misses"]
    last = ["block_bytes", "footprint_blocks", "warm_up", "limit"]
    fields = [(name, pa.string()) for name in texts] + [(name, pa.int64()) for name in counts]
    fields += [("miss_ratio", pa.float64()), *((name, pa.int64()) for name in last)]
    return pa.schema([*fields, ("options", pa.string()), ("version", pa.string())])


_EXAMPLES = """\
examples:
  python -m undercroft.sweep *.vscsi --policies disk --sizes 1%,10% --output results
  python -m undercroft.sweep 's3://bucket/traces/*.zst' --policies all --sizes 1GiB,4GiB --output s3://bucket/results \\
      --scheduler tcp://10.0.0.1:8786
  python -c "import pandas; print(pandas.read_parquet('results'))"

Run it again to go on where it was stopped, with more traces, policies or sizes, or for traces that have changed: what
is there is not done again.

exit codes: 0 done; 1 some traces could not be read, and are named; 2 used wrongly; 130 interrupted: what is done is
kept
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m undercroft.sweep",
        description=(
            "Runs many traces through many policies at many sizes, on Dask; the results are one Parquet data set."
        ),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="path or address (s3://bucket/*.zst), as fsspec knows them")
    add("-o", "--output", required=True, metavar="FOLDER", help="where results go: a folder, or an address in a store")
    add(
        "-p", "--policies", default="disk", metavar="LIST", help="with commas between; disk, all [default: %(default)s]"
    )
    add("-s", "--sizes", default="1%,10%", metavar="LIST", help="1GiB, 10%%, 1000blocks [default: 1%%,10%%]")
    add("--scheduler", metavar="ADDRESS", help="of a Dask cluster [default: a local one]")
    add("--workers", type=int, metavar="N", help="processes of the local cluster [default: one per processor]")
    add("--format", metavar="FORMAT", help="of the traces [default: what their content or names tell]")
    add("--columns", metavar="MAP", help="of CSV files: time=1,offset=4,size=5,op=3")
    add("--lenient", action="store_true", help="leave out records that make no sense")
    add("--block-size", metavar="SIZE", help="what a block stands for [default: what the trace says, or 4KiB]")
    add("--warm-up", type=int, default=0, metavar="N", help="accesses at the beginning that are not counted")
    add("--limit", type=int, metavar="N", help="end after so many accesses")
    add("--policies-per-piece", type=int, metavar="N", help="spread each trace over workers [default: all in one pass]")
    add("-q", "--quiet", action="store_true", help="say nothing but what failed")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; the exit code."""
    args = _parser().parse_args(arguments)

    def say(text: str) -> None:
        print(f"undercroft: {text}", file=sys.stderr, flush=True)

    opened = {"format": args.format, "columns": args.columns, "lenient": args.lenient or None}
    try:
        summary = run(
            args.traces,
            args.policies,
            args.sizes.split(","),
            args.output,
            scheduler=args.scheduler,
            workers=args.workers,
            say=None if args.quiet else say,
            block_size=args.block_size,
            warm_up=args.warm_up,
            limit=args.limit,
            open_options={k: v for k, v in opened.items() if v is not None},
            policies_per_piece=args.policies_per_piece,
        )
    except KeyboardInterrupt:
        say("interrupted; what is done is kept: run the same again to go on")
        return 130
    except (Error, OSError) as e:
        say(str(e))
        return 1
    if args.quiet:
        for error in summary.failed.values():
            say(error)
    print(
        f"{summary.output}: {summary.done} results made, {summary.kept} were there, {len(summary.failed)} traces failed"
    )
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
