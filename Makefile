# The front door. `make serve` starts a server, `make demo` shows what this is, `make test` and `make verify` are what CI
# runs.

CARGO ?= cargo
SETUP := ./scripts/setup
# That of what is built to be used. `quick` builds in minutes; figures and packages are of `release`.
PROFILE ?= quick

.PHONY: serve demo build test verify test-waiting test-checks verify-waiting verify-checks cluster soak fmt lint \
	rtl-tools rtl-lint formal synth doc deny loom fuzz bench clean

# A server with the example of a bank: psql -h 127.0.0.1 -p 5433 bank -c 'CALL transfer(1, 2, 25.00)'
serve:
	$(SETUP) build
	$(CARGO) build --profile $(PROFILE) --bin lockwork
	$(CARGO) run --profile $(PROFILE) -q --bin lockwork -- serve --init examples/bank.sql --http 127.0.0.1:9433

demo:
	$(SETUP) build
	$(CARGO) run --profile $(PROFILE) --bin lockwork -- demo

# ./target/release/lockwork, of which packages are made, and ./target/release/lockwork-bench, which measures figures.
build:
	$(SETUP) build
	$(CARGO) build --release --bin lockwork --bin lockwork-bench

# What a contributor waits for: formatting, clippy, the documentation, and the tests of every crate but those of clusters,
# the lock service and accelerators.
test: fmt
	$(SETUP) test
	./scripts/clients >/dev/null || echo "lockwork: tests of clients that are not installed are skipped" >&2
	./scripts/test build
	$(MAKE) -j 2 --output-sync=target test-waiting test-checks
	./scripts/test computing

# Everything else: model checking, proofs, fuzzing, simulations of the RTL, clusters and the lock service under faults.
verify:
	$(SETUP)
	./scripts/nats >/dev/null || echo "lockwork: NATS is not installed: tests of clusters are skipped" >&2
	./scripts/test verify build
	$(MAKE) -j 2 --output-sync=target verify-waiting verify-checks
	./scripts/test verify computing

# Tests that mostly wait, for leases and elections; they run beside checks, which leave no processor idle.
test-waiting:
	./scripts/test waiting

test-checks:
	$(MAKE) lint doc

verify-waiting:
	./scripts/test verify waiting

verify-checks:
	$(MAKE) deny rtl-lint loom fuzz formal

# Clusters of processes that are killed, stopped and cut off.
cluster:
	RUST_BACKTRACE=0 $(CARGO) test --profile quick --workspace --test cluster

# A thousand processes that are killed while they work, and recovered; a server under everything that clients do, for
# SOAK_SECONDS, ten minutes unless told otherwise; and a cluster under random faults, for CLUSTER_SECONDS, an hour. Before
# them the Python package as `pip install ./python` builds it.
soak:
	./scripts/python-tests
	LOCKWORK_KILLS=500 $(CARGO) test --profile verify -p lockwork-sequencer --test kill -- --nocapture
	SOAK_SECONDS=$(or $(SOAK_SECONDS),600) $(CARGO) test --profile verify -p lockwork-command --test server soak -- --nocapture
	CLUSTER_SECONDS=$(or $(CLUSTER_SECONDS),3600) $(CARGO) test --profile verify -p lockwork-command --test cluster random -- --nocapture

fmt:
	$(CARGO) fmt --all --check

lint: fmt
	$(SETUP) test
	$(CARGO) clippy --workspace --all-targets --profile quick -- -D warnings

# Licences, sources and duplicates of dependencies.
deny:
	./scripts/deny

# Verilator, Yosys, nextpnr and z3 into target/rtl-tools, if they are not there.
rtl-tools:
	./scripts/rtl-tools

rtl-lint:
	$(SETUP)
	./scripts/rtl-lint

# What is proved about the RTL.
formal:
	$(SETUP)
	./scripts/rtl-formal

# Area and frequency of the RTL, into docs/fpga-area.md. SYNTH=... gives options, see scripts/synth --help.
synth:
	./scripts/synth $(SYNTH)

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --profile quick

loom:
	CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" $(CARGO) test --profile verify -p lockwork-locking --test loom --test loom_tid --test loom_shared

# Each target for FUZZ_SECONDS, 10 unless told otherwise.
fuzz:
	$(SETUP)
	./scripts/fuzz

bench: build
	./scripts/bench

clean:
	$(CARGO) clean
