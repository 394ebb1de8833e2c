#!/bin/bash
# Everything that proves Undercroft right, in order of how fast it fails; closes with one line: N passed, N failed, N skipped.
#
# scripts/test.sh         what `make test` runs: under half an hour on two cores
# scripts/test.sh --long  the same with more seeds, long golden runs, more crashes and longer fuzzing
#
# A step that fails does not stop the later ones, but layout and lints come first and do: they cost seconds to mend.
# The count: one per Rust test, doc test, fuzz target (at length) and pytest; a step that breaks without a count is one failure. What is
# skipped is not passed: the reasons stand above the closing line, and with UNDERCROFT_NO_SKIPS set they are failures.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# With coverage at length alone: that is a second build. Without, the tests of undercroft-fuzz replay what fuzzing found.
if [ "${1:-}" = --long ]; then
    export UNDERCROFT_LONG=1
    fuzz_seconds=300
fi

logs=build/test
mkdir -p "$logs"
# Rust tests that find that they cannot run here add a line to this file (crates/skips).
export UNDERCROFT_SKIPS=$PWD/$logs/skips
rm -f "$UNDERCROFT_SKIPS" "$logs"/*.log
passed=0 failed=0 skipped=0 ignored=0
broken=()

step() { printf '\n== %s (after %s min)\n' "$*" $(((SECONDS + 30) / 60)); }

# Adds up a step. Arguments: name, exit status, passed, failed, skipped.
count() {
    passed=$((passed + $3)) failed=$((failed + $4)) skipped=$((skipped + $5))
    if [ "$2" -ne 0 ] && [ "$4" -eq 0 ]; then failed=$((failed + 1)); fi
    if [ "$2" -ne 0 ]; then broken+=("$1"); fi
}

finish() {
    printf '\n%s min in all\n' $(((SECONDS + 30) / 60))
    for name in "${broken[@]}"; do echo "failed: $name"; done
    [ $((passed + failed)) -gt 0 ] || failed=1
    scripts/skips.py report "$UNDERCROFT_SKIPS" "$logs/python.log" "$logs/pytest.log" "$logs/pytest-alone.log"
    skips_status=$?
    if [ $ignored -gt 0 ]; then echo "skipped $ignored: marked as ignored, and not deselected in scripts/test.sh"; fi
    if [ -n "${UNDERCROFT_NO_SKIPS:-}" ] && [ $((skips_status + ignored)) -gt 0 ]; then
        echo "failed: tests were skipped that have to run here"
        failed=$((failed + 1))
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
    exit
}

# What programs are tested with is installed beside the build, which needs none of it, and so are guests' kernels fetched;
# where a password may be asked for, before. `make test` asks for it, and has installed what the build needs.
setup=
if [ -n "${UNDERCROFT_SETUP:-}" ]; then
    beside() {
        scripts/setup.sh test && experiments/guest/build.sh --tools && experiments/guest/build.sh --backports || return
        # The step that wants it says what is wrong.
        scripts/python-package.sh environment || true
    }
    if [ "$(id -u)" = 0 ]; then
        beside >"$logs/setup.log" 2>&1 &
        setup=$!
    else
        scripts/setup.sh test || exit
    fi
fi

# The number before WORD in every line of FILE that matches PATTERN, added up.
total() { # file, pattern, word
    grep -E "$2" "$1" | grep -oE "[0-9]+ $3" | awk '{ n += $1 } END { print n + 0 }'
}

# Adds up a run of pytest. Arguments: name, exit status, its log without .log.
count_pytest() {
    # Its last line alone: `31 passed, 1 skipped in 208.51s`.
    grep -E '^[= ]*[0-9]+ [a-z]+.* in [0-9.]+s' "$3.log" | tail -n 1 >"$3.summary"
    count "$1" "$2" \
        "$(total "$3.summary" . passed)" \
        "$(($(total "$3.summary" . failed) + $(total "$3.summary" . error)))" \
        "$(total "$3.summary" . skipped)"
}

# undercroft-ranges is built beside all else: optimised and for a target of its own, so in other folders than what is
# not, and niced, so with what that build leaves of the processors where it waits for one crate. Two that are optimised,
# as at length, wait for each other.
begin_ranges() {
    env -u RUSTC_WORKSPACE_WRAPPER nice scripts/build-ranges.sh >"$logs/ranges.log" 2>&1 &
    ranges=$!
}

end_ranges() {
    wait "$ranges"
    local status=$?
    [ $status -eq 0 ] || cat "$logs/ranges.log"
    count "scripts/build-ranges.sh" $status 0 0 0
}

step "layout"
scripts/cargo fmt --all --check
count "cargo fmt --check" $? 0 0 0

# The programs that real clients and guests are served by: built like the unit tests, with every assertion on, which also
# saves a second build of all crates; at length, those that are shipped.
if [ -n "${UNDERCROFT_LONG:-}" ]; then
    step "lints"
    scripts/cargo clippy --workspace --all-targets --locked -- -D warnings
    count "cargo clippy" $? 0 0 0
    [ $failed -eq 0 ] || finish
    step "build"
    programs=target/release
    begin_ranges
    # The example by itself: what tests need comes with it, and would be in the programs, which are not larger than said.
    scripts/cargo build --release --locked -p undercroft-trace --example recording_rows &&
        scripts/cargo build --release --locked --workspace --lib --bins
else
    step "lints and build, in one"
    programs=target/debug
    # Until the Rust tests are through: whatever else is built then is not for tests.
    export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-lints CLIPPY_ARGS=-Dwarnings
    begin_ranges
    # With tests, whose crates ask others for features: without, our own would be built once more for them.
    scripts/cargo build --locked --workspace --all-targets
fi
count "cargo build" $? 0 0 0
end_ranges
if [ -n "$setup" ]; then
    wait "$setup"
    count "scripts/setup.sh" $? 0 0 0
    cat "$logs/setup.log"
fi
export UNDERCROFT_PROGRAM=$PWD/$programs/undercroft UNDERCROFT_DRIVER_PROGRAM=$PWD/$programs/undercroft-driver
[ $failed -eq 0 ] || finish

step "unit, property and simulation tests"
# Deselected: the long traces, which --long runs optimised.
elsewhere=(--skip long::)
scripts/rust_tests.py -- "${elsewhere[@]}" 2>&1 | tee "$logs/cargo.log"
status=${PIPESTATUS[0]}
if [ -n "${UNDERCROFT_LONG:-}" ]; then
    scripts/cargo test --release --locked -p undercroft-engine --test golden_long 2>&1 | tee -a "$logs/cargo.log"
    status=$((status + PIPESTATUS[0]))
    scripts/cargo test --release --locked -p undercroft-engine --lib -- long:: 2>&1 | tee -a "$logs/cargo.log"
    status=$((status + PIPESTATUS[0]))
fi
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
# The harness counts what a test skipped as passed.
rust_skipped=$(scripts/skips.py count "$UNDERCROFT_SKIPS")
ignored=$(total "$logs/cargo.log" '^test result:' ignored)
count "cargo test" "$status" \
    $(($(total "$logs/cargo.log" '^test result:' passed) - rust_skipped)) \
    "$(total "$logs/cargo.log" '^test result:' failed)" \
    $((rust_skipped + ignored))

if [ -n "${UNDERCROFT_LONG:-}" ]; then
    step "4,000 more seeds of the simulation"
    scripts/cargo run --release --locked -q -p undercroft-testkit --bin sim -- --start 1000000 --seeds 4000
    status=$?
    count "simulation" $status $((status == 0)) 0 0
fi

if [ -n "${UNDERCROFT_LONG:-}" ]; then
    step "fuzz targets, $fuzz_seconds s each"
    # The table there can be booked on the one of all sessions: scripts/fuzz.py --add build/fuzz
    scripts/fuzz.py --seconds "$fuzz_seconds" --out build/fuzz 2>&1 | tee "$logs/fuzz.log"
    status=${PIPESTATUS[0]}
    fuzzed=$(grep '^fuzz: ' "$logs/fuzz.log")
    count "fuzz" "$status" "$(grep -c ' executions in ' <<<"$(grep -v CRASHED <<<"$fuzzed")")" "$(grep -c CRASHED <<<"$fuzzed")" 0
fi

python_package() {
    local python
    python=$(scripts/python-package.sh test | tail -n 1) && [ -n "$python" ] || return 1
    "$python" -m pytest crates/python/tests -q -rs -p no:cacheprovider
}

# Beside the next step; at length, where a wheel is built for it, before that.
step "the Python package"
python_package >"$logs/python.log" 2>&1 &
package=$!
[ -z "${UNDERCROFT_LONG:-}" ] || wait "$package"

# They wait a good part of the time, so four run at a time (six on two processors starved each other into time limits);
# then, one by one, those that measure or need the machine (`alone`).
at_a_time=4
step "real programs and real guests, side by side"
"${PYTHON:-/usr/bin/python3}" -m pytest tests -q -rs -p no:cacheprovider -n $at_a_time -m "not alone" --durations 12 2>&1 | tee "$logs/pytest.log"
count_pytest "pytest" "${PIPESTATUS[0]}" "$logs/pytest"
wait "$package"
status=$?
cat "$logs/python.log"
count_pytest "the Python package" "$status" "$logs/python"

step "real programs and real guests, one by one"
"${PYTHON:-/usr/bin/python3}" -m pytest tests -q -rs -p no:cacheprovider -m alone --durations 6 2>&1 | tee "$logs/pytest-alone.log"
count_pytest "pytest, one by one" "${PIPESTATUS[0]}" "$logs/pytest-alone"

finish
