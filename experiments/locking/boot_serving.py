"""How the clones and the other disk are served, in one arm of the experiment with clones that boot at once.

Owns the daemon's configuration, and what is asked of the daemon: what it has counted, what the disks have of the store,
that it fetches, that it records a boot. Never measures a time. Invariants: the clones are disks 1 to N, each of a VM of
its own, and the last disk is the other one; every way of serving is under the same limit of memory.
"""

import contextlib
import subprocess
import time

from rig import process, serving
from rig.process import Stopped

from .boot_arms import ARMS, BUDGET, INTERVAL, MIB, Arm
from .boot_derive import OTHER

COUNTERS = (
    "hit_blocks", "miss_blocks", "joined_blocks", "shared_hit_blocks", "readahead_hit_blocks",
    "readahead_wasted_blocks", "backend_reads", "backend_read_bytes",
)  # fmt: skip
SETTINGS = f'[pressure]\nwatch = false\n[shares]\ninterval = "{INTERVAL}"\n'
# The driver reads the other disk, and keeps nothing of it.
OTHER_SETTINGS = 'exclusive = "off"\n'
# What is not as it is by default in every arm, in words.
SAID_SETTINGS = [
    "[pressure] watch = false", f'[shares] interval = "{INTERVAL}"', 'exclusive = "off" for the other disk',
]  # fmt: skip
# Nobody reads for so long: then a boot is over.
QUIET_SECONDS, RECORD_SECONDS = 20, 300
# What is fetched has come when it is all there, or when nothing has changed for much longer than fetching pauses.
FETCH_SECONDS, STILL_SECONDS = 300, 15
WARM_SECONDS = 60
RECORDING_SECONDS = 20


def limit_bytes(sizes):
    """What each way of serving may take of the host's memory, page cache included."""
    return sizes.store_mib * MIB + serving.PROGRAM_BYTES


class Clones(serving.Undercroft):
    """Undercroft, in a control group with the limit that all ways of serving have."""

    key = "clones"

    def __init__(self, arm: Arm, sizes, logs, pins, count=None):
        super().__init__(limit_bytes(sizes), logs, store_bytes=sizes.store_mib * MIB, daemon_options=SETTINGS)
        self.arm, self.sizes, self.pins, self.count = arm, sizes, pins, count or sizes.clones

    def start(self, disks):
        super().start(disks)
        self.check_pins()

    def is_clone(self, index):
        """Whether disk `index` is a clone's."""
        return index < self.count

    def names(self, index):
        return (f"clone-{index + 1}" if self.is_clone(index) else "other"), "root"

    def vm_options(self, index):
        return self.arm.vm_lines(self.sizes) if self.is_clone(index) else ""

    def port_options(self, index):
        lines = self.arm.disk_lines(self.pins_of(index)) if self.is_clone(index) else OTHER_SETTINGS
        return super().port_options(index) + lines

    def pins_of(self, _index):
        """The file of what is pinned of a clone, or locked by its profile."""
        return self.pins

    # ---- what is asked of the daemon ----

    def wait_until_recording(self, recorder, log):
        """Waits until it records: what is read before that is not in the boot set."""
        end = time.monotonic() + RECORDING_SECONDS
        while not any(recording["running"] for recording in self.get("/v1/recordings")):
            if recorder.poll() is not None or time.monotonic() > end:
                raise Stopped(f"undercroft pin --boot does not record: {process.tail(log)}")
            time.sleep(0.05)

    def counted(self):
        """What it has counted: of all clones together, and of the other disk."""
        found = {"clones": dict.fromkeys(COUNTERS, 0), "other": dict.fromkeys(COUNTERS, 0)}
        for disk in self.status()["disks"]:
            of = found["other" if disk["name"] == OTHER else "clones"]
            for name in COUNTERS:
                of[name] += disk["counters"][name]
        return found

    def check_pins(self):
        """Stops if a clone is served without the pins that it was to have."""
        for disk in self.status()["disks"][: self.count]:
            if problem := disk["locks"]["problem"]:
                raise Stopped(f"{disk['name']} is served without its pins: {problem}")

    def held(self):
        """What each disk has of the store now, and what the first clone's status says of its locks."""
        status = self.status()
        sizes = ("share_bytes", "capacity_bytes", "cached_bytes")
        disks = {
            disk["name"]: {name: disk["cache"][name] for name in sizes}
            | {"charged_bytes": disk["sharing"]["charged_bytes"], "locked_bytes": disk["locks"]["locked_bytes"]}
            for disk in status["disks"]
        }
        locks = status["disks"][0]["locks"]
        # What it says names a place of the machine.
        locks |= {"problem": bool(locks["problem"])}
        return {"disks": disks, "locks": locks, "data_bytes": status["store"]["data_bytes"]}

    def fetch(self):
        """Has every clone fetch what is pinned, waits until that is over, and says what came of it.

        Stopped: it does not end.
        """
        began = time.monotonic()
        for index in range(self.count):
            warm(self, ":".join(self.names(index)), self.pins)
        last, since = None, time.monotonic()
        while True:
            disks = self.status()["disks"][: self.count]
            now = [(disk["counters"]["backend_read_bytes"], disk["cache"]["cached_bytes"]) for disk in disks]
            if now != last:
                last, since = now, time.monotonic()
            still = time.monotonic() - since
            # All of it is there, or no more of it comes.
            if (missing_bytes(disks) == 0 and still >= 1) or still >= STILL_SECONDS:
                break
            if time.monotonic() - began > FETCH_SECONDS:
                raise Stopped(f"what is pinned is not fetched in {FETCH_SECONDS} s: {missing_bytes(disks)} bytes lack")
            time.sleep(0.25)
        return {
            "seconds": round(since - began, 2),
            "cached_bytes": sum(cached for _, cached in last),
            "missing_bytes": missing_bytes(disks),
        }


