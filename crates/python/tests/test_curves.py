"""Curves and partitions: the numbers of the command line, and of naive reference models."""

import itertools
import struct

import numpy as np
import pytest

import undercroft as uc

SIZES = ["1%", "5%", "1000", "4MiB", "100%"]


@pytest.fixture(scope="module")
def written(undercroft, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name, pattern in (("web", "zipf"), ("db", "mixed")):
        words = ["-n", 60_000, "--keys", 4000, "--writes", "30%", "--alpha", 0.9]
        undercroft("trace", "synth", pattern, folder / f"{name}.csv", *words, json_output=False)
    return folder


def distances(blocks):
    """Of each access, how many other blocks came since the same: the slow way."""
    stack = []
    for block in blocks:
        if block in stack:
            at = stack.index(block)
            yield len(stack) - at
            stack.pop(at)
        else:
            yield None
        stack.append(block)


def test_an_exact_curve_is_that_of_stack_distances():
    trace = uc.synth.zipf(keys=60, requests=3000, alpha=0.7, seed=2)
    found = list(distances(trace.to_numpy("block").tolist()))
    curve = uc.curve(trace)
    for size in range(1, 61):
        assert curve.misses_at(size) == sum(d is None or d > size for d in found), size
    assert curve.requests == 3000 and curve.footprint_exact


@pytest.mark.parametrize("method", ["exact", "shards", "paired", "aet", "mini", "mini:s3-fifo", "exact:fifo"])
def test_curves_are_those_of_the_command_line(undercroft, written, method):
    path = written / "web.csv"
    name, _, policy = method.partition(":")
    words = ["--method", name, "--policy", policy or "lru", "--sizes", ",".join(SIZES), "--rate", "10%", "--seed", 3]
    extra = ["--window", "1s", "--zipf"]
    (report,) = undercroft("curve", path, *words, *extra)["traces"]
    sizes = [int(s) if s.isdigit() else s for s in SIZES]
    curve = uc.curve(path, method, sizes=sizes, rate=0.1, seed=3, window="1s", zipf=True, block_size="4KiB")
    points = report["curves"][0]["points"]
    assert curve.sizes.tolist() == [p["blocks"] for p in points]
    assert curve.misses.tolist() == [p["misses"] for p in points]
    assert curve.miss_ratios.tolist() == [p["miss_ratio"] for p in points]
    assert curve.errors.tolist() == [p["miss_ratio_error"] for p in points]
    assert curve.to_pandas()["miss_ratio_error"].tolist() == curve.errors.tolist()
    assert curve.errors.any() == (name in ("shards", "paired", "aet"))
    sample = report["curves"][0].get("sample")
    assert curve.sampled == (sample and (sample["count"], sample["of"]))
    assert curve.requests == report["curves"][0]["requests"]
    assert curve.working_set() == report["curves"][0]["working_set_blocks"]
    assert (curve.footprint_blocks, curve.footprint_exact) == (report["footprint_blocks"], report["footprint_exact"])
    assert curve.zipf == report["zipf"]
    columns = {key: [w[key] for w in report["windows"]] for key in report["windows"][0]}
    assert {key: array.tolist() for key, array in curve.windows.items()} == columns
    assert list(curve.windows_to_pandas().columns) == list(columns)
    assert curve.to_pandas()["bytes"].tolist() == [p["bytes"] for p in points]
    assert curve.to_arrow()["misses"].to_pylist() == curve.misses.tolist()


def test_shared_traces_have_the_curves_of_the_command_line(undercroft, shared):
    for name in ("arc-OLTP.lis.zst", "cloudPhysicsIO.vscsi"):
        path = shared / "traces/block" / name
        (report,) = undercroft("curve", path, "--method", "shards", "--of", "all")["traces"]
        curve = uc.curve(path, "shards", block_size="4KiB")
        assert curve.misses.tolist() == [p["misses"] for p in report["curves"][0]["points"]]


def test_reads_and_writes_are_told_apart(undercroft, written):
    path = written / "db.csv"
    for of in ("reads", "writes"):
        (report,) = undercroft("curve", path, "--of", of)["traces"]
        curve = uc.curve(path, of=of)
        assert curve.misses.tolist() == [p["misses"] for p in report["curves"][0]["points"]]


def test_a_curve_is_asked_at_any_size():
    curve = uc.Curve(100, [10, 20, 40], [60, 50, 0], block_bytes=1 << 20)
    assert curve.at(10) == 0.6 and curve.at("10MiB") == 0.6 and curve.misses_at(15) == 55.0
    assert curve.at([0, 10, "20MiB"]).tolist() == [1.0, 0.6, 0.5]
    assert curve.at(np.array([40, 1000])).tolist() == [0.0, 0.0]
    assert curve.size_for(0.5) == 20 and curve.size_for(-1.0) is None
    assert curve.marginal(20, 20) == 2.5
    assert curve.hull().misses_at(20) == 40.0, "straight from (10, 60) to (40, 0)"
    assert curve.scaled(200).misses_at(10) == 120.0 and curve.stretched(2).misses_at(20) == 60.0
    with pytest.raises(uc.Error, match="needs the footprint"):
        curve.at("10%")
    with pytest.raises(uc.Error, match="whole numbers"):
        curve.at(np.array([0.5]))
    for bad in ((float("nan"), [1], [1]), (-1, [1], [1]), (5, [1, 2], [1]), (5, [1], [float("inf")])):
        with pytest.raises(uc.Error):
            uc.Curve(*bad)


def test_curves_merge():
    one, other = uc.Curve(100, [10], [0]), uc.Curve(100, [20], [0])
    best = one.merge(other, how="partitioned")
    assert best.misses_at(10) == 100.0 and best.misses_at(30) == 0.0
    assert one.merge(other).requests == 200 and one.merge(other).misses_at(10) > best.misses_at(10)
    with pytest.raises(uc.Error, match="shared or partitioned"):
        one.merge(other, how="mixed")
    with pytest.raises(uc.Error, match="one block_size"):
        one.merge(uc.Curve(1, [1], [1], block_bytes=512))


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ({"method": "magic"}, "exact, shards, paired, aet, mini"),
        ({"method": "shards:arc"}, "mini:arc"),
        ({"method": "mini:arc", "policy": "lru"}, "leave one out"),
        ({"method": "mini", "of": "reads"}, "leave one out"),
        ({"of": "some"}, "all, reads or writes"),
        ({"rate": 0.0}, "rate=0"),
        ({"samples": 1000}, 'method="shards"'),
        ({"method": "shards", "samples": 3}, "64 or more"),
        ({"sizes": [0]}, "give a block or more"),
        ({"window": "5 days"}, "window"),
        ({"window": 0}, "window"),
        ({"policy": "lur"}, "known are"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, needle):
    with pytest.raises(uc.Error, match=needle):
        uc.curve([1, 2, 3], **arguments)


def test_sizes_in_bytes_are_not_mixed_with_requests_and_objects(tmp_path):
    wide, web = tmp_path / "wide.vscsi", tmp_path / "web.csv"
    record = "<IIIHHQQ"
    wide.write_bytes(b"".join(struct.pack(record, n, 65536, 1, 0x28, 0x100, n % 64 * 128, n) for n in range(128)))
    for ask in (lambda trace, size: uc.curve(trace, sizes=[size]), lambda trace, size: uc.simulate(trace, "lru", size)):
        with pytest.raises(uc.Error, match="open it with block_size="):
            ask(wide, "1MiB")
        ask(uc.open_trace(wide, block_size="4KiB"), "1MiB")
        ask(wide, 64)
        web.write_text("time,object,size\n1,7,100\n2,8,200000\n")
        with pytest.raises(uc.Error, match="in blocks or in percent"):
            ask(web, "1MiB")
        ask(web, "50%")
    assert uc.curve(uc.open_trace(wide, block_size="4KiB"), sizes=["4MiB"]).miss_ratios.tolist() == [0.5]


@pytest.mark.parametrize("method", ["dp", "greedy", "look-ahead"])
def test_partitions_are_those_of_the_command_line(undercroft, written, method):
    memory, bounds = "8MiB", ["--floor", "web=1MiB", "--ceiling", "db=6MiB"]
    plain = method.replace("-", "")
    words = ["--memory", memory, "--method", plain, *bounds]
    report = undercroft("partition", written / "web.csv", written / "db.csv", *words)
    curves = {name: uc.curve(written / f"{name}.csv", block_size="4KiB") for name in ("web", "db")}
    done = uc.partition(curves, memory, method, floors={"web": "1MiB"}, ceilings={"db": "6MiB"})
    assert done.method == report["method"] and done.left_blocks * 4096 == report["left_bytes"]
    for row, tenant in zip(done.rows, report["tenants"]):
        assert (row["name"], row["blocks"], row["bytes"]) == (
            tenant["name"],
            tenant["share_blocks"],
            tenant["share_bytes"],
        )
        assert (row["misses"], row["miss_ratio"]) == (tenant["misses"], tenant["miss_ratio"])
        assert (row["equal_misses"], row["proportional_misses"]) == (
            tenant["equal_misses"],
            tenant["proportional_misses"],
        )
    sums = report["misses"]
    assert (done.misses, done.equal_misses) == (sums["divided"], sums["equal"])
    assert (done.proportional_misses, done.shared_queue_misses) == (sums["proportional"], sums["shared_queue"])
    assert done.to_pandas()["blocks"].sum() == sum(done.blocks.values())


def test_dynamic_programming_finds_the_best_division():
    rng = np.random.default_rng(4)
    for _ in range(20):
        curves = {
            name: uc.Curve(100, np.arange(1, 13), np.sort(rng.uniform(0, 100, 12))[::-1]) for name in ("a", "b", "c")
        }
        best = min(
            sum(c.misses_at(int(p)) for c, p in zip(curves.values(), parts))
            for parts in itertools.product(range(13), repeat=3)
            if sum(parts) <= 12
        )
        assert uc.partition(curves, 12).misses == pytest.approx(best)


def test_divisions_that_make_no_sense_are_refused():
    curve = uc.Curve(10, [5], [0])
    for arguments, needle in [
        (({}, 10), "at least one tenant"),
        (({"a": uc.curve([1, 2, 1], "mini", policy="fifo", sizes=[1], rate=1.0)}, 10), "every size"),
        (({"a": curve}, 10, "magic"), "dp, greedy, lookahead"),
        (({"a": curve}, "1K"), "1KiB"),
        (({"a": curve, "b": uc.Curve(1, [1], [1], block_bytes=512)}, 10), "one block_size"),
    ]:
        with pytest.raises(uc.Error, match=needle):
            uc.partition(*arguments)
    with pytest.raises(uc.Error, match="no tenant is called b"):
        uc.partition({"a": curve}, 10, floors={"b": 1})
    with pytest.raises(uc.Error, match="floors sum to 20"):
        uc.partition({"a": curve}, 10, floors={"a": 20})
