# Each target sets up what it needs in a virtual environment of its own: .venv, or VENV=path.
VENV ?= .venv
PYTHON ?= python3
# Processes that share the tests: one more than there are cores, since tests also wait.
WORKERS ?= 3
# Slow tests wait more: for servers to start, and for streams to end.
SLOW_WORKERS ?= 5
# Tests start hundreds of processes, which would compile every module anew without bytecode. What is installed is
# compiled once, or each worker would compile it at the same time; pip would use one core for its 17,000 files, of which
# some do not compile. Half of their text is in parts that hardly any test imports.
export PYTHONDONTWRITEBYTECODE =
BIN := $(VENV)/bin

.PHONY: demo demo-cluster test test-slow test-nightly compiled coverage test-clients test-newest-aiohttp check fix docs site bench clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# The same with four instances behind a router.
demo-cluster: $(VENV)/.installed
	$(BIN)/python examples/demo.py --num-instances 4 --rate 6 --num-requests 300

# Everyday tests: each below 1 s of CPU and 5 s of wall time.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(TEST_OPTIONS)

# All others.
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist loadgroup -m slow

# All tests, with a hundred times the random examples and the engine compiled as pip compiles it: hours.
test-nightly: export MYPYC_OPT_LEVEL = 3
test-nightly: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile nightly --timeout 14400

# The installation with a compiled engine that tests/compiled uses, in .compiled/, unless its sources are as they were.
compiled: $(VENV)/.installed-test
	$(BIN)/python -m tests.compiled.builds

coverage: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered

# Clients that bring versions of their own of what others need.
test-clients: $(VENV)-clients/.installed-clients
	$(VENV)-clients/bin/python -m pytest tests/wire/clients

# The newest aiohttp, past the upper bound in pyproject.toml: pip says that it is, and installs it.
test-newest-aiohttp: $(VENV)-newest-aiohttp/bin/python
	$(VENV)-newest-aiohttp/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	$(VENV)-newest-aiohttp/bin/python -m pip install --quiet --disable-pip-version-check --upgrade aiohttp
	$(VENV)-newest-aiohttp/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/mockserve tests/wire

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m workshop.long_functions

fix: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Generated parts of pages, all pictures and the page of a calibration. Takes minutes, and a quiet machine.
docs: $(VENV)/.installed-test
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/pictures.py --all

# The documentation as a site in site/; a page or a link that is missing is an error.
site: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.installed-test
	$(BIN)/python -m workshop.engine_cost

clean:
	rm -rf $(VENV) $(VENV)-clients $(VENV)-newest-aiohttp .compiled site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)-newest-aiohttp/bin/python:
	$(PYTHON) -m venv $(VENV)-newest-aiohttp

$(VENV)-clients/bin/python:
	$(PYTHON) -m venv $(VENV)-clients

$(VENV)-clients/.installed-clients: pyproject.toml | $(VENV)-clients/bin/python
	$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check -e ".[test,clients]"
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[test]"
	-$(BIN)/python -m compileall -qq -j 0 -x '/(tests|rllib|tune|train|serve|dashboard|sklearn|fontTools|huggingface_hub|lexers)/' $(VENV)/lib
	$(BIN)/python -m compileall -q -j 0 blis_sim calibrate mockserve observe replay traces workshop
	touch $@ $(VENV)/.installed
