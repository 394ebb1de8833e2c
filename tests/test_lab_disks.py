"""The laboratory's disks: read-ahead of one file, disks behind a network, and what is said of time; and the demo's
words and picture."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.programs import ROOT, need_root

sys.path.insert(0, str(ROOT / "experiments"))
sys.path.insert(0, str(ROOT / "tests"))

from demo import demo  # noqa: E402
from exclusive import run as lab  # noqa: E402
from exclusive import arms, cells, derive, loads, measure, plots, report, store, times  # noqa: E402
from exclusive import load as one_guest  # noqa: E402
from rig import guest as guests  # noqa: E402
from rig import machine, programs, readahead, serving, slowdisk  # noqa: E402
from rig.process import Stopped  # noqa: E402
from test_lab import exclusive_record, facts, record, results  # noqa: E402

MIB = 1 << 20


# --- Read-ahead


@pytest.fixture
def one_disk(tmp_path, monkeypatch):
    """A disk that reads 8192 KiB ahead, as the kernel would show it."""
    number = os.stat(tmp_path).st_dev
    place = tmp_path / "bdi" / f"{os.major(number)}:{os.minor(number)}" / "read_ahead_kb"
    place.parent.mkdir(parents=True)
    place.write_text("8192\n")
    monkeypatch.setattr(readahead, "BDI", tmp_path / "bdi")
    monkeypatch.setattr(readahead, "RECORD", tmp_path / "record.json")
    return place


def test_a_disk_reads_ahead_as_before_once_a_file_was_opened(tmp_path, one_disk):
    with readahead.opened_with(tmp_path, 128):
        assert readahead.kib(tmp_path) == 128
        assert json.loads(readahead.RECORD.read_text()) == {str(one_disk): "8192"}
    assert readahead.kib(tmp_path) == 8192 and not readahead.RECORD.exists()
    with pytest.raises(KeyboardInterrupt), readahead.opened_with(tmp_path, 0):
        raise KeyboardInterrupt
    assert readahead.kib(tmp_path) == 8192 and not readahead.RECORD.exists()
    with readahead.opened_with(tmp_path, None):
        assert readahead.kib(tmp_path) == 8192, "what the host has"


def test_what_a_killed_program_left_is_put_back(tmp_path, one_disk):
    """After kill -9 the record is there: the next start puts it back, and whoever sets it anew does not take 128 for
    the host's own."""
    def killed():
        one_disk.write_text("128")
        readahead.RECORD.write_text(json.dumps({str(one_disk): "8192"}))

    killed()
    readahead.put_back()
    assert readahead.kib(tmp_path) == 8192 and not readahead.RECORD.exists()
    readahead.put_back()
    killed()
    with readahead.opened_with(tmp_path, 0):
        assert json.loads(readahead.RECORD.read_text()) == {str(one_disk): "8192"}
    assert readahead.kib(tmp_path) == 8192


def test_what_cannot_be_set_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(readahead, "BDI", tmp_path)
    with pytest.raises(readahead.Unsettable, match="shows no read-ahead"):
        readahead.setting(tmp_path)
    assert readahead.kib(tmp_path) is None
    with pytest.raises(arms.Absent, match="shows no read-ahead"):
        arms.LinuxDefault(96 * MIB, tmp_path)
    arms.Default(96 * MIB, tmp_path)
    for value, found in ((0, 4), (128, 0), (128, 8192)):
        with pytest.raises(Stopped, match="ahead"):
            readahead.check(value, found)
    for value, found in ((0, 0), (128, 60), (128, 256), (None, 8192), (128, None)):
        readahead.check(value, found)


