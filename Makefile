# Every target does its own set-up: `make demo` on a fresh checkout is all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet --quiet install
TPU_TESTS := tests/kernels/test_tpu_compiles.py tests/engine/test_cross_compile.py tests/engine/test_mesh_compiles.py
GPU_TESTS := tests/kernels/test_gpu_compiles.py tests/engine/test_cross_compile.py tests/engine/test_mesh_compiles.py
NATIVE_SOURCES := kernels/rekindle_kernels/cpu/source/* tests/native/*
# Says why if it cannot: everything works without the native kernels, more slowly.
NATIVE := -m rekindle_kernels.cpu.build || true
NATIVE_TESTS := tests/kernels/test_blocks.py tests/kernels/test_cpu.py tests/kernels/test_layers.py tests/kernels/test_sampling_kernels.py
# A test that ended its process would be run again in the next, and end that: the first is enough.
AT_ONCE := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Compilers share nothing that a file's tests could keep together.
COMPILED_AT_ONCE := --numprocesses auto --maxprocesses 4 --dist load --max-worker-restart 0
VERSIONS_TESTS := tests/engine/test_jax_settings.py tests/engine/test_open.py tests/unit/test_program_store.py
# The newest jax needs a newer Python than the oldest does: on the path, or among those of pyenv.
NEWEST_PYTHON ?= $(shell for python in python3.13 $$(ls -d ~/.pyenv/versions/3.13*/bin/python 2>/dev/null) python3.12 $(PYTHON); do $$python -c '' 2>/dev/null && echo $$python && break; done)

# Tests start hundreds of processes, each of which would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep test-native test-arm test-tpu test-gpu test-versions test-browser test-lm-eval test-clients screenshot tutorials tutorials-write lint format bench bench-server clean

help:
	@echo "make demo          the embedded model answers in the terminal"
	@echo "make test          tests, without the deep ones"
	@echo "make test-deep     all tests"
	@echo "make test-native   the C++ kernels under sanitizers, and for each other instruction set of this CPU's architecture"
	@echo "make test-arm      the C++ kernels for NEON, on an emulated ARM: half an hour"
	@echo "make test-tpu      compiles for TPUs that are not here, with the real compiler"
	@echo "make test-gpu      compiles for GPUs that are not here, with the real compiler"
	@echo "make test-versions sessions under each setting of JAX, on the oldest and the newest JAX; notebooks on Colab's kernel"
	@echo "make test-browser  notebooks in JupyterLab, in a real browser (Chromium)"
	@echo "make test-lm-eval  tasks of lm-eval on a session, as its model"
	@echo "make test-clients  clients of OpenAI's API against the server"
	@echo "make screenshot    the README's picture of a notebook"
	@echo "make tutorials     runs the notebooks and compares them with those that are committed"
	@echo "make lint          format, style, types and layers"
	@echo "make format        rewrite the files as 'make lint' wants them"
	@echo "make bench         speed against the peers (BENCH='--peers hf,llamacpp,vllm' for more)"
	@echo "make bench-server  the server against its session and the peers' servers, with a load generator"
	@echo "make clean         remove what the other targets made here"

demo: $(VENV)/.run
	@$(BIN)/python -m rekindle demo

# A file's tests stay together, because they share what its fixtures open.
test: $(VENV)/.dev
	@$(BIN)/python $(NATIVE)
	@$(BIN)/python -m pytest $(AT_ONCE)

test-deep: $(VENV)/.dev
	@$(BIN)/python $(NATIVE)
	@$(BIN)/python -m pytest -m "" -o faulthandler_timeout=3600 $(AT_ONCE)

test-native: $(VENV)/.dev
	@$(BIN)/python -m tests.sanitized address,undefined $(AT_ONCE) $(NATIVE_TESTS)
	@$(BIN)/python -m tests.instruction_sets $(AT_ONCE) -k "not xla" $(NATIVE_TESTS)
	@$(BIN)/python -m pytest -m "" tests/kernels/test_threads.py

# Emulation takes root and Debian's packages, and says which.
test-arm: $(VENV)/.dev
	@$(BIN)/python -m tests.emulated -k "not xla" $(NATIVE_TESTS)

# In an environment of its own: where libtpu is installed, JAX would look for a TPU in every other test.
test-tpu: $(VENV)-tpu/.dev
	@JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 $(VENV)-tpu/bin/python -m pytest $(COMPILED_AT_ONCE) $(TPU_TESTS)

# Only what the compiler needs: 1.6 GB, where all of jax[cuda13] is 4.7.
test-gpu: $(VENV)-gpu/.dev
	@JAX_PLATFORMS=cpu $(VENV)-gpu/bin/python -m pytest $(COMPILED_AT_ONCE) $(GPU_TESTS)

# The oldest are the lower bounds of pyproject.toml, all of them at once; then the kernel of Colab. VERSIONS='-m ""' runs the deep ones too.
test-versions: $(VENV)-oldest/.dev $(VENV)-newest/.dev $(VENV)/.dev
	@$(VENV)-oldest/bin/python $(NATIVE)
	@$(VENV)-oldest/bin/python -m pytest $(AT_ONCE) $(VERSIONS_TESTS) $(VERSIONS)
	@$(VENV)-newest/bin/python $(NATIVE)
	@$(VENV)-newest/bin/python -m pytest $(AT_ONCE) $(VERSIONS_TESTS) $(VERSIONS)
	@$(BIN)/python -m pytest -m older_kernel $(AT_ONCE) tests/notebook

