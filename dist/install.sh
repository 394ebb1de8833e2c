#!/bin/sh
# Installs Undercroft: program, manual, completions, example configuration, and the systemd unit where systemd reads it.
#
#   PREFIX=/usr/local DESTDIR= BINARY=target/release/undercroft dist/install.sh [--remove]
#
# PREFIX   where it will run from (default /usr/local)
# SYSCONFDIR  where its configuration will be (default /etc for the prefixes /usr and /usr/local, else PREFIX/etc)
# DESTDIR  put before every path, for packages (default none)
# BINARY   the built program (default target/release/undercroft)
# DEBUG    a folder for what debuggers read, which the installed program is without (default none: BINARY still has it)
# RANGES   the static program for guests, installed if it is there (default where scripts/build-ranges.sh puts it)
#
# An existing configuration is never overwritten, and an edited one not removed. Nothing is started. `--remove` takes away what
# this script installs with the same variables, and folders that are empty then.
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
PREFIX=${PREFIX%/}

# The distribution's places if it is installed as a part of it, else those below /usr/local that programs look into. systemd
# reads units and names of users below these two alone, and the unit's user may not look into homes.
sysconfdir=/etc
case $PREFIX in
/usr)
    units=/lib/systemd/system
    sysusers=/usr/lib/sysusers.d
    zsh=vendor-completions
    ;;
/usr/local)
    units=$PREFIX/lib/systemd/system
    sysusers=$PREFIX/lib/sysusers.d
    zsh=site-functions
    ;;
*)
    units= sysusers=
    zsh=site-functions
    sysconfdir=$PREFIX/etc
    ;;
esac
again="PREFIX=$PREFIX${SYSCONFDIR:+ SYSCONFDIR=$SYSCONFDIR}"
SYSCONFDIR=${SYSCONFDIR:-$sysconfdir}
bin=$DESTDIR$PREFIX/bin
share=$DESTDIR$PREFIX/share
config=$SYSCONFDIR/undercroft/undercroft.toml
# systemd is told of changes to its own files, not of those in a package's tree.
systemd=
if [ -n "$units" ] && [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then systemd=yes; fi

# A shipped file that names the program or the configuration, with the places that they are installed to.
placed() {
    sed "s|/usr/bin/undercroft|$PREFIX/bin/undercroft|g; s|/etc/undercroft/undercroft.toml|$config|g" "$here/$1"
}

# Whether a folder, or the first one above it that is there, can be written.
writable() {
    folder=$1
    while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
    [ -d "$folder" ] && [ -w "$folder" ]
}

# Removes those of the folders that are empty, in their order.
emptied() {
    for empty in "$@"; do rmdir "$(realpath -m "$empty")" 2>/dev/null || true; done
}

remove() {
    if [ -n "$systemd" ]; then
        ! systemctl --quiet is-active undercroft.service || fail "it serves disks: systemctl stop undercroft first"
        systemctl --quiet disable undercroft.service 2>/dev/null || true
    fi
    rm -f "$bin/undercroft" "$bin/undercroft-ranges" \
        "$share/man/man1/undercroft.1" "$share/man/man1/undercroft-"*.1 "$share/man/man5/undercroft.toml.5" \
        "$share/bash-completion/completions/undercroft" "$share/zsh/$zsh/_undercroft" \
        "$share/fish/vendor_completions.d/undercroft.fish" \
        "$share/doc/undercroft/undercroft.toml" "$share/doc/undercroft/glossary.md"
    [ -z "$units" ] || rm -f "$DESTDIR$units/undercroft.service" "$DESTDIR$sysusers/undercroft.conf"
    if placed undercroft.toml | cmp -s - "$DESTDIR$config"; then rm -f "$DESTDIR$config"; fi
    # Folders of its own, and those of a prefix that no distribution made; where others have put something, they stay.
    emptied "$share/doc/undercroft" "$DESTDIR$SYSCONFDIR/undercroft"
    if [ -z "$units" ]; then
        for folder in man/man1 man/man5 man bash-completion/completions bash-completion "zsh/$zsh" zsh fish/vendor_completions.d fish doc .; do
            emptied "$share/$folder"
        done
        emptied "$bin" "$DESTDIR$SYSCONFDIR" "$DESTDIR$PREFIX"
    fi
    [ -z "$systemd" ] || systemctl daemon-reload
    [ ! -e "$DESTDIR$config" ] || echo "left, since it was edited: $DESTDIR$config"
}

say_what_was_done() {
    cat <<END
installed:
  program        $PREFIX/bin/undercroft
  manual         $PREFIX/share/man: man undercroft
  completions    for bash, zsh and fish, below $PREFIX/share
  configuration  $config
END
    if [ -n "$units" ]; then
        echo "  systemd unit   $units/undercroft.service"
    else
        cat <<END
left out:
  systemd unit and its user: systemd reads them below /usr and /usr/local only. For a service: sudo make install
END
    fi
    # Where a shell finds programs it finds their manual and bash's completions too; zsh has to be told.
    case ":$PATH:" in
    *":$PREFIX/bin:"*) ;;
    *) echo "not in PATH yet: export PATH=\"$PREFIX/bin:\$PATH\"" ;;
    esac
    [ -n "$units" ] || echo "zsh, before compinit: fpath+=($PREFIX/share/zsh/$zsh)"
    echo "try it:         undercroft serve --image DISK"
    if [ -n "$units" ]; then
        echo "as a service:   name disks in $config, then systemctl enable --now undercroft"
    else
        echo "many disks:     name them in $config, then undercroft serve $config"
    fi
    echo "to remove it:   make uninstall $again"
}

