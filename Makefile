# Every target that a person needs, with its line of help. `make` alone prints them.
#
# make demo, make test and make bench each install what they need first (scripts/setup.sh; UNDERCROFT_NO_SETUP=1 leaves
# that to you). Nothing here is clever: each target is one command that can be run by hand.

SHELL := /bin/bash
CARGO := scripts/cargo
# Debian's own Python: the one that has Debian's python3-pytest and python3-matplotlib.
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 600
SIM_ARGS ?=
LAB ?=
export PYTHON

UNDERCROFT := target/release/undercroft

.DEFAULT_GOAL := help
.PHONY: help setup build ranges python check test test-long demo demo-quick lab-exclusive lab-shares lab-stores lab-stores-sim lab-locking bench bench-builds bench-overheads bench-fairness bench-disks bench-files bench-upgrades bench-lab bench-sim bench-caffeine sim fuzz fmt lint install uninstall deb clean policy-table

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install everything that any target needs (apt packages, Rust), saying what and why
	@scripts/setup.sh build test demo bench

build: ## Build the daemon: target/release/undercroft
	@scripts/setup.sh build
	$(CARGO) build --release -p undercroft

ranges: ## Build undercroft-ranges, the static program for inside guests (1.3 MB), and say where it is
	@scripts/setup.sh build
	@scripts/build-ranges.sh

python: ## Build the Python package, an abi3 wheel, into build/wheels, and say how to install it
	@scripts/setup.sh build python
	@scripts/python-package.sh wheel

# What `make test` has built is not built again.
check: export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/scripts/rustc-lints
check: export CLIPPY_ARGS := -Dwarnings
check: ## For daily work: layout, lints, unit tests, the tidy test and 20 seeds of the simulation (a minute once built)
	@scripts/setup.sh build test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --lib --bins -q
	SEEDS=20 $(CARGO) test --locked --workspace --test simulation --test tidy -q

test: ## Prove it right: layout, lints, unit and property tests, simulation, what fuzzing found, real programs, guests
	@scripts/setup.sh build lint
	@UNDERCROFT_SETUP=1 scripts/test.sh

test-long: ## The same at length, two and a half hours: more seeds, long golden runs, 500 kill -9, 5 min of fuzzing a target
	@scripts/setup.sh build test kernel long
	@scripts/test.sh --long

demo: ## What host memory saves beside a real guest, and its speed: page cache, inclusive and exclusive Undercroft, at equal memory (4 min)
	@scripts/setup.sh build demo
	$(CARGO) build --release -p undercroft
	$(PYTHON) experiments/demo/demo.py $(DEMO_ARGS)

demo-quick: ## Undercroft, cache=none and the page cache without guests: the benchmark's driver in their place (seconds)
	@scripts/setup.sh build demo
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) experiments/demo/quick.py $(DEMO_ARGS)

lab-exclusive: ## What host caches save beside real guests: tables and plots in docs/results (hours; LAB="--quick": minutes; LAB=--help)
	@scripts/setup.sh build demo
	$(CARGO) build --release -p undercroft
	$(PYTHON) experiments/exclusive/run.py $(LAB)

lab-shares: ## How well shares follow the load, live and simulated: tables and plots in docs/results (25 min; LAB="--quick": 6; LAB=--help)
	@scripts/setup.sh build demo kernel
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(CARGO) build --release -p undercroft-study --example shares_table
	$(CARGO) build --release -p undercroft-cache --example many_disks
	$(PYTHON) experiments/shares/run.py $(LAB)

lab-stores: ## Databases in containers over RAM and SSD stores, page cache and a peer, on slow disks: docs/results (3 h; LAB="--quick": 30 min; LAB=--help)
	@scripts/setup.sh build demo stores
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(CARGO) build --release -p undercroft-backend --example ssd_cost
	$(PYTHON) experiments/databases/run.py $(LAB)

lab-stores-sim: ## What an SSD store below RAM finds and writes, simulated on block traces: docs/results/stores-sim.md (minutes; LAB="--quick": seconds)
	@scripts/setup.sh build demo
	$(CARGO) build --release -p undercroft
	$(PYTHON) experiments/stores/run.py $(LAB)

