# Every target does its own set-up: `make demo` on a fresh checkout is all that is needed.
PYTHON ?= python3
# The Python of `make device`: a machine with an accelerator brings its own JAX, and is not to be changed.
DEVICE_PYTHON ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
NATIVE_SOURCES := kernels/rekindle_kernels/cpu/source/* tests/native/*
NATIVE_TESTS := tests/kernels/test_blocks.py tests/kernels/test_cpu.py tests/kernels/test_layers.py tests/kernels/test_sampling_kernels.py tests/kernels/test_states.py tests/kernels/test_stored.py
CPU_TESTS := tests/unit/models/test_models.py tests/unit/models/test_taps.py tests/unit/models/test_states.py tests/unit/models/test_quantize.py tests/unit/models/test_gemma3n.py tests/unit/models/test_hidden_states.py tests/kernels/test_cpu.py tests/kernels/test_layers.py tests/kernels/test_reference.py tests/kernels/test_sampling_kernels.py tests/kernels/test_states.py tests/kernels/test_stored.py
TPU_TESTS := tests/kernels/test_tpu_compiles.py tests/engine/test_cross_compile.py tests/engine/test_mesh_compiles.py
GPU_TESTS := tests/kernels/test_gpu_compiles.py tests/engine/test_gpu_programs.py tests/engine/test_cross_compile.py tests/engine/test_mesh_compiles.py
VERSIONS_TESTS := $(if $(DEEP),tests/engine/test_jax_settings.py,-m "not deep") tests/engine/test_open.py tests/unit/store/test_program_store.py
# The newest jax needs a newer Python than the oldest does: on the path, or among those of pyenv.
NEWEST_PYTHON ?= $(shell for python in $$(for minor in 14 13 12; do echo python3.$$minor; ls -d ~/.pyenv/versions/3.$$minor.*/bin/python 2>/dev/null; done) $(PYTHON); do $$python -c '' 2>/dev/null && echo $$python && break; done)

# Colab's Python: on the path, or among those of pyenv; uv looks for it elsewhere.
COLAB_PYTHON ?= $(shell for python in python3.13 $$(ls -d ~/.pyenv/versions/3.13.*/bin/python 2>/dev/null) 3.13; do { [ $$python = 3.13 ] || $$python -c '' 2>/dev/null; } && echo $$python && break; done)

# A test that ended its process would be run again in the next, and end that: the first is enough.
WORKERS := --numprocesses auto --maxprocesses 4 --max-worker-restart 0
# A file's tests stay together, because they share what its fixtures open.
TOGETHER := $(WORKERS) --dist loadfile --no-loadscope-reorder
# Compilers share nothing that a file's tests could keep together.
APART := $(WORKERS) --dist load
# DEEP=1 runs a target unreduced, on programs as users have them, and forgives nothing.
ifdef DEEP
ONE_BY_ONE := --optimized --timeout 3600 --override-ini alarm_seconds=7200 --judge-steps -m ""
WIDE := $(ONE_BY_ONE)
else
ONE_BY_ONE := --rerun-failed 3
WIDE := $(ONE_BY_ONE) -m "(wide or kernel) and not deep and not tutorial and not older_kernel"
endif
PYTEST := -m pytest $(ONE_BY_ONE)
# Widths that no other member has are wide, and sanitizers and other instruction sets find most in them.
NATIVE := $(ONE_BY_ONE) $(if $(DEEP),,-m "not deep")

# The first and the last line of a tier's recipe, by which `.ci/run` knows whether a change calls for it, and how long
# it takes.
BEGINS = @$(PYTHON) tests/tiers.py begins $@
PASSED = @$(PYTHON) tests/tiers.py passed $@

# Tests start hundreds of processes, each of which would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-engine test-images test-mesh test-kernels test-native test-cpus test-tpu test-gpu test-versions test-colab test-notebook tutorials test-browser test-clients test-harness test-tunix test-tools test-peers test-ray test-real test-all test-deep test-arm mutants release-check first-minutes screenshot film tutorials-write docs lint format bench bench-server device clean

