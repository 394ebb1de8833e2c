#!/bin/bash
# Builds and runs the fuzz targets that fuzz/Cargo.toml lists: scripts/fuzz.sh SECONDS [TARGET...]
#
# Two targets run at a time. Inputs found are kept in fuzz/corpus, which begins with those of fuzz/kept; what fails is kept in
# fuzz/artifacts and is replayed by `target/debug/TARGET FILE`.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET...]}
shift
listed=$(awk '/^\[\[bin\]\]/ { bin = 1; next } /^\[/ { bin = 0 } bin && $1 == "name" { gsub(/"/, "", $3); print $3 }' fuzz/Cargo.toml)
targets=("$@")
# shellcheck disable=SC2206 # names without spaces
[ ${#targets[@]} -gt 0 ] || targets=($listed)

# Like the tests, with every assertion on; all but our own crates have been built for those already.
# (A wrapper that caches what compilers make does not know this one.)
RUSTC_WRAPPER= RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-coverage scripts/cargo build --locked -p undercroft-fuzz --features libfuzzer --bins

work=build/fuzz
mkdir -p "$work" fuzz/artifacts

# Runs one target; says how it went in one line.
one() {
    local target=$1 corpus=fuzz/corpus/$1 log=$work/$1.log
    mkdir -p "$corpus" "fuzz/artifacts/$target"
    local seeds=()
    [ ! -d "fuzz/seeds/$target" ] || seeds=("fuzz/seeds/$target")
    [ ! -f "fuzz/kept/$target.tar.xz" ] || tar -xJf "fuzz/kept/$target.tar.xz" -C "$corpus"
    if "target/debug/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target/" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        echo "fuzz: $target ok, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in ${seconds} s," \
            "$(find "$corpus" -type f | wc -l) kept"
    else
        tail -n 30 "$log"
        echo "fuzz: $target FAILED (the input is in fuzz/artifacts/$target, the log in $log)"
        return 1
    fi
}

status=0
running=0
for target in "${targets[@]}"; do
    one "$target" &
    running=$((running + 1))
    if [ $running -ge 2 ]; then
        wait -n || status=1
        running=$((running - 1))
    fi
done
while [ $running -gt 0 ]; do
    wait -n || status=1
    running=$((running - 1))
done
exit $status
