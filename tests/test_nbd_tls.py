"""TLS on the NBD listeners, with the clients that people use: libnbd's tools and QEMU's."""

import json
import socket
import ssl
import struct

import pytest
from harness import images, nbdwire
from harness.daemon import Disk, until
from harness.nbdwire import Wire
from harness.programs import built, need, run

SIZE = 16 * images.MIB
STARTTLS, TLS_REQUIRED = 5, 0x80000005


class Authority:
    """Certificates made by openssl, in a directory per role, under the names that libnbd and QEMU look for."""

    def __init__(self, directory, name: str):
        need("openssl")
        self.directory, self.name = directory / name, name
        self.directory.mkdir()
        self.cert, self.key = self.directory / "ca.pem", self.directory / "ca.key"
        request = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
        ]
        extensions = [
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        ]
        run(*request, "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.cert, *extensions)

    def issue(self, role: str, usage: str, folder: str = "") -> tuple[object, object]:
        """A certificate and its key: `server` for this host, or `client`; also laid out as `ROLE-cert.pem` with
        `ca-cert.pem`, in a directory of that name if no other is given."""
        home = self.directory / (folder or role)
        home.mkdir(exist_ok=True)
        cert, key, request, extensions = (home / f"{role}{end}" for end in ("-cert.pem", "-key.pem", ".csr", ".ext"))
        new = [
            "openssl",
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            f"/CN={role}",
        ]
        run(*new, "-keyout", key, "-out", request)
        extensions.write_text(
            f"subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={usage}\nbasicConstraints=CA:FALSE\n"
        )
        sign = [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.cert,
            "-CAkey",
            self.key,
            "-CAcreateserial",
            "-days",
            "30",
        ]
        run(*sign, "-extfile", extensions, "-out", cert)
        (home / "ca-cert.pem").write_bytes(self.cert.read_bytes())
        return cert, key

    def revoke(self, *certificates):
        """Revokes certificates; the file of the list of all that were revoked, which is written anew."""
        index, number, crl, config = (self.directory / name for name in ("index", "crlnumber", "crl.pem", "ca.cnf"))
        index.touch()
        number.write_text("01\n")
        config.write_text(
            f"[ca]\ndefault_ca = ours\n[ours]\ndatabase = {index}\ncrlnumber = {number}\ncertificate = {self.cert}\n"
            f"private_key = {self.key}\ndefault_md = sha256\ndefault_crl_days = 30\n"
        )
        for certificate in certificates:
            run("openssl", "ca", "-config", config, "-revoke", certificate)
        run("openssl", "ca", "-config", config, "-gencrl", "-out", crl)
        return crl


def listener(ours: Authority, mode: str, **files) -> str:
    cert, key = ours.issue("server", "serverAuth")
    lines = ["[[nbd.listen]]", 'tcp = "127.0.0.1:0"', f'tls = "{mode}"', f'tls_cert = "{cert}"', f'tls_key = "{key}"']
    return "\n".join([*lines, *(f'{k} = "{v}"' for k, v in files.items()), ""])


def port(daemon, n: int = -1) -> int:
    """The port of a TCP listener; the last one, which has TLS."""
    return int([a for a in daemon.status()["nbd"] if a.startswith("tcp:")][n].rsplit(":", 1)[1])


def uri(daemon, export: str, certificates) -> str:
    return f"nbds://localhost:{port(daemon)}/{export}?tls-certificates={certificates}"


class TcpWire(Wire):
    """The minimal client over TCP, to which TLS can be added."""

    def __init__(self, number: int):
        self.socket = socket.create_connection(("127.0.0.1", number), timeout=10)

    def start_tls(self, authority, certificate: tuple = (), **options) -> None:
        self.option(STARTTLS)
        assert self.option_reply()[0] == 1
        context = ssl.create_default_context(cafile=str(authority))
        if certificate:
            context.load_cert_chain(*certificate)
        for name, value in options.items():
            setattr(context, name, value)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def go(self, export: str) -> "TcpWire":
        name = export.encode()
        self.option(7, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        while True:
            kind, data = self.option_reply()
            if kind == 1:
                return self
            assert kind == 3, f"{kind:#x} {data!r}"


@pytest.fixture
def ours(scratch):
    return Authority(scratch, "ours")


def test_tools_over_tls(serve, scratch, ours):
    """nbdinfo, nbdcopy and QEMU, with certificates on both sides; and none of them without."""
    need("nbdcopy", "nbdinfo", "qemu-img", "qemu-io")
    ours.issue("client", "clientAuth")
    home = ours.directory / "client"
    source = images.raw(scratch / "source.raw", SIZE, seed=2)
    disk = images.raw(scratch / "a.raw", SIZE)
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "require", tls_client_ca=ours.cert))
    info = json.loads(run("nbdinfo", "--json", uri(daemon, "a", home)).stdout)
    assert info["TLS"] and info["exports"][0]["export-size"] == SIZE
    run("nbdcopy", "--connections=4", "--requests=32", "--flush", source, uri(daemon, "a", home))
    run("nbdcopy", "--connections=4", uri(daemon, "a", home), scratch / "back.raw")
    assert images.digest(scratch / "back.raw") == images.digest(source)
    credentials = f"tls-creds-x509,id=t,endpoint=client,dir={home}"
    place = f"driver=nbd,host=localhost,port={port(daemon)},export=a,tls-creds=t"
    run("qemu-img", "compare", "--object", credentials, "--image-opts", place, f"driver=raw,file.filename={source}")
    commands = ["-c", "write -P 7 1M 5M", "-c", "flush", "-c", "read -P 7 1M 5M"]
    run("qemu-io", "--object", credentials, "--image-opts", place, *commands)
    assert disk.read_bytes()[1 << 20 : 6 << 20] == b"\x07" * (5 << 20)
    # In the clear, or with another authority's certificate: no.
    plain = run("nbdinfo", f"nbd://localhost:{port(daemon)}/a", check=False)
    assert plain.returncode != 0
    theirs = Authority(scratch, "theirs")
    theirs.issue("client", "clientAuth")
    (theirs.directory / "client" / "ca-cert.pem").write_bytes(ours.cert.read_bytes())
    stranger = run("nbdinfo", uri(daemon, "a", theirs.directory / "client"), check=False)
    assert stranger.returncode != 0


