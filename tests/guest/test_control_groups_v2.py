"""Memory limits of control groups of version 2: the tests of what a limit does, in a guest that has that version alone.

The kernel has the memory controller in one version, and the guest's in version 2, whatever this machine has. What is
tested there are this machine's programs, on control groups of the guest's kernel (decision 0091).
"""

import pytest
from harness.inside import MOUNTED, Inside


@pytest.fixture(scope="module")
def inside(tmp_path_factory, accel):
    """The guest, with the one tree of control groups at its usual place."""
    made = Inside(tmp_path_factory.mktemp("inside"), accel, f"mount -t cgroup2 cgroup2 {MOUNTED}/sys/fs/cgroup")
    yield made
    made.close()


# The most that it may take, in seconds: emulated, on a machine that does other things too.
LONG_S, SHORT_S = 1800, 600


@pytest.mark.long  # version 1, which this machine may have, is tested each time
def test_copies_to_guests_that_are_not_preallocated_stop_where_there_is_no_room(inside):
    """Requests wait when the group is full, they say so, they go on when there is room, and nothing is killed."""
    inside.test("test_bad_front_ends.py -k preallocated", SHORT_S)


@pytest.mark.alone
@pytest.mark.long
def test_the_limit_with_the_least_left_counts(inside):
    """That of a group further up, and `memory.high`: the store stays below it, status names it."""
    inside.test("test_control_groups.py -k 'further_up or high'", SHORT_S)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("what", ["test_pressure.py", "test_control_groups.py"])
def test_everything_about_limits(inside, what):
    """The store gives way to others and grows again, and limits are followed that change while the daemon runs."""
    inside.test(what, LONG_S)
