"""Traces: what is read is what was written, whatever it came from; what is wrong is said where it is."""

import gzip
import os
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import undercroft as uc

BLOCKS = [7, 8, 2**40, 7, 0, 9]


def test_a_file_is_read_as_it_was_written_compressed_or_not(tmp_path):
    np.array(BLOCKS, "<u8").tofile(tmp_path / "t.u64le")
    (tmp_path / "t.u64le.gz").write_bytes(gzip.compress((tmp_path / "t.u64le").read_bytes()))
    (tmp_path / "t").write_bytes((tmp_path / "t.u64le").read_bytes())
    for name, how in [("t.u64le", {}), ("t.u64le.gz", {}), ("t", {"format": "u64le"})]:
        trace = uc.open_trace(tmp_path / name, **how)
        assert trace.to_numpy("block").tolist() == BLOCKS
        assert trace.to_numpy("block").tolist() == BLOCKS, "a second pass begins at the beginning"
    assert [len(b["block"]) for b in trace.batches(4)] == [4, 2]
    assert "u64le" in uc.formats() and len(uc.formats()) == 18


def test_a_csv_file_with_a_map_of_columns_has_times_sizes_and_writes(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("when,who,what,where,size\n1,a,R,0,8192\n2,b,W,4096,512\n")
    columns = {"time": 1, "op": 3, "offset": 4, "size": "size", "tenant": "who"}
    trace = uc.open_trace(path, columns=columns, time_unit="1ms", block_size="4KiB")
    got = trace.to_numpy()
    tenant = 1 << 51
    assert got["block"].tolist() == [0, 1, tenant + 1]
    assert got["write"].tolist() == [False, False, True]
    assert got["time_ns"].tolist() == [1_000_000, 1_000_000, 2_000_000]
    assert got["bytes"].tolist() == [8192, 8192, 512] and got["tenant"].tolist() == [0, 0, 1]
    assert trace.block_bytes == 4096 and trace.footprint() == 3
    info = trace.info()
    assert [t["name"] for t in info["tenants"]] == ["a", "b"] and info["requests"] == 2


def test_a_damaged_record_is_named_by_file_record_and_offset(tmp_path):
    path = tmp_path / "bad.lis"
    path.write_text("7 1 0 0\nno number\n8 1 0 1\n")
    with pytest.raises(uc.Error, match="bad.lis is damaged: record 2 at byte 8") as caught:
        uc.open_trace(path).to_numpy()
    e = caught.value
    assert isinstance(e, ValueError) and (e.file, e.record, e.offset) == (str(path), 2, 8)
    lenient = uc.open_trace(path, lenient=True)
    assert lenient.to_numpy("block").tolist() == [7, 8] and lenient.info()["records_left_out"] == 1
    np.array([1], "<u4").tofile(tmp_path / "short.oracleGeneral")
    with pytest.raises(uc.Error, match="short.oracleGeneral"):
        uc.open_trace(tmp_path / "short.oracleGeneral").info()


def test_what_the_system_says_of_a_file_is_an_oserror(tmp_path):
    trace = uc.open_trace(tmp_path / "nothing.lis")
    with pytest.raises(FileNotFoundError) as caught:
        next(iter(trace))
    assert caught.value.filename == str(tmp_path / "nothing.lis")
    with pytest.raises((IsADirectoryError, uc.Error), match=tmp_path.name):
        uc.open_trace(tmp_path).info()


def test_a_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe.u64le"
    os.mkfifo(pipe)
    blocks = np.array(BLOCKS, "<u8")
    writer = threading.Thread(target=lambda: pipe.write_bytes(blocks.tobytes()))
    writer.start()
    assert uc.simulate(pipe, "lru", 100).rows[0]["misses"] == 5
    writer.join()
    for work in (
        lambda: uc.simulate(pipe, "lru", "10%"),
        lambda: uc.simulate(pipe, uc.Policy, 10),
        lambda: uc.curve(pipe, "mini", policy="fifo", sizes=["10%"]),
    ):
        with pytest.raises(uc.Error, match="only once"):
            work()


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ({"format": "vhd"}, "vhd"),
        ({"columns": "when=1"}, "when"),
        ({"columns": "time=0"}, "from 1"),
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": "4K"}, "4KiB"),
        ({"event": "never"}, "queue, issue or complete"),
        ({"separator": "::"}, "single character"),
        ({"time_unit": "1h"}, "units are ns"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_read(arguments, needle):
    with pytest.raises(uc.Error, match=needle):
        uc.open_trace("nothing", **arguments)


def test_an_unknown_format_is_told_by_the_name_of_the_argument(tmp_path):
    (tmp_path / "what").write_bytes(b"\0\1\2\3" * 64)
    with pytest.raises(uc.Error, match=r"\(format=\)") as caught:
        uc.open_trace(tmp_path / "what").info()
    assert caught.value.file == str(tmp_path / "what") and caught.value.offset is None


@pytest.mark.parametrize("kind", ["u8", "u4", "i8", "i4", ">i8"])
def test_arrays_of_every_whole_kind_make_a_trace(kind):
    blocks = np.array([5, 6, 5, 7], kind)
    assert uc.from_arrays(blocks).to_numpy("block").tolist() == [5, 6, 5, 7]
    assert uc.from_arrays(blocks[::2]).to_numpy("block").tolist() == [5, 5], "not contiguous"


def test_columns_of_arrays_are_kept():
    given = dict(
        block=[1, 2**63, 3],
        write=[True, False, True],
        time_ns=np.array([1, 2, 2**62]),
        bytes=[4096, 0, 2**32 - 1],
        tenant=[0, 65535, 1],
    )
    given["block"] = np.array(given["block"], np.uint64)
    got = uc.from_arrays(**given).to_numpy()
    for name, values in given.items():
        assert got[name].tolist() == list(values), name
    assert (got["block"].dtype, got["write"].dtype, got["tenant"].dtype) == (np.uint64, np.bool_, np.uint16)


@pytest.mark.parametrize(
    ("arrays", "needle"),
    [
        ({"block": [1, -1]}, "block has numbers from -1 to 1"),
        ({"block": [1.5]}, "float64"),
        ({"block": [[1], [2]]}, "2 dimensions"),
        ({"block": ["a"]}, "whole numbers"),
        ({"block": [1, 2], "write": [True]}, "2 blocks and 1 of writes"),
        ({"block": [1], "tenant": [65536]}, "0 to 65535"),
        ({"block": [1], "write": [2]}, "bool"),
        ({"block": pa.array([1, None])}, "1 nulls"),
        ({"block": pa.table({"key": [1]})}, "no column block; it has key"),
    ],
)
def test_arrays_that_are_no_trace_are_refused(arrays, needle):
    with pytest.raises(uc.Error, match=needle):
        uc.from_arrays(**arrays)


def test_arrow_goes_in_and_comes_out():
    table = pa.table({"block": [3, 1, 3], "write": [False, True, False], "extra": ["a", "b", "c"]})
    arrow = [table, table.to_reader(), table.to_batches()[0], table.to_pandas()]
    for given in arrow:
        got = uc.from_arrays(given).to_numpy()
        assert (got["block"].tolist(), got["write"].tolist()) == ([3, 1, 3], [False, True, False]), type(given)
    chunked = pa.chunked_array([[3], [1, 3]])
    for given in [chunked, chunked.combine_chunks(), pd.Series([3, 1, 3]), table["block"]]:
        assert uc.from_arrays(given).to_numpy("block").tolist() == [3, 1, 3], type(given)
    trace = uc.synth.zipf(keys=50, requests=1000, writes=0.2, seed=3)
    out = pa.table(trace)
    assert out.num_rows == 1000 and out.schema.field("block").type == pa.uint64()
    assert [b.num_rows for b in trace.to_arrow(400)] == [400, 400, 200]
    again = uc.from_arrays(trace).to_numpy()
    for name, values in trace.to_numpy().items():
        assert (values == again[name]).all(), name
    assert (trace.to_pandas()["block"].to_numpy() == out["block"].to_numpy()).all()


@pytest.mark.parametrize("pattern", ["zipf", "uniform", "scan", "loop", "phased", "mixed"])
def test_loads_are_those_of_the_command_line(undercroft, tmp_path, pattern):
    path = tmp_path / "t.csv"
    words = ["-n", 3000, "--keys", 100, "--alpha", 0.8, "--seed", 7, "--writes", "25%", "--rate", 1000, "--phase", 500]
    undercroft("trace", "synth", pattern, path, *words, "--mix", "zipf=1,loop=1,scan=2", json_output=False)
    own = {
        "zipf": lambda **k: uc.synth.zipf(100, 3000, 0.8, **k),
        "uniform": lambda **k: uc.synth.uniform(100, 3000, **k),
        "scan": lambda **k: uc.synth.scan(3000, **k),
        "loop": lambda **k: uc.synth.loop(100, 3000, **k),
        "phased": lambda **k: uc.synth.phased(100, 3000, 0.8, phase=500, **k),
        "mixed": lambda **k: uc.synth.mixed(100, 3000, 0.8, zipf=1, loop=1, scan=2, **k),
    }[pattern](seed=7, writes=0.25, rate=1000)
    written, made = uc.open_trace(path).to_numpy(), own.to_numpy()
    for name in ("block", "write", "time_ns"):
        assert (written[name] == made[name]).all(), name
    assert own.info()["footprint_blocks"] == own.footprint() == len(set(made["block"].tolist()))


@pytest.mark.parametrize("bad", [{"keys": 0}, {"alpha": -1.0}, {"writes": 1.5}, {"rate": 0}, {"alpha": float("nan")}])
def test_loads_that_make_no_sense_are_refused(bad):
    with pytest.raises(uc.Error, match=next(iter(bad))):
        uc.synth.zipf(**bad)


def test_info_is_that_of_the_command_line(undercroft, tmp_path):
    path = tmp_path / "t.csv"
    undercroft("trace", "synth", "mixed", path, "-n", 5000, "--writes", "10%", json_output=False)
    assert [uc.open_trace(path).info()] == undercroft("trace", "info", path)


def test_info_of_shared_traces_is_that_of_the_command_line(undercroft, shared):
    paths = [shared / "traces/block" / name for name in ("arc-OLTP.lis.zst", "cloudPhysicsIO.vscsi")]
    assert [uc.open_trace(p).info() for p in paths] == undercroft("trace", "info", *paths)
