# Every target does its own set-up: `make demo` on a fresh checkout is all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep lint format bench clean

help:
	@echo "make demo       the embedded model answers in the terminal"
	@echo "make test       tests, without the deep ones"
	@echo "make test-deep  all tests"
	@echo "make lint       format, style, types and layers"
	@echo "make format     rewrite the files as 'make lint' wants them"
	@echo "make bench      speed against the peers (BENCH='--peers hf,llamacpp' for more)"
	@echo "make clean      remove what the other targets made here"

demo: $(VENV)/.run
	@$(BIN)/python -m rekindle demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest

test-deep: $(VENV)/.dev
	@$(BIN)/python -m pytest -m ""

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.run
	@$(BIN)/python -m tests.bench --out bench.json $(BENCH)

clean:
	rm -rf $(VENV) build dist toolkit/*.egg-info kernels/*.egg-info *.egg-info bench.json
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find toolkit kernels tests tutorials -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps are older than pyproject.toml exactly when something may have to be installed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Rekindle needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo "making $(VENV) from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and what it needs into $(VENV) (once; about a minute)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and its development tools into $(VENV) (once; about a minute)"
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.run $@
