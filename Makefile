# What a developer or a user runs. Everything that is needed is installed into .cache, which git ignores.
GOLANGCI := .cache/bin/golangci-lint
GOLANGCI_VERSION := v2.15.0

.DEFAULT_GOAL := help
.PHONY: help build demo test lint bench soak chaos mongod kafka streams clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/incrementer and bin/reconciler
	go build -trimpath -o bin/ ./cmd/...

demo: build ## watch counters stay right under load and kill -9; SECONDS=n ends it, MONGODB_URI uses a server of yours
	@test -n "$$MONGODB_URI" || scripts/get-mongod >/dev/null
	@go build -trimpath -o bin/ ./demo
	@exec env SECONDS='$(SECONDS)' bin/demo

test: mongod kafka ## every test, on real servers, with the race detector
	go vet ./...
	go test -race -timeout 20m $(TESTFLAGS) ./...

lint: $(GOLANGCI) ## golangci-lint with the rules of .golangci.yaml
	$(GOLANGCI) run ./...

bench: mongod $(if $(or $(LANES),$(filter-out kafka,$(PART))),,kafka streams) ## catch-up beside reading the stream alone, a full pass beside one $group, touched keys among few and many, a topic beside Kafka Streams, as ratios; PART=catchup|recount|touched|latency|kafka for one, SCALE=n for more data, LANES=n to compare n lanes with one
	go run ./bench

soak: mongod kafka ## the tests whose short form is in `make test`, with their full numbers
	DRIFTLESS_SOAK=1 go test -race -timeout 120m ./...

chaos: mongod ## the demo's load and kills for five minutes; the verdict is the exit status
	$(MAKE) demo SECONDS=300

mongod: # a real server for the tests
	@scripts/get-mongod >/dev/null

kafka: # a real broker for the tests
	@scripts/get-kafka >/dev/null

streams: # Kafka Streams, to compare with
	@scripts/get-streams >/dev/null

$(GOLANGCI):
	GOBIN=$(abspath .cache/bin) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

clean: ## remove what was built
	rm -rf bin