def test_tls_is_required_before_anything(serve, scratch, ours):
    """Before TLS nothing is said about exports; what was agreed on before is forgotten; nothing said in the clear
    counts under TLS."""
    disk = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "require"))
    number = port(daemon)
    with TcpWire(number) as wire:
        wire.greeting()
        for option, data in ((3, b""), (8, b""), (6, struct.pack(">I", 1) + b"a" + struct.pack(">H", 0)), (99, b"x")):
            wire.option(option, data)
            assert wire.option_reply()[0] == TLS_REQUIRED, option
        wire.start_tls(ours.cert)
        wire.option(3)
        kind, listed = wire.option_reply()
        assert kind == 2 and listed.startswith(struct.pack(">I", 1) + b"a") and wire.option_reply()[0] == 1
        wire.option(STARTTLS)
        assert wire.option_reply()[0] == 0x80000003, "once is enough"
        # Replies are simple: what comes is not structured.
        wire.go("a").request(nbdwire.READ, 4096, 4096, 5)
        assert wire.reply() == (0, 5) and wire.receive(4096) == disk.read_bytes()[4096:8192]
        peers = [f["peer"] for f in daemon.disk("a")["frontends"] if f["kind"] == "nbd"]
        assert peers and peers[0].endswith("TLS 1.3"), peers
    with TcpWire(number) as wire:
        wire.greeting()
        wire.start_tls(ours.cert, maximum_version=ssl.TLSVersion.TLSv1_2)
        wire.go("a").request(nbdwire.READ, 0, 1 << 20, 5)
        assert wire.reply() == (0, 5) and wire.receive(1 << 20) == disk.read_bytes()[: 1 << 20]
    with TcpWire(number) as wire:
        wire.greeting()
        wire.send(struct.pack(">QII", nbdwire.OPTION, STARTTLS, 0) + struct.pack(">QII", nbdwire.OPTION, 3, 0))
        assert wire.closed(), "options behind STARTTLS in the clear end the connection"
    with TcpWire(number) as wire:
        wire.greeting()
        wire.option(1, b"a")
        assert wire.closed()
    with TcpWire(number) as wire:
        wire.greeting()
        wire.option(STARTTLS)
        wire.option_reply()
        wire.send(b"this is no TLS record at all" * 10)
        assert wire.closed()


