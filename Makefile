# `make run` shows what it does, `make test` tests it; each creates the virtual environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# A line that moves while a command runs.
STEP   := $(PYTHON) deploy/step.py
# The build backend of pyproject.toml. It stays installed: `make native` and `make wheel` need it too.
BUILD  := hatchling editables ziglang

.DEFAULT_GOAL := help
.PHONY: help install tools native protos run quick quick-static quick-tests test test-sanitized test-as-user browser screenshots e2e e2e-versions check fuzz mutants audit chart docs format wheel image images release web contract web-check web-built bench bench-gpu bench-scheduler bench-node bench-dashboard soak clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is %d.%d: Python 3.11 or newer is required, as in make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "installing into $(VENV): about a minute, once"
	@test -x $(BIN)/python || $(STEP) "1/3 virtual environment" $(PYTHON) -m venv $(VENV)  # another Python would break it
	@$(STEP) "2/3 C compiler" $(PIP) $(BUILD)
	@$(STEP) "3/3 Aliquot" $(PIP) --no-build-isolation --editable .
	@touch $@

$(TOOLS): $(STAMP)
	@$(STEP) "development tools" $(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

install: $(STAMP) ## create the virtual environment with the package; then .venv/bin/aliquot exists

tools: $(TOOLS) ## the same, with the tools for tests and checks

native: $(STAMP) ## build the C parts, the shim and the simulated GPU, into src/aliquot/lib
	@$(BIN)/python shim/build.py

KUBELET := aliquot/adapters/kubelet
PROTOC   = $(BIN)/python -m grpc_tools.protoc --proto_path=src --python_out=$(1) --pyi_out=$(1) src/$(KUBELET)/*.proto

protos: $(TOOLS) ## generate Python from the kubelet's .proto files
	$(call PROTOC,src)

run: $(STAMP) ## the two-minute demo, on real or simulated cards; ARGS="--seconds 30" for a shorter one
	@$(STEP) "C parts" $(BIN)/python shim/build.py
	@$(BIN)/aliquot demo $(ARGS)

wheel: $(STAMP) ## build the package for both architectures, and its sources, into dist/
	@rm -rf dist
	ALIQUOT_ARCH=x86_64 $(BIN)/python -m hatchling build --target wheel --directory dist
	ALIQUOT_ARCH=aarch64 $(BIN)/python -m hatchling build --target wheel --directory dist
	$(BIN)/python -m hatchling build --target sdist --directory dist

ARCH ?= amd64

image: $(STAMP) ## build the image of ARCH=amd64 or arm64 as an OCI archive, into out/, without a container engine; ARGS="--refresh" for today's packages
	@mkdir -p out
	@$(BIN)/python deploy/image/build.py --arch $(ARCH) --out out/aliquot-$(ARCH).tar $(ARGS)

images: ## build both images, and join them into one archive to push under one name: out/aliquot.tar
	@$(MAKE) --no-print-directory image ARCH=amd64
	@$(MAKE) --no-print-directory image ARCH=arm64
	@$(BIN)/python deploy/image/join.py --out out/aliquot.tar out/aliquot-amd64.tar out/aliquot-arm64.tar

release: $(STAMP) ## build everything of a release with its checksums, into dist/; ARGS="--dirty" for a trial
	@$(BIN)/python deploy/image/release.py $(ARGS)

test: native $(TOOLS) ## run every test that needs no cluster and no GPU; about a quarter of an hour on two cores
	$(BIN)/python -m pytest -n auto

# The sanitizers' library must come first in every process that loads the shim or the stand-ins.
ASAN = $(shell gcc -print-file-name=libasan.so)
SANITIZED := $(CURDIR)/out/sanitized

test-sanitized: $(TOOLS) ## the tests of the C parts on a build with ASan and UBSan; needs gcc, about two minutes
	@$(BIN)/python shim/build.py --sanitize --out $(SANITIZED)
	ALIQUOT_TEST_SHIM=$(SANITIZED)/libaliquot.so ALIQUOT_TEST_PRELOAD=$(ASAN) SIMGPU_LIBRARIES=$(SANITIZED)/simgpu \
	    SIMGPU_PRELOAD=$(ASAN) ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python -m pytest -n auto tests/shim tests/simgpu/test_driver.py

# The packages without IO: their tests need no library in C and no other process.
PURE := tests/model tests/wording tests/dialects tests/placement tests/arbiter tests/sim
# Of these, what plays minutes of a card or a cluster: half of the time of all. `make test` has them too.
PLAYED := $(patsubst %,tests/arbiter/test_%.py,anything classes debts dryqueues gaps mixing shares) \
    tests/placement/policies/test_packing.py tests/placement/policies/test_reserve.py tests/sim/test_replay.py

# What may act for root in another way than for others: files, sockets, processes and devices of one machine. The rest makes
# the same calls whoever runs it, and `make test` has tested it: what only computes or prints, what speaks with a cluster
# (scheduler, explain, dashboard, install, most of doctor), and the C library, which never asks who runs it: its tests of
# files and sockets are here, and tests/runtime and tests/cli use it through the programs.
BY_USER := $(patsubst %,tests/adapters/%,gpu host kubelet $(patsubst %,kubernetes/test_%.py,credentials find_server kubeconfig) storage) \
    $(patsubst %,tests/cli/%,machine run) \
    $(patsubst %,tests/cli/test_%.py,client dashboard demo hostile_input main simulated streams) \
    $(patsubst %,tests/cli/cluster/test_%.py,agent doctor_node entrypoint installshim simulatedcards) \
    tests/runtime \
    $(patsubst %,tests/services/%,agent daemon machine mover proof runtime) \
    $(patsubst %,tests/services/doctor/test_%.py,locate machine site) \
    $(patsubst %,tests/shim/test_%.py,environment link process sharing versions) \
    $(patsubst %,tests/simgpu/test_%.py,hostile mps ownership survival)

test-as-user: native $(TOOLS) ## as root, after make test: the tests of what depends on the user again, as an ordinary user in a copy, with few examples
	@HYPOTHESIS_PROFILE=quick tests/as_user.sh $(VENV) -n auto $(BY_USER)

quick: $(TOOLS) ## lint, import rules, types, and the tests of the packages without IO with few examples, without minutes of virtual time; about half a minute
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target quick-static quick-tests

quick-static:
	@mkdir -p out
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache >out/imports.txt || { cat out/imports.txt; exit 1; }
	@$(BIN)/mypy

quick-tests:
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n 2 $(PURE) $(PLAYED:%=--ignore=%)

browser: native $(TOOLS) ## test the dashboard in a real browser, Debian's chromium; root installs it if it is missing
	@$(BIN)/python tests/browser/chromium.py --install
	$(BIN)/python -m pytest tests/browser

screenshots: native $(TOOLS) ## make docs/img/dashboard.png, the dashboard of a busy machine; a minute and a half
	@$(BIN)/python tests/browser/chromium.py --install
	PYTHONPATH=tests $(BIN)/python -m browser.screenshots docs/img

e2e: native $(TOOLS) ## test everything on a real Kubernetes with real nodes on loopback, as root; the first time builds it with Go, about twelve minutes
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python -m pytest -n 3 --ignore=tests/e2e/versions tests/e2e

RELEASES ?= 1.28 1.32 1.36
SMOKE = tests/e2e/versions $(patsubst %,tests/e2e/test_%.py,first_path seeds preemption quotas)

e2e-versions: native $(TOOLS) ## a smoke suite on each of RELEASES="1.28 1.32 1.36" of Kubernetes, as root; outside CI: building one takes as long as all of make e2e
	@set -e; for release in $(RELEASES); do echo "Kubernetes $$release"; export KUBERNETES=$$release; \
	    $(BIN)/python tests/testbed/build.py; $(BIN)/python -m pytest $(SMOKE); done

check: $(TOOLS) ## lint, types, import rules, generated files, and how large the tree may be
	@rm -rf out/protos && mkdir -p out/protos
	$(call PROTOC,out/protos)
	@for made in out/protos/$(KUBELET)/*; do cmp "$$made" "src/$(KUBELET)/$${made##*/}" || \
	    { echo "$${made##*/} is not what its .proto file says: run make protos" >&2; exit 1; }; done
	@$(BIN)/python web/contract.py --check
	@$(BIN)/python web/freshness.py
	@$(BIN)/python deploy/ceilings.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Not `npm ci`: that wants every other system's optional packages too, which not every registry holds. The lock file still decides.
NPM_STAMP := web/node_modules/.package-lock.json

$(NPM_STAMP): web/package-lock.json
	@cd web && npm install --no-save --silent
	@touch $@

contract: $(STAMP) ## generate web/src/contract.ts, the dashboard's API, from src/aliquot/model/status/dashboard.py
	@$(BIN)/python web/contract.py

web: $(NPM_STAMP) contract ## build the dashboard from web/ into src/aliquot/static, which is committed; needs npm
	@cd web && npm run --silent check && npm test --silent && npm run --silent build -- --logLevel warn
	@$(PYTHON) web/freshness.py --write

web-check: ## check types and tests of web/, and that it still builds src/aliquot/static, byte for byte; needs npm 11
	@case "$$(npm --version 2>/dev/null)" in \
	    [1-9][1-9].*) $(MAKE) --no-print-directory web-built ;; \
	    *) echo "no npm 11 here: web/ is not built again; make check has compared what is committed with its record" ;; esac

