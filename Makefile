# Needs make and Python 3.11 or later. `PYTHON=python3.13 make test` picks another interpreter.
PYTHON ?= python3

# One environment for each interpreter: another PYTHON never finds this one's stamps.
VENV := .venv/$(shell $(PYTHON) -c 'import platform as p, sys; print(sys.implementation.name + p.python_version() + sys.abiflags)')
BIN := $(VENV)/bin

# Finds the packages by the interpreter on the PATH, and heeds no option that names one.
VERIFYTYPES := PATH="$(CURDIR)/$(BIN):$$PATH" basedpyright --ignoreexternal --verifytypes

# What `make pyodide` needs and this machine has not.
LACKING := $(firstword $(shell command -v node >/dev/null || echo Node.js; command -v npm >/dev/null || echo npm))

# The share of a2asgi's branches that its tests run, in percent. It only rises.
FLOOR := 97

# What a2 is measured beside is installed apart from it.
BENCH := $(VENV)-bench

.PHONY: help demo demo-qstash test world hosts bench instructions pyodide check clean
.NOTPARALLEL:

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile

demo: $(VENV)/examples.stamp ## run the demonstration
	$(BIN)/python -m examples.demo

demo-qstash: $(VENV)/qstash-server.stamp $(VENV)/examples.stamp ## run it behind a QStash server of our own
	$(BIN)/python -m examples.demo_qstash

test: $(VENV)/test.stamp ## run every test, then hold the coverage
	$(BIN)/coverage run -m pytest
	$(BIN)/python -m tests.vectors
	$(BIN)/coverage report --include='a2asgi/*' --fail-under=$(FLOOR)
	$(BIN)/coverage run --data-file=.coverage.core --source=a2core -m pytest -p no:a2asgi tests/core
	$(BIN)/coverage report --data-file=.coverage.core --fail-under=100

world: $(VENV)/test.stamp ## simulate whole systems from a new seed, and break each rule to see it caught
	$(BIN)/python -m tests.world --for 60s
	$(BIN)/python -m tests.world --mutants

hosts: $(VENV)/hosts.stamp ## run apps of five frameworks behind four servers, and as Lambda functions
	$(BIN)/python -m tests.hosts

bench: $(BENCH)/made.stamp ## measure it beside what is floor or peer, and print one table of ratios
	$(BENCH)/bin/python -m benchmarks

instructions: $(VENV)/test.stamp ## count the instructions of the hot path, and fail at 5 % more than on record
	$(BIN)/python -m benchmarks.instructions

pyodide: $(if $(LACKING),,tests/pyodide/node_modules/made.stamp) ## run the vectors under Pyodide, in Node.js
ifdef LACKING
	@echo 'make pyodide: skipped, $(LACKING) is not installed'
else
	node tests/pyodide/run.mjs
endif

check: $(VENV)/dev.stamp ## lint, format, types, imports and house rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(VERIFYTYPES) a2core
	$(VERIFYTYPES) a2asgi
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/test_tidy.py

clean: ## remove what these commands made
	rm -rf .venv build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf tests/pyodide/node_modules
	find a2core a2asgi benchmarks docs tests examples -name __pycache__ -prune -exec rm -rf {} +

# Made anew when pyproject.toml changes, so that nothing stays that it no longer names.
$(VENV)/made.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("a2 needs Python 3.11 or later; set PYTHON")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# One extra of pyproject.toml.
$(VENV)/%.stamp: $(VENV)/made.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The project with the benchmarks' peers.
$(BENCH)/made.stamp: pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' -r benchmarks/requirements.txt
	@touch $@

# The lock file's packages. npm's cache stays in the tree, as everything does that is made.
tests/pyodide/node_modules/made.stamp: $(addprefix tests/pyodide/,package.json package-lock.json .npmrc)
	cd tests/pyodide && npm ci --cache='$(CURDIR)/.venv/npm'
	@touch $@
