"""What `attach-args` prints is what hypervisors and NBD clients take."""

import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from harness import images
from harness.daemon import Disk
from harness.programs import built, need, run
from test_nbd_tls import Authority, listener, port

SIZE = 16 * images.MIB


def forms(daemon, *arguments: object) -> dict:
    """Everything that is printed, as JSON."""
    return json.loads(daemon.call("attach-args", *arguments, "--as", "json").stdout)


def quit_at_once(*words: str) -> str:
    """QEMU with these arguments, which opens all its disks, says what they are, and ends."""
    command = [
        "qemu-system-x86_64",
        "-M",
        "q35",
        "-m",
        "64M",
        "-display",
        "none",
        "-nodefaults",
        "-S",
        "-monitor",
        "stdio",
        *words,
    ]
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
    daemon = serve(
        [Disk("a", images.raw(scratch / "a.raw", SIZE), "raw")],
        extra=listener(ours, "require", tls_client_ca=ours.cert),
    )
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


def domain(printed: str) -> str:
    """A domain that has what was printed where its comments say: the memory in <domain>, the disks in <devices>."""
    memory, _, disks = printed.rpartition("<!-- in <devices> -->\n")
    os_of = "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
    return (
        f"<domain type='qemu'>\n<name>web</name>\n<memory unit='MiB'>512</memory>\n{memory}{os_of}\n"
        f"<devices>\n{disks}</devices>\n</domain>\n"
    )


def judged(xml: str, scratch) -> subprocess.CompletedProcess:
    """What libvirt's own schema says of a domain."""
    (scratch / "domain.xml").write_text(xml)
    return run("virt-xml-validate", scratch / "domain.xml", "domain", check=False)


@pytest.fixture
def web(scratch):
    """What is printed for a VM of two disks, one of them read-only, with an encrypted listener of NBD."""
    need("virt-xml-validate", "xmllint")
    place = scratch / "a & <b>"
    place.mkdir()
    text = listener(Authority(scratch, "ours"), "require").replace("127.0.0.1:0", "127.0.0.1:10809")
    text += '[[vm]]\nname = "web"\n'
    for name, more in (("root", f'socket = "{place}/root.sock"\n'), ("data", "read_only = true\n")):
        image = images.raw(scratch / f"{name}.raw", SIZE)
        text += f'[[vm.disk]]\nname = "{name}"\nimage = "{image}"\nformat = "raw"\nnbd = true\n{more}'
    (scratch / "web.toml").write_text(text)
    words = ("attach-args", "web", "--config", scratch / "web.toml", "--as", "json")
    return json.loads(run(built("undercroft"), *words).stdout)


def test_libvirt_accepts_the_xml(web, scratch):
    """A domain made of what is printed is what libvirt's schema describes, over vhost-user and over NBD."""
    for form in ("libvirt", "libvirt_nbd"):
        done = judged(domain(web[form]), scratch)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{web[form]}"


def test_libvirts_schema_refuses_what_is_wrong(web, scratch):
    """Each mistake alone, else that nothing was refused above would say nothing."""
    good = domain(web["libvirt"])
    (memory,) = re.findall(r"<memoryBacking>.*</memoryBacking>\n", good, re.DOTALL)
    mistakes = {
        "memory among the devices": good.replace(memory, "").replace("<devices>\n", f"<devices>\n{memory}"),
        "memory twice": good.replace(memory, memory + memory),
        "memory that is allocated at once": good.replace("mode='immediate'", "mode='at-once'"),
        "memory that is common": good.replace("mode='shared'", "mode='common'"),
        "a disk of no such type": good.replace("type='vhostuser'", "type='vhost-user'", 1),
        "a disk without a target": good.replace("<target dev='vda' bus='virtio'/>", ""),
        "no number of queues": re.sub(r"queues='\d+'", "queues='many'", good, count=1),
        "no path": re.sub(r" path='[^']*'", "", good, count=1),
        "an unknown element": good.replace("<reconnect ", "<connect ", 1),
    }
    over_nbd = domain(web["libvirt_nbd"])
    mistakes |= {
        "another word for yes": over_nbd.replace("tls='yes'", "tls='true'", 1),
        "no such protocol": over_nbd.replace("protocol='nbd'", "protocol='nbds'", 1),
    }
    for what, xml in mistakes.items():
        assert xml not in (good, over_nbd), f"{what}: the mistake is not made"
        assert judged(xml, scratch).returncode != 0, f"{what}:\n{xml}"
