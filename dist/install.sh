#!/bin/sh
# Installs Undercroft: program, manual, completions, systemd unit, example configuration.
#
#   PREFIX=/usr/local DESTDIR= BINARY=target/release/undercroft dist/install.sh
#
# PREFIX   where it will run from (default /usr/local)
# DESTDIR  put before every path, for packages (default none)
# BINARY   the built program (default target/release/undercroft)
# DEBUG    a folder for what debuggers read, which the installed program is without (default none: BINARY still has it)
# RANGES   the static program for guests, installed if it is there (default where scripts/build-ranges.sh puts it)
#
# An existing configuration is never overwritten. Nothing is started.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
BINARY=${BINARY:-$root/target/release/undercroft}
RANGES=${RANGES:-$root/target/x86_64-unknown-linux-gnu/release/undercroft-ranges}

fail() {
    echo "install: $*" >&2
    exit 1
}

case $PREFIX in /*) ;; *) fail "PREFIX=$PREFIX must begin with /" ;; esac
[ -x "$BINARY" ] || fail "$BINARY is missing: build it first with \`cargo build --release\`, or name it with BINARY="
for tool in objcopy readelf; do
    command -v $tool >/dev/null || fail "$tool is missing: apt-get install binutils"
done
mkdir -p "$DESTDIR$PREFIX" 2>/dev/null && [ -w "$DESTDIR$PREFIX" ] ||
    fail "$DESTDIR$PREFIX cannot be written: use sudo, or another PREFIX or DESTDIR"

# The distribution's places if it is installed as a part of it, else those below /usr/local that programs look into.
if [ "$PREFIX" = /usr ]; then
    units=/lib/systemd/system
    sysusers=/usr/lib/sysusers.d
    zsh=vendor-completions
else
    units=$PREFIX/lib/systemd/system
    sysusers=$PREFIX/lib/sysusers.d
    zsh=site-functions
fi
share=$DESTDIR$PREFIX/share
config=$DESTDIR/etc/undercroft/undercroft.toml

"$here/split-debug.sh" "$BINARY" "$DESTDIR$PREFIX/bin/undercroft" "${DEBUG:-}"
[ ! -x "$RANGES" ] || install -D -m 0755 "$RANGES" "$DESTDIR$PREFIX/bin/undercroft-ranges"
"$BINARY" man --dir "$share/man"
mkdir -p "$share/bash-completion/completions" "$share/zsh/$zsh" "$share/fish/vendor_completions.d"
"$BINARY" completions bash >"$share/bash-completion/completions/undercroft"
"$BINARY" completions zsh >"$share/zsh/$zsh/_undercroft"
"$BINARY" completions fish >"$share/fish/vendor_completions.d/undercroft.fish"
mkdir -p "$DESTDIR$units"
sed "s|/usr/bin/undercroft|$PREFIX/bin/undercroft|g" "$here/undercroft.service" >"$DESTDIR$units/undercroft.service"
chmod 0644 "$DESTDIR$units/undercroft.service"
install -D -m 0644 "$here/undercroft.sysusers" "$DESTDIR$sysusers/undercroft.conf"
install -D -m 0644 "$here/undercroft.toml" "$share/doc/undercroft/undercroft.toml"
install -D -m 0644 "$here/../docs/glossary.md" "$share/doc/undercroft/glossary.md"
if [ ! -e "$config" ]; then
    install -D -m 0644 "$here/undercroft.toml" "$config"
fi

if [ -z "$DESTDIR" ]; then
    if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then
        systemd-sysusers undercroft.conf
        systemctl daemon-reload
    fi
    cat <<END
installed: $PREFIX/bin/undercroft
  try it:      undercroft serve --image DISK
  as a service: name disks in /etc/undercroft/undercroft.toml, then systemctl enable --now undercroft
END
fi
