#!/bin/sh
# Builds a Debian package from a built program, and one of what debuggers read (undercroft-dbgsym).
#
#   BINARY=target/release/undercroft OUT=build dist/make-deb.sh
#
# BINARY  the built program (default target/release/undercroft)
# OUT     where the packages go (default build); the path of the program's is the last line printed
# COMPRESSION  what dpkg-deb packs with: xz (default), zstd, gzip or none; what debuggers read takes xz a minute
#
# Needs dpkg-deb, objdump and gzip. Same input, same bytes: times come from SOURCE_DATE_EPOCH or the last commit.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
BINARY=${BINARY:-$root/target/release/undercroft}
OUT=${OUT:-$root/build}
COMPRESSION=${COMPRESSION:-xz}

fail() {
    echo "make-deb: $*" >&2
    exit 1
}

for tool in dpkg-deb objdump gzip; do
    command -v $tool >/dev/null || fail "$tool is missing: apt-get install dpkg binutils gzip"
done
[ -x "$BINARY" ] || fail "$BINARY is missing: build it first with \`cargo build --release\`, or name it with BINARY="
BINARY=$(cd "$(dirname "$BINARY")" && pwd)/$(basename "$BINARY")
version=$("$BINARY" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH="$epoch"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
tree=$stage/tree
mkdir "$tree"

symbols=$stage/symbols
PREFIX=/usr DESTDIR=$tree BINARY=$BINARY DEBUG=$symbols/usr/lib/debug "$here/install.sh"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +
install -D -m 0644 "$here/debian/copyright" "$tree/usr/share/doc/undercroft/copyright"
printf 'undercroft (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- The Undercroft developers <undercroft@localhost>  %s\n' \
    "$version" "$(date -u -R -d "@$epoch")" | gzip -9n >"$tree/usr/share/doc/undercroft/changelog.gz"

# The newest symbol version of the C library that the program uses is the oldest library that it runs with.
# Packed relocations name no such version, and are loaded since 2.36.
glibc=$({
    objdump -T "$BINARY" | grep -o 'GLIBC_[0-9][0-9.]*'
    objdump -p "$BINARY" | sed -n 's/.*GLIBC_ABI_DT_RELR.*/GLIBC_2.36/p'
} | sort -uV | tail -1 | cut -d_ -f2)
size=$(du -sk "$tree" | cut -f1)
install -d "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<END
Package: undercroft
Version: $version
Architecture: $arch
Maintainer: The Undercroft developers <undercroft@localhost>
Installed-Size: $size
Depends: libc6 (>= ${glibc:-2.36}), libgcc-s1
Recommends: systemd
Suggests: qemu-system, qemu-utils
Section: admin
Priority: optional
Description: cache for the disks of virtual machines
 Undercroft serves VM disks over vhost-user-blk and NBD from a RAM cache that
 it alone manages, instead of the host page cache: with a share and a
 replacement policy for each disk, and a hard ceiling on memory.
END
echo /etc/undercroft/undercroft.toml >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 0755 "$here/debian/$script" "$tree/DEBIAN/$script"
done
find "$tree" -type d -exec chmod 0755 {} +
find "$tree/usr/share" "$tree/etc" -type f -exec chmod 0644 {} +

# As dh_strip makes them: the same version exactly, found by debuggers without being told.
install -d "$symbols/DEBIAN"
cat >"$symbols/DEBIAN/control" <<END
Package: undercroft-dbgsym
Version: $version
Architecture: $arch
Maintainer: The Undercroft developers <undercroft@localhost>
Installed-Size: $(du -sk "$symbols" | cut -f1)
Depends: undercroft (= $version)
Section: debug
Priority: optional
Description: debug symbols for undercroft
 With these, backtraces of the program, gdb and perf name lines of its source.
END
find "$symbols" -type d -exec chmod 0755 {} +

mkdir -p "$OUT"
dpkg-deb --root-owner-group "-Z$COMPRESSION" --build "$symbols" "$OUT/undercroft-dbgsym_${version}_${arch}.deb" >/dev/null
package=$OUT/undercroft_${version}_${arch}.deb
dpkg-deb --root-owner-group "-Z$COMPRESSION" --build "$tree" "$package" >/dev/null
echo "$package"