lab-locking: ## Locked lines and victim buffers in processor caches, on memory traces: docs/results/locking.md (minutes; LAB=--help)
	@scripts/setup.sh build locking
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) experiments/locking/run.py $(LAB)

bench: ## Compare with qemu-storage-daemon, qemu-nbd and nbdkit side by side; the table goes to bench/results
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) bench/compare.py $(BENCH_ARGS)

bench-sim: ## Compare the engine's replay with libCacheSim's, which is fetched and built; BENCH_ARGS=--help (about an hour; BENCH_ARGS="--repetitions 1": 15 min)
	@scripts/setup.sh build bench-sim
	$(CARGO) build --release -p undercroft-study --example sim_bench
	$(PYTHON) bench/sim/compare.py $(BENCH_ARGS)

bench-fairness: ## What cached reads of one guest wait for beside floods of others (5 min)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) bench/fairness.py $(BENCH_ARGS)

bench-disks: ## What 1,000 disks cost: threads, memory, start, idle processor time; BENCH_ARGS="--against PATH" (2 min)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft
	$(PYTHON) bench/disks.py $(BENCH_ARGS)

bench-overheads: ## What a hit pays for contents held once and for a recording, side by side (3 min)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) bench/overheads.py $(BENCH_ARGS)

bench-files: ## Disks as files of the host beside qemu-storage-daemon's FUSE export, hits, in turns (4 min)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft
	$(PYTHON) bench/files.py $(BENCH_ARGS)

bench-upgrades: ## How long nobody is served during `undercroft upgrade`, with full stores (8 min; 30 GiB of disk)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft -p undercroft-frontend
	$(PYTHON) bench/upgrades.py $(BENCH_ARGS)

bench-lab: ## How fast processor caches are simulated, beside cachegrind and pycachesim, which pip fetches (2 min)
	@scripts/setup.sh build python locking
	$(CARGO) build --release -p undercroft
	$(PYTHON) bench/lab.py $(BENCH_ARGS)

bench-builds: ## Compare today's program with another build of it on hits, in turns; BENCH_ARGS="--before PATH" (4 min)
	@scripts/setup.sh build bench
	$(CARGO) build --release -p undercroft -p undercroft-bench-driver
	$(PYTHON) bench/builds.py $(BENCH_ARGS)

bench-caffeine: ## Compare the engine's replay with Caffeine's simulator, which Maven fetches (half an hour; BENCH_ARGS="--repetitions 1": 10 min)
	@scripts/setup.sh build bench-caffeine
	$(CARGO) build --release -p undercroft
	$(CARGO) build --release -p undercroft-study --example sim_bench
	$(PYTHON) bench/sim/caffeine.py $(BENCH_ARGS)

sim: ## Simulate the data path until stopped, or SIM_ARGS="--seeds N"; a failure prints its seed and replays
	@scripts/setup.sh build
	$(CARGO) run --release -p undercroft-testkit --bin sim -- $(SIM_ARGS)

fuzz: ## Fuzz every target for FUZZ_SECONDS (600) each, added up over sessions in docs/results/fuzzing.md; Ctrl-C keeps what was done
	@scripts/setup.sh build test
	@$(PYTHON) scripts/fuzz.py --seconds $(FUZZ_SECONDS)

fmt: ## Lay out the code
	$(CARGO) fmt --all

lint: ## Check the layout and every lint, as make test does
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

policy-table: ## Measure every policy on the block traces: the table behind the default policy
	@scripts/setup.sh build
	$(CARGO) run --release -p undercroft-study --example policy_table

# BINARY=PROGRAM installs a program that is built already.
install: $(if $(BINARY),,build ranges) ## Install program, manual, completions under PREFIX (/usr/local); there and in /usr a systemd unit
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install.sh

uninstall: ## Remove what make install with the same PREFIX installed; an edited configuration stays
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install.sh --remove

deb: build ranges ## Build a Debian package under build/
	@OUT=build dist/make-deb.sh

clean: ## Remove everything that was built or fetched
	rm -rf target build fuzz/corpus fuzz/artifacts
