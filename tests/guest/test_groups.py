"""Memory control groups of version 2: the tests of them once more, in a guest whose kernel has no others.

Where the host's groups are of version 1, this is all that is tried of version 2: limits, events, pressure triggers, reclaim.
"""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness.images import MIB
from harness.programs import built
from rig import guest as guests
from rig import process

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2048 * MIB
WITHIN_S = 900
# Of the standard library nobody needs these here, and they are half of it.
LEFT_OUT = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "lib2to3", "ensurepip", "tkinter", "dist-packages", "site-packages", "config-*")
TESTS = (
    "tests/test_pressure.py::test_memory_is_given_back_to_a_process_beside_it_and_taken_again",
    "tests/test_pressure.py::test_the_floor_and_the_rules_change_live",
    "tests/test_pressure.py::test_page_cache_of_a_group_goes_on_request",
    "tests/test_bad_front_ends.py::test_guests_that_are_not_preallocated_do_not_get_the_daemon_killed",
)


def libraries(program: Path) -> set[str]:
    """What the loader maps for a program. Each line of ldd: NAME => PATH (ADDRESS), or PATH (ADDRESS) for the loader itself."""
    told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in told.splitlines()]
    return {w[2] if w[1:2] == ["=>"] else w[0] for w in lines if w[1:2] == ["=>"] or w[0].startswith("/")}


def put(root: Path, source: Path, place: str) -> None:
    """Copies a program to `place`, and the libraries that it needs to where they are here."""
    to = root / place.lstrip("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)
    for library in libraries(source):
        to = root / library.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy(library, to)


@pytest.fixture
def disk(scratch):
    """A root file system: this Python with pytest, the tests with what they use, our programs."""
    root = scratch / "root"
    for folder in ("proc", "sys", "dev", "tmp", "var/tmp", "run", "bin", "packages"):
        (root / folder).mkdir(parents=True)
    python = Path(sys.executable).resolve()
    put(root, python, str(python))
    library = Path(sysconfig.get_paths()["stdlib"])
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=LEFT_OUT, symlinks=True)
    for module in (library / "lib-dynload").glob("*.so"):
        put(root, module, str(module))
    # Those of pytest that it cannot do without, under any of its versions.
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "attr", "attrs", "py", "pygments"):
        found = importlib.util.find_spec(name)
        if found and found.submodule_search_locations:
            shutil.copytree(found.submodule_search_locations[0], root / "packages" / name, ignore=LEFT_OUT)
        elif found and found.origin:
            shutil.copy(found.origin, root / "packages")
    for folder in ("tests", "experiments/rig"):
        shutil.copytree(ROOT / folder, root / "project" / folder, ignore=shutil.ignore_patterns("__pycache__", "guest"))
    put(root, Path("/bin/busybox"), "/bin/sh")
    put(root, Path(shutil.which("dd")), "/bin/dd")
    for name in ("undercroft", "undercroft-driver"):
        stripped = scratch / name
        process.run(["strip", "-o", stripped, built(name)], "strip")
        put(root, stripped, f"/bin/{name}")
    path = scratch / "disk.raw"
    with open(path, "wb") as f:
        f.truncate(SIZE)
    process.run(["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-d", root, path], "mke2fs")
    return path


def test_what_is_promised_of_control_groups_holds_under_version_2(disk, scratch, accel):
    """All of the tests pass there, none is skipped, and the daemon hears of shortage by the group's own pressure trigger."""
    ours = ["-drive", f"file={disk},if=none,id=root,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=root", "-smp", "2"]
    with guests.Guest("groups", ours, scratch, ram_mib=1536, accel=accel, private=True) as guest:
        guest.wait_ready()
        guest.run("mount -t ext4 /dev/vda /mnt && cd /mnt && for d in proc sys dev; do mount --rbind /$d $d; done")
        guest.run("mount -t cgroup2 none /mnt/sys/fs/cgroup && ip link set lo up && mkdir -p /mnt/dev/shm")
        _, kinds = guest.run("cut -d' ' -f3 /proc/mounts | grep cgroup; cat /mnt/sys/fs/cgroup/cgroup.controllers")
        assert kinds.split()[0] == "cgroup2" and "cgroup" not in kinds.split() and "memory" in kinds.split(), kinds
        variables = "PYTHONPATH=/packages PYTHONDONTWRITEBYTECODE=1 HOME=/tmp UNDERCROFT_PROGRAM=/bin/undercroft UNDERCROFT_DRIVER_PROGRAM=/bin/undercroft-driver"
        python = Path(sys.executable).resolve()
        command = f"cd /project && {variables} {python} -m pytest -q -rs -p no:cacheprovider {' '.join(TESTS)}"
        status, said = guest.run(f"chroot /mnt /bin/sh -c '{command}' 2>&1", WITHIN_S, check=False)
        print(said[-12000:])
        assert status == 0, "the tests did not pass in the guest"
        assert f"{len(TESTS)} passed" in said and "skipped" not in said, said[-2000:]
        guest.power_off()
