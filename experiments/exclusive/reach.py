"""What was to be reached, and whether it was.

Owns the criteria. Invariant: every cell that was measured is judged by every criterion that is about it, and what could
not be judged says so.
"""

from . import derive, reference

POINTS_BELOW_PROTOTYPE = 0.03
GAIN = {0.25: 2.0, 0.5: 1.4}
GAIN_LOADS = ("uniform", "zipf")
POINTS_BELOW_INCLUSIVE = 0.02
OF_PERFECT = 0.8
OF_PERFECT_N = (0.25, 0.5)
READ_LOADS = ("uniform", "zipf", "seq", "anon", "pool", "tree")
ARM = "undercroft-auto"


def verdicts(cell):
    """(criterion, what was wanted, what was measured, whether it was reached or None) of a cell."""
    record = cell["arms"].get(ARM)
    if not record or "absent" in record:
        return []
    ours = derive.saved(record)
    best, perfect = derive.best_inclusive(cell), derive.perfect(cell)
    known = reference.prototype(cell["load"], cell["zeroing"], cell["mglru"], cell["n"])
    rows = []

    def judge(criterion, wanted):
        rows.append((criterion, wanted, ours, None if wanted is None or ours is None else ours >= wanted))

    if known:
        judge("the prototype's figure less 3 points", known["hx"] - POINTS_BELOW_PROTOTYPE)
    if cell["load"] in GAIN_LOADS and cell["n"] in GAIN:
        gain = GAIN[cell["n"]]
        judge(f"{gain:g}x the best inclusive", None if best is None else gain * best)
    judge("at most 2 points less than the best inclusive", None if best is None else best - POINTS_BELOW_INCLUSIVE)
    if cell["zeroing"] and cell["n"] in OF_PERFECT_N and cell["load"] in READ_LOADS:
        judge("80 % of perfect exclusive", None if perfect is None else OF_PERFECT * perfect)
    return rows
