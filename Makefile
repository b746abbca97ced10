# Every target does its own set-up: `make demo` on a fresh checkout is all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet --quiet install
TPU_TESTS := tests/kernels/test_tpu_compiles.py tests/engine/test_cross_compile.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep test-tpu lint format bench clean

help:
	@echo "make demo       the embedded model answers in the terminal"
	@echo "make test       tests, without the deep ones"
	@echo "make test-deep  all tests"
	@echo "make test-tpu   compiles for TPUs that are not here, with the real compiler"
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

# In an environment of its own: where libtpu is installed, JAX would look for a TPU in every other test.
test-tpu: $(VENV)-tpu/.dev
	@JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 $(VENV)-tpu/bin/python -m pytest $(TPU_TESTS)

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
	rm -rf $(VENV) $(VENV)-tpu build dist toolkit/*.egg-info kernels/*.egg-info *.egg-info bench.json
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find toolkit kernels tests tutorials -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps are older than pyproject.toml exactly when something may have to be installed.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Rekindle needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo "making $* from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $*

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and what it needs into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and its development tools into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $(VENV)/.run $@

$(VENV)-tpu/.dev: pyproject.toml | $(VENV)-tpu/bin/python
	@echo "installing rekindle, its tests and the TPU compiler into $(VENV)-tpu (once; about a minute)"
	@$(VENV)-tpu/bin/python $(PIP) --editable '.[test,tpu]'
	@touch $@
