# Everything runs in .venv, made on first use with the exact versions of constraints.txt. Choose another Python with
# `make PYTHON=python3.12 ...`.
PYTHON ?= python3
BIN := .venv/bin
USE := .venv/.installed
DEV := .venv/.installed-dev
# Files stay whole, so that their tests share compiled programs; in the order of tests/conftest.py, slow ones first.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# The same pins for what builds the package: pip before 25.3 reads the first name, later ones the second.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install check test lint format quickstart constraints clean
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20

install: $(DEV)  ## make .venv and install the package with all that development needs

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "rookery needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." \
	       "Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

# Only what training and reports need: no test tools, no executors, no logs.
$(USE): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(USE)

lint: $(DEV)  ## style, import layers, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	$(BIN)/basedpyright --level error

check: lint  ## lint and the fast tests
	$(PYTEST) -m "not slow"

test: lint  ## lint, then all tests on two processes
	$(PYTEST)

format: $(DEV)  ## put the code into the style that `make lint` wants
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

quickstart: $(USE)  ## train four algorithms on one task, four seeds each, compare them and write a report
	$(BIN)/rookery study run studies/quickstart.toml --out runs --report
	@echo "Next: $(BIN)/rookery train mappo --task smax/3m --steps 4e5 --seeds 5, or $(BIN)/rookery tasks"

FRESH := build/fresh
constraints:  ## renew constraints.txt with the newest versions that fit pyproject.toml
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(FRESH)/bin/pip install --quiet --upgrade setuptools -e '.[dev]'
	{ echo "# Exact versions of all that \`pip install -e '.[dev]'\` brings and is built with; renew with \`make constraints\`."; \
	  $(FRESH)/bin/pip freeze --all --exclude pip --exclude-editable; } > constraints.txt
	rm -rf $(FRESH)

clean:  ## remove .venv and all caches; runs are kept
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
