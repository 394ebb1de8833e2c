"""In which order tests run, and how pytest-xdist hands them out: what takes long first, one test at a time.

pytest collects the tests with guests last, and pytest-xdist hands out contiguous pieces and then two tests at a time:
at the end one worker had three guests before it while the others had nothing. Never leaves a test out. Invariant: the
order is the same in every process of a run, as pytest-xdist demands.
"""

# Files whose tests take long, those that take longest first, before the rest of tests/guest, where most do.
LONGEST = (
    "test_control_groups_v2.py",
    "test_laboratory.py",
    "test_restarts.py",
    "test_migration.py",
    "test_record.py",
    "test_packaging.py",
    "test_shares.py",
    "test_ssd.py",
    "test_ssd_upgrade.py",
    "test_upgrade.py",
)


def rank(path):
    """A test's place by the file it is in; the smallest is first."""
    if path.name in LONGEST:
        return LONGEST.index(path.name)
    return len(LONGEST) + (path.parent.name != "guest")


def one_by_one(config, log):
    """pytest-xdist's scheduler, which gives a worker the next test when it begins the one before it, and no more."""
    from xdist.scheduler import LoadScheduling

    class OneByOne(LoadScheduling):
        # A worker begins a test when it knows the one after it, so that it has two.
        def _send_tests(self, node, num):
            super()._send_tests(node, max(0, min(num, 2 - len(self.node2pending[node]))))

    return OneByOne(config, log)