if [ "${1:-}" = --remove ]; then
    remove
    exit
fi
[ -x "$BINARY" ] || fail "$BINARY is missing: build it first with \`cargo build --release\`, or name it with BINARY="
for tool in objcopy readelf; do
    command -v $tool >/dev/null || fail "$tool is missing: apt-get install binutils"
done
writable "$DESTDIR$PREFIX" || fail "$DESTDIR$PREFIX cannot be written: use sudo, or another PREFIX or DESTDIR"
writable "$DESTDIR$SYSCONFDIR/undercroft" || fail "$DESTDIR$SYSCONFDIR cannot be written: use sudo, or another SYSCONFDIR"

"$here/split-debug.sh" "$BINARY" "$bin/undercroft" "${DEBUG:-}"
[ ! -x "$RANGES" ] || install -D -m 0755 "$RANGES" "$bin/undercroft-ranges"
"$BINARY" man --dir "$share/man"
mkdir -p "$share/bash-completion/completions" "$share/zsh/$zsh" "$share/fish/vendor_completions.d" "$share/doc/undercroft"
"$BINARY" completions bash >"$share/bash-completion/completions/undercroft"
"$BINARY" completions zsh >"$share/zsh/$zsh/_undercroft"
"$BINARY" completions fish >"$share/fish/vendor_completions.d/undercroft.fish"
if [ -n "$units" ]; then
    mkdir -p "$DESTDIR$units"
    placed undercroft.service >"$DESTDIR$units/undercroft.service"
    chmod 0644 "$DESTDIR$units/undercroft.service"
    install -D -m 0644 "$here/undercroft.sysusers" "$DESTDIR$sysusers/undercroft.conf"
fi
placed undercroft.toml >"$share/doc/undercroft/undercroft.toml"
chmod 0644 "$share/doc/undercroft/undercroft.toml"
install -D -m 0644 "$here/../docs/glossary.md" "$share/doc/undercroft/glossary.md"
if [ ! -e "$DESTDIR$config" ]; then
    install -D -m 0644 "$share/doc/undercroft/undercroft.toml" "$DESTDIR$config"
fi

if [ -n "$systemd" ]; then
    systemd-sysusers undercroft.conf
    systemctl daemon-reload
fi
[ -n "$DESTDIR" ] || say_what_was_done
