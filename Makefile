# Everything here works from a clean clone with make, git and Python 3.11 or newer (with venv).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STUBS := daemon/turnd/v1/.generated
BUF := node_modules/.bin/buf
PROTO := $(wildcard proto/turnd/v1/*.proto)
# Tests wait for processes most of the time. More than a few at once would only wait for each other.
SIDE_BY_SIDE := --numprocesses=auto --maxprocesses=4 --dist=worksteal

# The first interpreter that is new enough and can make virtual environments; `make PYTHON=...` names another.
PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3; do \
	if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "$$candidate"; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint conformance soak bench proto lock docs format clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(STUBS) ## Make the virtual environment with turnd and its tools in it.

demo: setup ## Show a whole session on a sample project; needs no key.
	$(BIN)/turn demo

test: setup ## Run every test, and check that what is claimed in docs/requirements.md is shown (ARGS=... for some).
	$(BIN)/python -m pytest $(if $(ARGS),$(ARGS),$(SIDE_BY_SIDE) --conformance=check)

conformance: setup ## Run the tests that show a requirement, and list which requirements are shown.
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m req --conformance=report $(ARGS)

soak: setup ## Run the long forms of tests/faults: every kill, every fault, many random logs (an hour at most).
	TURND_TEST_SOAK=1 timeout --foreground 3600 $(BIN)/python -m pytest tests/faults $(ARGS)

bench: setup ## Measure against the floors that the same script measures.
	$(BIN)/python -m bench $(ARGS)

proto: setup ## Generate the stubs of proto/ again.
	$(BIN)/python hatch_build.py

lint: setup ## Check style, types, layers, and the protobuf contract (the last one needs npm).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m turnd.config.document | diff -u docs/configuration.md - || { echo "error: make docs" >&2; exit 1; }
	@if [ -x $(BUF) ] || command -v npm >/dev/null; then $(MAKE) --no-print-directory $(BUF); $(BUF) lint && echo "buf lint: passed"; \
	else echo "NOT CHECKED: buf lint of proto/ needs npm, and there is none on PATH" >&2; fi

docs: setup ## Write docs/configuration.md again, from the schema that checks the file.
	$(BIN)/python -m turnd.config.document > docs/configuration.md

format: setup ## Format the Python code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: setup ## Choose the newest versions that pyproject.toml allows, into requirements.lock.
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet pip-tools
	build/lock/bin/pip-compile --quiet --upgrade --allow-unsafe --extra dev --extra test --strip-extras --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--output-file=requirements.lock pyproject.toml

clean: ## Remove everything that was made here.
	rm -rf $(VENV) build dist node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f daemon/turnd/v1/*_pb2*.py daemon/turnd/v1/*_pb2*.pyi $(STUBS)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): requirements.lock pyproject.toml hatch_build.py
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) (about a minute)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(STUBS): $(PROTO) hatch_build.py | $(INSTALLED)
	$(BIN)/python hatch_build.py
	@touch $@

$(BUF): package-lock.json
	npm ci --loglevel=error --no-audit --no-fund
	@touch $@