@pytest.mark.alone
def test_the_kernel_reads_ahead_as_a_file_was_opened(scratch):
    """Of two files of one disk, each reads ahead as the disk was set when it was opened, and the disk is as it was."""
    need_root()
    image = scratch / "image.raw"
    image.write_bytes(os.urandom(MIB) * 16)
    fd = os.open(image, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    before = readahead.kib(image)
    for value in (0, 128):
        try:
            with readahead.opened_with(image, value):
                found = readahead.seen(image)
        except readahead.Unsettable as e:
            pytest.skip(f"the read-ahead of this disk cannot be set here: {e}")
        readahead.check(value, found)
        assert readahead.kib(image) == before


# --- Disks behind a network


@pytest.mark.alone
def test_a_slow_disk_is_the_image_and_waits(scratch):
    """It delivers what is in the image, counts it, waits before each transfer, and leaves nothing behind."""
    if missing := slowdisk.lacks():
        pytest.skip("; ".join(missing))
    guests.build()
    image = scratch / "image.raw"
    image.write_bytes(b"".join(b"%08d" % n * 512 for n in range(4096)))
    with slowdisk.SlowDisk(image, scratch / "disk", scratch, read_ahead_kb=0) as disk:
        with open(disk.device, "rb", buffering=0) as f:
            assert f.read() == image.read_bytes()
        assert disk.counts()["read_bytes"] >= image.stat().st_size and disk.counts()["writes"] == 0
        disk.wait(3000)
        began = disk.counts()["reads"]
        assert machine.latency_us(disk.device) >= 3000
        assert disk.counts()["reads"] - began >= machine.LATENCY_READS
        assert readahead.kib(disk.device) == 0
        device, pids = disk.device, disk.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not Path(f"/sys/block/{device.name}/loop").exists() and not (scratch / "disk").exists()


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from rig import slowdisk
folder = Path(sys.argv[2])
with slowdisk.SlowDisk(folder / "image.raw", folder / "disk", folder) as disk:
    print(disk.device, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.alone
def test_what_a_killed_run_left_of_a_slow_disk_goes_with_the_next(scratch):
    if missing := slowdisk.lacks():
        pytest.skip("; ".join(missing))
    guests.build()
    (scratch / "image.raw").write_bytes(os.urandom(MIB))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, ROOT / "experiments", scratch], capture_output=True, text=True, check=False
    )
    device = Path(killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL and Path(f"/sys/block/{device.name}/loop").exists()
    with slowdisk.SlowDisk(scratch / "image.raw", scratch / "disk", scratch) as disk:
        with open(disk.device, "rb", buffering=0) as f:
            assert f.read(MIB) == (scratch / "image.raw").read_bytes()
        now = disk.device
    assert not Path(f"/sys/block/{device.name}/loop").exists() and not Path(f"/sys/block/{now.name}/loop").exists()


def test_disks_are_asked_for_by_their_wait(capsys):
    a = lab.arguments(
        [
            "--loads",
            "uniform,write,pair",
            "--n",
            "0.5",
            "--zeroing",
            "on",
            "--mglru",
            "off",
            "--disks",
            "local,0.5ms,2ms",
        ]
    )
    ids = [cell.id for cell in a.cells]
    assert ids[:3] == [f"uniform-zero1-mglru0-n0.5-192MiB{wait}" for wait in ("", "-wait0.5ms", "-wait2ms")]
    assert [i for i in ids if i.startswith("write")] == [
        "write-zero1-mglru0-n0.5-192MiB"
    ], "a run that measures twice must find its image as it was"
    assert [len(run) for run in cells.grouped(a.cells)] == [
        1,
        2,
        1,
        1,
    ], "both waits in one run, the local disk in its own"
    assert "upstream" in arms.on(a.arms, a.cells[1]) and "upstream" not in arms.on(a.arms, a.cells[0])
    assert [cells.disk(c) for c in ({}, {"wait_us": None}, {"wait_us": 500}, {"wait_us": 2000})] == [
        "local",
        "local",
        "0.5 ms wait",
        "2 ms wait",
    ]
    for wrong in ("fast", "0.5", "2ms,", "5000ms"):
        with pytest.raises(SystemExit):
            lab.arguments(["--disks", wrong])
        assert "--disks" in capsys.readouterr().err
    assert not any(cell.wait_us for cell in lab.arguments(["--loads", "pair", "--disks", "2ms,local"]).cells)


def test_later_parts_of_a_run_read_the_same_blocks_in_another_order():
    load, cell = loads.ZIPF, cells.Cell("zipf", True, False, 0.5, wait_us=500)
    first, second, after_another = (
        load.command(cell),
        load.command(cell, part=1, warm=False),
        load.command(cell, part=2),
    )
    assert "--prefill" in first and "--prefill" not in second + after_another
    assert "--warm 0 " in second and "--warm 0 " not in first + after_another
    layout = f"--layout {one_guest.LAYOUT}"
    assert all(layout in c for c in (first, second, after_another)), "popular blocks stay popular"
    rng = [c[c.index("--rng") :].split()[1] for c in (first, second, after_another)]
    assert len(set(rng)) == 3
    assert "--layout" not in load.command(
        cells.Cell("zipf", True, False, 0.5)
    ), "the local disk's runs are as they always were"


@pytest.mark.parametrize("event", ["reboot", "drop", "balloon"])
@pytest.mark.parametrize("kind", ["zipf", "uniform"])
def test_guests_that_lose_their_cache_read_the_same_blocks_again(event, kind):
    """Caches are filled, the guest loses its own in the way that the load is named for, and then as many reads as there
    are blocks are measured: of the same blocks, in another order, without filling anything before."""
    load, cell, done = loads.LOADS[f"{event}-{kind}"], cells.Cell(f"{event}-{kind}", True, False, 0.5), []
    guest = SimpleNamespace(
        reboot=lambda: done.append("reboot"),
        run=lambda command: done.append(command),
        balloon=lambda size: done.append(f"balloon {size // MIB}"),
    )
    run = SimpleNamespace(
        cell=cell,
        guests=[guest],
        watch=lambda _, command: done.append(command),
        settle=lambda _: done.append("settle"),
        together=lambda commands: done.append(commands[0][1]) or ([{}], {}, {}),
    )
    assert load.drive(run) == ([{}], {}, {}, {})
    fill, *lost, measured = done
    wanted = {"reboot": ["reboot", "settle"], "drop": ["echo 3 > /proc/sys/vm/drop_caches"], "balloon": ["balloon 32"]}
    assert lost == wanted[event]
    assert "--prefill" in fill and "--wait" not in fill and "--prefill" not in measured and "--wait" in measured
    assert f"--ops {load.blocks(cell)}" in measured and "--warm 0 " in measured
    assert all(f"--layout {one_guest.LAYOUT}" in c for c in (fill, measured))
    same = [c[: c.index(" --device")] for c in (fill, measured)]
    assert same[0] == same[1] and f"workload {kind} " in same[0]
    assert fill.split("--rng ")[1].split()[0] != measured.split("--rng ")[1].split()[0]
    assert load.check(cells.Cell(cell.load, True, False, 0.5, wait_us=500)) and not load.check(cell)


def test_every_arm_has_the_cache_and_one_allowance(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "supports", lambda key, binary=None: True)
    assert arms.Auto(48 * MIB + serving.PROGRAM_BYTES, tmp_path).store_bytes == 48 * MIB
    assert serving.Undercroft(96 * MIB, tmp_path).store_bytes == 96 * MIB - serving.PROGRAM_BYTES
    words = f"{serving.PROGRAM_BYTES // MIB} MiB"
    for name in (
        "docs/decisions/0100-laboratory.md",
        "docs/decisions/0187-bytes-and-time.md",
        "docs/results/exclusive.md",
    ):
        text = (ROOT / name).read_text()
        assert words in text, f"{name} does not say {words}"


# --- Time


def timed(title, seconds, ops=1000, **more):
    """An arm's record whose guest did `ops` operations in so long."""
    made = (exclusive_record(40) if title == "exclusive" else record(title, 60)) | more
    guest = made["guests"][0] | {"seconds": seconds, "reads": ops, "read_all": {"p99_us": 900.0}}
    made["guests"] = [guest]
    made["measured"] |= {"emulator_seconds": 5.0, "machine_cpu_seconds": 9.0, "disk_cpu_seconds": 0.5, "disk": []}
    return made


def test_speed_is_compared_run_by_run():
    ours = derive.together([timed("exclusive", s) for s in (10, 20, 10)])
    base = derive.together([timed("inclusive", s) for s in (11, 22, 9)])
    assert derive.faster(ours, base) == pytest.approx((1.1, 0.9, 1.1))
    assert derive.faster(timed("exclusive", 10), timed("inclusive", 5)) == pytest.approx((0.5, 0.5, 0.5))
    assert derive.faster(timed("exclusive", 10, ops=0), timed("inclusive", 5)) is None
    f = derive.figures(timed("exclusive", 10))
    assert (f["p99_us"], f["daemon_us_per_op"], f["emulator_us_per_op"], f["copying_us_per_op"]) == (
        900,
        2000,
        5000,
        500,
    )
    assert derive.others_cores(timed("exclusive", 10)) == pytest.approx(0.15)
    assert (
        derive.figures(record("old", 60))["emulator_us_per_op"] is None
        and derive.others_cores(record("old", 60)) is None
    )
    assert measure.major_faults("7 (a b) S 1 2 3 4 5 6 70 0 12 0 5 6") == 12
    assert measure.busy_seconds("cpu  100 50 50 1000 70 0 20 30 0 0\ncpu0 1") == 250 / measure.TICK


def cell_of(seconds, **more):
    made = {
        "undercroft-off": timed("inclusive", 10),
        "undercroft-auto": timed("exclusive", seconds),
        "default-128": timed("page cache", 14),
    }
    return facts(n=0.5) | more | {"arms": made}


def test_where_exclusive_costs_time_it_is_said_with_what_it_costs():
    text = "\n".join(times.section({"a": cell_of(11)}, report.guest_kind))
    assert "0.91x in one run of the inclusive cache's operations a second; +0.0 us of processor time" in text
    assert (
        "500.0 us of it are copying and hashing" in text
        and "at least | exclusive | verdict" in text
        and "**not reached**" in text
    )
    good = "\n".join(times.section({"a": cell_of(10.1)}, report.guest_kind))
    assert "Nowhere by more than two per cent" in good and "| 0.98x | 0.99x | reached |" in good
    served = times.verdicts(cell_of(6, wait_us=2000))
    assert [(wanted, round(found[0], 2)) for _, wanted, found in served] == [(1.5, 1.67), (2.0, 2.33)]
    assert times.verdicts(cell_of(6, wait_us=0)) == [] and times.verdicts(cell_of(6, wait_us=2000, n=0.25)) == []
    assert times.verdicts(facts() | {"arms": {}}) == []


def test_the_report_keeps_disks_apart(tmp_path):
    s = results(tmp_path)
    slow = facts(n=0.25) | {"wait_us": 2000}
    s.begin("a-wait2ms", slow)
    made = timed("exclusive", 10, disk_latency_us=2345, read_ahead_kb=None)
    made["measured"]["disk"] = [{"read_bytes": 80 * MIB}]
    s.add("a-wait2ms", "undercroft-auto", made)
    text = report.full(s.data, [])
    assert "| zeroing, disk with 2 ms wait | 0.25 | 2 ms wait | 2,345 | exclusive | 100 |" in text
    assert "a-wait2ms, exclusive: 40.0 MiB asked for, 80.0 MiB by the disk's own count" in text
    assert list(cells.usual(s.data["cells"])) == ["a"], "pictures and the paper's table are of the host's own disk"


def test_old_results_are_called_by_todays_names(tmp_path):
    s = results(tmp_path)
    s.data["cells"]["a"]["arms"]["default"]["title"] = "host page cache"
    s.save()
    assert store.Store(s.path).data["cells"]["a"]["arms"]["default"]["title"] == "page cache, host's read-ahead"


# --- The demo


def test_the_demo_measures_a_minute_of_each_load():
    a = demo.arguments([])
    waits = {cell.wait_us for cell in a.cells}
    assert a.seconds * len(a.arms) * len(demo.WAITS_US) >= 60
    assert waits == ({None} if a.missing else set(demo.WAITS_US))
    assert [len(run) for run in demo.runs(a.cells)] == [len(a.cells)], "both loads in one guest"
    assert all(f"--seconds {demo.SECONDS}" in load.command(a.cells[0]) for load in a.timed.values())
    assert len(demo.runs(demo.arguments(["--loads", "uniform,seq,pool"]).cells)) == 3, "they have images of their own"


def test_what_was_not_run_is_said_and_the_rest_is_shown(tmp_path, monkeypatch):
    """Stopped in the second arm, between its fast disk and its slow one: tables and picture of what there is."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo.slowdisk, "lacks", list)
    a = demo.arguments(["--out", str(tmp_path)])
    (tmp_path / "demo.png").write_bytes(b"old")
    said = []
    screen = SimpleNamespace(say=lambda text="": said.append(text), clear=lambda: None, status=lambda *_: None)

    class Interrupted:
        def __init__(self, work, kept, screen):
            self.store, self.work, self.accel = kept, work, "tcg"

        def run_cells(self, run, keys, loads):
            assert not (tmp_path / "demo.png").exists(), "no picture of another run"
            for cell in run[:2]:
                self.store.begin(cell.id, facts(cell.load, 0.5) | {"wait_us": cell.wait_us})
                self.store.add(cell.id, "direct", timed("O_DIRECT", 10))
            self.store.add(run[0].id, "default-128", timed("page cache", 5))
            raise KeyboardInterrupt

    monkeypatch.setattr(demo, "Session", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.measure(a, screen)
    text = "\n".join(said)
    assert "Zipf .99: not run" in text
    row = {line[:32].strip(): line for line in text.splitlines() if "MiB" in line or "not run" in line}
    assert (
        "200" in row["page cache, 128 KiB read-ahead"] and row["page cache, 128 KiB read-ahead"].count("not run") == 1
    )
    assert "not run" in row["exclusive"] and "not run" not in row["O_DIRECT"]
    drawn = (tmp_path / "demo.svg").read_text()
    assert (tmp_path / "demo.png").stat().st_size > 1000 and drawn
    assert not any("busy" in line for line in said)


def test_programs_are_in_the_page_cache_before_a_control_group_reads_them(scratch):
    """What a group reads first is charged to it, and dropped when the disks' pages need the room: a storage daemon read
    2 MiB of itself for one page fault, which counted as read from its disk."""
    copy = scratch / "program"
    shutil.copy(sys.executable, copy)
    assert programs.files(copy)[0] == copy and any("libc.so" in str(p) for p in programs.files(copy))
    with open(copy, "rb+") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert sum(readahead.resident(f.fileno())) == 0
        assert programs.read(copy) > copy.stat().st_size
        assert set(readahead.resident(f.fileno())) == {1}
    assert programs.files(scratch / "absent") == []


def test_page_faults_that_read_the_program_are_said():
    again, alone = timed("page cache", 10), timed("O_DIRECT", 10)
    again["measured"]["major_faults"], alone["measured"]["major_faults"] = 2, 0
    cells = {"a": facts(n=0.5) | {"arms": {"default": again, "direct": alone}}}
    assert list(derive.program_reads(cells)) == [("a", "page cache", 2)]
    assert any("2 page faults read its own program" in line for line in report.checks(cells))


def test_speeds_of_a_busy_machine_are_called_so(tmp_path):
    """By the table and by the picture: 1.9 cores for others are more than 0.4."""
    pytest.importorskip("matplotlib")
    quiet, busy = timed("exclusive", 10), timed("exclusive", 10)
    busy["measured"]["machine_cpu_seconds"] = 26.5
    cell = facts(n=0.5)
    assert [c for _, _, c in derive.busy({"a": cell | {"arms": {"undercroft-auto": busy}}})] == [pytest.approx(1.9)]
    assert not list(derive.busy({"a": cell | {"arms": {"undercroft-auto": quiet}}}))
    sizes = []
    for record_of in (quiet, busy):
        plots.speed(plots.setup(), {"a": cell | {"arms": {"undercroft-auto": record_of}}}, tmp_path, "p")
        sizes.append((tmp_path / "p.svg").stat().st_size)
    assert sizes[1] > sizes[0], "the busy one has a line more"


def test_the_pictures_in_the_repository_are_linked():
    for page in ("README.md", "docs/demo.md"):
        assert "demo.png" in (ROOT / page).read_text(), f"{page} has no picture of the demo"
    assert (ROOT / "docs" / "demo.png").stat().st_size <= 256 << 10


# --- Several disks of one guest


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """The program that runs in guests."""
    program = tmp_path_factory.mktemp("workload") / "workload"
    subprocess.run(["cc", "-O1", "-o", program, ROOT / "experiments/guest/workload.c", "-lm"], check=True)
    return program


def test_a_workload_reads_each_part_from_its_own_file(workload, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    size = ["--seed", "1", "--bytes", str(MIB)]
    for disk in (one, two):
        subprocess.run([workload, "fill", disk, *size], check=True)

    def uniform():
        argv = [workload, "uniform", f"{one},{two}", *size, "--ops", "400", "--write-percent", "30", "--check-all"]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def damage(disk, at):
        with open(disk, "r+b") as f:
            f.seek(at)
            f.write(b"x" * 4096)

    # The first 64 KiB are the first file's, the next ones the second's, and so on.
    damage(two, 0)
    damage(one, 65536 + 4096)
    done = uniform()
    assert done.returncode == 0 and '"event":"checked","blocks":256' in done.stdout, done.stdout
    for disk in (one, two):
        subprocess.run([workload, "fill", disk, *size], check=True)
    damage(two, 65536 + 4096)
    damaged = subprocess.run([workload, "check", f"{one},{two}", *size], capture_output=True, text=True, check=False)
    assert damaged.returncode == 1 and "block 17 is" in damaged.stdout


def test_a_load_on_several_disks_uses_all_of_them(tmp_path, monkeypatch):
    load, cell = loads.LOADS["disks2"], cells.Cell("disks2", True, False, 0.5)
    command = load.command(cell)
    assert " /dev/vda,/dev/vdb " in command and " --device vda,vdb " in command
    one = loads.LOADS["disks1"].command(cell)
    assert one == command.replace("/dev/vda,/dev/vdb", "/dev/vda").replace("vda,vdb", "vda"), "it is the same load"
    master = tmp_path / "master.raw"
    master.write_bytes(b"content")
    monkeypatch.setattr(one_guest, "pattern", lambda *_: master)
    disks = load.images(cell, tmp_path, print)
    assert len(disks) == 2 and all(disk.read_bytes() == b"content" for disk in disks)
    assert master not in disks and loads.LOADS["disks1"].images(cell, tmp_path, print) == [master]


def test_disks_of_a_guest_are_of_one_virtual_machine(tmp_path, monkeypatch):
    way = serving.Undercroft(64 * MIB, tmp_path, "raw", limited=False)
    way.disks_each = 2
    monkeypatch.setattr(way, "serve", lambda: None)
    with way:
        way.start([tmp_path / f"{n}.raw" for n in range(4)])
        text = way.config.read_text()
    assert [way.names(n) for n in range(4)] == [
        ("guest-1", "root"),
        ("guest-1", "data-1"),
        ("guest-2", "root"),
        ("guest-2", "data-1"),
    ]
    vms = text.split("[[vm]]")[1:]
    assert len(vms) == 2 and all(vm.count("[[vm.disk]]") == 2 for vm in vms)
    assert '"guest-2"' in vms[1] and "/2.raw" in vms[1] and "/3.raw" in vms[1]


# --- The control socket of a guest's QEMU


def test_an_event_before_qemus_greeting_is_not_taken_for_it(tmp_path):
    """QEMU 7.2 sends whoever connects the events that come before it has greeted him (5 of 300 connections beside a
    guest that is stopped and goes on); and one that ends is said to have."""
    state = '{"return": {"status": "running"}}'
    said = ['{"event": "RESUME"}', '{"QMP": {}}', '{"event": "STOP"}', '{"return": {}}', state]
    guest = SimpleNamespace(name="g", control_dir=tmp_path, log=tmp_path / "log")
    guest.log.write_text("no memory\n")
    with socket.socket(socket.AF_UNIX) as qemu:
        qemu.bind(str(tmp_path / "qmp"))
        qemu.listen()

        def speak():
            control, _ = qemu.accept()
            control.sendall("".join(f"{line}\n" for line in said).encode())
            control.shutdown(socket.SHUT_WR)
            kept.append(control)

        kept = []
        threading.Thread(target=speak, daemon=True).start()
        with guests.Guest._control(guest, 10) as ask:
            assert ask("query-status") == {"status": "running"}
            with pytest.raises(Stopped, match="QEMU closed its control socket: no memory"):
                ask("query-status")
        kept[0].close()
