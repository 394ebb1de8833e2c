"""Fixtures of the tests with real programs.

Every test has a directory on a real disk (O_DIRECT works there, which /tmp may not offer), with a path short enough for
sockets. Daemons started through `serve` are stopped and held to an orderly end when the test is over.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from harness import images, nodes, order
from harness.daemon import Daemon
from harness.manager import Manager
from harness.stalling import StallingFile
from harness.upstream import Nbdkit

FAILED = pytest.StashKey[bool]()
BEGUN = pytest.StashKey[float]()
# The property of a test's report that says what it has had of a processor, in seconds.
PROCESSOR = "processor_s"


def pytest_configure(config):
    """Tells pytest of our marks: tests that only `make test-long` has the time for, and those that nothing may run
    beside."""
    config.addinivalue_line("markers", "long: only with UNDERCROFT_LONG set, as make test-long sets it")
    config.addinivalue_line(
        "markers", "alone: measures, or changes what the whole machine shares; scripts/test.sh runs it by itself"
    )


def pytest_collection_modifyitems(config, items):
    """Brings those that take long to the front, and leaves out the long ones elsewhere: they are not skipped, since
    nothing is missing."""
    items.sort(key=lambda item: order.rank(item.path))
    if os.environ.get("UNDERCROFT_LONG"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hands tests to workers one by one."""
    return order.one_by_one(config, log)


def processor_seconds():
    """What this process and those that it has seen end have had of a processor."""
    return sum(os.times()[:4])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Notes what was used before the test."""
    item.stash[BEGUN] = processor_seconds()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Remembers whether the test failed, for the fixtures' clean-up, and what it has had of a processor with all that
    it started, which depends less than time does on what else runs."""
    outcome = yield
    if call.when == "call":
        item.stash[FAILED] = outcome.get_result().failed
    elif call.when == "teardown":
        outcome.get_result().user_properties.append((PROCESSOR, processor_seconds() - item.stash[BEGUN]))


def pytest_terminal_summary(terminalreporter, config):
    """With `--durations N`: the N tests that have had most of a processor, and what all have had."""
    reports = [r for kind in terminalreporter.stats.values() for r in kind if getattr(r, "when", None) == "teardown"]
    used = sorted(((dict(r.user_properties).get(PROCESSOR, 0.0), r.nodeid) for r in reports), reverse=True)
    if config.option.durations and used:
        total = sum(seconds for seconds, _ in used)
        terminalreporter.section(f"most of a processor, of {total:.0f} s")
        for seconds, name in used[: config.option.durations]:
            terminalreporter.write_line(f"{seconds:.1f}s {name}")


@pytest.fixture
def scratch(request):
    """A directory for images and sockets; kept, and named, if the test fails and UNDERCROFT_KEEP is set."""
    path = Path(tempfile.mkdtemp(prefix="uc", dir=os.environ.get("UNDERCROFT_TEST_DIR", "/var/tmp")))
    yield path
    if request.node.stash.get(FAILED, False) and os.environ.get("UNDERCROFT_KEEP"):
        print(f"kept: {path}")
    else:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def serve(request, scratch):
    """Starts daemons: serve([Disk(...)], memory="64MiB"). All of them are stopped at the end of the test."""
    daemons: list[Daemon] = []

    def start(disks, **options) -> Daemon:
        daemon = Daemon(scratch / f"d{len(daemons)}", disks, **options)
        daemons.append(daemon)
        return daemon.start()

    yield start
    failed = request.node.stash.get(FAILED, False)
    problems = []
    for daemon in daemons:
        if failed:
            print(f"--- log of {daemon.directory.name}:\n{daemon.log()}")
        try:
            daemon.stop()
        except (AssertionError, pytest.fail.Exception) as e:
            problems.append(str(e))
    assert not problems, "\n".join(problems)


def two_vms(serve, scratch, interval):
    """Two VMs, `web` and `db`, that divide 96 MiB anew so often."""
    web, db = (images.raw(scratch / f"{name}.raw", nodes.SIZE, seed=n) for n, name in enumerate(("web", "db"), 1))
    extra = f'[shares]\ninterval = "{interval}"\n' + nodes.vm("web", web) + nodes.vm("db", db)
    return serve([], memory="96MiB", extra=extra)


@pytest.fixture
def two(serve, scratch):
    """Two VMs that divide the store anew every second."""
    return two_vms(serve, scratch, "1s")


@pytest.fixture
def two_still(serve, scratch):
    """Two VMs whose shares stay as they are."""
    return two_vms(serve, scratch, "600s")


@pytest.fixture
def nbdkit(scratch):
    """Starts nbdkit: nbdkit("file", image). Stopped at the end of the test."""
    servers: list[Nbdkit] = []

    def start(*arguments) -> Nbdkit:
        server = Nbdkit(scratch, *arguments, name=f"upstream{len(servers)}")
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def manager(scratch, monkeypatch):
    """A service manager that keeps descriptors."""
    manager = Manager(scratch, monkeypatch)
    yield manager
    manager.close()


@pytest.fixture
def stalling(scratch):
    """A file on a file system that stops answering when it is told to."""
    file = StallingFile(scratch)
    yield file
    file.close()