web-built: $(NPM_STAMP)
	@cd web && npm run --silent check && npm test --silent && \
	    npm run --silent build -- --outDir ../out/web --emptyOutDir --logLevel warn
	@diff -r out/web src/aliquot/static && echo "src/aliquot/static is what web/ builds"

chart: $(TOOLS) ## render deploy/install.yaml from deploy/chart; needs helm 4, or builds it with Go
	@$(BIN)/python deploy/chart/render.py

docs: $(STAMP) ## generate docs/cli.md, the plots of docs/policies.md and the timeline
	@$(BIN)/python -m aliquot.cli.reference > docs/cli.new && mv docs/cli.new docs/cli.md
	@$(BIN)/python bench/plots.py docs/img

format: $(TOOLS) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure how fast a decision is, and how it grows with the cluster; with DATA=FOLDER of traces also how dense
	@mkdir -p out
	$(BIN)/python bench/decision.py --plot out/decision.svg
ifdef DATA
	$(BIN)/python bench/packing.py --data $(DATA) --plot out/packing.svg
endif

bench-gpu: native $(TOOLS) ## measure what sharing costs and how well shares hold, on the GPU of this machine; about ten minutes
	@mkdir -p out
	$(BIN)/python bench/gpu/run.py --out out

# SECONDS=60: for each target; TARGETS="link page": only those
SECONDS ?= 60

