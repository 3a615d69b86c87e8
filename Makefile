# All commands of this repository. Every target gets or builds what it needs, with a way to PyPI and, for the programs
# of tools/programs.sh, to Debian's or Ubuntu's packages.

PYTHON ?= python3
JOBS ?= $(shell nproc)
FAR ?= tcp
RUNS ?= 3
ADAPTER ?= $(basename $(notdir $(wildcard requirements/*.txt)))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.stamp
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# The tests start thousands of interpreters: none should compile again what it imports.
unexport PYTHONDONTWRITEBYTECODE
# What tools/programs.sh has unpacked.
export PATH := $(abspath $(VENV)/programs/bin):$(PATH)

PYTEST := $(BIN)/python -m pytest
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)

.PHONY: help build demo test test-all adapters wheels sdist sbom soak full dropped busy far mutants check lint native blocks tsan aarch64 bench docs format site stubs clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# -- environments ---------------------------------------------------------------------------------------------------

$(STAMP)-venv: tools/programs.sh
	tools/programs.sh build $(PYTHON)
	if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
	    $(PYTHON) -m venv --without-pip $(VENV); \
	    for wheel in $(VENV)/programs/usr/share/python-wheels/pip-*.whl; do $(BIN)/python $$wheel/pip install -q --no-index $$wheel; done; \
	fi
	$(PIP) install -q --upgrade pip
	touch $@

.PHONY: programs
programs:
	@tools/programs.sh test $(PYTHON)

# The tools to build and check; a small download.
$(STAMP)-build: $(STAMP)-venv pyproject.toml constraints.txt tools/requires.py
	$(BIN)/python tools/requires.py build runtime cli dev > $(VENV)/requires-build.txt
	$(PIP) install -q -c constraints.txt -r $(VENV)/requires-build.txt cmake ninja pytest pytest-timeout pytest-xdist hypothesis scipy
	touch $@

# What the tests and the demo need: torch, Gymnasium, ALE.
$(STAMP)-test: $(STAMP)-build
	$(BIN)/python tools/requires.py torch demo test site > $(VENV)/requires-test.txt
	$(PIP) install -q -c constraints.txt -r $(VENV)/requires-test.txt
	touch $@

# What checks a release.
$(STAMP)-release: $(STAMP)-build
	$(BIN)/python tools/requires.py release > $(VENV)/requires-release.txt
	$(PIP) install -q -c constraints.txt -r $(VENV)/requires-release.txt
	touch $@

# Makes .venv/bin/python and .venv/bin/di-store use the sources of this tree; `build` makes the native module.
$(STAMP)-source: $(STAMP)-build
	mkdir -p src/di_store
	$(PIP) install -q --no-deps --no-build-isolation -Ceditable.mode=inplace -Cwheel.cmake=false -e .
	tools/plain_path.sh $(abspath $(BIN)) $(abspath src)
	touch $@

# -- builds ---------------------------------------------------------------------------------------------------------

build: $(STAMP)-source  ## the module with fault points, into src/di_store (for development and tests)
	@mkdir -p build
	@flock build/dev.lock tools/build_dev.sh "$(abspath $(BIN))" $(JOBS)

# The package as users get it, without fault points; targets that use it put it before the sources on PYTHONPATH.
RELEASE := build/release
SOURCES = $(shell find src native -name '*.py' -o -name '*.pyi' -o -name '*.cc' -o -name '*.h')
$(RELEASE)/.stamp: $(STAMP)-source CMakeLists.txt $(SOURCES)
	rm -rf $(RELEASE)
	$(PIP) install -q --no-deps --no-build-isolation --target $(RELEASE) .
	touch $@

# -- what a user runs -----------------------------------------------------------------------------------------------

demo: $(STAMP)-test $(RELEASE)/.stamp  ## actors and a learner train on CartPole through a store: 60 s, then a chart (ARGS="--env ALE/Qbert-v5")
	PYTHONPATH=$(abspath $(RELEASE)) $(BIN)/di-store demo $(ARGS)

TEST_SMALL := DI_STORE_TEST_SCALE=small $(PYTEST) -n $$(( $(JOBS) + 2 )) --dist loadfile --no-loadscope-reorder

test: programs $(STAMP)-test build  ## the tests of what users rely on, with small counts (ARGS="-k name")
	$(TEST_SMALL) -m "not extended" $(ARGS)

test-all: programs $(STAMP)-test build  ## all tests with small counts, but those of frameworks that only `make adapters` has (ARGS="-m extended": what `make test` leaves out)
	$(TEST_SMALL) $(ARGS)

adapters: $(STAMP)-test build  ## tests of each adapter with its framework, of the versions of requirements/<name>.txt (ADAPTER="sb3 ding": of two)
	$(MAKE) -kj$(JOBS) -Otarget $(ADAPTER:%=adapter-%)

# An environment over $(VENV): it has what $(VENV) lacks, or has in another version.
build/adapters/%/.stamp: requirements/%.txt $(STAMP)-test
	$(BIN)/python -m venv --clear --without-pip $(@D)
	cd $(@D)/lib/python*/site-packages && printf '%s\n' $(abspath $(VENV))/lib/python*/site-packages $(abspath src) > base.pth
	$(@D)/bin/python -m pip install -q --disable-pip-version-check $$(grep -oe '--no-deps' $< | head -n 1) -r $<
	touch $@

.PHONY: $(ADAPTER:%=adapter-%)
$(ADAPTER:%=adapter-%): adapter-%: build/adapters/%/.stamp
	$(<D)/bin/python -m pytest $(wildcard tests/adapters/test_$*.py tests/adapters/test_$*_*.py) $(ARGS) | tee $(<D).log
	@! tail -n 1 $(<D).log | grep -q ' skipped' || { echo "$(<D) lacks what the skipped tests need" >&2; exit 1; }

wheels:  ## wheels of CPython 3.10 to 3.14, x86-64 and aarch64, into build/wheels/dist (PYTHONS="python3.11" ARCHES=x86_64)
	tools/wheels.sh

sdist: $(STAMP)-release  ## the source distribution, into build/wheels/dist, which is built and tried without a network
	$(BIN)/python tools/third_party.py third_party
	rm -f build/wheels/dist/*.tar.gz
	$(BIN)/python -c 'import scikit_build_core.build as b; b.build_sdist("build/wheels/dist")'
	$(BIN)/python tools/check_dist.py build/wheels/dist/*.tar.gz
	tools/try_sdist.sh $(BIN)/python build/wheels/dist/*.tar.gz

sbom: $(STAMP)-release  ## what a wheel consists of and requires, as CycloneDX, into build/di-store.cdx.json
	$(BIN)/python tools/third_party.py third_party
	$(BIN)/python tools/sbom.py $$(grep '^ziglang==' constraints.txt) > build/di-store.cdx.json
	$(BIN)/python tools/check_dist.py build/di-store.cdx.json

soak: programs $(STAMP)-test build  ## hard use of one store for 30 minutes, then calls with odd arguments for as long (DI_STORE_SOAK_SECONDS=600 for less)
	DI_STORE_TEST_SCALE=full $(PYTEST) --timeout 3600 -o faulthandler_timeout=3660 -s tests/soak $(ARGS)

full: programs $(STAMP)-test build  ## all tests with full counts, and the long ones: hours (ARGS="tests/crash/test_kills.py")
	DI_STORE_TEST_SCALE=full $(PYTEST) --timeout 3600 -o faulthandler_timeout=3660 $(ARGS)

dropped: programs $(STAMP)-test build  ## all tests with a disk under every store, and each row read from it (ARGS="tests/replay/test_table.py")
	DI_STORE_TEST_SCALE=small DI_STORE_TEST_DROP=1 $(PYTEST) --timeout 1200 -o faulthandler_timeout=1260 -n $(JOBS) --dist loadfile $(ARGS)

busy: programs $(STAMP)-test build  ## all tests three times beside eight busy loops, about half an hour each with JOBS=8 (RUNS=1: once)
	tools/busy.sh $(RUNS) $(MAKE) test-all ARGS="--timeout 2400 -o faulthandler_timeout=2460 $(ARGS)"

far: programs $(STAMP)-test build  ## tests of the public interface with every store behind an agent (ARGS="-k loader"; FAR=tls: encrypted; FAR=cluster: a node; FAR=sharded: tables in parts)
	DI_STORE_TEST_SCALE=small DI_STORE_TEST_FAR=$(FAR) DI_STORE_WINDOW=1 $(PYTEST) --timeout 300 -n $(JOBS) --dist loadfile $$(PYTHONPATH=tests $(BIN)/python -m cluster.conformance $(FAR)) $(ARGS)

mutants: $(STAMP)-test  ## breaks one mechanism at a time in a copy: a test must fail (ARGS="kills", see docs/testing.md)
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $(JOBS) $(ARGS)

aarch64: $(STAMP)-build  ## C++ tests for aarch64, run by qemu-user (about 30 minutes; ARGS="-R test_locks")
	tools/run_aarch64.sh $(BIN) $(ARGS)

bench: $(STAMP)-test $(RELEASE)/.stamp  ## the benchmarks without the peers (ARGS="put get"); bench/README.md says how to run those
	PYTHONPATH=$(abspath $(RELEASE)) $(BIN)/di-store bench $(ARGS)

# -- what a developer runs ------------------------------------------------------------------------------------------

check: lint  ## lint, format, types, house rules, blocks of the docs
	$(PYTEST) -q tests/test_tidy.py tests/test_names.py tests/test_docs.py

lint: $(STAMP)-test build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/actionlint .github/workflows/*.yml
	$(BIN)/zizmor --offline --pedantic -q .github
	clang=$$(tools/need_clang.sh) && tools/check_native.sh $$clang $(BIN)/python

site: $(STAMP)-build  ## the docs as a site with search, into build/site (SERVE=8000: and serves it there)
	$(BIN)/python tools/requires.py site > $(VENV)/requires-site.txt
	$(PIP) install -q -c constraints.txt -r $(VENV)/requires-site.txt
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -c docs/site docs build/site
	$(if $(SERVE),$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site $(SERVE),@echo "open build/site/site/index.html")

docs: $(STAMP)-test build  ## runs every block of README and docs, follows their links
	$(PYTEST) tests/test_docs.py $(ARGS)

native: $(STAMP)-build  ## C++ tests under the address and undefined-behaviour sanitizers
	tools/run_native.sh asan "address;undefined" all $(BIN) $(ARGS)

blocks: $(STAMP)-test  ## a million damaged blocks of other machines, with the core under the address sanitizer
	tools/run_blocks.sh $(BIN) $(ARGS)

tsan: $(STAMP)-build  ## C++ stress programs under the thread sanitizer
	tools/run_native.sh tsan thread stress $(BIN) -L stress $(ARGS)

format: $(STAMP)-build  ## formats Python and C++ in place
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format .
	find native tests/native -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

stubs: build  ## writes src/di_store/_core.pyi from the module
	$(BIN)/python -m nanobind.stubgen -q -m di_store._core -p tools/core_stub.pat -o src/di_store/_core.pyi
	$(BIN)/ruff format -q src/di_store/_core.pyi
	$(BIN)/ruff check -q --fix src/di_store/_core.pyi

clean:  ## removes builds and the environment
	rm -rf build $(VENV) src/di_store/*.so
