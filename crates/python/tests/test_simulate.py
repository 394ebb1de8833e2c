"""Simulations: the counts of the command line, whatever goes in; Ctrl-C and other threads come through."""

import _thread
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import undercroft as uc

ENDLESS = 2**62


@pytest.fixture(scope="module")
def written(undercroft, tmp_path_factory):
    """A load with writes, in a file."""
    path = tmp_path_factory.mktemp("traces") / "mixed.csv"
    words = ["-n", 60_000, "--keys", 3000, "--writes", "30%", "--seed", 5]
    undercroft("trace", "synth", "mixed", path, *words, json_output=False)
    return path


def without_time(document):
    return {k: v for k, v in document.items() if k not in ("seconds", "error", "trace", "results")}


def check(result, document):
    assert result.rows == document["results"]
    about = {k: getattr(result, k) for k in without_time(document)}
    assert about == without_time(document)


def test_every_policy_counts_as_on_the_command_line(undercroft, written):
    sizes = ["0.5%", "10%", "1000blocks", "1MiB"]
    document = undercroft("sim", written, "--policy", "all", "--size", ",".join(sizes))
    result = uc.simulate(uc.open_trace(written), "all", sizes)
    assert len(result.rows) == 4 * len(uc.policies("all")) and any(r["write_misses"] for r in result.rows)
    check(result, document)
    arrays = uc.from_arrays(**uc.open_trace(written).to_numpy())
    assert uc.simulate(arrays, "all", sizes).rows == result.rows
    assert uc.simulate(written, "all", sizes, jobs=1).rows == result.rows


def test_opt_counts_as_on_the_command_line_and_no_policy_misses_less(undercroft, written):
    document = undercroft("sim", written, "--policy", "all,opt,opt-bypass", "--size", "10%")
    result = uc.simulate(written, ["all", "opt", "opt-bypass"], "10%")
    check(result, document)
    least = result.miss_ratio("opt")
    assert result.miss_ratio("opt-bypass") <= least
    assert all(least <= result.miss_ratio(policy) for policy in uc.policies("all"))


def test_warm_up_limit_footprint_and_block_size_are_those_of_the_command_line(undercroft, written):
    words = ["--warm-up", 5000, "--limit", 30_000, "--footprint", 2000, "--block-size", "64KiB"]
    document = undercroft("sim", written, "--policy", "lru,arc", "--size", "10%,16MiB", *words)
    given = dict(warm_up=5000, limit=30_000, footprint=2000, block_size="64KiB")
    check(uc.simulate(written, ["lru", "arc"], ["10%", "16MiB"], **given), document)


def test_shared_traces_count_as_on_the_command_line(undercroft, shared):
    paths = sorted((shared / "traces/block").glob("*.zst")) + [shared / "traces/block/cloudPhysicsIO.vscsi"]
    assert len(paths) > 1, "there are shared traces"
    words = ["--policies", "lru,s3-fifo,arc", "--sizes", "1%,1GiB", "--limit", 200_000]
    compared = undercroft("compare", *paths, *words)
    for path, document in zip(paths, compared["traces"], strict=True):
        # where sizes are in bytes the command line splits requests that have some, and takes keys for blocks of 4 KiB
        trace = uc.open_trace(path, block_size="4KiB") if path.suffix == ".vscsi" else path
        result = uc.simulate(trace, "lru,s3-fifo,arc", ["1%", "1GiB"], limit=200_000, block_size="4KiB")
        check(result, document)


def test_sizes_may_be_blocks_and_a_scalar():
    blocks = np.array([1, 2, 3] * 10)
    result = uc.simulate(blocks, "lru", 3)
    assert (result.rows[0]["capacity_blocks"], result.rows[0]["misses"]) == (3, 3)
    assert result.rows == uc.simulate(blocks, ["lru"], ["3blocks"]).rows
    assert uc.simulate(blocks, "lru", np.array([2, 3])).miss_ratio("lru", 2) == 1.0
    assert uc.simulate(pa.array([1, 1]), "lru,fifo", 1).miss_ratio("fifo") == 0.5
    assert uc.simulate([], "lru", 5).rows[0]["accesses"] == 0


def test_results_become_frames_and_tables(written):
    result = uc.simulate(written, ["lru", "fifo"], ["1%", "10%"])
    frame = result.to_pandas()
    assert list(frame["policy"]) == ["lru", "fifo"] * 2 and set(frame["trace"]) == {str(written)}
    assert frame.drop(columns="trace").to_dict("records") == result.rows
    assert result.to_arrow().drop_columns("trace").to_pylist() == result.rows
    assert result.miss_ratio("lru", "1%") == result.rows[0]["miss_ratio"]
    with pytest.raises(uc.Error, match="2 results are of lru"):
        result.miss_ratio("lru")


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ({"policies": "lur"}, "known are fifo, lru"),
        ({"policies": []}, "at least one policy"),
        ({"sizes": []}, "one size"),
        ({"sizes": "512M"}, "512MiB"),
        ({"sizes": "0%"}, "5%"),
        ({"sizes": 2**31}, "larger than"),
        ({"sizes": [2**30] * 20}, "of memory together"),
        ({"sizes": -1}, "a size is -1"),
        ({"jobs": 0}, "1 to 1024"),
        ({"block_size": 0}, "block_size=0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, needle):
    with pytest.raises(uc.Error, match=needle):
        uc.simulate([1, 2, 3], **arguments)


def test_damage_raises_with_the_result_of_what_comes_before(tmp_path):
    path = tmp_path / "bad.lis"
    path.write_text("1 1 0 0\n1 1 0 1\nx\n")
    with pytest.raises(uc.Error, match="record 3 at byte 16") as caught:
        uc.simulate(path, "lru", 10)
    result = caught.value.result
    assert (result.complete, result.accesses, result.rows[0]["misses"]) == (False, 2, 1)


def test_ctrl_c_ends_what_would_never_end():
    endless = uc.synth.uniform(keys=100, requests=ENDLESS)

    def interrupt(done):
        _thread.interrupt_main()

    for work in (
        lambda: uc.simulate(endless, "lru", 10, progress=interrupt),
        lambda: uc.simulate(endless, "lru", "10%", progress=interrupt),
        lambda: uc.curve(endless, progress=interrupt),
        lambda: uc.curve(endless, "mini:fifo", progress=interrupt),
        lambda: endless.info(progress=interrupt),
        lambda: endless.footprint(progress=interrupt),
    ):
        with pytest.raises(KeyboardInterrupt):
            work()


def test_other_threads_go_on_meanwhile():
    # a thread that never got the interpreter could not interrupt the other, which would go on forever
    def later():
        time.sleep(0.2)  # until the other is at work
        _thread.interrupt_main()

    threads = []
    for work in (
        lambda t: uc.simulate(t, "lru", 10),
        lambda t: uc.curve(t),
        lambda t: t.info(),
    ):
        threads.append(threading.Thread(target=later))
        with pytest.raises(KeyboardInterrupt):
            threads[-1].start()
            work(uc.synth.uniform(keys=100, requests=ENDLESS))
        threads[-1].join()


def test_what_progress_raises_ends_the_work_and_comes_out():
    seen = []

    def progress(done):
        seen.append(done)
        if len(seen) == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        uc.simulate(uc.synth.scan(requests=ENDLESS), "fifo", 10, progress=progress)
    assert 0 < seen[0] < seen[1]