def missing_bytes(disks):
    """Bytes of what is pinned of a clone that are not cached for it, of the clone that lacks most: by what it has
    cached in all, and by what is locked unless the budget is smaller than the pins."""
    lack = 0
    for disk in disks:
        locks, pinned = disk["locks"], disk["locks"]["pinned_bytes"]
        lack = max(lack, pinned - disk["cache"]["cached_bytes"])
        lack = max(lack, min(pinned, locks["budget_bytes"]) - locks["locked_bytes"])
    return max(0, lack)


def warm(way, disk, pins):
    """`undercroft warm` of one disk."""
    argv = [str(word) for word in (way.binary, "warm", disk, "--control", way.control)]
    try:
        with open(pins, "rb") as file:
            done = subprocess.run(argv, stdin=file, capture_output=True, text=True, timeout=WARM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Stopped(f"undercroft warm {disk} did not end within {WARM_SECONDS} s") from None
    if done.returncode:
        raise Stopped(f"undercroft warm {disk} failed: {done.stderr.strip()}")


def record(sizes, overlay, logs, pins, boot):
    """Serves one clone alone and records what it reads when it boots in the file `pins`. `boot(way, stack)` boots it;
    `stack` ends it."""
    pins.unlink(missing_ok=True)
    arm = Arm("recording", "one clone alone", set=f'lock_budget = "{BUDGET}"\n')
    with Clones(arm, sizes, logs, pins, count=1) as way, contextlib.ExitStack() as stack:
        way.start([overlay])
        words = ["pin", "clone-1:root", "--boot", "--quiet", f"{QUIET_SECONDS}s", "--for", f"{RECORD_SECONDS}s"]
        log = logs / "undercroft-pin.log"
        log.unlink(missing_ok=True)
        recorder = process.start([way.binary, *words, "--write", pins, "--control", way.control], log)
        try:
            way.wait_until_recording(recorder, log)
            boot(way, stack)
            recorder.wait(RECORD_SECONDS + 60)
        except subprocess.TimeoutExpired:
            raise Stopped(f"undercroft pin --boot does not end: {process.tail(log)}") from None
        finally:
            process.end(recorder)
        if recorder.returncode or not pins.exists():
            raise Stopped(f"undercroft pin --boot failed: {process.tail(log)}")


def way(key, sizes, logs, pins):
    """The way of serving of an arm."""
    arm = ARMS[key]
    if arm.is_page_cache:
        return serving.PageCache(limit_bytes(sizes), logs)
    return Clones(arm, sizes, logs, pins)