fuzz: native $(TOOLS) ## fuzz every parser of untrusted input, SECONDS=60 each: about half an hour; before a release
	PYTHONPATH=tests $(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(TARGETS)

# COUNT=90 changes in all, SEED=1: which ones; ARGS="-o json src/aliquot/arbiter"
COUNT ?= 90
SEED  ?= 1

mutants: $(TOOLS) ## make COUNT=90 small wrong changes to arbiter, placement and dialects, one at a time: how many no test notices; some minutes
	PYTHONPATH=tests $(BIN)/python tests/mutants/run.py --count $(COUNT) --seed $(SEED) $(ARGS)

audit: $(TOOLS) ## list what is shipped with licences and known vulnerabilities; asks the services of pip-audit and npm
	@test -x out/audit/bin/pip-audit || { $(PYTHON) -m venv out/audit && \
	    out/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@$(BIN)/python deploy/audit.py

# PEERS="--peer 'NAME=[VAR=VALUE ...] COMMAND'": other extenders on the same API server with the same calls
bench-scheduler: $(TOOLS) ## measure the scheduler at 1,000 and 5,000 nodes on a real Kubernetes on loopback; about four minutes
	@mkdir -p out
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python bench/scheduler/run.py --out out/scheduler.json $(PEERS)

bench-node: native $(TOOLS) ## measure what the agent adds to a container's start, its memory and CPU, on a real kubelet; as root, about four minutes
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python bench/node/run.py

bench-dashboard: $(TOOLS) ## measure what the dashboard of 5,000 nodes costs the process that serves it; two minutes
	$(BIN)/python bench/dashboard.py

MINUTES ?= 30

soak: native $(TOOLS) ## create and delete Pods of all dialects while programs are killed, on real nodes, as root; MINUTES=30, writes docs/soak.md
	@mkdir -p out
	@$(BIN)/python tests/testbed/build.py
	PYTHONPATH=tests $(BIN)/python -m soak.main --minutes $(MINUTES) --json out/soak.json --report docs/soak.md

clean: ## remove what the other targets made
	rm -rf $(VENV) out dist src/aliquot/lib src/aliquot/lib-* web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
