"""Set-up, installation and the Debian package: what a newcomer runs first, and what an operator gets."""

import grp
import json
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.programs import ROOT, built, need, run

SETUP = ROOT / "scripts" / "setup.sh"
# What the script itself uses, besides what it looks for.
TOOLS = "bash env sed dirname basename uname mktemp rm tail sort printf cat"
# What the shipped program may take (decision 0174).
SHIPPED_BYTES_MAX = 25_000_000
ALL_GROUPS = ("build", "test", "demo", "bench")


def world(scratch, without=(), **fakes: str):
    """A PATH with the tools of the script alone: nothing named in `without`, and `fakes` (name to script) first."""
    bin_dir = scratch / "bin"
    bin_dir.mkdir()
    for name in [*TOOLS.split(), "apt-get", "apt-cache", "dpkg-query", "id"]:
        if name not in without and name.replace("-", "_") not in fakes and (path := shutil.which(name)):
            (bin_dir / name).symlink_to(path)
    for name, text in fakes.items():
        script = bin_dir / name.replace("_", "-")
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    home = scratch / "home"
    home.mkdir()
    return {"PATH": str(bin_dir), "HOME": str(home)}


def run_setup(environment: dict[str, str], *groups: str) -> subprocess.CompletedProcess:
    """Runs the script in an environment of its own."""
    return subprocess.run(
        [shutil.which("bash"), SETUP, *groups], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_setup_stops_where_there_is_no_apt(scratch):
    """On a system that is not Debian-like it says what it would need, and how to go on by hand."""
    done = run_setup(world(scratch, without=["apt-get"]), "build")
    assert done.returncode == 1
    assert "Debian 12" in done.stderr and "apt-get is not here" in done.stderr, done.stderr
    assert "UNDERCROFT_NO_SETUP=1" in done.stderr, "no way on is named"


def test_setup_stops_without_root(scratch):
    """Something is missing and there is neither root nor sudo: it names the packages, and calls no apt."""
    environment = world(
        scratch,
        id="echo 1000",
        dpkg_query="echo not-installed",
        apt_get=f"touch {scratch}/apt-was-called",
    )
    done = run_setup(environment, "build", "test")
    assert done.returncode == 1
    for word in ("root", "sudo", "gcc", "qemu-utils"):
        assert word in done.stderr, f"{word} is not in: {done.stderr}"
    assert not (scratch / "apt-was-called").exists()


def test_setup_says_what_apt_said_when_it_fails(scratch):
    """A failing apt: its last words, and what to look at."""
    environment = world(
        scratch, id="echo 0", dpkg_query="echo not-installed", apt_get="echo no route to host; exit 100"
    )
    done = run_setup(environment, "build")
    assert done.returncode == 1
    assert "no route to host" in done.stderr and "check the network" in done.stderr, done.stderr


def test_setup_refuses_an_unknown_group(scratch):
    """A typo is named, with the choices."""
    done = run_setup(world(scratch), "tset")
    assert done.returncode == 1
    assert "'tset'" in done.stderr and "bench" in done.stderr


def test_setup_installs_nothing_twice():
    """Where everything is installed, which it is when the tests run, it says so."""
    if os.environ.get("UNDERCROFT_NO_SETUP"):
        pytest.skip("set-up was left to the user")
    done = run(SETUP, "build", "test")
    assert "nothing to install" in done.stdout, done.stdout


def test_help_lists_every_target():
    """`make help` and `make` alone name each target of the Makefile."""
    need("make")
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    said = run("make", "-C", ROOT, "--no-print-directory").stdout
    listed = re.findall(r"^  make (\S+)", said, re.MULTILINE)
    assert sorted(listed) == sorted(phony)
    assert run("make", "-C", ROOT, "--no-print-directory", "help").stdout == said


def environment_for(**more: object) -> dict[str, str]:
    """The environment of a packaging script: of a program that is not optimised for size, packed quickly or not at
    all."""
    packed = "gzip" if os.environ.get("UNDERCROFT_LONG") else "none"
    quick = {"BINARY": built("undercroft"), "COMPRESSION": packed}
    return {**os.environ, **quick, **{k: str(v) for k, v in more.items()}}


def script(name: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    """Runs one of dist's scripts."""
    return subprocess.run(
        [ROOT / "dist" / name, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_install_and_again(scratch):
    """Everything arrives, works, and an edited configuration survives the second run."""
    environment = environment_for(DESTDIR=scratch / "root", PREFIX="/usr/local")
    done = script("install.sh", environment)
    assert done.returncode == 0, done.stderr
    prefix = scratch / "root" / "usr" / "local"
    assert "undercroft" in run(prefix / "bin" / "undercroft", "--version").stdout
    man = prefix / "share" / "man"
    assert (man / "man1" / "undercroft.1").read_text().startswith((".ie", ".TH"))
    assert list(man.rglob("undercroft.toml.5")) or list(man.rglob("undercroft-serve.1"))
    run("bash", "-n", prefix / "share" / "bash-completion" / "completions" / "undercroft")
    unit = prefix / "lib" / "systemd" / "system" / "undercroft.service"
    assert "/usr/local/bin/undercroft serve" in unit.read_text(), "the unit starts another program"
    config = scratch / "root" / "etc" / "undercroft" / "undercroft.toml"
    config.write_text(config.read_text() + "\n# mine\n")
    assert script("install.sh", environment).returncode == 0
    assert "# mine" in config.read_text(), "an edited configuration was overwritten"


@pytest.mark.parametrize("prefix", ["/usr", "/usr/local"])
def test_completions_are_where_zsh_looks(scratch, prefix):
    """In one of the folders that Debian's zsh has in its fpath."""
    done = script("install.sh", environment_for(DESTDIR=scratch / "root", PREFIX=prefix))
    assert done.returncode == 0, done.stderr
    looked = run("zsh", "-f", "-c", "print -l $fpath").stdout.split()
    assert any((scratch / "root" / folder.lstrip("/") / "_undercroft").exists() for folder in looked), looked


def test_install_says_what_is_wrong(scratch):
    """A prefix that is not a path, a program that is not built."""
    done = script("install.sh", environment_for(DESTDIR=scratch, PREFIX="usr"))
    assert done.returncode == 1 and "must begin with /" in done.stderr
    done = script("install.sh", {**environment_for(DESTDIR=scratch), "BINARY": str(scratch / "nothing")})
    assert done.returncode == 1 and "cargo build --release" in done.stderr


def a_user(scratch: Path) -> tuple[list[str], Path]:
    """What runs a command as an ordinary user, and an empty home for that user."""
    home = scratch / "home"
    home.mkdir()
    if os.getuid() != 0:
        return [], home
    need("setpriv")
    nobody = pwd.getpwnam("nobody")
    scratch.chmod(0o755)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"], home


def sources(scratch: Path) -> tuple[Path, dict[str, str]]:
    """A copy of what `make install` reads, which any user may read, and the variables that name what was built."""
    tree = scratch / "undercroft"
    shutil.copytree(ROOT / "dist", tree / "dist")
    (tree / "docs").mkdir()
    for name in ("Makefile", "docs/glossary.md"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copy(built("undercroft"), tree / "program")
    (tree / "ranges").write_text("#!/bin/sh\n")
    (tree / "ranges").chmod(0o755)
    run("chmod", "-R", "a+rX", tree)
    return tree, {"BINARY": str(tree / "program"), "RANGES": str(tree / "ranges")}


def files_below(directory: Path) -> list[str]:
    """Every path below a directory, those of folders too."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_the_line_of_readme_for_an_ordinary_user(scratch):
    """`make install PREFIX=$HOME/.local` as README has it, by a user who writes below HOME alone, and its removal."""
    need("make", "objcopy", "readelf")
    (line,) = re.findall(r"^(make install PREFIX=\S+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    as_user, home = a_user(scratch)
    tree, programs = sources(scratch)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **programs}

    def shell(text: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*as_user, "bash", "-euc", text], env=environment, cwd=tree, capture_output=True, text=True, check=False
        )

    done = shell(line)
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = home / ".local"
    assert shell("$HOME/.local/bin/undercroft --version").stdout.startswith("undercroft "), "it does not run"
    assert (prefix / "share/man/man1/undercroft.1").read_text().startswith((".ie", ".TH"))
    run("bash", "-n", prefix / "share/bash-completion/completions/undercroft")
    config = prefix / "etc/undercroft/undercroft.toml"
    assert str(config) in config.read_text(), "the example names another file than itself"
    assert shell(f"$HOME/.local/bin/undercroft check {config}").returncode == 0
    assert not list(prefix.rglob("*.service")), "a unit where systemd reads none"
    for said in ("installed", str(config), "left out", "systemd", "PATH"):
        assert said in done.stdout, f"{said} is not in: {done.stdout}"

    done = shell(line.replace("make install", "make uninstall"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_below(home) == []


def test_uninstall_leaves_what_is_not_its_own(scratch):
    """Files of others stay, with an edited configuration, which is named; and nothing to remove is no failure."""
    environment = environment_for(DESTDIR=scratch, PREFIX="/usr/local")
    for path in ("usr/local/bin/other", "usr/local/share/man/man1/other.1"):
        (scratch / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / path).touch()
    before = files_below(scratch)
    assert script("install.sh", environment).returncode == 0
    config = scratch / "etc/undercroft/undercroft.toml"
    config.write_text(config.read_text() + "\n# mine\n")
    for _ in range(2):
        done = script("install.sh", environment, "--remove")
        assert done.returncode == 0 and str(config) in done.stdout, done.stdout + done.stderr
    config.unlink()
    assert script("install.sh", environment, "--remove").returncode == 0
    assert [path for path in files_below(scratch) if (scratch / path).is_file()] == [
        path for path in before if (scratch / path).is_file()
    ]


def test_install_refuses_before_it_writes(scratch):
    """Where the place of the configuration cannot be written, nothing is installed, and a way on is named."""
    as_user, home = a_user(scratch)
    tree, programs = sources(scratch)
    environment = {**os.environ, **programs, "PREFIX": str(home), "SYSCONFDIR": "/proc/undercroft"}
    done = subprocess.run(
        [*as_user, tree / "dist/install.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "SYSCONFDIR" in done.stderr, done.stderr
    assert files_below(home) == []


def test_shipped_configuration_is_valid(scratch):
    """What the package installs as configuration passes `undercroft check`, or asks for disks and nothing else."""
    done = run(built("undercroft"), "check", ROOT / "dist" / "undercroft.toml", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shipped_example_is_good_where_it_is_not_commented_out(scratch):
    """All that it offers goes together: nothing is wrong with it but that its images are not here."""
    text = (ROOT / "dist" / "undercroft.toml").read_text(encoding="utf-8")
    whole = scratch / "whole.toml"
    text = re.sub(r"^#(?! )", "", text, flags=re.MULTILINE)
    # Where no package made the group, there is none.
    text = text.replace('"kvm"', '"root"')
    places = "/run/undercroft|/etc/undercroft|/var/lib/undercroft|/run/libvirt/qemu"
    (scratch / "web.pins").write_text('{"size_bytes": 4096, "ranges": [[0, 1]]}')
    whole.write_text(re.sub(places, str(scratch), text))
    done = run(built("undercroft"), "check", "--let-wait", "--json", whole, check=False)
    problems = [p for p in json.loads(done.stdout)["problems"] if p["severity"] == "error"]
    assert all("image" in p["error"] for p in problems), problems


def test_what_the_unit_offers_for_ksm_runs_on_older_kernels(scratch):
    """Its command lets the daemon's group write the files that there are: Debian 12's kernel has not all of them."""
    (command,) = re.findall(r"^#ExecStartPre=\+/bin/sh -c '(.*ksm.*)'$", UNIT, re.MULTILINE)
    for name in ("run", "pages_to_scan", "sleep_millisecs", "use_zero_pages", "full_scans"):
        (scratch / name).touch(mode=0o644)
    group = grp.getgrgid(os.getgid()).gr_name
    run("/bin/sh", "-c", command.replace("/sys/kernel/mm/ksm", str(scratch)).replace("undercroft", group))
    modes = {path.name: path.stat().st_mode & 0o777 for path in scratch.iterdir()}
    assert modes["run"] == modes["use_zero_pages"] == 0o664 and modes["full_scans"] == 0o644


def test_the_unit_keeps_what_the_next_start_needs():
    """What KSM was before is in its directory, which systemd would remove when the daemon was killed."""
    assert re.search(r"^RuntimeDirectoryPreserve=yes$", UNIT, re.MULTILINE)


def test_debian_packages(scratch):
    """The package has the program, the unit and the manual, depends on what it runs with, and is the same each time.
    What debuggers read is a package of its own."""
    need("dpkg-deb", "objdump", "objcopy", "readelf", "nm", "gzip")
    packages = []
    for n in ("first", "second"):
        done = script("make-deb.sh", environment_for(OUT=scratch / n, SOURCE_DATE_EPOCH=1700000000))
        assert done.returncode == 0, done.stderr
        packages.append(done.stdout.split()[-1])
    contents = run("dpkg-deb", "--contents", packages[0]).stdout
    for path in (
        "./usr/bin/undercroft",
        "./lib/systemd/system/undercroft.service",
        "./usr/share/man/man1/undercroft.1.gz",
        "./etc/undercroft/undercroft.toml",
        "./usr/share/doc/undercroft/glossary.md",
        "./usr/share/doc/undercroft/copyright",
    ):
        assert f" {path}\n" in contents, f"{path} is not in:\n{contents}"
    assert all(line.split()[1] == "root/root" for line in contents.splitlines()), contents
    fields = run("dpkg-deb", "--field", packages[0]).stdout
    oldest = re.search(r"^Depends: .*libc6 \(>= 2\.(\d+)\)", fields, re.MULTILINE)
    assert oldest, fields
    packed = "(RELR)" in run("readelf", "--dynamic", "--wide", built("undercroft")).stdout
    assert int(oldest[1]) >= (36 if packed else 0), "packed relocations are not loaded before glibc 2.36"
    first, second = (open(p, "rb").read() for p in packages)
    assert first == second, "two builds of the same input differ"
    tree = scratch / "tree"
    run("dpkg-deb", "--extract", packages[0], tree)
    assert "undercroft" in run(tree / "usr" / "bin" / "undercroft", "--version").stdout
    for package in (scratch / "first").glob("undercroft-dbgsym_*.deb"):
        run("dpkg-deb", "--extract", package, tree)
    is_without_what_debuggers_read(tree)


def is_without_what_debuggers_read(tree: Path) -> None:
    """The program that is shipped has no debugging sections and still names its functions; the rest is beside it."""
    program = tree / "usr" / "bin" / "undercroft"
    # Of the program that is shipped; the tests' own is not optimised for size.
    if Path(built("undercroft")).parent.name == "release":
        assert program.stat().st_size <= SHIPPED_BYTES_MAX
    sections = run("readelf", "--sections", "--wide", program).stdout
    assert " .debug_info" not in sections and " .debug_line" not in sections, sections
    symbols = run("nm", "--demangle", program).stdout
    main = re.search(r"^([0-9a-f]+) . undercroft::main$", symbols, re.MULTILINE)
    assert main, "a backtrace of the shipped program would have no names"
    (debug,) = (tree / "usr" / "lib" / "debug" / ".build-id").rglob("*.debug")
    built_id = re.search(r"Build ID: (\w+)", run("readelf", "-n", program).stdout).group(1)
    assert debug.parent.name + debug.stem == built_id


def test_lines_come_back_with_what_debuggers_read(scratch):
    """A program split in two: its line is found by the link in it, as gdb looks, and not without the other part."""
    need("cc", "objcopy", "nm", "addr2line")
    (scratch / "main.c").write_text("int main(void)\n{\n    return 0;\n}\n")
    run("cc", "-g", "-Wl,--build-id", "-o", scratch / "built", scratch / "main.c")
    program = scratch / "bin" / "program"
    run(ROOT / "dist" / "split-debug.sh", scratch / "built", program, scratch / "debug")
    main = re.search(r"^([0-9a-f]+) T main$", run("nm", program).stdout, re.MULTILINE).group(1)
    assert "main.c:" not in run("addr2line", "-e", program, main).stdout
    (debug,) = (scratch / "debug" / ".build-id").rglob("*.debug")
    (program.parent / debug.name).symlink_to(debug)
    assert "main.c:2" in run("addr2line", "-e", program, main).stdout
    run(program)


UNIT = (ROOT / "dist" / "undercroft.service").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs" / "attach").glob("*.md"))


def complaints(scratch: Path, drop_in: str = "") -> list[str]:
    """What systemd has to say about the unit, with what `systemctl edit` would add to it."""
    unit = scratch / "undercroft.service"
    unit.write_text(UNIT.replace("/usr/bin/undercroft", built("undercroft")).replace("man:", "file:///"))
    added = scratch / "undercroft.service.d" / "override.conf"
    added.parent.mkdir(exist_ok=True)
    added.write_text(drop_in)
    done = run("systemd-analyze", "verify", unit, check=False)
    return [line for line in (done.stdout + done.stderr).splitlines() if "undercroft.service" in line]


def drop_ins(text: str) -> str:
    """What a page tells to put into a drop-in of the unit."""
    return "".join(re.findall(r"^```ini\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_unit_is_sound(scratch):
    """systemd finds nothing wrong with the unit."""
    need("systemd-analyze")
    assert not complaints(scratch)


def test_drop_ins_of_the_manual_are_sound(scratch):
    """Nor with what the pages about hypervisors add to it; it would say so of a key that does not exist."""
    need("systemd-analyze")
    told = [added for page in PAGES if (added := drop_ins(page.read_text(encoding="utf-8")))]
    assert told and any("SupplementaryGroups=" in drop_in for drop_in in told), "no page says what disk_group needs"
    for drop_in in told:
        assert not complaints(scratch, drop_in), drop_in
    assert complaints(scratch, "[Service]\nNoSuchKey=1\n"), "the drop-in is not read"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sockets_of_the_manual_are_where_the_unit_may_write(page):
    """Below its RuntimeDirectory, or where ReadWritePaths of the unit, or of the page's drop-in, lets it."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ReadWritePaths=(.*)$", UNIT + drop_ins(text), re.MULTILINE)
    places = ["/run/undercroft", *(path.lstrip("-") for line in lines for path in line.split())]
    sockets = re.findall(r'\b(?:socket|path)"?\s*[=:]\s*"?(/[^"\s,`]+)', text)
    # As Firecracker sees it, within its chroot.
    sockets = [s for s in sockets if not s.startswith("/vhost/")]
    outside = [s for s in sockets if not any(s.startswith(place + "/") for place in places)]
    assert not outside, f"the unit may not write there: {outside}"