test-browser: $(VENV)-browser/.dev
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python -m pytest tests/browser

test-lm-eval: $(VENV)-lm-eval/.dev
	@HF_HUB_OFFLINE=1 $(VENV)-lm-eval/bin/python -m pytest -W default tests/harness

test-clients: $(VENV)-clients/.dev
	@HF_HUB_OFFLINE=1 $(VENV)-clients/bin/python -m pytest -W default tests/clients

screenshot: $(VENV)-browser/.dev
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python -m tests.browser.screenshot

# All of them, or TUTORIALS='01 02'.
tutorials: $(VENV)/.tutorials
	@$(BIN)/python tutorials/build.py $(TUTORIALS)
	@$(BIN)/python -m pytest -m tutorial tests/notebook

tutorials-write: $(VENV)/.tutorials
	@$(BIN)/python tutorials/build.py --write $(TUTORIALS)

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

bench: $(VENV)/.run
	@$(BIN)/python -m tests.bench --out bench.json $(BENCH)

bench-server: $(VENV)/.server
	@$(BIN)/python -m tests.bench.served $(BENCH)

clean:
	rm -rf $(VENV) $(VENV)-* build dist toolkit/*.egg-info kernels/*.egg-info *.egg-info bench.json tests/browser/screenshots
	rm -rf kernels/rekindle_kernels/cpu/*.so .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find toolkit kernels tests tutorials -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps are older than pyproject.toml exactly when something may have to be installed.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Rekindle needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo "making $* from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $*

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and what it needs into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable .
	@$(BIN)/python $(NATIVE)
	@touch $@

$(VENV)/.server: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and its server into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable '.[server]'
	@$(BIN)/python $(NATIVE)
	@touch $(VENV)/.run $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and its development tools into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable '.[dev]'
	@$(BIN)/python $(NATIVE)
	@touch $(VENV)/.run $@

$(VENV)/.tutorials: pyproject.toml | $(BIN)/python
	@echo "installing rekindle and what runs its tutorials into $(VENV) (once; about a minute)"
	@$(BIN)/python $(PIP) --editable '.[tutorials]'
	@$(BIN)/python $(NATIVE)
	@touch $(VENV)/.run $@

$(VENV)-tpu/.dev: pyproject.toml | $(VENV)-tpu/bin/python
	@echo "installing rekindle, its tests and the TPU compiler into $(VENV)-tpu (once; about a minute)"
	@$(VENV)-tpu/bin/python $(PIP) --editable '.[test,tpu]'
	@$(VENV)-tpu/bin/python $(NATIVE)
	@touch $@

$(VENV)-gpu/.dev: pyproject.toml | $(VENV)-gpu/bin/python
	@echo "installing rekindle, its tests and the GPU compiler into $(VENV)-gpu (once; some minutes)"
	@$(VENV)-gpu/bin/python $(PIP) --editable '.[test,cuda-compiler]'
	@$(VENV)-gpu/bin/python $(NATIVE)
	@touch $@

$(VENV)-oldest/.dev: pyproject.toml | $(VENV)-oldest/bin/python
	@echo "installing rekindle, its tests and the oldest versions of what they need into $(VENV)-oldest (once; about a minute)"
	@$(VENV)-oldest/bin/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")' | sed 's/>=/==/' > $(VENV)-oldest/oldest.txt
	@$(VENV)-oldest/bin/python $(PIP) --constraint $(VENV)-oldest/oldest.txt --editable '.[test]'
	@$(VENV)-oldest/bin/python $(NATIVE)
	@touch $@

$(VENV)-newest/bin/python:
	@echo "making $(VENV)-newest from $$($(NEWEST_PYTHON) --version)"
	@$(NEWEST_PYTHON) -m venv $(VENV)-newest

$(VENV)-newest/.dev: pyproject.toml | $(VENV)-newest/bin/python
	@echo "installing rekindle, its tests and the newest versions of what they need into $(VENV)-newest (once; about a minute)"
	@$(VENV)-newest/bin/python $(PIP) --editable '.[test]'
	@$(VENV)-newest/bin/python $(NATIVE)
	@touch $@

$(VENV)-lm-eval/.dev: pyproject.toml | $(VENV)-lm-eval/bin/python
	@echo "installing rekindle, its tests and lm-eval into $(VENV)-lm-eval (once; some minutes)"
	@$(VENV)-lm-eval/bin/python $(PIP) --editable '.[test,lm-eval]'
	@$(VENV)-lm-eval/bin/python $(NATIVE)
	@touch $@

$(VENV)-clients/.dev: pyproject.toml | $(VENV)-clients/bin/python
	@echo "installing rekindle, its tests and clients of OpenAI's API into $(VENV)-clients (once; some minutes)"
	@$(VENV)-clients/bin/python $(PIP) --editable '.[clients]'
	@$(VENV)-clients/bin/python $(NATIVE)
	@touch $@

$(VENV)-browser/.dev: pyproject.toml | $(VENV)-browser/bin/python
	@echo "installing rekindle, its tests, JupyterLab and Playwright into $(VENV)-browser (once; about a minute)"
	@$(VENV)-browser/bin/python $(PIP) --editable '.[browser]'
	@$(VENV)-browser/bin/python $(NATIVE)
	@touch $@
