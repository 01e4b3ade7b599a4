# make demo       eight ranks of one process add their numbers
# make demo-scale what a data-parallel step of a thousand NPUs loses to communication, simulated
# make test       every test, with the race detector where there is a C compiler
# make check      what a change must pass; continuous integration runs this and nothing else; as root with apt-get it
#                 installs qemu-user-static, for the tests of the arm64 kernels
# make prove      every choreography of the table verified, for all numbers of ranks to 33, primes to 127, and 256
# make test-long  the tests that take minutes, too (build tag long)
# make bench      latency and bandwidth of the collectives beside plain goroutines; BENCHARGS=-ranks=8 and the like
# make bench-go   the packages' own benchmarks; PKG=./plan BENCH=Choose for some
# make bench-peers  Kolo beside Open MPI, plain goroutines and what memory allows; PEERS="-quick -install" (root) for what is missing
# make rxe-vm     RoCE with the Linux kernel's and with other programs, the verbs driver on it, in an emulated machine (root, Debian; STEPS=verbs for some)
# make lint fmt   the house rules; the source formatted

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := check

export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

PKG   ?= ./...
BENCH ?= .
GO    ?= go

# The race detector needs a C compiler; go reports CGO_ENABLED=0 without one.
RACE = $(shell test "$$($(GO) env CGO_ENABLED)" = 1 && command -v "$$($(GO) env CC | cut -d' ' -f1)" >/dev/null && echo -race)
# The directories of files that ask for a build tag.
tagged = { grep -rlE "^//go:build .*\b$(1)\b" --include='*.go' . || true; } | xargs -r -n1 dirname | sort -u
say  = @printf '\n== %s\n' "$(1)"

.PHONY: demo demo-scale test test-long check bench bench-go rxe-vm lint fmt
.PHONY: check-format check-vet check-generated check-modules check-arm64 check-tags tools say-race

demo:
	$(GO) run ./examples/quickstart

demo-scale:
	$(GO) run ./examples/scale

test: say-race
	$(GO) test $(RACE) -shuffle=on -timeout 20m $(PKG)

.PHONY: prove
prove:
	$(call say,every choreography is proven)
	$(GO) test -tags long -timeout 20m -run '^TestEveryProgramIsProven$$' ./plan

test-long:
	$(GO) test -tags long -timeout 90m $(PKG)

bench:
	$(GO) run ./bench $(BENCHARGS)

bench-go:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m $(PKG)

# Results go to bench/out; go run ./bench/peers -help says what PEERS may hold.
.PHONY: bench-peers
PEERS ?=
bench-peers:
	$(GO) run ./bench/peers $(PEERS)

# The kernel and the image are kept in RXE_DIR.
RXE_DIR ?= $(or $(TMPDIR),/tmp)/kolo-rxe
rxe-vm:
	channel/roce/testdata/rxe/run.sh $(RXE_DIR)

lint:
	$(call say,house rules)
	$(GO) test -count=1 ./internal/lint

fmt:
	gofmt -w .

# One after the other, cheap ones first, also under make -j.
check:
	@start=$$SECONDS; \
	for step in check-format check-vet lint check-generated check-modules check-arm64 tools test prove check-tags; do \
		$(MAKE) --no-print-directory -j1 $$step; \
	done; \
	printf '\n== all checks passed in %d s\n' $$((SECONDS - start))

say-race:
	$(call say,tests)
	@test -n "$(RACE)" || echo "no C compiler here: the tests run without the race detector"

check-format:
	$(call say,format)
	@list=$$(gofmt -l .); test -z "$$list" || { printf 'not formatted, run make fmt:\n%s\n' "$$list"; exit 1; }

check-vet:
	$(call say,vet for this machine and arm64 and with the tag long)
	$(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...
	$(GO) vet -tags long $$($(call tagged,long))
	$(GO) vet -tags noacl $$($(call tagged,noacl))
	$(GO) vet -tags noverbs $$($(call tagged,noverbs))

# Makes the generated files again and compares.
generated = { grep -rlE '^// Code generated .* DO NOT EDIT\.$$' --include='*.go' --include='*.s' . || true; } | LC_ALL=C sort | xargs -r cksum
check-generated:
	$(call say,generated files are current)
	@before=$$($(generated)); $(GO) generate ./...; after=$$($(generated)); \
	diff <(echo "$$before") <(echo "$$after") || { echo "go generate ./... has changed these files: commit them"; exit 1; }

check-modules:
	$(call say,go.mod and go.sum are tidy)
	$(GO) mod tidy -diff

check-arm64:
	$(call say,build for arm64)
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...

# The tests again under each build tag that some file has.
check-tags:
	@for tag in invariant purego noacl noverbs; do \
		dirs=$$($(call tagged,$$tag)); \
		printf '\n== tests with the tag %s\n' $$tag; \
		if [ -z "$$dirs" ]; then echo "skipped: no file has the tag"; continue; fi; \
		case $$tag in invariant) dirs=./... ;; noacl) dirs=./npu/ascend/... ;; noverbs) dirs=./channel/verbs ;; esac; \
		$(GO) test -tags $$tag -shuffle=on -timeout 20m $$dirs; \
	done

# The emulator that the tests of the arm64 kernels use, where it may be installed.
# They skip without it.
tools:
	$(call say,tools)
	@if command -v qemu-aarch64-static >/dev/null; then echo "qemu-aarch64-static is here"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "skipped: no qemu-aarch64-static, and this is not root with apt-get; tests of the arm64 kernels skip"; \
	elif { timeout 120 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq install -y --no-install-recommends qemu-user-static; } </dev/null >/dev/null 2>&1; then \
		echo "installed qemu-user-static"; \
	else echo "skipped: apt-get could not install qemu-user-static; tests of the arm64 kernels skip"; fi
