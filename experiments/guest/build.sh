#!/bin/bash
# Makes the guests' kernel and user space under build/guest: experiments/guest/build.sh [--tools | --backports | --libraries]
#
#   vmlinuz      Debian's cloud kernel, fetched by `apt-get download` (nothing is installed)
#   initramfs    busybox, the virtio modules, init and the workload program: all a demo guest is
#   workload     the same static program, for the host to make data files with
#   iolog.so     what the laboratory loads into qemu-storage-daemon to see single transfers
#   slowdisk.so  what it loads into nbdkit to make a disk slow (--libraries: these two, and nothing else)
#   initramfs-tools  (--tools) initramfs, and the host's mkfs.ext4 and e2fsck with their libraries, for tests
#   initramfs-fio    (--tools) initramfs, and the host's fio, whose libraries take 80 MB: guests without it boot in less time
#   initramfs-crypt  (--tools) initramfs, and dmsetup and the modules that encrypt a disk, for tests
#   vmlinuz-backports, initramfs-backports, qemu-backports  (--backports) the newer kernel of Debian's backports, which has ublk, its
#                modules, and the QEMU of backports: Debian 12's own emulates wrongly what that kernel needs
#
# Only what is missing or older than its source is made again; once made, it needs no network.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../.." && pwd)/build/guest
mkdir -p "$out"
cd "$out"
umask 022

stop() {
    printf 'guest: %s\n' "$*" >&2
    exit 1
}

# Two builders at once would tread on each other.
exec 9>.lock
flock 9

# Files named in $@ that are missing, or older than $1: is there any?
stale() {
    local source
    [ -e "$1" ] || return 0
    for source in "${@:2}"; do [ "$source" -nt "$1" ] && return 0; done
    return 1
}

# What is unpacked of a package of Debian's kernel in the folder $1: vmlinuz, and the modules $2... (.ko, whatever they are packed with).
unpack() {
    local folder=$1 module found
    dpkg-deb -x "$folder"/linux-image-*.deb "$folder/unpacked"
    mkdir -p "$folder/modules"
    for module in "${@:2}"; do
        found=$(find "$folder/unpacked/lib/modules" -name "$module.ko" -o -name "$module.ko.xz")
        case $found in
        '') stop "$(basename "$folder"/linux-image-*.deb) has no module $module" ;;
        *.xz) xz -dc "$found" >"$folder/modules/$module.ko" ;;
        *) cp "$found" "$folder/modules/" ;;
        esac
    done
    cp "$folder"/unpacked/boot/vmlinuz-* "$folder/vmlinuz"
    rm -rf "$folder/unpacked" "$folder"/linux-image-*.deb
}

for library in iolog slowdisk; do
    if stale $library.so "$here/$library.c"; then
        gcc -O2 -Wall -Wextra -shared -fPIC -o $library.so.new "$here/$library.c" || stop "gcc could not compile $library.c"
        mv $library.so.new $library.so
    fi
done

# Without a guest, that is all.
[ "${1:-}" = --libraries ] && exit

# What init loads, in a guest that has the device; what tests load.
modules=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio_balloon)
crypt_modules=(ecb xts dm-mod dm-crypt)
complete=y
for module in "${modules[@]}" "${crypt_modules[@]}"; do [ -e "kernel/modules/$module.ko" ] || complete=; done

if [ ! -e vmlinuz ] || [ -z "$complete" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }')
    [ -n "$package" ] || stop "apt knows no linux-image-cloud-amd64: run 'apt-get update', then this again"
    echo "guest: fetching $package (27 MB; it is unpacked here, not installed)"
    rm -rf kernel && mkdir kernel
    (cd kernel && apt-get -q -o APT::Sandbox::User="$(id -un)" download "$package" >download.log 2>&1) ||
        stop "apt-get download $package failed: $(tail -n 1 kernel/download.log)"
    unpack kernel "${modules[@]}" "${crypt_modules[@]}"
    mv kernel/vmlinuz vmlinuz
fi

if stale workload "$here/workload.c"; then
    gcc -O2 -Wall -Wextra -static -o workload.new "$here/workload.c" -lm || stop "gcc could not compile workload.c"
    mv workload.new workload
fi

# Packs a folder into an initramfs. The format and that several may follow each other: Documentation/driver-api/early-userspace.
pack() { (cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc --quiet --reproducible -R 0:0 | gzip -1 -n); }

