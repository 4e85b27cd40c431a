# The one way to build, run and test. `make help` lists the targets.
# A fresh Debian-like machine needs git, make and python3; the rest installs itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

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

$(VENV)/.packages: $(VENV)/.venv pyproject.toml setup.py
	echo "setup: installing Python packages"
	$(PIP) install --group dev
	PYTHONWARNINGS=ignore $(PIP) install --no-build-isolation --editable '.[demo]'
	touch $@

$(VENV)/.extension: $(VENV)/.packages bindings/build.py build/.native-list $(NATIVE_SOURCES)
	echo "setup: building transport.ffi._native"
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

.PHONY: help
help: ## this list
	awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