def test_tls_that_is_offered(serve, scratch, ours):
    """With `offer` both are served, and a listener without TLS says so."""
    disk = images.raw(scratch / "a.raw", SIZE, seed=1)
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "offer"))
    for secure in (False, True):
        with TcpWire(port(daemon)) as wire:
            wire.greeting()
            if secure:
                wire.start_tls(ours.cert)
            wire.go("a").request(nbdwire.READ, 0, 512, 5)
            assert wire.reply() == (0, 5) and wire.receive(512) == disk.read_bytes()[:512]
    with TcpWire(port(daemon, 0)) as wire:
        wire.greeting()
        wire.option(STARTTLS)
        assert wire.option_reply()[0] == 0x80000001
        wire.go("a")


def test_a_slow_reader_under_tls_is_served_in_the_end(serve, scratch, ours):
    """Replies wait for a client that does not read, in both layers, and arrive whole and in order."""
    disk = images.raw(scratch / "a.raw", SIZE, seed=5)
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "require"))
    contents = disk.read_bytes()
    with TcpWire(port(daemon)) as wire:
        wire.greeting()
        wire.start_tls(ours.cert)
        wire.go("a")
        for n in range(16):
            wire.request(nbdwire.READ, n << 20, 1 << 20, n)
        until(lambda: daemon.disk("a")["counters"]["reads"] >= 3, "replies wait")
        seen = set()
        for _ in range(16):
            error, n = wire.reply()
            assert error == 0 and wire.receive(1 << 20) == contents[n << 20 : (n + 1) << 20]
            seen.add(n)
        assert seen == set(range(16))


def test_certificates_are_read_again(serve, scratch, ours):
    """After a reload new connections are shown the new certificate; a bad one is named, and the one before stays."""
    disk = images.raw(scratch / "a.raw", SIZE)
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "require"))

    def serial(wire) -> str:
        return wire.socket.getpeercert()["serialNumber"]

    def connect():
        wire = TcpWire(port(daemon))
        wire.greeting()
        wire.start_tls(ours.cert)
        return wire.go("a")

    with connect() as before:
        first = serial(before)
        cert, _ = ours.issue("server", "serverAuth")
        report = json.loads(daemon.call("reload", "--json").stdout)
        assert not report["failed"]
        with connect() as after:
            assert serial(after) != first
        before.request(nbdwire.FLUSH, 0, 0, 1)
        assert before.reply() == (0, 1), "who is connected stays so"
    good = cert.read_bytes()
    cert.write_text("nonsense")
    assert "server-cert.pem" in daemon.call("reload", "--json", check=False).stderr
    with connect():
        pass
    cert.write_bytes(good)


