# Every target does its own set-up; a stamp keeps it from happening twice.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/digits/resnet8_digits.yaml
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: train test test-slow test-faults test-gpu outside lint types bench bench-gpu clean

train: $(STAMP)
	$(BIN)/python tools/train.py $(CONFIG) $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

test-faults: $(STAMP)
	$(BIN)/python -m pytest tests/faults -m "faults or not faults" $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m "cuda or multi_cuda" $(ARGS)

# Other people's suites on the emulators, from checkouts: make outside MMCV=DIR POPTORCH=DIR
outside: $(STAMP)
	$(BIN)/python tools/outside.py $(if $(MMCV),--mmcv $(MMCV)) \
	    $(if $(POPTORCH),--poptorch $(POPTORCH)) $(if $(GAUDI),--gaudi $(GAUDI)) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	cd devrun/emulators && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml \
	    --explicit-package-bases poptorch popart popdist \
	    habana_frameworks habana_dataloader

bench: $(STAMP)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py $(ARGS)
	$(BIN)/python benchmarks/emulators.py
	$(BIN)/python benchmarks/autosplit.py
	$(BIN)/python benchmarks/checkpoint.py

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/overhead.py --device cuda $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build back end is pinned too, hence installed first and used without isolation.
$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --constraint constraints.txt \
	    --no-build-isolation --editable ".[dev]"
	touch $@
