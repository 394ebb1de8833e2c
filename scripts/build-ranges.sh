#!/bin/bash
# Builds undercroft-ranges as a static program that runs in any x86-64 Linux guest; prints its path and size.
#
# glibc's static library is enough (it asks for no names of users or hosts); a musl target gives the same, where there is one:
# TARGET=x86_64-unknown-linux-musl scripts/build-ranges.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target=${TARGET:-x86_64-unknown-linux-gnu}
# A target that is named keeps build scripts and macros out of these flags.
RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" \
    scripts/cargo build --release --locked -q -p undercroft-ranges --target "$target"
program=target/$target/release/undercroft-ranges
# A static program names no interpreter that would load libraries for it.
if readelf -lW "$program" | grep -q INTERP; then
    echo "build-ranges: $program is not static: is libc6-dev installed?" >&2
    exit 1
fi
echo "$program: $(($(stat -c %s "$program") / 1024)) KiB"
