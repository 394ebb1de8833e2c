"""The figures that ours are shown beside.

Owns numbers that others measured. Never computes. Two sources: Singleton, chapter 4 of Prateek Sharma, "Page Cache
Management in Virtual Environments" (dissertation, Indian Institute of Technology, Bombay), whose tables and figures are
named; and the measurements with a prototype on which the design of Undercroft's exclusive mode stands.
"""

# Hit ratios of the guests' misses in per cent, by load, zeroing, MGLRU; then N. A trace of real guests' transfers, put
# through simulated caches: LRU and W-TinyLFU inclusive, perfectly exclusive, and the placement `hx`.
PROTOTYPE = {
    ("uniform", False, False): {
        0.25: {"lru": 0, "tinylfu": 9, "perfect": 33, "hx": 30},
        0.5: {"lru": 9, "tinylfu": 25, "perfect": 66, "hx": 60},
        1.0: {"lru": 44, "tinylfu": 59, "perfect": 89, "hx": 89},
    },
    ("uniform", True, False): {
        0.25: {"lru": 0, "tinylfu": 9, "perfect": 32, "hx": 29},
        0.5: {"lru": 9, "tinylfu": 25, "perfect": 65, "hx": 46},
        1.0: {"lru": 44, "tinylfu": 59, "perfect": 89, "hx": 82},
    },
    ("zipf", True, False): {
        0.25: {"lru": 0, "tinylfu": 7, "perfect": 21, "hx": 17},
        0.5: {"lru": 6, "tinylfu": 17, "perfect": 28, "hx": 24},
        1.0: {"lru": 26, "tinylfu": 28, "perfect": 28, "hx": 28},
    },
    ("uniform", True, True): {
        0.25: {"lru": 0, "tinylfu": 12, "perfect": 33, "hx": 29},
        0.5: {"lru": 0, "tinylfu": 28, "perfect": 66, "hx": 58},
    },
    ("anon", False, False): {
        0.25: {"lru": 1, "tinylfu": 11, "perfect": 21, "hx": 18},
        0.5: {"lru": 14, "tinylfu": 26, "perfect": 33, "hx": 31},
        1.0: {"lru": 43, "tinylfu": 46, "perfect": 36, "hx": 47},
    },
    ("write", False, False): {
        0.25: {"lru": 1, "tinylfu": 8, "perfect": 23, "hx": 21},
        0.5: {"lru": 5, "tinylfu": 20, "perfect": 36, "hx": 31},
        1.0: {"lru": 30, "tinylfu": 38, "perfect": 38, "hx": 39},
    },
    # Either kind of zeroing.
    ("pool", None, False): {
        0.25: {"lru": 5, "tinylfu": 13, "perfect": 27, "hx": 24},
        0.5: {"lru": 17, "tinylfu": 26, "perfect": 54, "hx": 48},
        1.0: {"lru": 53, "tinylfu": 61, "perfect": 73, "hx": 73},
    },
}


def prototype(load, zeroing, mglru, n):
    """The prototype's figures for a cell, as shares of 1; {} where it was not measured."""
    found = PROTOTYPE.get((load, zeroing, mglru)) or PROTOTYPE.get((load, None, mglru)) or {}
    return {name: value / 100 for name, value in found.get(n, {}).items()}


# Singleton's figures: where they stand, and what they say of its Default, Fadvise and Singleton.
HIT_RATIO_SEQUENTIAL = {"where": "Figure 4.5", "default": 0.61, "fadvise": 0.49, "exclusive": 0.65}
HIT_RATIO_RANDOM = {"where": "Figure 4.5", "gain": 2.0}
THROUGHPUT_KB = {
    "seq": {"where": "Table 4.4", "default": 4920, "fadvise": 4800, "exclusive": 5000},
    "uniform": {"where": "Table 4.4", "default": 240, "fadvise": 280, "exclusive": 360},
    "zipf": {"where": "Table 4.4", "default": 265000, "fadvise": 260000, "exclusive": 270000},
}
DIRECT_BLOCK_READ = {"where": "Table 4.1", "direct": 36268, "default": 197328}
CACHE_SIZE_SMALLER = {"where": "Figure 4.7", "least": 2, "most": 10}
VMS_THAT_FIT = {"where": "Table 4.5", "default": 8, "fadvise": 8, "exclusive": 11}
RECLAIM = {
    "where": "Table 4.6",
    "default": {"scanned_per_s": 1839267, "efficiency": 0.0007},
    "exclusive": {"scanned_per_s": 7, "efficiency": 0.9987},
}
ISOLATION_SECONDS = {"where": "Table 4.7", "default": 3165, "fadvise": 3180, "exclusive": 2981}
HOST_JOB_SECONDS = {"where": "Table 4.8", "default": 65, "fadvise": 62, "exclusive": 60}
CPU_SHARE = {"where": "Table 4.9", "seq": 0.1774, "uniform": 0.1974, "zipf": 0.102}
PAGES_SHARED = {"where": "table in 4.6.3", "seq": 80000, "uniform": 133000, "tree": 350000, "of": 1 << 20}
