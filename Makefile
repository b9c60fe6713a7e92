# Every target does its own set-up; a stamp keeps it from happening twice.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/digits/resnet8_digits.yaml
ARGS ?=

BIN := $(VENV)/bin
# The demo needs less than the developers' tools, which bring all that it needs.
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
INTEROP := build/interop
MMCV1 := $(INTEROP)/mmcv1
FIRST_HOUR := $(INTEROP)/first-hour
PACKAGES := $(INTEROP)/packages

.NOTPARALLEL: # two targets may set up the same environment
.PHONY: train test test-interop test-first-hour test-versions test-mojo test-xla test-cts test-slow test-faults test-corpus test-gpu outside openmmlab lint types
.PHONY: docs bench bench-gpu clean

train: $(DEMO)
	$(BIN)/python tools/train.py $(CONFIG) $(ARGS)

# Many tests wait for processes of theirs: four at once keep two cores busy. The tests of
# one file stay together, with what they share, and files keep the order of conftest.py.
test: $(DEV)
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

# What needs other people's packages, which two environments below build/ have.
test-interop: $(MMCV1)/.installed $(PACKAGES)/.installed
	$(PACKAGES)/bin/python tools/interop_tests.py $(MMCV1) $(PACKAGES) -- $(ARGS)

# What five newcomers do first, with the built wheel, counted beside its peers.
test-first-hour: $(FIRST_HOUR)/.installed
	$(FIRST_HOUR)/bin/python -m pytest -m slow tests/first_hour $(ARGS)

# The default tests on other releases of torch: make test-versions RELEASES="2.0.1 2.6.0"
test-versions:
	$(PYTHON) tools/torch_versions.py $(RELEASES) -- $(ARGS)

# Modular's device and compiler, in an environment of 2.3 GB; kernels are compiled at first.
test-mojo: build/mojo/.installed
	build/mojo/bin/python -m pytest tests/mojo -m mojo $(ARGS)

# PyTorch/XLA on its CPU by the plug-in of examples/, in an environment of 7.3 GB.
test-xla: build/xla/.installed
	build/xla/bin/python -m pytest tests/xla $(ARGS)

# TorchCTS and PyTorch's OpInfo samples on the emulated Gaudi; the manifest is in build/cts.
CTS := build/cts
EMULATED := PYTHONPATH=$(abspath devrun/emulators)
test-cts: $(CTS)/.installed
	cd $(CTS) && $(EMULATED) bin/python $(abspath tests/emulators/habana/torchcts_whole.py) \
	    run --non-interactive $(ARGS)
	$(EMULATED) $(CTS)/bin/python tests/emulators/habana/opinfo.py

# The long tests but those that have a target of their own.
test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile --ignore tests/rehearsal/corpus \
	    --ignore tests/first_hour $(ARGS)

test-faults: $(DEV)
	$(BIN)/python -m pytest tests/faults -m "faults or not faults" $(ARGS)

# What `devrun check` finds of planted faults, as a table.
test-corpus: $(DEV)
	$(BIN)/python -m pytest -m slow tests/rehearsal/corpus $(ARGS)

test-gpu: $(DEV)
	$(BIN)/python -m pytest -m "cuda or multi_cuda" $(ARGS)

# Other people's suites, from checkouts of theirs: make outside MMCV=DIR RUNNER=DIR POPTORCH=DIR
outside: $(DEV)
	$(BIN)/python tools/outside.py $(if $(MMCV),--mmcv $(MMCV)) $(if $(RUNNER),--runner $(RUNNER)) \
	    $(if $(POPTORCH),--poptorch $(POPTORCH)) $(if $(GAUDI),--gaudi $(GAUDI)) $(ARGS)

# Every config of MMClassification 0.25, and losses beside those of MMCV's own runner.
openmmlab: $(MMCV1)/.installed
	$(MMCV1)/bin/python tools/openmmlab.py $(ARGS)
	$(MMCV1)/bin/python tools/openmmlab_parity.py
	$(MMCV1)/bin/python tools/openmmlab.py --table

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- --exclude long devrun

types: $(DEV)
	$(BIN)/mypy
	cd devrun/emulators && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml \
	    --explicit-package-bases poptorch popart popdist \
	    habana_frameworks habana_dataloader

# The site of the documents, with the API reference from the docstrings.
docs: $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q -c docs . build/docs $(ARGS)
	@echo build/docs/index.html

bench: $(DEV)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py $(ARGS)
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/emulators.py
	$(BIN)/python benchmarks/checkpoint.py

bench-gpu: $(DEV)
	$(BIN)/python benchmarks/overhead.py --device cuda $(ARGS)
	$(BIN)/python benchmarks/throughput.py $(THROUGHPUT)

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

SOURCES := pyproject.toml setup.py constraints.txt

$(DEMO): $(SOURCES)
	$(call install,demo)
	touch $(DEMO)

$(DEV): $(SOURCES)
	$(call install,dev)
	touch $(DEMO) $(DEV)

$(DOCS): $(SOURCES)
	$(call install,docs)
	touch $(DOCS)

# Whole lists of exact versions, so that nothing is looked for; MMCV is built without its
# compiled operators.
$(INTEROP)/%/.installed: tests/interop/environments/%.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --constraint $< setuptools wheel
	MMCV_WITH_OPS=0 $(@D)/bin/python -m pip install --no-deps --no-build-isolation \
	    --requirement $< --editable .
	touch $@

build/mojo/.installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --constraint constraints.txt setuptools
	$(@D)/bin/python -m pip install --constraint constraints.txt --no-build-isolation \
	    --editable . pytest hypothesis torch-mojo-backend==0.3.1
	touch $@

build/xla/.installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --constraint constraints.txt setuptools wheel
	$(@D)/bin/python -m pip install torch==2.9.0 torch_xla==2.9.0
	$(@D)/bin/python -m pip install --no-build-isolation \
	    --editable ".[demo]" --editable examples/xla_device pytest hypothesis
	touch $@

# TorchCTS asks for torch below 2.12.2; it runs on a newer one too.
$(CTS)/.installed: constraints.txt
	$(PYTHON) -m venv $(CTS)
	$(CTS)/bin/python -m pip install --constraint constraints.txt \
	    torch numpy pytest psutil expecttest "mpmath<2"
	$(CTS)/bin/python -m pip install --no-deps torchcts==0.4.1
	cd $(CTS) && bin/torchcts init --template training --non-interactive
	sed -i -e 's/"device_name": "auto"/"device_name": "hpu"/' \
	    -e 's/"backend_import": None/"backend_import": "habana_frameworks.torch"/' \
	    -e 's/"semantic_level": 4/"semantic_level": 2/' -e 's/"max_samples\(.*\)": [0-9]*/"max_samples\1": 2/' \
	    $(CTS)/manifest.py
	touch $@

# The build back end is pinned too, hence installed first and used without isolation.
define install
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --constraint constraints.txt \
	    --no-build-isolation --editable ".[$(1)]"
endef
