"""What was to be reached, and whether it was.

Owns the criteria. Invariant: every criterion is judged, from the results alone, and what could not be judged says so.
"""

from . import derive

SHARES_WITHIN = 0.03
SETTLES_SECONDS = 10.0
WORSE_THAN_STATIC = 0.03
FEWER_MISSES = 0.45
OF_BEST = 0.05
MANY_DISKS = 0.05
THESIS = {"database": -0.25, "file": -0.17, "web": -0.14}
PAPER_CACHE = 0.1
PAPER_RATE = 0.95
# 40 MB of 372 (table 5.2).
PAPER_PART = 40 / 372
PAPER_HITS = 1.15
# Tables 5.3 and 5.5, and what stands below them: compile time, cache, hit ratio.
PAPER_COMPILE = 268 / 293 - 1
PAPER_COMPILE_CACHE = 100 / 120
PAPER_COMPILE_HITS = 0.984792 - 0.989283
DYNAMIC = ("donor", "utility", "target", "paper")


def signed(value):
    return "-" if value is None else f"{100 * value:+.1f} %"


def verdicts(cells):
    """(where, criterion, wanted, measured, whether it was reached, or None) of everything."""
    rows = []
    for name, judge in (
        ("a-locality", locality),
        ("b-derivative", derivative),
        ("c-phased", phased),
        ("d-per-file", per_file),
        ("d-tenth", tenth),
        ("d-kernel", kernel),
        ("e-simulated", simulated),
        ("f-many-disks", many_disks),
    ):
        found = [cell for key, cell in cells.items() if key.startswith(name)]
        rows += [row for cell in found for row in judge(cell)] or [(name, "all of it", "", "not run", None)]
    return rows


def holds(value, test):
    """Whether a test holds of a value, None if there is none."""
    return None if value is None else test(value)


def no_worse(where, changes):
    """The rows that say that no controller does worse than `static`."""
    bound = f"at most {100 * WORSE_THAN_STATIC:.0f} % more"
    return [
        (
            where,
            f"misses of `{arm}` against `static`",
            bound,
            signed(change),
            holds(change, lambda c: c <= WORSE_THAN_STATIC),
        )
        for arm, change in changes.items()
    ]


def locality(cell):
    where = f"(a) {cell['policy']}"
    hits = {arm: derive.figure(cell, arm, "high locality", "hit_ratio") for arm in cell["arms"]}
    rows = []
    comparisons = (
        ("static", "unified", "a static partition keeps more hits for the load of high locality than one cache"),
        ("utility", "static", "a dynamic one more than a static one"),
    )
    for better, worse, words in comparisons:
        if hits.get(better) is None or hits.get(worse) is None:
            rows.append((where, words, "more", "-", None))
        else:
            rows.append(
                (
                    where,
                    words,
                    "more",
                    f"{100 * hits[better]:.1f} % against {100 * hits[worse]:.1f} %",
                    hits[better] > hits[worse],
                )
            )
    change = derive.compared(cell, "utility", "static", derive.turn_misses)
    return rows + no_worse(where, {"utility": None if change is None else change - 1})


def contended(run):
    """The steps in which all contend."""
    return [step for step in run["steps"] if "lent" not in step]


def step_error(step):
    """The largest difference from what was wanted, of any node, relative to what was wanted."""
    return max((step["measured"][name] / part - 1 for name, part in step["wanted"].items()), key=abs)


def derivative(cell):
    rows = []
    for run in derive.runs(cell, "static"):
        for step in run["steps"]:
            settled = step["settled_seconds"]
            took = "not settled" if settled is None else f"{settled:.1f} s"
            if "lent" in step:
                busy, idle = step["lent"]
                lent = (step["measured"][busy] - step["wanted"][busy]) / step["wanted"][idle]
                rows.append(
                    (
                        "(b)",
                        f"{step['title']}: its share is lent",
                        "at least half of it",
                        f"{100 * lent:.0f} %, {took}",
                        lent >= 0.5,
                    )
                )
                continue
            error = step_error(step)
            rows.append(
                (
                    "(b)",
                    f"{step['title']}: shares by weight",
                    f"within {100 * SHARES_WITHIN:.0f} %",
                    f"at most {abs(100 * error):.1f} % off",
                    abs(error) <= SHARES_WITHIN,
                )
            )
            rows.append(
                (
                    "(b)",
                    f"{step['title']}: settles",
                    f"within {SETTLES_SECONDS:.0f} s",
                    took,
                    settled is not None and settled <= SETTLES_SECONDS,
                )
            )
    return rows


