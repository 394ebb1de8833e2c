"""Plots: the lines are those of the numbers; a missing package is named with the command that installs it."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import undercroft as uc


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_curves_are_drawn_with_their_hulls():
    trace = uc.synth.zipf(keys=200, requests=5000)
    exact, mini = uc.curve(trace), uc.curve(trace, "mini:fifo", rate=1.0)
    ax = uc.plot.curves({"lru": exact, "fifo": mini}, hull=True)
    lines = {line.get_label(): line for line in ax.lines}
    assert {"lru", "fifo"} <= set(lines) and len(ax.lines) == 4
    for name, curve in (("lru", exact), ("fifo", mini)):
        x, y = lines[name].get_data()
        assert np.allclose(y, curve.at(np.asarray(x, np.uint64)))
    assert lines["fifo"].get_xdata().tolist() == mini.sizes.tolist(), "what was not simulated is not drawn"
    again = plt.subplots()[1]
    assert uc.plot.curves(exact, ax=again) is again and uc.plot.curves([exact, mini]).get_legend() is not None
    assert len(uc.plot.curves(uc.Curve(10, [5, 7, 9], [5, 4, 0])).lines) == 1


def test_policies_are_compared():
    result = uc.simulate(uc.synth.zipf(keys=200, requests=5000), ["lru", "fifo"], ["50%", "1%"])
    ax = uc.plot.compare(result)
    assert [line.get_label() for line in ax.lines] == ["lru", "fifo"]
    x, y = ax.lines[0].get_data()
    assert list(x) == sorted(x) and y[0] == result.miss_ratio("lru", "1%")
    assert len(uc.plot.compare([result, result]).lines) == 4


def test_working_sets_are_drawn():
    ax = uc.plot.working_set(uc.curve(uc.synth.loop(keys=50, requests=1000), window=100))
    assert ax.lines[0].get_ydata().tolist() == [50.0] * 10
    with pytest.raises(uc.Error, match="window="):
        uc.plot.working_set(uc.curve([1, 2]))
    for nothing in (lambda: uc.plot.curves([]), lambda: uc.plot.compare([])):
        with pytest.raises(uc.Error, match="no .* to draw"):
            nothing()


@pytest.mark.parametrize(
    ("module", "work"),
    [
        ("matplotlib.pyplot", lambda: uc.plot.compare(uc.simulate([1, 2], "lru", 1))),
        ("pandas", lambda: uc.simulate([1, 2], "lru", 1).to_pandas()),
        ("pyarrow", lambda: uc.from_arrays([1]).to_arrow()),
        ("fsspec", lambda: uc.sweep.run("a.lis", "lru", "1%", "out")),
    ],
)
def test_a_missing_package_is_named(monkeypatch, module, work):
    package = module.split(".")[0]
    for loaded in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, loaded)

    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(uc.Error, match=f"needs {package}, which is not installed: pip install {package}"):
        work()
