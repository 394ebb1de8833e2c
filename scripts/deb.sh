#!/bin/bash
# Builds build/undercroft_VERSION_ARCH.deb from the built daemon, with dpkg-deb alone.
#
# Dependencies are worked out from the binary by dpkg-shlibdeps where it is installed, else libc6 alone is named (the
# daemon links to nothing else that is not essential).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v dpkg-deb >/dev/null || {
    echo "deb: dpkg-deb is not here: a Debian package is built on Debian" >&2
    exit 1
}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
root=build/deb
rm -rf $root
mkdir -p $root/DEBIAN
scripts/install.sh "$PWD/$root" /usr >/dev/null
rm -f $root/usr/share/doc/undercroft/LICENSE
install -m 644 LICENSE $root/usr/share/doc/undercroft/copyright

depends=libc6
if command -v dpkg-shlibdeps >/dev/null; then
    mkdir -p build/shlibdeps/debian
    printf 'Source: undercroft\n\nPackage: undercroft\nArchitecture: any\n' >build/shlibdeps/debian/control
    depends=$(cd build/shlibdeps && dpkg-shlibdeps -O ../../target/release/undercroft 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
    rm -rf build/shlibdeps
fi

cat >$root/DEBIAN/control <<CONTROL
Package: undercroft
Version: $version
Architecture: $arch
Maintainer: The Undercroft developers <undercroft@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN $root | cut -f1)
Depends: $depends
Recommends: qemu-utils
Section: admin
Priority: optional
Description: disk cache for virtual machines
 Serves the disks of virtual machines over vhost-user-blk and NBD from a cache
 in RAM that it alone manages, instead of the host page cache. Write-through:
 an acknowledged write is on the image.
CONTROL
echo /etc/undercroft/undercroft.toml >$root/DEBIAN/conffiles
for script in postinst prerm postrm; do
    [ ! -e "dist/deb/$script" ] || install -m 755 "dist/deb/$script" "$root/DEBIAN/$script"
done
out=build/undercroft_${version}_$arch.deb
dpkg-deb --root-owner-group --build $root "$out" >/dev/null
rm -rf $root
echo "deb: $out"