help:
	@echo "make demo          the embedded model answers in the terminal"
	@echo "make test          the tests that hold what is promised; 7 minutes on two cores"
	@echo "make test-deep     everything below, unreduced: hours"
	@echo
	@echo "Tiers of further tests, of which .ci/run takes those that a change calls for (tests/tiers.py):"
	@echo "make test-unit     units on trio too; more examples and child processes"
	@echo "make test-engine   the engine: more families, settings of JAX, restarts, ends"
	@echo "make test-images   the engine with images: towers of all families, mixtures, ways, videos"
	@echo "make test-mesh     a session over several devices, and over several processes"
	@echo "make test-kernels  the Pallas kernels, in JAX's interpreters; more cases of the others"
	@echo "make test-native   the C++ kernels under sanitizers, and for another instruction set of this CPU's architecture"
	@echo "make test-cpus     numbers as on other CPUs: XLA and our kernels with fewer instructions, with and without optimization"
	@echo "make test-tpu      compiles for TPUs that are not here, with the real compiler"
	@echo "make test-gpu      compiles for GPUs that are not here, with the real compiler"
	@echo "make test-versions sessions on the oldest and the newest JAX"
	@echo "make test-colab    Colab's packages, which stay: notebooks in its kernel, programs by its JAX"
	@echo "make test-notebook more of real Jupyter kernels"
	@echo "make tutorials     runs the notebooks and compares them with those that are committed"
	@echo "make test-browser  notebooks in JupyterLab, in a real browser (Chromium)"
	@echo "make test-clients  clients of OpenAI's API against the server"
	@echo "make test-tools    the tools of development: tiers, mutants, benches, lints"
	@echo "make test-peers    vLLM's and llama.cpp's server tests against a running server; says how"
	@echo "make test-harness  tasks of lm-eval and of inspect-ai on a session, as their model"
	@echo "make test-tunix    reinforcement learning by tunix, with answers of a session"
	@echo "make test-ray      replicas in actors of Ray, which die and are found again"
	@echo "make test-real     published models, Gemma 3 270M and all-MiniLM: downloads 330 MB once"
	@echo "make docs          the site of README, guides, tutorials and all public names, in build/site/html"
	@echo
	@echo "make test-arm      the C++ kernels for NEON, on an emulated ARM: half an hour"
	@echo "make mutants       changes in the files that you changed which no test notices (MUTANTS='--sample 20 FILE...')"
	@echo "make lint          format, style, types and layers"
	@echo "make format        rewrite the files as 'make lint' wants them"
	@echo "make release-check what can be checked of a release, and what is left for a person"
	@echo "make first-minutes README's first ten minutes in fresh environments, with a table of waits (FIRST='--environments uv-3.13')"
	@echo "make screenshot    the README's picture of a notebook"
	@echo "make film          the README's film of a restart"
	@echo "make bench         speed against the peers (BENCH='--peers hf,llamacpp,vllm' for more)"
	@echo "make bench-server  the server against its session and the peers' servers, with a load generator"
	@echo "make device        nine minutes on a machine with a GPU: kernels, steps, a whole engine (DEVICE=--tiny for a CPU)"
	@echo "make clean         remove what the other targets made here"

demo: $(VENV)/.run
	@$(BIN)/python -m rekindle demo

test: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python $(PYTEST) $(TOGETHER)
	$(PASSED)

test-unit test-engine test-images test-mesh test-kernels test-notebook: test-%: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python -m pytest $(WIDE) $(TOGETHER) tests/$*
	$(PASSED)

test-native: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python -m tests.sanitized address,undefined $(NATIVE) $(TOGETHER) $(NATIVE_TESTS)
	@$(BIN)/python -m tests.instruction_sets $(if $(DEEP),,--last) $(NATIVE) $(TOGETHER) -k "not xla" $(NATIVE_TESTS)
	@$(BIN)/python $(PYTEST) -m "" tests/kernels/test_threads.py
	$(PASSED)

test-cpus: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python -m tests.cpus $(if $(DEEP),--all,-m "not wide and not deep") $(ONE_BY_ONE) $(TOGETHER) $(CPU_TESTS)
	$(PASSED)

