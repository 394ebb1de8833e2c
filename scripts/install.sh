#!/bin/bash
# Installs the built daemon: scripts/install.sh DESTDIR PREFIX (DESTDIR may be empty; PREFIX is /usr/local or /usr).
#
# Program, man pages, completions, systemd unit and an example configuration. An existing configuration is left alone,
# nothing is started, and no user or group is made: dist/undercroft.service does with what systemd offers.
set -euo pipefail
cd "$(dirname "$0")/.."
destdir=${1-}
prefix=${2:-/usr/local}
binary=target/release/undercroft

[ -x $binary ] || {
    echo "install: $binary is not built: run 'make build' first" >&2
    exit 1
}
[ -n "$destdir" ] || [ -w "$prefix" ] || {
    echo "install: $prefix is not writable: run this as root, or set PREFIX or DESTDIR" >&2
    exit 1
}

put() { install -D -m "$1" "$2" "$destdir$3"; }

put 755 $binary "$prefix/bin/undercroft"
put 644 LICENSE "$prefix/share/doc/undercroft/LICENSE"

mkdir -p "$destdir$prefix/share/man"
$binary man --dir "$destdir$prefix/share/man"
find "$destdir$prefix/share/man" -name 'undercroft*.[15]' -exec gzip -9nf {} +

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
completion() {
    $binary completions "$1" >"$scratch/completion"
    put 644 "$scratch/completion" "$prefix/share/$2"
}
completion bash bash-completion/completions/undercroft
completion zsh zsh/vendor-completions/_undercroft
completion fish fish/vendor_completions.d/undercroft.fish

# /usr/local/lib/systemd/system is searched by systemd too. The unit names the program where it was installed.
sed "s|/usr/bin/undercroft|$prefix/bin/undercroft|g" dist/undercroft.service >"$scratch/unit"
put 644 "$scratch/unit" "$prefix/lib/systemd/system/undercroft.service"

put 644 dist/undercroft.toml "$prefix/share/doc/undercroft/undercroft.toml"
[ -e "$destdir/etc/undercroft/undercroft.toml" ] || put 640 dist/undercroft.toml /etc/undercroft/undercroft.toml

echo "install: undercroft is in $destdir$prefix/bin"
