# Thin names over cargo and a few scripts.

.DEFAULT_GOAL := help
# From the whole workspace, so that it is made of the libraries that the tests are made of: `make test` goes on from there.
demo = --workspace --bin mycora
# Named one by one: what is built together with the tests can be made to die by them.
programs = -p mycora $(addprefix -p mycora-,bench storage scheduler router runner-registry mycelium-gateway supervisor runner)

.PHONY: help demo demo-saga test lint deny sbom dist fuzz faults bench bench-peers bench-dead bench-saga bench-size

help: ## says what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## builds Mycora and shows a real flow running through every service
	@deploy/local/need.sh cargo cc redis-server python3
	@cargo build $(demo)
	@target/debug/mycora demo

demo-saga: ## the same for sagas: four orders that go four ways, with payments, mail and aggregates as stand-ins
	@deploy/local/need.sh cargo cc redis-server python3 nats-server
	@cargo build $(demo)
	@target/debug/mycora demo --saga

test: ## runs all tests; needs Rust, redis-server, nats-server and python3
	@deploy/local/need.sh cargo cc redis-server nats-server python3
	@tests/run

lint: ## formatting, clippy with warnings denied, buf where it is installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if command -v buf >/dev/null; then set -x; buf lint; else echo "buf is not installed: the protos were not linted"; fi

deny: ## checks licenses, sources and duplicates of what is depended on; builds cargo-deny once, in minutes
	@deploy/local/need.sh cargo cc
	@.ci/dependencies

sbom: ## writes a bill of materials for each program into target/sbom; builds cargo-sbom once
	@deploy/local/need.sh cargo cc
	@.ci/sbom

dist: ## makes an archive of the program with a checksum in target/dist; release build, or MYCORA_DIST_PROFILE
	@deploy/local/need.sh cargo cc
	@deploy/dist.sh

fuzz: ## looks for inputs that break a reader; needs a C++ compiler; 10 minutes for each of them, or MYCORA_FUZZ_SECS
	@deploy/local/need.sh cargo cc c++ python3
	@tests/fuzz/run

faults: ## breaks suites 600 times by ten seeds, checks the invariants and measures recovery; an hour, or MYCORA_FAULTS_SEEDS
	@deploy/local/need.sh cargo cc redis-server
	@cargo build --profile measured --quiet $(programs) -p mycora-faults
	@target/measured/mycora-faults

bench: ## measures chains, fan-outs, jobs per second and latency, in one process and in several; some minutes
	@deploy/local/need.sh cargo cc redis-server python3
	@cargo build --profile measured --quiet $(programs)
	@target/measured/mycora-bench

bench-peers: ## the same beside BullMQ, in turn; brings its packages from npm into target/bench-peers
	@deploy/local/need.sh cargo cc redis-server python3 npm
	@cargo build --profile measured --quiet $(programs)
	@mkdir -p target/bench-peers
	@cp tests/bench/peers/package.json tests/bench/peers/package-lock.json target/bench-peers/
	@cd target/bench-peers && npm ci --loglevel=error --no-fund --no-audit
	@target/measured/mycora-bench peers

bench-dead: ## measures what one dead supervisor of ten costs the others; a few minutes
	@deploy/local/need.sh cargo cc redis-server
	@cargo build --profile measured --quiet $(programs)
	@target/measured/mycora-bench dead

bench-saga: ## measures sagas on both stores beside what the stores do alone; some minutes
	@deploy/local/need.sh cargo cc redis-server nats-server
	@cargo build --profile measured --quiet -p mycora-bench
	@target/measured/mycora-bench saga

bench-size: ## measures a flow of 100,000 nodes, and 100,000 flows that wait; several minutes
	@deploy/local/need.sh cargo cc redis-server python3
	@cargo build --profile measured --quiet $(programs)
	@target/measured/mycora-bench size
