# make run    set up, fetch the default model, answer PROMPT
# make test   set up what the tests need and run them
# make check  format, lint, types, layers, sizes: what .ci/run calls after the tests
#
# PYTHON chooses the interpreter (3.11 or later), VENV the environment, ARGS goes to the tool.

PYTHON ?= python3
VENV   ?= .venv
PROMPT ?= Why is the sky blue?
ARGS   ?=

PY    := $(VENV)/bin/python
BASE  := $(VENV)/.llamapy
TESTS := $(VENV)/.llamapy-tests

.PHONY: run test setup fmt format-check lint types layers size slow golden bench check clean
.DEFAULT_GOAL := run

# The prompt goes through the environment as it is: no quote or dollar sign in it means anything.
run: export LLAMAPY_PROMPT = $(value PROMPT)
run: $(BASE)
	@$(VENV)/bin/llamapy run -p "$$LLAMAPY_PROMPT" $(ARGS)

test: $(TESTS)
	$(PY) -m pytest $(ARGS)

setup: $(TESTS)

slow: $(TESTS)
	$(PY) -m pytest -m slow $(ARGS)

golden: $(TESTS)
	$(PY) -m pytest -m golden $(ARGS)

bench: $(TESTS)
	mkdir -p bench
	$(PY) tools/compare_peer.py speed --json bench/$$(date +%Y-%m-%d-%H%M%S).json $(ARGS)

check: format-check lint types layers size

fmt: $(TESTS)
	$(PY) -m ruff format llamapy tests tools
	$(PY) -m ruff check --fix llamapy tests tools

format-check: $(TESTS)
	$(PY) -m ruff format --check llamapy tests tools

lint: $(TESTS)
	$(PY) -m ruff check llamapy tests tools

types: $(TESTS)
	$(PY) -m mypy
	MYPYPATH=tools $(PY) -m mypy --explicit-package-bases tools

layers: $(TESTS)
	$(VENV)/bin/lint-imports --no-logo

size: $(TESTS)
	$(PY) tools/size.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps: a second call does nothing until pyproject.toml changes.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "llamapy needs Python 3.11 or later: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable .
	@$(PY) -m compileall -q llamapy
	@touch $@

$(TESTS): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@$(PY) -m compileall -q llamapy
	@touch $(BASE) $@
