# Everything a person or a CI machine does with this project. `make` alone lists it.

SEEDS ?= 2000
QUICK_SEEDS := TIDEMILL_SEEDS=20 TIDEMILL_DAMAGE_SEEDS=5
SUITES ?= bookworm trixie
BIN := .venv/bin
READY := .venv/.ready
READY_TESTS := .venv/.ready-tests

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test full lint format pytest bench simulate docs reference lock bare-machine clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## set up .venv from requirements.lock; nothing to do when it is up to date

$(READY): requirements.lock pyproject.toml scripts/setup.sh scripts/need_libpython.sh scripts/need_java.sh
	@scripts/setup.sh

$(READY_TESTS): $(READY) scripts/setup_tests.sh scripts/need_chromium.sh scripts/need_postgres.sh
	@scripts/setup_tests.sh

demo: $(READY) ## the order-payment-timeout story, live, against a real broker
	@$(BIN)/tidemill demo

quick: $(READY) ## while you work: style, layers, and the tests that are fast; aims at 90 seconds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(QUICK_SEEDS) $(BIN)/pytest -q -n 2 -m "not slow" --hypothesis-profile quick

test: lint pytest ## everything CI runs: style, types, layers, tests; before you push

full: lint $(READY_TESTS) ## test, and what is long: other languages' clients, Spark under faults, SEEDS=2000 simulations
	@$(BIN)/pytest -q -n 3 --ignore tests/simulation --durations 15
	@TIDEMILL_SEEDS=$(SEEDS) TIDEMILL_DAMAGE_SEEDS=$(SEEDS) $(BIN)/pytest -q -n 2 tests/simulation --timeout 0

lint: $(READY) ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## put the source into the one layout
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

pytest: $(READY_TESTS) ## the tests of `make test` alone
	@$(BIN)/pytest -q -n 3 -m "not long" --durations 15 --record-durations build/durations.txt

bench: $(READY) ## the figures of docs/benchmarks.md, on this machine
	@$(BIN)/tidemill bench engine

simulate: $(READY) ## the full simulation of crashes and of damage; SEEDS=5000 for more
	@TIDEMILL_SEEDS=$(SEEDS) TIDEMILL_DAMAGE_SEEDS=$(SEEDS) $(BIN)/pytest -q tests/simulation --timeout 0

docs: $(READY) ## the site, into build/docs; a warning is an error
	@$(BIN)/sphinx-build -E -W --keep-going -q -b html docs build/docs
	@echo "docs: open build/docs/index.html"

reference: $(READY) ## write the tables of docs/reference from the code
	@$(BIN)/python docs/reference_pages.py

lock: $(READY) ## make requirements.lock again from the ranges in pyproject.toml
	@scripts/lock.sh

bare-machine: ## demo and test in minimal Debian 12 and 13 roots; needs root and apt's mirror, else is skipped
	@for suite in $(SUITES); do scripts/bare_machine.sh $$suite || exit 1; done

clean: ## remove the environment and everything generated
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	@find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
