"""A guest that libvirt starts, with the XML that `attach-args` prints: its disk is there, and what it writes arrives.

Debian's libvirtd runs QEMU as a user of its own, so that docs/attach/libvirt.md is tried whole: the group that may use
the socket, memory that is shared and allocated at once, and a domain that libvirt defines, starts and ends.
"""

import os
import shutil
import socket
import time
from pathlib import Path

import pytest
from harness import images
from harness.daemon import Disk
from harness.images import MIB
from harness.programs import need, need_root, run
from rig import guest as guests
from rig import process

# At length, guests beside it use the processors up for half an hour, and libvirt, which asks QEMU what it can do before
# it starts the first guest, had not started it in eight minutes.
pytestmark = pytest.mark.alone

BOOTS_WITHIN_S = 240
# A minute beside a build.
STARTS_WITHIN_S = 480


@pytest.fixture
def libvirt(scratch):
    """The URI of a libvirtd: of the one that runs, or of one for this test."""
    need("libvirtd", "virtlogd", "virsh")
    need_root()
    if run("virsh", "-c", "qemu:///system", "list", check=False).returncode == 0:
        yield "qemu:///system"
        return
    place = scratch / "libvirt"
    place.mkdir()
    Path("/run/libvirt").mkdir(exist_ok=True)
    conf = place / "libvirtd.conf"
    conf.write_text(f'unix_sock_dir = "{place}"\nauth_unix_rw = "none"\nauth_unix_ro = "none"\n')
    daemons = []
    try:
        for name, options in (("virtlogd", []), ("libvirtd", ["--config", conf])):
            argv = [name, *options, "--pid-file", place / f"{name}.pid"]
            daemons.append(process.start([str(a) for a in argv], place / f"{name}.log"))
        uri = f"qemu:///system?socket={place}/libvirt-sock"
        end = time.monotonic() + 60
        while run("virsh", "-c", uri, "list", check=False).returncode:
            log = (place / "libvirtd.log").read_text()
            assert time.monotonic() < end and daemons[-1].poll() is None, f"libvirtd does not answer: {log}"
            time.sleep(0.2)
        yield uri
    finally:
        for daemon in reversed(daemons):
            process.end(daemon)


class Line:
    """The guest's line for commands (experiments/guest/init), a socket that QEMU listens on."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.settimeout(BOOTS_WITHIN_S)
        self.lines = self.socket.makefile("r", encoding="utf-8", errors="replace")
        # QEMU drops what is said before somebody listens; the guest boots for longer than it takes to connect.
        assert next(self.lines).startswith("@ready ")

    def run(self, command):
        """Runs a command; what it said. A failure of it fails the test."""
        self.socket.sendall(f"{command}\n".encode())
        said = []
        for line in self.lines:
            if line.startswith("@exit "):
                assert line.strip() == "@exit 0", f"{command}: {line}{said}"
                return "".join(said)
            said.append(line)
        pytest.fail(f"{command}: the guest is gone")


def domain(printed: str, name: str, boots: Path, kind: str) -> str:
    """A domain that has what was printed where its comments say, and the guest of our tests to boot."""
    memory, _, disks = printed.rpartition("<!-- in <devices> -->\n")
    words = "console=ttyS0 quiet panic=-1 no_timer_check"
    return f"""<domain type='{kind}'>
<name>{name}</name>
<memory unit='MiB'>192</memory>
{memory}
<os>
  <type arch='x86_64' machine='q35'>hvm</type>
  <kernel>{boots}/vmlinuz</kernel><initrd>{boots}/initramfs</initrd><cmdline>{words}</cmdline>
</os>
<cpu mode='maximum'/>
<on_reboot>destroy</on_reboot>
<devices>
{disks}
  <serial type='file'><source path='{boots}/console.log'/><target port='0'/></serial>
  <serial type='unix'><source mode='bind' path='{boots}/commands.sock'/><target port='1'/></serial>
  <memballoon model='none'/>
</devices>
</domain>
"""


@pytest.mark.long
def test_libvirt_starts_a_guest_on_a_disk(serve, libvirt, scratch, accel):
    """Read through the daemon by the guest, written by the guest into the image, and a daemon that goes on when the
    domain is gone."""
    image = images.raw(scratch / "a.raw", 16 * MIB)
    # QEMU is another user's: what it is given must be where that user may go.
    scratch.chmod(0o755)
    daemon = serve([Disk("a", image, "raw")], keys='disk_group = "libvirt-qemu"')
    boots = scratch / "boots"
    boots.mkdir()
    for file in ("vmlinuz", "initramfs"):
        shutil.copy(guests.BUILT / file, boots / file)
    shutil.chown(boots, "libvirt-qemu", "kvm")
    name = f"undercroft-{os.getpid()}"
    printed = daemon.call("attach-args", "a", "--config", daemon.config, "--as", "libvirt").stdout
    xml = scratch / "domain.xml"
    xml.write_text(domain(printed, name, boots, "kvm" if accel == "kvm" else "qemu"))
    run("virsh", "-c", libvirt, "create", xml, limit=STARTS_WITHIN_S)
    try:
        line = Line(boots / "commands.sock")
        wanted = run("sha256sum", image).stdout.split()[0]
        assert line.run("sha256sum /dev/vda").split()[0] == wanted
        line.run("printf 'by libvirt' | dd of=/dev/vda bs=4096 seek=7 conv=fsync")
        with open(image, "rb") as f:
            f.seek(7 * 4096)
            assert f.read(10) == b"by libvirt"
        assert "a" in run("virsh", "-c", libvirt, "domblklist", name).stdout
        (disk,) = daemon.status()["disks"]
        assert disk["counters"]["errors"] == 0 and disk["counters"]["miss_blocks"] > 0
    finally:
        run("virsh", "-c", libvirt, "destroy", name, check=False)
    assert daemon.running()
