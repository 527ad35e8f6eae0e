# Two commands are all a new machine needs: `make demo` and `make test`. Both set up what they use in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help demo up down test soak overload lint bench lock clean

help: ## Show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo.stamp ## Run the main job on this machine, from an empty folder to restored memory
	@$(BIN)/isotherm demo

up: $(VENV)/demo.stamp ## Start servers, workers, beat and flower
	@$(BIN)/isotherm up --flower

down: $(VENV)/demo.stamp ## Stop them; the data stay
	@$(BIN)/isotherm down

# Most tests wait for a process of their own, so two files at a time are faster even on one core.
test: $(VENV)/dev.stamp ## Run the tests
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

soak: $(VENV)/dev.stamp ## Hurt servers and processes a thousand times while programs write, then compare everything
	@$(BIN)/python tests/faults/soak.py $(ARGS)

overload: $(VENV)/dev.stamp ## Ask five times what the workers can do, and see what it costs
	@$(BIN)/python tests/faults/overload.py $(ARGS)

lint: $(VENV)/dev.stamp ## Style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@ln -sfn . isotherm
	@$(BIN)/mypy -p isotherm.pipeline -p isotherm.storage -p isotherm.tasks -m isotherm.celeryconfig
	@$(BIN)/lint-imports

bench: $(VENV)/dev.stamp ## Measure, as ratios against fixed floors
	@$(BIN)/python bench/run.py $(ARGS)

lock: ## Pin the newest versions that fit pyproject.toml (needs uv)
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --quiet --upgrade \
		--python-version 3.11 pyproject.toml --extra embedded --extra local-models --extra dates -o requirements.lock
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --quiet --upgrade \
		--python-version 3.11 pyproject.toml --extra embedded --extra local-models --extra dates --extra s3 --extra dev -c requirements.lock -o requirements-dev.lock

clean: ## Remove .venv and caches
	rm -rf $(VENV) isotherm *.egg-info build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo 'installing what the demo needs into $(VENV) ...'
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@echo 'installing what the tests need into $(VENV) ...'
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(PIP) install --no-deps -e .
	@touch $@ $(VENV)/demo.stamp
