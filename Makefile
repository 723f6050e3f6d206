# The front door. `make demo` shows what this is; `make test` is what CI runs.

CARGO ?= cargo
SETUP := ./scripts/setup

.PHONY: demo build test lint doc loom fuzz bench clean

demo: build
	$(CARGO) run --release -q -p lockwork -- demo

build:
	$(SETUP)
	$(CARGO) build --release -p lockwork

test: lint doc
	RUST_BACKTRACE=0 $(CARGO) test --profile verify --workspace
	$(MAKE) loom fuzz

lint:
	$(SETUP)
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --profile verify -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --profile verify

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