def test_a_revoked_client_is_refused(serve, scratch, ours):
    """A client whose certificate is revoked, in a list that a reload reads, is not served any more, and is told why;
    one with another certificate of the same authority is, by the same listener."""
    need("nbdinfo", "qemu-img")
    disk = images.raw(scratch / "a.raw", SIZE, seed=3)
    certificates = {name: ours.issue("client", "clientAuth", name) for name in ("good", "bad")}
    files = {"tls_client_ca": ours.cert, "tls_client_crl": ours.revoke()}
    daemon = serve([Disk("a", disk, "raw")], extra=listener(ours, "require", **files))

    def tools(name: str) -> list:
        """What nbdinfo and qemu-img make of it, with the certificate of that name."""
        home = ours.directory / name
        place = f"driver=nbd,host=localhost,port={port(daemon)},export=a,tls-creds=t"
        credentials = f"tls-creds-x509,id=t,endpoint=client,dir={home}"
        qemu = ["qemu-img", "info", "--output=json", "--object", credentials, "--image-opts", place]
        return [run("nbdinfo", "--size", uri(daemon, "a", home), check=False), run(*qemu, check=False)]

    def is_served(name: str) -> None:
        info, qemu = tools(name)
        assert info.stdout.strip() == str(SIZE), info.stderr
        assert qemu.returncode == 0 and json.loads(qemu.stdout)["virtual-size"] == SIZE, qemu.stderr
        with TcpWire(port(daemon)) as wire:
            wire.greeting()
            wire.start_tls(ours.cert, certificates[name])
            wire.go("a").request(nbdwire.READ, 4096, 4096, 5)
            assert wire.reply() == (0, 5) and wire.receive(4096) == disk.read_bytes()[4096:8192]

    # The list is there, and has nobody on it.
    is_served("good")
    is_served("bad")
    assert ours.revoke(certificates["bad"][0]) == files["tls_client_crl"]
    assert not json.loads(daemon.call("reload", "--json").stdout)["failed"]
    is_served("good")
    for tool in tools("bad"):
        assert tool.returncode != 0 and not tool.stdout, (tool.stdout, tool.stderr)
    # TLS 1.2 has the server's answer to the certificate in the handshake; in 1.3 it comes with what is read next.
    with TcpWire(port(daemon)) as wire, pytest.raises(ssl.SSLError, match="certificate revoked"):
        wire.greeting()
        wire.start_tls(ours.cert, certificates["bad"], maximum_version=ssl.TLSVersion.TLSv1_2)
    is_served("good")


def test_what_is_wrong_with_the_files_is_named(scratch, ours):
    """`undercroft check` names the file and the remedy."""
    cert, key = ours.issue("server", "serverAuth")
    _, other = ours.issue("client", "clientAuth")
    image = images.raw(scratch / "a.raw", SIZE)
    config = scratch / "c.toml"

    def check(**keys: object) -> str:
        values = {"tcp": "127.0.0.1:0", "tls": "require", "tls_cert": cert, "tls_key": key} | keys
        lines = [f'{k} = "{v}"' for k, v in values.items() if v]
        lines += ["[[disk]]", 'name = "a"', f'image = "{image}"', "nbd = true"]
        config.write_text("\n".join(["[[nbd.listen]]", *lines]) + "\n")
        done = run(built("undercroft"), "check", config, check=False)
        return (done.stdout + done.stderr) if done.returncode else ""

    assert check() == ""
    for keys, words in [
        ({"tls_cert": scratch / "no.pem"}, ["no.pem", "can read"]),
        ({"tls_cert": key}, ["server-key.pem", "certificate"]),
        ({"tls_key": other}, ["client-key.pem", "belongs"]),
        ({"tls_key": ""}, ["no tls_key", "FILE.pem"]),
        ({"tls": "off"}, ["tls_cert is given", "require"]),
        ({"tls": "reqire"}, ["require"]),
        ({"tls_client_ca": image}, ["a.raw"]),
        ({"tls_client_crl": cert}, ["tls_client_ca"]),
        ({"tcp": ""}, ["neither unix nor tcp"]),
    ]:
        text = check(**keys)
        assert text and all(w in text for w in words), (keys, text)
