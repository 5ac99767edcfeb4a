# Lockstep: everything a contributor runs. `make` alone lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Only the interpreter that creates the environment; everything else runs from .venv.
PYTHON ?= $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.lockstep-setup
PACKAGES := algebra adapters wrapper mediator cli lab protos integration_tests
EXAMPLE := examples/rest-adapter
CODE := $(PACKAGES) $(EXAMPLE)/lockstep_inventory $(EXAMPLE)/inventory_service docs/check_docs.py
# Tests run in two processes where there are two cores. ARGS goes to the command, as in
# `make test ARGS="algebra -k sweep" WORKERS=0`.
WORKERS ?= $(shell [ "$$(getconf _NPROCESSORS_ONLN)" -gt 1 ] && echo 2 || echo 0)
ARGS ?=

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Create .venv from the lock (fast when up to date)

$(STAMP): requirements.lock pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "error: Lockstep needs Python 3.11 or newer; name one with 'make setup PYTHON=/path/to/python'" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: setup ## Show Lockstep at work, start to end, on this machine
	$(BIN)/lockstep demo $(ARGS)

.PHONY: test
test: setup ## Run every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 25 $(ARGS)

.PHONY: lint
lint: setup ## Check style, formatting, types and the dependency rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-cache

.PHONY: mypy
mypy: setup ## Check types only
	$(BIN)/mypy $(CODE)

.PHONY: format
format: setup ## Apply the formatter and the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: proto
proto: setup ## Regenerate the protocol stubs
	$(BIN)/python protos/generate.py

.PHONY: proto-check
proto-check: setup ## Check that protos lint and that the stubs are up to date
	cd protos && ../$(BIN)/buf lint
	$(BIN)/python protos/generate.py --check

.PHONY: docs
docs: setup ## Check links, commands and paths in the documentation
	$(BIN)/python docs/check_docs.py

.PHONY: adapter-table
adapter-table: setup ## Write the table of adapters in docs/adapters.md anew
	$(BIN)/python -m adapters.capture_table

.PHONY: bench
bench: setup ## Run the benchmarks
	$(BIN)/lockstep bench $(ARGS)

.PHONY: lock
lock: setup ## Resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-emit-find-links --quiet --upgrade --output-file requirements.lock

.PHONY: clean
clean: ## Remove the environment and every built or cached file
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
