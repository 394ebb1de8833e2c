#!/bin/bash
# Installs what a task needs, from Debian's packages: scripts/setup.sh GROUP... (build, lint, test, python, demo, stores, kernel, long, locking, bench, bench-sim, bench-caffeine).
#
# Says what it installs and why, asks apt for nothing when nothing is missing, and stops with one sentence where it
# cannot go on. It changes nothing but packages. The Rust toolchain: any cargo of at least the version that Cargo.toml
# asks for is used as it is (scripts/cargo finds it); else Debian's rustc-web (a recent Rust, kept for building web
# browsers) is installed; else rustup is tried.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

usage() {
    sed -n '2s/^# //p' "$0"
    exit "$1"
}

[ $# -gt 0 ] || usage 2

# One line per package: groups that want it, package, why. The reason is shown when it is installed.
packages() {
    cat <<'LIST'
build,demo,kernel  gcc                  links Rust programs; compiles the C parts of crates, the guest's workload and a kernel
build,demo,kernel  libc6-dev            headers and static libraries for gcc
build            ca-certificates      lets cargo check crates.io
test             g++                  builds libFuzzer for the fuzz targets
lint,test,bench,demo  python3              runs the tests with real programs, the demo and the benchmarks
test,python      python3-venv         holds what the Python package is built and tested with
python           python3              builds the Python package
test             python3-pytest       runs the tests in tests/
test             python3-pytest-xdist runs tests that mostly wait side by side
test             python3-prometheus-client  reads the daemon's metrics as Prometheus does
test             curl                 asks the daemon for its metrics
test             zsh                  checks the completions that the program writes for it
test             fish                 checks the completions that the program writes for it
test             groff-base           checks the man pages that the program writes
test,bench,demo  qemu-utils           qemu-img, qemu-io, qemu-nbd: images, real I/O patterns, a peer
test,bench,demo  qemu-system-x86      boots guests
test,bench,demo  qemu-system-common   qemu-storage-daemon: the host page cache of today; the strongest peer
test,bench,demo,locking  nbdkit               an NBD server to compare with, to stand upstream, and to make a disk slow
test,locking     python3-libnbd       NBD clients in the tests that do odd things, and of loads that are traces
test,bench,demo,kernel  libnbd-bin           nbdcopy, nbdinfo: real NBD clients; nbdfuse makes a disk of an export
test,bench       openssl              makes certificates, where TLS is tested or measured
test             libvirt-clients      virt-xml-validate: checks the XML that is printed for libvirt (8 MB with what it needs)
long             libvirt-daemon-system  libvirtd, which starts a guest on a disk of ours
test             libxml2-utils        xmllint, with which virt-xml-validate checks
test             fuse3                mounts disks as files for who is not root
test             xfsprogs             makes XFS on mounted disks
test             fdisk                writes a table of partitions that no file system may replace
test,stores      podman               runs containers on volumes and mounts that are disks
test,stores      runc                 starts Podman's containers, also where control groups are of both versions
test,bench,stores  fio                  reads back and verifies what it wrote; reads an SSD beside its store
test,stores      mariadb-server-core  MariaDB without a service: a database whose disk is cached
test,stores      sysbench             puts a load on MariaDB
stores           postgresql           PostgreSQL and pgbench; its package starts a server of its own, which is not used
test,demo,kernel  e2fsprogs            mkfs.ext4 and e2fsck for guests' file systems, and for that of a kernel's build
test             dmsetup              encrypts a disk in a guest, in the tests
test,demo        busybox-static       the guests' user space
test,demo        cpio                 packs the guests' user space
test,demo,kernel xz-utils             unpacks a kernel's source, which guests in the laboratory read, and modules of a newer one
kernel           linux-source         the kernel's source that the laboratory on shares compiles (140 MB)
kernel           flex                 a kernel's build needs it to read its configuration
kernel           bison                a kernel's build needs it to read its configuration
kernel           bc                   a kernel's build computes constants with it
test,bench,demo  python3-matplotlib   draws the plots
locking          python3              runs the laboratory
locking          python3-matplotlib   draws the plots
locking,test     python3-markdown     makes pages of reports
locking,test     valgrind             tells what programs do with memory
locking          libjpeg-turbo-progs  cjpeg, a program that is traced
locking          netpbm               ppmtogif, a program that is traced
locking          bzip2                a program that is traced
locking          zstd                 a program that is traced
locking          mawk                 a program that is traced
locking          sqlite3              a program that is traced
locking          bc                   a program that is traced
bench-sim,bench-caffeine  python3              runs the comparison
bench-caffeine  default-jre-headless  runs Caffeine's simulator
bench-caffeine  maven                fetches Caffeine's simulator
bench-sim        python3-pip          fetches libCacheSim's source
bench-sim        cmake                builds libCacheSim, the simulator to compare with
bench-sim        g++                  builds libCacheSim
bench-sim        pkg-config           builds libCacheSim
bench-sim        libglib2.0-dev       builds libCacheSim
bench-sim        libzstd-dev          builds libCacheSim
bench-sim        libgoogle-perftools-dev  the allocator that libCacheSim's authors advise
LIST
}

wanted=" "
for group in "$@"; do
    case $group in
        build | lint | test | python | demo | stores | kernel | long | locking | bench | bench-sim | bench-caffeine) wanted+="$group " ;;
        -h | --help) usage 0 ;;
        *) stop "there is no group '$group': choose from build, lint, test, python, demo, stores, kernel, long, locking, bench, bench-sim and bench-caffeine" ;;
    esac
