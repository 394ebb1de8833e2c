#!/bin/bash
# Readies the Python package for its tests, or builds the wheel: scripts/python-package.sh environment | test | wheel
#
# environment  a virtual environment in build/python with what crates/python/requirements-test.txt pins
# test         the same, and in it the package with the library that cargo has built already (target/debug, or
#              target/release with UNDERCROFT_LONG set, when a wheel is installed instead). Prints the environment's
#              Python on its last line.
# wheel        an abi3 wheel for any Python from 3.9 on, optimised, into build/wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() {
    printf 'python-package: %s\n' "$*" >&2
    exit 1
}

venv=build/python
wanted=crates/python/requirements-test.txt

environment() {
    # what was installed is that of this very list
    if cmp -s "$wanted" "$venv/installed.txt" && [ -x $venv/bin/python ]; then return; fi
    rm -rf $venv
    "${PYTHON:-/usr/bin/python3}" -m venv $venv >build/python-venv.log 2>&1 ||
        stop "no virtual environment can be made (build/python-venv.log says why): install python3-venv, or run 'make setup'"
    # what tests do not import need not be compiled to bytecode
    $venv/bin/python -m pip install -q --disable-pip-version-check --no-compile -r "$wanted" ||
        stop "pip cannot install $wanted (its reason is above): the package index must be reachable, here or through pip's own settings"
    cp "$wanted" $venv/installed.txt
}

wheel() {
    # the cargo that scripts/cargo finds, for maturin, too
    PATH="$(dirname "$(scripts/cargo --which)"):$PATH" $venv/bin/maturin build --release --locked --strip \
        --interpreter "$PWD/$venv/bin/python" --manifest-path crates/python/Cargo.toml --out build/wheels ||
        stop "maturin could not build the wheel (its reason is above)"
}

mkdir -p build
case ${1:-} in
environment)
    environment
    ;;
test)
    environment
    site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$site/undercroft" "$site"/undercroft-*.dist-info
    if [ -n "${UNDERCROFT_LONG:-}" ]; then
        rm -rf build/wheels
        wheel
        $venv/bin/python -m pip install -q --disable-pip-version-check --no-deps build/wheels/undercroft-*.whl
    else
        # The build has made the library with everybody's features; maturin would build it once more with its own.
        [ -f target/debug/lib_undercroft.so ] || stop "there is no target/debug/lib_undercroft.so: cargo build -p undercroft-python"
        cp -r crates/python/python/undercroft "$site/undercroft"
        cp target/debug/lib_undercroft.so "$site/undercroft/_undercroft.abi3.so"
    fi
    echo "$PWD/$venv/bin/python"
    ;;
wheel)
    environment
    rm -rf build/wheels
    wheel
    echo "Install it with: pip install $(ls build/wheels/undercroft-*.whl)"
    ;;
*)
    sed -n '2s/^# //p' "$0"
    exit 2
    ;;
esac