def phased(cell):
    rows = []
    for server, wanted in THESIS.items():
        for key, words in (
            ("mean_us", "measured"),
            ("computed_us", f"if a hit took {derive.HIT_US:.0f} us and a miss {derive.MISS_US:.0f}"),
        ):
            change = derive.server_change(cell, "utility", key, server, "fixed")
            title = f"response time of the {server} server under `utility`, against equal static shares, {words}"
            rows.append(
                ("(c)", title, f"{100 * wanted:.0f} %", signed(change), holds(change, lambda c, w=wanted: c <= w))
            )
    change = derive.server_change(cell, "utility", "misses", base="fixed")
    rows.append(
        (
            "(c)",
            "misses of `utility` against equal static shares (wanted of the simulation)",
            f"-{100 * FEWER_MISSES:.0f} %",
            signed(change),
            holds(change, lambda c: c <= -FEWER_MISSES),
        )
    )
    rows += no_worse("(c)", {arm: derive.server_change(cell, arm, "misses") for arm in cell["arms"] if arm in DYNAMIC})
    return rows


def per_file(cell):
    store = cell["store_mib"] * derive.MIB
    rows = []
    for arm in ("utility", "paper"):
        cached = derive.middle(derive.mean_cached(run, "files:sequential") for run in derive.runs(cell, arm))
        part = None if cached is None else cached / store
        rate = derive.compared(cell, arm, "unified", lambda run: derive.of_load(run, "sequential")["iops"])
        hits = derive.compared(cell, arm, "unified", derive.overall_hits)
        random = derive.compared(cell, arm, "unified", lambda run: derive.of_load(run, "random")["hit_ratio"])
        of_random = None if random is None else random - 1
        title = f"`{arm}`"
        rows += [
            (
                "(d)",
                f"{title}: cache of the sequential reader, of the store",
                f"at most {100 * PAPER_CACHE:.0f} %",
                "-" if part is None else f"{100 * part:.1f} %",
                holds(part, lambda p: p <= PAPER_CACHE),
            ),
            (
                "(d)",
                f"{title}: its I/O rate, of that in one LRU",
                f"at least {100 * PAPER_RATE:.0f} %",
                "-" if rate is None else f"{100 * rate:.0f} %",
                holds(rate, lambda r: r >= PAPER_RATE),
            ),
            (
                "(d)",
                f"{title}: hit ratio of both, against one LRU",
                f"{100 * (PAPER_HITS - 1):+.0f} %",
                "-" if hits is None else f"{signed(hits - 1)} (random reader {signed(of_random)})",
                holds(hits, lambda h: h >= PAPER_HITS),
            ),
        ]
    changes = {arm: derive.compared(cell, arm, "static", derive.turn_misses) for arm in cell["arms"] if arm in DYNAMIC}
    return rows + no_worse("(d)", {arm: None if c is None else c - 1 for arm, c in changes.items()})


def tenth(cell):
    rows = []
    for load in ("random", "sequential"):
        rate = derive.compared(cell, "utility", "unified", lambda run, one=load: derive.of_load(run, one)["iops"])
        rows.append(
            (
                "(d) a tenth",
                (
                    f"`utility` with a tenth of the store: I/O rate of the {load} reader, of that in one LRU with all"
                    " of it"
                ),
                f"at least {100 * PAPER_RATE:.0f} %",
                "-" if rate is None else f"{100 * rate:.0f} %",
                holds(rate, lambda r: r >= PAPER_RATE),
            )
        )
    part = derive.compared(cell, "utility", "unified", derive.cached_of_all)
    rows.append(
        (
            "(d) a tenth",
            "the cache that this takes, of that of one LRU",
            f"at most {100 * PAPER_PART:.0f} %",
            "-" if part is None else f"{100 * part:.0f} %",
            holds(part, lambda p: p <= PAPER_PART),
        )
    )
    return rows


