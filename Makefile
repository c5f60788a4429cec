# Everything sets up its own virtual environment; a machine needs Python 3.11 or newer, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ENGINES := .venv-engines

.PHONY: demo test engines test-engines check clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kvopt needs Python 3.11 or newer; run: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## solve a bundled realistic instance, compare all policies with the lower bound, draw both
	mkdir -p out
	$(BIN)/kvopt solve @demo -o out/demo-plan.json --plot out/demo-schedule.png
	$(BIN)/kvopt verify out/demo-plan.json --quiet > /dev/null
	$(BIN)/kvopt compare @demo --plot out/demo-ratios.png
	@echo "pictures: out/demo-schedule.png out/demo-ratios.png   plan: out/demo-plan.json"

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -q

# vLLM and SGLang for CPU, with what they need and no more: their own dependency lists cannot be installed together.
$(ENGINES)/.ready: tests/requirements-engines.txt pyproject.toml
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement tests/requirements-engines.txt
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

engines: $(ENGINES)/.ready  ## their environment alone

test-engines: engines  ## the plug-ins inside the real engines; downloads about 500 MB the first time
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest -q tests/test_plugins.py tests/test_plugins_vllm.py tests/test_plugins_http.py tests/test_plugins_sglang.py

check: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(ENGINES) out build dist
