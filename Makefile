# Each line is a command one could type. Heavy outputs go to $OUTRIGGER_CACHE (default ~/.cache/outrigger).
STAGE = scripts/stage
.PHONY: demo test test-full check unit conformance mcp-conformance test-crds chart images e2e generate generate-schema bench cluster-up cluster-down

demo: ## the main job on a real cluster: CONTEXT=name uses one that you have
	e2e/demo

test: check unit conformance mcp-conformance chart test-crds images e2e ## everything that must hold at each commit

check: ## format, lints, documentation, licences
	$(STAGE) "tools" scripts/tools
	$(STAGE) "format" cargo fmt --all --check
	$(STAGE) "lints" cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(STAGE) "documentation" env RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps --quiet
	$(STAGE) "licences and sources" cargo-deny --log-level error check licenses bans sources

unit: ## tests that need no cluster
	$(STAGE) "unit tests" env RUST_TEST_THREADS=8 cargo test --locked --workspace

conformance: ## A2A as clients see it: ACTS, client libraries, a faulty agent, byte transparency, signatures, transcripts
	$(STAGE) "conformance" e2e/conformance/run all

mcp-conformance: ## MCP as clients see it: the suite against servers of each era, client libraries and real servers
	$(STAGE) "MCP conformance" e2e/mcp/run all

chart: ## charts and GitOps examples: lint, schema, golden files, health checks
	$(STAGE) "test bed's programs" e2e/cluster/build
	$(STAGE) "charts" charts/test
	$(STAGE) "health checks of the GitOps examples" scripts/gitops

test-crds: ## what the API server refuses
	$(STAGE) "bad manifests" e2e/with-light cargo test --locked -p outrigger-e2e --features light --test crds

images: ## static binaries and the images of product, examples and tests
	$(STAGE) "release binaries" scripts/release
	$(STAGE) "images" e2e/images

e2e: ## end-to-end on two nodes; FILTER=shared::order, KEEP=1
	$(STAGE) "end to end" e2e/with-cluster e2e/run

test-full: test ## wide matrices and soaks: fuzzing, other Kubernetes versions, ten quiet minutes
	FUZZ_SECONDS=60 $(STAGE) "fuzzing" cargo test --locked -p outrigger-protocol --test fuzz
	$(STAGE) "test bed" e2e/cluster/selftest
	VARIANTS=all CASES=2000 $(STAGE) "conformance, wide" e2e/conformance/run matrix transparency
	CELLS=all $(STAGE) "MCP clients and servers, all pairs" e2e/mcp/run matrix
	KUBE=1.34 $(STAGE) "bad manifests on 1.34" e2e/with-light cargo test --locked -p outrigger-e2e --features light --test crds
	KUBE=1.37 $(STAGE) "bad manifests on 1.37" e2e/with-light cargo test --locked -p outrigger-e2e --features light --test crds
	KUBE=1.34 FILTER=shared:: $(STAGE) "end to end on 1.34" e2e/with-cluster e2e/run
	KUBE=1.37 FILTER=shared:: $(STAGE) "end to end on 1.37" e2e/with-cluster e2e/run
	QUIET_MINUTES=10 FILTER=alone::a_quiet $(STAGE) "ten quiet minutes" e2e/with-cluster e2e/run

generate: ## CRD manifests, here and in the charts
	cargo run --quiet --locked -p outrigger-crds --bin crdgen crds/manifests
	charts/generate

generate-schema: ## the pod template's schema, from the newest Kubernetes we support
	KUBE=1.37 e2e/with-light kubectl get --raw /openapi/v3/api/v1 | sed -n '/^{/,$$p' > $${TMPDIR:-/tmp}/openapi-core-v1.json
	crds/schema/generate.py $${TMPDIR:-/tmp}/openapi-core-v1.json > crds/schema/pod-template.json

bench: ## against peers, as a table
	bench/run

cluster-up: ## NODES=2 KUBE=1.36 ADDONS="coredns metrics-server"
	e2e/cluster/up

cluster-down:
	e2e/cluster/down
