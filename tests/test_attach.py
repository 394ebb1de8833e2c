"""What `attach-args` prints is what hypervisors and NBD clients take."""

import json
import shlex
import xml.etree.ElementTree as ElementTree

from harness import images
from harness.daemon import Disk
from harness.programs import need, run
from test_nbd_tls import Authority, listener, port

SIZE = 16 * images.MIB


def forms(daemon, *arguments: object) -> dict:
    """Everything that is printed, as JSON."""
    return json.loads(daemon.call("attach-args", *arguments, "--as", "json").stdout)


def quit_at_once(*words: str) -> str:
    """QEMU with these arguments, which opens all its disks, says what they are, and ends."""
    command = ["qemu-system-x86_64", "-M", "q35", "-m", "64M", "-display", "none", "-nodefaults", "-S", "-monitor", "stdio", *words]
    return run(*command, stdin="info block\nquit\n").stdout


def test_uris_are_of_listeners_that_have_the_disk(serve, scratch):
    """A running daemon's listeners each export what they list, and the URIs say where clients encrypt."""
    need("nbdinfo")
    ours = Authority(scratch, "ours")
    ours.issue("client", "clientAuth")
    disks = [Disk(name, images.raw(scratch / f"{name}.raw", SIZE), "raw") for name in "ab"]
    daemon = serve(disks, extra=listener(ours, "require", tls_client_ca=ours.cert) + 'exports = ["b"]\n')
    schemes = {name: [uri.partition(":")[0] for uri in forms(daemon, name)["nbd_uris"]] for name in "ab"}
    assert schemes == {"a": ["nbd+unix", "nbd"], "b": ["nbd+unix", "nbd", "nbds"]}
    secret = next(u for u in forms(daemon, "b")["nbd_uris"] if u.startswith("nbds:"))
    info = run("nbdinfo", "--json", f"{secret}?tls-certificates={ours.directory / 'client'}").stdout
    assert json.loads(info)["TLS"] and json.loads(info)["exports"][0]["export-size"] == SIZE


def test_qemu_takes_encrypted_nbd(serve, scratch):
    """The arguments for a listener that demands TLS and certificates of its clients, as they are printed."""
    need("qemu-system-x86_64")
    ours = Authority(scratch, "ours")
    ours.issue("client", "clientAuth")
    daemon = serve([Disk("a", images.raw(scratch / "a.raw", SIZE), "raw")], extra=listener(ours, "require", tls_client_ca=ours.cert))
    # The same listener alone, in a file: of several, QEMU is given the first.
    alone = scratch / "alone.toml"
    text = listener(ours, "require", tls_client_ca=ours.cert).replace("127.0.0.1:0", f"127.0.0.1:{port(daemon)}")
    alone.write_text(f'[[disk]]\nname = "a"\nimage = "{scratch / "a.raw"}"\nformat = "raw"\nnbd = true\n{text}')
    home = ours.directory / "client"
    words = daemon.call("attach-args", "a", "--config", alone, "--as", "qemu-nbd", "--tls-dir", home).stdout
    assert "uc-a" in quit_at_once(*shlex.split(words))


def test_libvirts_xml_is_whole(serve, scratch):
    """Memory once, a disk for each, and paths that a parser reads back."""
    place = scratch / "a & <b>"
    place.mkdir()
    extra = '[[vm]]\nname = "web"\n'
    for name, more in (("root", f'socket = "{place}/root.sock"\n'), ("data", "")):
        image = images.raw(scratch / f"{name}.raw", SIZE)
        extra += f'[[vm.disk]]\nname = "{name}"\nimage = "{image}"\nformat = "raw"\nnbd = true\n{more}'
    daemon = serve([], extra=extra)
    for form, kind in (("libvirt", "vhostuser"), ("libvirt_nbd", "network")):
        domain = ElementTree.fromstring(f"<domain>{forms(daemon, 'web')[form]}</domain>")
        disks = domain.findall("disk")
        assert [d.get("type") for d in disks] == [kind, kind]
        assert [d.find("target").get("dev") for d in disks] == ["vda", "vdb"]
        assert len(domain.findall("memoryBacking")) == (form == "libvirt")
        if form == "libvirt":
            assert disks[0].find("source").get("path") == f"{place}/root.sock"