if stale initramfs "$here/init" "$here/build.sh" workload vmlinuz; then
    [ -x /bin/busybox ] || stop "/bin/busybox is not here: run 'scripts/setup.sh demo'"
    rm -rf root && mkdir -p root/bin root/lib/modules
    cp /bin/busybox root/bin/busybox
    cp workload root/bin/workload
    for module in "${modules[@]}"; do cp "kernel/modules/$module.ko" root/lib/modules/; done
    install -m 755 "$here/init" root/init
    pack root >initramfs.new
    rm -rf root
    mv initramfs.new initramfs
fi

# initramfs-NAME: initramfs, and programs of the host with the libraries that they load. What is in root-NAME already goes in as well.
with_programs() { # NAME PROGRAM...
    local name=$1 program path library
    mkdir -p "root-$name/bin"
    for program in "${@:2}"; do
        path=$(PATH="$PATH:/usr/sbin:/sbin" command -v "$program") || stop "$program is not here: run 'scripts/setup.sh test'"
        cp -L "$path" "root-$name/bin/$program"
        # Each line of ldd: NAME => PATH (ADDRESS), or PATH (ADDRESS) for the loader.
        for library in $(ldd "$path" | awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }'); do
            mkdir -p "root-$name$(dirname "$library")"
            cp -L "$library" "root-$name$library"
        done
    done
    { cat initramfs && pack "root-$name"; } >"initramfs-$name.new"
    rm -rf "root-$name"
    mv "initramfs-$name.new" "initramfs-$name"
}

if [ "${1:-}" = --tools ] && stale initramfs-tools initramfs "$here/build.sh"; then
    rm -rf root-tools && mkdir -p root-tools/etc
    : >root-tools/etc/mke2fs.conf
    cp /etc/mke2fs.conf root-tools/etc/ 2>/dev/null || true
    with_programs tools mkfs.ext4 e2fsck
fi
if [ "${1:-}" = --tools ] && stale initramfs-fio initramfs "$here/build.sh"; then
    rm -rf root-fio
    with_programs fio fio
fi
if [ "${1:-}" = --tools ] && stale initramfs-crypt initramfs; then
    rm -rf root-crypt && mkdir -p root-crypt/lib/modules
    for module in "${crypt_modules[@]}"; do cp "kernel/modules/$module.ko" root-crypt/lib/modules/; done
    with_programs crypt dmsetup
fi

# Of the newer kernel, those of init's modules that it has not built in, and the driver of ublk, which tests load.
backports_modules=(virtio_blk ublk_drv)
if [ "${1:-}" = --backports ] && { [ ! -e vmlinuz-backports ] || stale initramfs-backports initramfs "$here/build.sh"; }; then
    rm -rf backports && mkdir -p backports/lists/partial backports/cache/archives/partial
    # From where this machine has its other packages: backports are beside them.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 2>/dev/null | head -n 1)
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm-backports main\n' \
        "${mirror:-http://deb.debian.org/debian}" >backports/sources.list
    apt=(-q -o "Dir::Etc::sourcelist=$out/backports/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$out/backports/lists" -o "Dir::Cache=$out/backports/cache" -o "APT::Sandbox::User=$(id -un)")
    apt-get "${apt[@]}" update >backports/update.log 2>&1 ||
        stop "the index of bookworm-backports cannot be had: $(tail -n 1 backports/update.log)"
    package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    [ -n "$package" ] || stop "bookworm-backports has no linux-image-cloud-amd64"
    packages=("$package" qemu-system-x86 qemu-system-data seabios)
    echo "guest: fetching ${packages[*]} of bookworm-backports (46 MB; they are unpacked here, not installed)"
    (cd backports && apt-get "${apt[@]}" download "${packages[@]}" >download.log 2>&1) ||
        stop "apt-get download ${packages[*]} failed: $(tail -n 1 backports/download.log)"
    rm -rf backports/lists backports/cache qemu-backports
    for package in "${packages[@]:1}"; do dpkg-deb -x "backports/$package"_*.deb qemu-backports; done
    rm -f backports/qemu-*.deb backports/seabios*.deb
    # Its libraries are those of the QEMU that is installed.
    qemu-backports/usr/bin/qemu-system-x86_64 --version >/dev/null ||
        stop "the QEMU of backports does not run here: run 'scripts/setup.sh test'"
    unpack backports "${backports_modules[@]}"
    rm -rf root-backports && mkdir -p root-backports/bin root-backports/lib/modules
    cp /bin/busybox root-backports/bin/busybox
    for module in "${backports_modules[@]}"; do cp "backports/modules/$module.ko" root-backports/lib/modules/; done
    install -m 755 "$here/init" root-backports/init
    pack root-backports >initramfs-backports.new
    rm -rf root-backports
    mv backports/vmlinuz vmlinuz-backports
    mv initramfs-backports.new initramfs-backports
fi
