# The commands for developers and CI. `make` alone lists them.

SEEDS ?= 2000
QUICK_SEEDS := TIDEMILL_SEEDS=20 TIDEMILL_DAMAGE_SEEDS=3
SUITES ?= bookworm trixie
BIN := .venv/bin
READY := .venv/.ready
READY_TESTS := .venv/.ready-tests

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test full lint format pytest bench simulate docs reference lock bare-machine clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## set up .venv from requirements.lock, if it is not up to date

$(READY): requirements.lock pyproject.toml scripts/setup.sh scripts/need_libpython.sh scripts/need_java.sh
	@scripts/setup.sh

$(READY_TESTS): $(READY) scripts/setup_tests.sh scripts/need_chromium.sh scripts/need_postgres.sh
	@scripts/setup_tests.sh

demo: $(READY) ## order time-outs in a shop, live, against a real broker
	@$(BIN)/tidemill demo

quick: $(READY) ## while you work: style, layers and the fast tests; about 90 seconds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(QUICK_SEEDS) $(BIN)/pytest -q -n 2 -m "not slow" --hypothesis-profile quick

test: lint pytest ## everything CI runs: style, types, layers, tests; before you push

full: lint $(READY_TESTS) ## test, and the long tests: clients of other languages, Spark under faults, SEEDS=2000 simulations
	@$(BIN)/pytest -q -n 3 --ignore tests/simulation --hypothesis-profile full --durations 15
	@TIDEMILL_SEEDS=$(SEEDS) TIDEMILL_DAMAGE_SEEDS=$(SEEDS) $(BIN)/pytest -q -n 2 tests/simulation --timeout 0

lint: $(READY) ## style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## format the source
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

pytest: $(READY_TESTS) ## only the tests of `make test`
	@$(BIN)/pytest -q -n 3 -m "not long" --durations 15 --record-durations=build/durations.txt

bench: $(READY) ## measure the engine on this machine (docs/benchmarks.md)
	@$(BIN)/tidemill bench engine

simulate: $(READY) ## simulated crashes and damage, 2,000 of each; SEEDS=5000 for more
	@TIDEMILL_SEEDS=$(SEEDS) TIDEMILL_DAMAGE_SEEDS=$(SEEDS) $(BIN)/pytest -q tests/simulation --timeout 0

docs: $(READY) ## build the site in build/docs; a warning is an error
	@$(BIN)/sphinx-build -E -W --keep-going -q -b html docs build/docs
	@echo "docs: open build/docs/index.html"

reference: $(READY) ## generate the tables of docs/reference from the code
	@$(BIN)/python docs/reference_pages.py

lock: $(READY) ## update requirements.lock from the ranges in pyproject.toml
	@scripts/lock.sh

bare-machine: ## demo and test in minimal Debian 12 and 13 roots; skipped without root or apt's mirror
	@for suite in $(SUITES); do scripts/bare_machine.sh $$suite || exit 1; done

clean: ## remove the environment and all generated files
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	@find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
