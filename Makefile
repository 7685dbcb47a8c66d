# headwater: `make train` and `make test` need nothing but this checkout and Python 3.11 or newer.

# The first Python that is new enough; `make PYTHON=/path/to/python ...` overrides it.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.headwater-ready
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup train test lint test-slow bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-10s %s\n", $$1, $$2 }'

setup: $(READY)  ## make .venv with everything that the tests use

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "headwater needs Python 3.11 or newer; name one: make PYTHON=/path/to/python setup" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test,dev]'
	@touch $@

train: setup  ## train PPO on CartPole-v1 until it is solved (ARGS="..." adds options)
	$(BIN)/headwater train PPO --env CartPole-v1 --stop-reward 475 $(ARGS)

test: setup lint  ## lint, types and the test suite (without the slow ones)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

lint: setup  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: setup  ## the trainings that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

bench: setup  ## speed against the peers, each in a venv of its own (ARGS="--only headwater sb3")
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:  ## remove .venv, caches and builds (not runs/)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