done
wants() { [[ $wanted == *" $1 "* ]]; }
lints() { wants lint || wants test; }

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# --- What is missing -------------------------------------------------------------------------------------------------

if [ -n "${UNDERCROFT_NO_SETUP:-}" ]; then
    echo "setup: left to you (UNDERCROFT_NO_SETUP is set)"
    exit 0
fi
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || stop "Undercroft runs on Linux on x86-64; this is $(uname -s) on $(uname -m)"
# The version of Rust that Cargo.toml asks for.
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
for tool in apt-get apt-cache dpkg-query; do
    command -v $tool >/dev/null ||
        stop "this needs Debian 12 or one of its kin ($tool is not here): install Rust $rust_wanted or later and the packages listed in scripts/setup.sh by hand, then set UNDERCROFT_NO_SETUP=1"
done

missing=()
reasons=()
need() { # package, reason
    missing+=("$1")
    reasons+=("$(printf '  %-20s %s' "$1" "$2")")
}

while read -r groups package reason; do
    for group in ${groups//,/ }; do
        if wants "$group" && ! installed "$package"; then
            need "$package" "$reason"
            break
        fi
    done
done < <(packages)

# Rust: wanted by everything, for everything builds the daemon.
rust=
if cargo=$(scripts/cargo --which 2>/dev/null); then
    bin=$(dirname "$cargo")
    if lints && ! { [ -x "$bin/cargo-fmt" ] && [ -x "$bin/cargo-clippy" ]; }; then
        if [ "$bin" = /usr/bin ]; then
            [ -x /usr/bin/cargo-fmt ] || need rustfmt-web "checks how the code is laid out"
            [ -x /usr/bin/cargo-clippy ] || need rust-web-clippy "Rust's linter"
        else
            rust=components
        fi
    elif lints && ! PATH="$bin:$PATH" "$cargo" clippy --version >/dev/null 2>&1; then
        rust=components
    fi
else
    rust=install
fi

if [ ${#missing[@]} -eq 0 ] && [ -z "$rust" ]; then
    echo "setup: nothing to install for${wanted% }"
    exit 0
fi

# --- Installing it ---------------------------------------------------------------------------------------------------

if [ "$(id -u)" = 0 ]; then
    as_root=(env)
elif command -v sudo >/dev/null; then
    as_root=(sudo)
elif [ ${#missing[@]} -eq 0 ] && [ "$rust" = components ]; then
    as_root=(false) # rustup alone does it
else
    stop "installing packages needs root: run this as root, or install sudo; missing: ${missing[*]:-a Rust toolchain}"
fi

log=$(mktemp -t undercroft-setup.XXXXXX)
trap 'rm -f "$log"' EXIT
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 "$@" >"$log" 2>&1
}
apt_stop() {
    tail -n 15 "$log" >&2
    stop "$1 failed (its last lines are above): check the network and /etc/apt/sources.list, then run this again"
}
updated=
update_once() {
    [ -z "$updated" ] || return 0
    echo "setup: apt-get update"
    apt update || apt_stop "apt-get update"
    updated=yes
}
# The version of Rust that apt would install as PACKAGE, or nothing.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][0-9.]*\).*/\1/p'; }
recent() { [ -n "$1" ] && printf '%s\n%s\n' "$rust_wanted" "$1" | sort -C -V; }

if [ "$rust" = install ]; then
    update_once
    if recent "$(candidate rustc-web)"; then
        rust_packages="rustc-web cargo-web rustfmt-web rust-web-clippy"
    elif recent "$(candidate rustc)"; then
        rust_packages="rustc cargo rustfmt rust-clippy"
    else
        rust_packages=
    fi
    for package in $rust_packages; do
        case $package in
            rustc*) need "$package" "the Rust compiler, $(candidate "$package")" ;;
            cargo*) need "$package" "builds the workspace and fetches crates" ;;
            rustfmt*) if lints; then need "$package" "checks how the code is laid out"; fi ;;
            *clippy*) if lints; then need "$package" "Rust's linter"; fi ;;
        esac
    done
    [ -z "$rust_packages" ] || rust=
fi

if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: installing from Debian's packages, for${wanted% }:"
    printf '%s\n' "${reasons[@]}"
    update_once
    apt install -y --no-install-recommends "${missing[@]}" || apt_stop "apt-get install"
fi

if [ "$rust" = components ]; then
    command -v rustup >/dev/null ||
        stop "$cargo has no rustfmt and clippy beside it, and rustup is not here to add them: install both for that toolchain"
    echo "setup: adding rustfmt and clippy by rustup"
    rustup component add rustfmt clippy >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        stop "rustup could not add rustfmt and clippy: check the network, then run this again"
    }
elif [ "$rust" = install ]; then
    if ! command -v rustup >/dev/null; then
        if [ -n "$(candidate rustup)" ]; then
            apt install -y --no-install-recommends rustup || apt_stop "apt-get install rustup"
        fi
    fi
    command -v rustup >/dev/null ||
        stop "neither apt (rustc-web) nor rustup offers Rust $rust_wanted or later here: install it from https://rustup.rs, then run this again"
    echo "setup: installing Rust by rustup"
    rustup toolchain install stable --profile default >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        stop "rustup could not install Rust $rust_wanted or later: check the network, then run this again"
    }
fi

scripts/cargo --which >/dev/null
echo "setup: done"