# In an environment of its own: where libtpu is installed, JAX would look for a TPU in every other test.
test-tpu: $(VENV)-tpu/.dev
	$(BEGINS)
	@JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 $(VENV)-tpu/bin/python $(PYTEST) --optimized $(APART) $(TPU_TESTS)
	$(PASSED)

# Only what the compiler needs: 1.6 GB, where all of jax[cuda13] is 4.7.
test-gpu: $(VENV)-gpu/.dev
	$(BEGINS)
	@JAX_PLATFORMS=cpu $(VENV)-gpu/bin/python $(PYTEST) --optimized $(APART) $(GPU_TESTS)
	$(PASSED)

# The oldest are the lower bounds of pyproject.toml, all of them at once.
test-versions: $(VENV)-oldest/.dev $(VENV)-newest/.dev
	$(BEGINS)
	@$(VENV)-oldest/bin/python $(PYTEST) $(TOGETHER) $(VERSIONS_TESTS)
	@$(VENV)-newest/bin/python $(PYTEST) $(TOGETHER) $(VERSIONS_TESTS)
	$(PASSED)

# Notebooks of Colab's kernel are driven from the other environment, as Colab's pytest is older.
test-colab: $(VENV)-colab/.image $(VENV)/.tutorials
	$(BEGINS)
	@$(BIN)/python -m tests.colab.packages check
	@$(BIN)/python $(PYTEST) -m older_kernel $(TOGETHER) tests/notebook
	@$(BIN)/python $(PYTEST) -m "" tests/colab
	$(PASSED)

# All of them, or TUTORIALS='01 02'.
tutorials: $(VENV)/.tutorials
	$(BEGINS)
	@$(BIN)/python tutorials/build.py $(TUTORIALS)
	@$(BIN)/python $(PYTEST) -m "tutorial and not older_kernel" tests/notebook
	$(if $(TUTORIALS),,@$(BIN)/python tutorials/build.py --marimo build/marimo 01 06 16)
	$(if $(TUTORIALS),,$(PASSED))

test-browser: $(VENV)-browser/.dev
	$(BEGINS)
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python $(PYTEST) tests/browser
	$(PASSED)

test-clients: $(VENV)-clients/.dev
	$(BEGINS)
	@$(VENV)-clients/bin/python -m tests.clients.npm
	@HF_HUB_OFFLINE=1 $(VENV)-clients/bin/python $(PYTEST) -W default tests/clients
	$(PASSED)

test-harness: $(VENV)-harness/.dev
	$(BEGINS)
	@HF_HUB_OFFLINE=1 $(VENV)-harness/bin/python $(PYTEST) -W default tests/harness
	$(PASSED)

test-tunix: $(VENV)-tunix/.dev
	$(BEGINS)
	@HF_HUB_OFFLINE=1 $(VENV)-tunix/bin/python $(PYTEST) -W default tests/training
	@$(VENV)-tunix/bin/python tutorials/build.py 18
	$(PASSED)

# What the project is developed with: the choice of tiers, mutants, benches, the lint of language, the peers' suites.
test-tools: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python $(PYTEST) -m "not deep" tests/tools
	$(PASSED)

# PEERS names a suite, a checkout, an address and further options; without it, the target says how to run.
test-peers: $(VENV)/.dev
	@$(VENV)/bin/python -m tests.peers $(PEERS)

test-ray: $(VENV)-ray/.dev
	$(BEGINS)
	@$(VENV)-ray/bin/python $(PYTEST) -W default tests/replicas
	$(PASSED)

# Programs are compiled as users have them, since these run for longer than they compile.
test-real: $(VENV)/.dev
	$(BEGINS)
	@$(BIN)/python $(PYTEST) $(if $(DEEP),,--optimized) tests/real
	$(PASSED)

# What `make test` and the tiers of this environment hold between them.
test-all: $(VENV)/.dev
	@$(BIN)/python $(PYTEST) -m "not tutorial and not older_kernel" $(TOGETHER)

test-deep:
	@$(PYTHON) tests/tiers.py deep

# Emulation takes root and Debian's packages, and says which.
test-arm: $(VENV)/.dev
	@$(BIN)/python -m tests.emulated -k "not xla" $(NATIVE_TESTS)

mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants $(MUTANTS)

# All of it, or RELEASE='files pages'.
release-check: $(VENV)-release/.dev
	@$(VENV)-release/bin/python -m tests.release $(RELEASE)

screenshot: $(VENV)-browser/.dev
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python -m tests.browser.screenshot

film: $(VENV)-browser/.dev
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python -m tests.browser.film

# Environments, caches and transcripts are in build/first_minutes.
first-minutes: $(VENV)-browser/.dev
	@$(VENV)-browser/bin/python -m tests.browser.chromium
	@$(VENV)-browser/bin/python -m tests.first_minutes $(FIRST)

tutorials-write: $(VENV)/.tutorials
	@$(BIN)/python tutorials/build.py --write $(TUTORIALS)

docs: $(VENV)-docs/.dev
	$(BEGINS)
	@NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python tutorials/site/build.py
	$(PASSED)

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.prose
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

bench: $(VENV)/.run
	@$(BIN)/python -m tests.bench --out bench.json $(BENCH)

bench-server: $(VENV)/.server
	@$(BIN)/python -m tests.bench.served $(BENCH)

device:
	@PYTHONPATH=toolkit:kernels:. $(DEVICE_PYTHON) -m tests.device $(DEVICE)

clean:
	rm -rf $(VENV) $(VENV)-* build dist toolkit/*.egg-info kernels/*.egg-info *.egg-info bench.json tests/browser/screenshots
	rm -rf kernels/rekindle_kernels/cpu/*.so .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find toolkit kernels tests tutorials -type d -name __pycache__ -prune -exec rm -rf {} +

# What of Rekindle each environment holds. A stamp is newer than all that may have to be installed or built again.
# The library of kernels lies beside its sources, so that all environments of one checkout share it.
$(VENV)/.run: EXTRAS :=
$(VENV)/.server: EXTRAS := [server]
$(VENV)/.dev: EXTRAS := [dev]
$(VENV)/.tutorials: EXTRAS := [tutorials]
$(VENV)-tpu/.dev: EXTRAS := [test,tpu]
$(VENV)-gpu/.dev: EXTRAS := [test,cuda-compiler]
$(VENV)-oldest/.dev: EXTRAS := [test]
$(VENV)-oldest/.dev: OPTIONS = --constraint $(@D)/oldest.txt
$(VENV)-oldest/.dev: $(VENV)-oldest/oldest.txt
$(VENV)-newest/.dev: EXTRAS := [test]
$(VENV)-newest/.dev: PYTHON := $(NEWEST_PYTHON)
$(VENV)-harness/.dev: EXTRAS := [test,lm-eval,inspect]
$(VENV)-tunix/.dev: EXTRAS := [tutorials,tunix]
$(VENV)-ray/.dev: EXTRAS := [test,ray]
$(VENV)-clients/.dev: EXTRAS := [clients]
$(VENV)-browser/.dev: EXTRAS := [browser]
$(VENV)-docs/.dev: EXTRAS := [docs]
$(VENV)-release/.dev: EXTRAS := [release]

STAMPS := $(addprefix $(VENV)/.,run server dev tutorials) $(addsuffix /.dev,$(addprefix $(VENV)-,tpu gpu oldest newest harness tunix ray clients browser docs release))
$(STAMPS): pyproject.toml .ci/environment kernels/rekindle_kernels/cpu/build.py $(wildcard kernels/rekindle_kernels/cpu/source/*)
	@.ci/environment $(@D) $(PYTHON) '.$(EXTRAS)' $(OPTIONS)
	@touch $@

$(VENV)-colab/.image: pyproject.toml tests/colab/packages.py $(wildcard tests/colab/*.txt) kernels/rekindle_kernels/cpu/build.py $(wildcard kernels/rekindle_kernels/cpu/source/*) | $(VENV)/.tutorials
	@PYTHONPATH=. $(BIN)/python -m tests.colab.packages make --python $(COLAB_PYTHON)
	@touch $@

$(VENV)-oldest/oldest.txt: pyproject.toml
	@mkdir -p $(@D)
	@$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")' | sed 's/>=/==/' > $@
