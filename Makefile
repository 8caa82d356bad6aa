# `make` on its own lists what there is.
.DEFAULT_GOAL := help
.PHONY: help run test lint lock clean bench bench-listing chart soak

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# The environment is made anew whenever a lock file changes.
$(VENV)/.installed: requirements.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

run: $(VENV)/.installed ## migrate and serve on http://127.0.0.1:8000 (HOST and PORT change it)
	@exec $(BIN)/python -m service serve --migrate

test: lint ## lint, types and the whole test suite
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.installed ## ruff, mypy and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

BENCH := .venv-bench
$(BENCH)/.installed: bench/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	@touch $@

bench: $(BENCH)/.installed ## measure the service and its peers (20 minutes; needs wrk; ARGS=--quick)
	$(BENCH)/bin/python -m bench.run $(ARGS)

bench-listing: $(BENCH)/.installed ## pages of 2 million movies, in every combination (5 minutes)
	$(BENCH)/bin/python -m bench.listing $(ARGS)

chart: $(BENCH)/.installed ## draw bench/chart.svg again from the last run
	$(BENCH)/bin/python -m bench.chart

soak: $(BENCH)/.installed ## 2 million requests to one process, whose memory must not grow
	$(BENCH)/bin/python -m bench.soak $(ARGS)

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --no-annotate --no-header \
           --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
lock: ## make requirements*.txt anew from pyproject.toml
	$(COMPILE) --upgrade --output-file requirements.txt pyproject.toml
	$(COMPILE) --upgrade --extra dev --constraint requirements.txt --output-file requirements-dev.txt pyproject.toml
	$(COMPILE) --upgrade --extra bench --constraint requirements.txt --output-file bench/requirements.txt pyproject.toml

clean: ## remove what make built (the embedded database stays in .postgres)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* .venv-bench
