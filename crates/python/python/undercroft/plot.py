"""Plots of curves and results, on matplotlib.

Owns which line is what. Imports matplotlib when a plot is drawn, not before. Every function draws into the axes that it
is given, or into new ones, and returns them.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from undercroft._needs import needed
from undercroft._undercroft import Error
from undercroft.curves import Curve
from undercroft.simulation import SimulationResult

POINTS = 300
"""Points of a line, where a curve is known at every size."""


def _axes(ax: Any) -> Any:
    pyplot = needed("matplotlib.pyplot", "a plot")
    return pyplot.subplots()[1] if ax is None else ax


def curves(
    curves: Union[Curve, Sequence[Curve], Mapping[str, Curve]], ax: Optional[Any] = None, *, hull: bool = False
) -> Any:
    """Miss ratios by size, a line for each curve, within the band of its errors; with `hull`, the convex hull of each,
    too."""
    if isinstance(curves, Curve):
        curves = [curves]
    if not isinstance(curves, Mapping):
        curves = {_label(c, i): c for i, c in enumerate(curves)}
    if not curves:
        raise Error("there is no curve to draw")
    ax = _axes(ax)
    for name, curve in curves.items():
        sizes = _sizes(curve)
        (line,) = ax.plot(sizes, curve.at(sizes), label=name, marker="o" if curve.simulated else None)
        if curve.errors.any():
            ratios, errors = curve.miss_ratios, curve.errors
            ax.fill_between(
                curve.sizes, ratios - errors, ratios + errors, alpha=0.2, color=line.get_color(), linewidth=0
            )
        if hull:
            ax.plot(sizes, curve.hull().at(sizes), linestyle=":", color=line.get_color())
    return _finish(ax)


def compare(results: Union[SimulationResult, Sequence[SimulationResult]], ax: Optional[Any] = None) -> Any:
    """Miss ratios by size, a line for each policy of each result."""
    results = [results] if isinstance(results, SimulationResult) else list(results)
    if not any(r.rows for r in results):
        raise Error("there is no result to draw")
    ax = _axes(ax)
    for result in results:
        for policy in dict.fromkeys(row["policy"] for row in result.rows):
            points = sorted((r["capacity_blocks"], r["miss_ratio"]) for r in result.rows if r["policy"] == policy)
            label = policy if len(results) == 1 else f"{result.trace} {policy}"
            ax.plot(*zip(*points), marker="o", label=label)
    return _finish(ax)


def working_set(curve: Curve, ax: Optional[Any] = None) -> Any:
    """Distinct blocks of each window, and those of them that are new, over time or requests."""
    if curve.windows is None:
        raise Error('no windows were asked for; give curve(..., window="60s") or window=100_000 requests')
    ax = _axes(ax)
    windows, start = curve.windows, curve.windows["start_ns"]
    timed = start.size > 0 and bool(start[-1] > start[0])
    x = (start - start[0]) / 1e9 if timed else windows["first_request"]
    ax.step(x, windows["blocks"], where="post", label="distinct blocks")
    ax.step(x, windows["new_blocks"], where="post", label="new blocks")
    ax.set_xlabel("seconds" if timed else "requests")
    ax.set_ylabel("blocks")
    ax.set_ylim(bottom=0)
    ax.legend()
    return ax


def _label(curve: Curve, index: int) -> str:
    words = [curve.trace, curve.policy, curve.method]
    return " ".join(w for w in words if w) or f"curve {index + 1}"


def _sizes(curve: Curve) -> Any:
    known = curve.points()[0][1:]
    if curve.simulated or known.size <= 2:
        return curve.sizes if curve.sizes.size else known
    last = float(max(int(curve.sizes[-1]) if curve.sizes.size else 0, curve.footprint_blocks or 0, int(known[-1]), 2))
    return np.unique(np.round(np.geomspace(1.0, last, POINTS)).astype(np.uint64))


def _finish(ax: Any) -> Any:
    ax.set_xscale("log")
    ax.set_xlabel("blocks")
    ax.set_ylabel("miss ratio")
    ax.set_ylim(0, 1.02)
    ax.legend()
    return ax