def kernel(cell):
    absent = next((record["absent"] for record in cell["arms"].values() if "absent" in record), None)
    if not derive.runs(cell, "unified"):
        return [
            (
                "(d) kernel",
                "a kernel-tree build on per-file caches (table 5.5)",
                "less time",
                f"not run: {absent}" if absent else "not run",
                None,
            )
        ]
    rows = []
    for arm in cell["arms"]:
        if arm in ("unified", "static"):
            continue
        seconds, cached = (derive.build_change(cell, arm, key) for key in ("seconds", "cached_mean"))
        hits, base = (derive.build_figure(cell, a, "hit_ratio") for a in (arm, "unified"))
        lost = None if None in (hits, base) else hits - base
        part = None if cached is None else cached + 1
        title = f"`{arm}`" if arm in DYNAMIC else cell["arms"][arm]["title"]
        rows += [
            (
                "(d) kernel",
                f"{title}: compile time, against one LRU",
                f"{100 * PAPER_COMPILE:.1f} %",
                signed(seconds),
                holds(seconds, lambda s: s <= PAPER_COMPILE),
            ),
            (
                "(d) kernel",
                f"{title}: cache used on average, of that of one LRU",
                f"at most {100 * PAPER_COMPILE_CACHE:.0f} %",
                "-" if part is None else f"{100 * part:.0f} %",
                holds(part, lambda p: p <= PAPER_COMPILE_CACHE),
            ),
            (
                "(d) kernel",
                f"{title}: hit ratio, against one LRU",
                f"at most {abs(100 * PAPER_COMPILE_HITS):.2f} points less",
                "-" if lost is None else f"{100 * lost:+.2f} points",
                holds(lost, lambda p: p >= PAPER_COMPILE_HITS),
            ),
        ]
    return rows + no_worse(
        "(d) kernel",
        {arm: derive.build_change(cell, arm, "misses", "static") for arm in cell["arms"] if arm in DYNAMIC},
    )


def simulated(cell):
    rows = []
    for policy in cell["arms"]:
        where, table = f"simulated, {policy}", derive.simulated(cell, policy)
        phased = table.get("phased", {})
        utility, equal, best = (
            phased.get(arm) for arm in ("utility", "equal static shares", "curves known in advance")
        )
        if None in (utility, equal, best):
            rows.append((where, "the phased load", "", "not run", None))
            continue
        rows.append(
            (
                where,
                "misses of `utility` on the phased load, against equal static shares",
                f"-{100 * FEWER_MISSES:.0f} %",
                signed(utility / equal - 1),
                utility <= (1 - FEWER_MISSES) * equal,
            )
        )
        rows.append(
            (
                where,
                "the same, against the best known (curves known in advance)",
                f"at most +{100 * OF_BEST:.0f} %",
                signed(utility / best - 1),
                utility <= (1 + OF_BEST) * best,
            )
        )
        for arm in ("donor, 1 rounds", "donor, 4 rounds", "utility", "paper"):
            worst = max(
                ((arms[arm] / arms["static"] - 1, load) for load, arms in table.items() if arm in arms), default=None
            )
            if worst:
                rows.append(
                    (
                        where,
                        f"misses of `{arm}` against `static`, worst of all loads ({worst[1]})",
                        f"at most +{100 * WORSE_THAN_STATIC:.0f} %",
                        signed(worst[0]),
                        worst[0] <= WORSE_THAN_STATIC,
                    )
                )
    return rows


def many_disks(cell):
    """A thousand disks against one; with the two hundred that two hundred nodes measure, against one that is
    measured."""
    rows = []
    for run in derive.runs(cell, "hits"):
        found = {row["case"]: row for row in run["rows"]}
        for case in ("1000 disks", "1000 disks, 200 measured"):
            for key, words in (("ratio", ""), ("prefetched_ratio", ", blocks prefetched as workers do")):
                more = found[case][key] - 1
                rows.append(
                    (
                        "(f)",
                        f"a RAM hit on one of {case}, against {found[case]['beside']}{words}",
                        f"at most {100 * MANY_DISKS:.0f} % more",
                        signed(more),
                        more <= MANY_DISKS,
                    )
                )
    return rows
