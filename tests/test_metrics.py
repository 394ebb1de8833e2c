"""The metrics of a serving daemon, read by the Prometheus project's own parser, and held to the rules that promtool
checks."""

import re

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import driver, run

parser = pytest.importorskip(
    "prometheus_client.parser", reason="not installed: python3-prometheus-client (make setup installs it)"
)
# What promtool calls a unit that is none of the base units, and abbreviations of types.
NO_BASE_UNIT = re.compile(
    r"_(milliseconds|microseconds|nanoseconds|minutes|hours|bits|kilobytes|megabytes|percent|ms|us|ns|kb|mb)(_|$)"
)


def problems(text):
    """What is wrong with a text of metrics; the parser itself refuses what it cannot read."""
    found = []
    families = list(parser.text_string_to_metric_families(text))
    seen = set()
    for family in families:
        if not family.documentation:
            found.append(f"{family.name}: no help text")
        if family.type in ("untyped", "unknown"):
            found.append(f"{family.name}: no type")
        if NO_BASE_UNIT.search(family.name):
            found.append(f"{family.name}: not in base units")
        buckets = {}
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            if key in seen:
                found.append(f"{key}: twice")
            seen.add(key)
            # The parser takes `_total` from a counter's name and puts it to its samples.
            if family.type != "counter" and sample.name.endswith("_total"):
                found.append(f"{sample.name}: a {family.type} that is named like a counter")
            if family.type == "counter" and sample.value < 0:
                found.append(f"{sample.name}: a counter below 0")
            if family.type == "histogram":
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
                kept = buckets.setdefault(labels, {"le": [], "count": None, "sum": None})
                if sample.name.endswith("_bucket"):
                    kept["le"].append((float(sample.labels["le"]), sample.value))
                else:
                    kept[sample.name.rsplit("_", 1)[1]] = sample.value
        for labels, kept in buckets.items():
            bounds, counts = zip(*kept["le"])
            if list(bounds) != sorted(bounds) or list(counts) != sorted(counts) or bounds[-1] != float("inf"):
                found.append(f"{family.name}{labels}: buckets do not add up")
            if kept["count"] != counts[-1] or kept["sum"] is None:
                found.append(f"{family.name}{labels}: count and sum do not fit the buckets")
    # The parser gives counters without samples' suffix: the text itself says what each is called.
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        if kind == "counter" and not name.endswith("_total"):
            found.append(f"{name}: a counter without _total")
    return found, {family.name: family.type for family in families}


GOOD = "# HELP a_total Help.\n# TYPE a_total counter\na_total 1\n"


@pytest.mark.parametrize(
    "text, said",
    [
        ("# TYPE a_total counter\na_total 1\n", "no help text"),
        ("# HELP a Help.\na 1\n", "no type"),
        ("# HELP a Help.\n# TYPE a counter\na 1\n", "without _total"),
        (GOOD + "a_total 2\n", "twice"),
        ("# HELP a_total Help.\n# TYPE a_total gauge\na_total 1\n", "named like a counter"),
        ("# HELP a_ms Help.\n# TYPE a_ms gauge\na_ms 1\n", "base units"),
        (
            '# HELP h H.\n# TYPE h histogram\nh_bucket{le="1"} 2\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n',
            "do not add up",
        ),
        ('# HELP h H.\n# TYPE h histogram\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 2\n', "do not fit"),
    ],
)
def test_what_is_wrong_is_found(text, said):
    found, _ = problems(text)
    assert any(said in problem for problem in found), found
    assert problems(GOOD)[0] == []


def test_the_metrics_of_a_daemon_are_sound(serve, scratch):
    """Every family that a daemon with disks, parts, a scan and a recording tells."""
    files = [images.raw(scratch / f"{n}.raw", 4 * images.MIB, seed=n) for n in range(2)]
    extra = (
        f'[scan]\nenabled = true\n[[vm]]\nname = "web"\n[[vm.disk]]\nname = "root"\nimage = "{files[1]}"\nformat ='
        ' "raw"\nnbd = true\nvhost_user = false\n'
    )
    daemon = serve([Disk("a", files[0], "raw")], memory="64MiB", extra=extra)
    driver("run", daemon.vhost("a"), "--ops", "500", "--write-percent", "20")
    text = run("curl", "-sS", "--fail", "--unix-socket", daemon.control, "http://localhost/metrics").stdout
    found, types = problems(text)
    assert found == []
    assert types["undercroft_disk_read_requests"] == "counter" and types["undercroft_store_limit_bytes"] == "gauge"
    assert types["undercroft_disk_request_duration_seconds"] == "histogram"
    assert "undercroft_scan_passes" in types
    status = daemon.disk("a")["counters"]
    reads = [s.value for f in parser.text_string_to_metric_families(text) for s in f.samples
             if s.name == "undercroft_disk_read_requests_total" and s.labels["disk"] == "a"]  # fmt: skip
    assert reads == [status["reads"]] and status["reads"] > 0
