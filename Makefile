# One command runs the main job, one passes the tests; each makes its own virtual environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install native protos run test e2e check format bench bench-gpu bench-scheduler bench-node clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(STAMP) ## the virtual environment with the package and its tools

native: $(STAMP) ## what is written in C: the shim and the stand-in GPU, into src/aliquot/lib
	@$(BIN)/python shim/build.py

KUBELET := aliquot/adapters/kubelet
PROTOC   = $(BIN)/python -m grpc_tools.protoc --proto_path=src --python_out=$(1) --pyi_out=$(1) src/$(KUBELET)/*.proto

protos: $(STAMP) ## the kubelet's messages, from the .proto files to Python
	$(call PROTOC,src)

run: $(STAMP) ## the main job: pack a generated cluster with every policy, and draw it
	@mkdir -p out
	@$(BIN)/aliquot simulate --generate 200x8 --policy all --plot out/packing.svg

test: native ## everything that needs no cluster and no GPU
	$(BIN)/python -m pytest -n auto

e2e: native ## all of it on a real Kubernetes with real nodes on loopback, as root; the first time builds it with Go, some nine minutes
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python -m pytest tests/e2e

check: $(STAMP) ## lint, types, import rules, what is generated
	@rm -rf out/protos && mkdir -p out/protos
	$(call PROTOC,out/protos)
	@for made in out/protos/$(KUBELET)/*; do cmp "$$made" "src/$(KUBELET)/$${made##*/}" || \
	    { echo "$${made##*/} is not what its .proto file says: run make protos" >&2; exit 1; }; done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## how fast a decision is, how it grows with the cluster; with DATA=FOLDER of traces also how dense
	@mkdir -p out
	$(BIN)/python bench/decision.py --plot out/decision.svg
ifdef DATA
	$(BIN)/python bench/packing.py --data $(DATA) --plot out/packing.svg
endif

bench-gpu: native ## what sharing costs and what it holds to, on the GPU of this machine; some nine minutes
	@mkdir -p out
	$(BIN)/python bench/gpu/run.py --out out

# PEERS="--peer 'NAME=[VAR=VALUE ...] COMMAND'": other extenders on the same API server with the same calls
bench-scheduler: $(STAMP) ## the scheduler at 1,000 and 5,000 nodes on a real Kubernetes on loopback; some four minutes
	@mkdir -p out
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python bench/scheduler/run.py --out out/scheduler.json $(PEERS)

bench-node: native ## what the agent adds to a container's start, its memory and CPU, on a real kubelet; as root, some four minutes
	@$(BIN)/python tests/testbed/build.py
	$(BIN)/python bench/node/run.py

clean: ## remove what the other targets made
	rm -rf $(VENV) out src/aliquot/lib .pytest_cache .mypy_cache .ruff_cache .hypothesis
