"""Which memory limits of control groups the daemon finds: those of all groups that it is in, also when they change.

In a full group there is nothing to reclaim but the store, so a limit that is not seen gets the daemon killed. Both
versions of control groups; of version 2 `memory.high` too.
"""

import sys
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk, until
from harness.programs import driver, need_root

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
from rig.cgroup import Group, Unavailable, version

# What others load the machine with delays what is given back.
pytestmark = pytest.mark.alone

MIB = images.MIB
# Small: they are run in an emulated guest too.
LIMIT, IMAGE, STORE = 96 * MIB, 128 * MIB, 160 * MIB


@pytest.fixture
def groups():
    """Makes control groups, of which the last one is removed first."""
    need_root()
    made = []

    def make(*words, **options) -> Group:
        try:
            made.append(Group(*words, **options))
        except Unavailable as e:
            pytest.skip(str(e))
        return made[-1]

    yield make
    for group in reversed(made):
        group.close()


@pytest.fixture
def start(serve, scratch):
    """Starts a daemon in a group, with a disk that is larger than the limit."""

    def start(wrap):
        image = images.raw(scratch / "a.raw", IMAGE, seed=1)
        disk = Disk("a", image, "raw", {"readahead": "0", "exclusive": '"off"'})
        return serve([disk], memory=f"{STORE // MIB}MiB", store="deduplicate = false", wrap=wrap)

    return start


def data_after_reading(daemon, group) -> int:
    """Bytes in the store after the whole disk was read; nothing was killed for them."""
    driver("run", daemon.vhost("a"), "--ops", "100", "--prefill", "--depth", "32")
    assert group.killed() == 0 and daemon.running()
    return daemon.status()["store"]["data_bytes"]


def stays_within(daemon, group) -> None:
    """The store takes what there is below the limit, and no more."""
    until(lambda: data_after_reading(daemon, group) > LIMIT // 2, "the store has grown to its limit")
    assert data_after_reading(daemon, group) < LIMIT
    assert group.memory_bytes() <= LIMIT


def named(group, limit: int) -> str:
    """How the status names the limit of a group."""
    return f"control group {group.memory} of {limit // MIB}MiB: "


def test_the_limit_of_a_group_further_up_counts(groups, start):
    """A group of 768 MiB in a group of much less: both limits are named, and the smaller one is kept."""
    outer = groups("outer", LIMIT)
    inner = groups("inner", 768 * MIB, inside=outer)
    daemon = start(inner.wrap)
    source = daemon.status()["pressure"]["source"]
    assert named(inner, 768 * MIB) in source and named(outer, LIMIT) in source, source
    stays_within(daemon, outer)


def test_a_limit_that_is_set_while_the_daemon_runs_counts(groups, start):
    """A group without a limit is given one, as `systemctl set-property` does: it is named and kept. When it is taken
    away, the store grows again.

    """
    group = groups("later")
    daemon = start(group.wrap)
    assert "control group" not in daemon.status()["pressure"]["source"]
    group.limit(LIMIT)
    until(lambda: named(group, LIMIT) in daemon.status()["pressure"]["source"], "the limit is seen")
    stays_within(daemon, group)
    group.limit(LIMIT + 8 * MIB)
    until(lambda: named(group, LIMIT + 8 * MIB) in daemon.status()["pressure"]["source"], "the other limit is seen")
    group.limit(None)
    until(lambda: data_after_reading(daemon, group) > LIMIT, "what was limited is full")
    assert "control group" not in daemon.status()["pressure"]["source"]


@pytest.mark.parametrize("file", ["memory.high", "memory.max"] if version() == 2 else ["memory.limit_in_bytes"])
def test_a_limit_counts_where_groups_cannot_be_written(groups, start, file):
    """As below a systemd that protects control groups (`ProtectControlGroups`, as our unit has it): what is left of the
    limit is read, and with version 2 stalls are counted.

    """
    group = groups("protected")
    group.limit(LIMIT, file)
    protect = f'mount -o remount,bind,ro "{group.memory.parent}" && exec "$@"'
    daemon = start(lambda command: group.wrap(["unshare", "--mount", "/bin/sh", "-c", protect, "sh", *command]))
    source = daemon.status()["pressure"]["source"]
    assert named(group, LIMIT) in source, source
    # The kernel may have been built without PSI: then its events count.
    tells = ["PSI counter", "memory.events"] if group.v2 else ["no PSI"]
    assert any(how in source.split(named(group, LIMIT))[1] for how in tells), source
    stays_within(daemon, group)
