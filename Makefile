# `make` without a target lists the targets.
.DEFAULT_GOAL := help
.PHONY: help run test coverage lint lock record clean bench bench-lists calls schema \
    drills cluster cluster-drill

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# The names of the stamp files below contain this number, so that another Python gets a new
# environment. It is empty for a Python older than 3.11.
PYTHON_ID := $(shell { $(PYTHON) -c 'import sys, zlib; \
    sys.version_info >= (3, 11) and print(zlib.crc32((sys.version + sys.base_prefix).encode()))'; \
    } 2>/dev/null | grep -x '[0-9]*')
REQUIRE_PYTHON = $(if $(PYTHON_ID),,$(error Python 3.11 or later is needed; $(PYTHON) is \
    $(or $(shell { $(PYTHON) --version; } 2>&1),not found). Name another: PYTHON=python3.12))
PIP_INSTALL := -m pip install --disable-pip-version-check --require-hashes -r

$(VENV)/python-$(PYTHON_ID):
	$(REQUIRE_PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/run-$(PYTHON_ID): requirements-run.txt | $(VENV)/python-$(PYTHON_ID)
	$(BIN)/python $(PIP_INSTALL) $<
	@touch $@

$(VENV)/dev-$(PYTHON_ID): requirements-dev.txt | $(VENV)/python-$(PYTHON_ID)
	$(BIN)/python $(PIP_INSTALL) $<
	@touch $@

# Exit status 130 is Ctrl-C, which is no failure: the service has printed "stopped".
run: $(VENV)/run-$(PYTHON_ID) ## migrate and serve on http://127.0.0.1:8000 (HOST and PORT change it)
	@trap : INT; $(BIN)/python -m service serve --migrate || [ $$? = 130 ]

# More processes than most machines have cores, as tests often wait. The run ends in any case:
# tests/conftest.py ends a process that hangs, and there are few replacements and no new test after
# half an hour.
PYTEST := -m pytest --numprocesses=3 --dist=worksteal --max-worker-restart=3 --session-timeout=1800

test: lint ## lint, types and the whole test suite
	$(BIN)/python $(PYTEST)

coverage: $(VENV)/dev-$(PYTHON_ID) ## the whole test suite, and which lines it does not run (takes half as long again)
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/dev-$(PYTHON_ID) ## ruff, mypy, dead code, the direction of imports, SQL outside queries/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/lint-imports
	$(BIN)/python tests/lint_sql.py

bench: $(VENV)/run-$(PYTHON_ID) ## measure reads, creates and lists (25 minutes; needs wrk; ARGS=--quick)
	$(BIN)/python -m bench.run $(ARGS)

bench-lists: $(VENV)/run-$(PYTHON_ID) ## measure lists of 2 million movies on DATABASE_URL, else an embedded database (10 minutes)
	$(BIN)/python -m bench.large_lists

calls: $(VENV)/dev-$(PYTHON_ID) ## Python calls, functions and files of a read, create, patch and list (ARGS=--details)
	$(BIN)/python -m bench.calls $(ARGS)

record: $(VENV)/dev-$(PYTHON_ID) ## record the rows of `queries test` anew, in a new database
	PYTHONPATH=. $(BIN)/python tests/record_calls.py

schema: $(VENV)/dev-$(PYTHON_ID) ## write schema.sql, after a new migration
	$(BIN)/python -m drills.schema_file

# Whoever makes a release sets this to the one before it.
RELEASE_BEFORE ?= f2a8aad
drills: export RELEASE_BEFORE := $(RELEASE_BEFORE)
drills: $(VENV)/run-$(PYTHON_ID) ## faults that need real processes (2 minutes; ARGS="--only NAME")
	$(BIN)/python -m drills.run $(ARGS)

cluster: $(VENV)/run-$(PYTHON_ID) ## a cluster with failover on this machine (docs/operators/cluster.md)
	@$(BIN)/python -m drills.cluster.run

cluster-drill: $(VENV)/run-$(PYTHON_ID) ## break that cluster in nine ways, under load (8 minutes; ARGS="--only NAME")
	$(BIN)/python -m drills.cluster.drill $(ARGS)

COMPILE := $(BIN)/pip-compile --quiet --strip-extras --no-annotate --no-header --generate-hashes \
           --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
           --no-emit-options $(ARGS)
lock: $(VENV)/dev-$(PYTHON_ID) ## make the lock files anew from pyproject.toml (ARGS=--upgrade)
	$(COMPILE) --output-file requirements.txt pyproject.toml
	$(COMPILE) --constraint requirements.txt --extra embedded --output-file requirements-run.txt pyproject.toml
	$(COMPILE) --constraint requirements.txt --extra tracing --output-file requirements-tracing.txt pyproject.toml
	$(COMPILE) --constraint requirements.txt --extra embedded,tracing,dev --output-file requirements-dev.txt pyproject.toml

clean: ## remove what make built (the embedded database stays in .postgres)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
