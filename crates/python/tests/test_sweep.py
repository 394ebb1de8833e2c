"""Sweeps on a real Dask cluster: what `simulate` counts, once; a broken trace harms itself alone."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest

import undercroft as uc
from undercroft import sweep

POLICIES = ["lru", "s3-fifo", "arc"]
SIZES = ["1%", "10%", "100blocks"]


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster of two processes."""
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, keys in (("a", 500), ("b", 900), ("c", 2000)):
        uc.synth.zipf(keys=keys, requests=20_000, seed=keys).to_numpy("block").astype("<u8").tofile(
            folder / f"{name}.u64le"
        )
    return folder


def rows(frame):
    """What identifies a result and what was counted."""
    columns = ["policy", "size", "capacity_blocks", "accesses", "misses", "miss_ratio", "reads", "read_misses"]
    columns += ["writes", "write_misses"]
    return sorted(frame[columns].itertuples(index=False, name=None))


def test_results_are_those_of_simulate(scheduler, traces, tmp_path):
    out = tmp_path / "out"
    said = []
    summary = sweep.run(str(traces / "*.u64le"), POLICIES, SIZES, out, scheduler=scheduler, say=said.append)
    assert (summary.done, summary.kept, summary.failed) == (3 * 9, 0, {}) and len(said) == 3
    frame = pd.read_parquet(out)
    assert rows(frame) == rows(summary.to_pandas()) and len(frame) == 27
    for name in "abc":
        own = uc.simulate(traces / f"{name}.u64le", POLICIES, SIZES).to_pandas()
        assert rows(frame[frame["trace"] == f"{name}.u64le"]) == rows(own)
    table = pyarrow.dataset.dataset(out, partitioning="hive").to_table()
    footprints = {uc.open_trace(p).footprint() for p in traces.iterdir()}
    assert table.num_rows == 27 and set(table["footprint_blocks"].to_pylist()) == footprints


def test_only_what_is_missing_is_done_again(scheduler, traces, tmp_path):
    out = tmp_path / "out"

    def run(policies, sizes, **options):
        summary = sweep.run(traces, policies, sizes, out, scheduler=scheduler, **options)
        return summary.done, summary.kept

    traces = traces / "a.u64le"
    assert run("lru,fifo", ["1%"]) == (2, 0)
    assert run("lru,fifo", ["1%"]) == (0, 2)
    assert run("lru,fifo,arc", ["1%", "10%"], policies_per_piece=2) == (4, 2)
    assert run("lru", ["1%"], warm_up=10) == (1, 0), "other options, other results"
    assert len(pd.read_parquet(out)) == 7
    before = rows(pd.read_parquet(out))
    np.arange(50, dtype="<u8").tofile(traces)
    assert run("lru", ["1%"]) == (1, 0), "the trace has changed"
    after = pd.read_parquet(out)
    assert len(after) == 1 and after["misses"].tolist() == [50] and rows(after)[0] not in before


def test_a_broken_trace_is_named_and_the_others_finish(scheduler, traces, tmp_path):
    (traces / "bad.lis").write_text("1 1 0 0\nnothing\n")
    given = [str(traces / "a.u64le"), str(traces / "bad.lis"), str(traces / "gone.lis"), str(traces / "b.u64le")]
    summary = sweep.run(given, "lru", "1%", tmp_path / "out", scheduler=scheduler)
    assert summary.done == 2 and set(summary.failed) == set(given[1:3])
    assert "record 2 at byte 8" in summary.failed[given[1]] and "gone.lis" in summary.failed[given[2]]
    assert sorted(pd.read_parquet(tmp_path / "out")["trace"]) == ["a.u64le", "b.u64le"]


def test_a_trace_in_a_store_is_fetched_and_results_go_to_one(scheduler, traces, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in traces.iterdir():
            archive.write(path, path.name)
    address = f"zip://*.u64le::{tmp_path / 'all.zip'}"
    # a file system whose paths are not this machine's, as far as the sweep knows
    out = f"dir::file://{tmp_path / 'out'}"
    summary = sweep.run(address, "lru", "10%", out, scheduler=scheduler, storage_options={})
    assert summary.failed == {} and summary.done == 3
    assert not list((tmp_path / "out").rglob("*.tmp"))
    own = [uc.simulate(p, "lru", "10%").rows[0]["misses"] for p in sorted(traces.iterdir())]
    assert pd.read_parquet(tmp_path / "out").sort_values("trace")["misses"].tolist() == own
    assert sweep.run(address, "lru", "10%", out, scheduler=scheduler).kept == 3


def test_what_is_half_written_is_not_there(scheduler, traces, tmp_path, monkeypatch):
    job = sweep.plan(str(traces / "a.u64le"), "lru", "1%", tmp_path / "out")
    (piece,) = job.pieces
    outcome = sweep.run_piece(piece)

    def full(source, target):
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            job.keep(piece, outcome)
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file()] == []
    job.keep(piece, outcome)
    assert len(pd.read_parquet(tmp_path / "out")) == 1


def test_a_killed_sweep_goes_on_where_it_was(scheduler, traces, tmp_path):
    out = tmp_path / "out"
    # nobody writes to the pipe, so that this one cannot end
    os.mkfifo(traces / "z.u64le")
    given = [str(p) for p in sorted(traces.iterdir())]
    words = [sys.executable, "-m", "undercroft.sweep", *given, "-p", "lru,fifo", "-s", "10blocks", "-o", str(out)]
    first = subprocess.Popen([*words, "--workers", "2"], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while len(list(out.rglob("*.parquet"))) < 3:
            assert first.poll() is None, "it ended by itself"
            time.sleep(0.05)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert len(pd.read_parquet(out)) == 6
    os.remove(traces / "z.u64le")
    np.arange(100, dtype="<u8").tofile(traces / "z.u64le")
    again = subprocess.run([*words, "--scheduler", scheduler], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "2 results made, 6 were there, 0 traces failed" in again.stdout and "1/1 z.u64le" in again.stderr
    assert len(pd.read_parquet(out)) == 8


@pytest.mark.parametrize(
    ("words", "code", "needle"),
    [
        (["--help"], 0, "exit codes"),
        ([], 2, "TRACE"),
        (["x.lis", "-o", "OUT", "-p", "lur"], 1, "known are fifo"),
        (["x.lis", "-o", "OUT", "-s", "1K"], 1, "1KiB"),
        (["*.none", "-o", "OUT"], 1, "nothing is called"),
        (["x.lis", "-o", "OUT"], 1, "x.lis"),
    ],
)
def test_the_command_line_says_what_is_wrong(words, code, needle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        got = sweep.main([w.replace("OUT", str(tmp_path / "out")) for w in words])
    except SystemExit as e:
        got = e.code
    said = capsys.readouterr()
    assert got == code and needle in said.out + said.err


def test_a_folder_of_something_else_is_refused(tmp_path):
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(uc.Error, match="no result of a sweep"):
        sweep.plan(str(tmp_path), "lru", "1%", tmp_path)


def test_interrupted_it_keeps_what_is_done(traces, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run", stopped)
    assert sweep.main([str(traces / "a.u64le"), "-o", str(tmp_path / "out")]) == 130
    assert pathlib.Path(traces / "a.u64le").exists()
