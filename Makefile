# The one entrance to the project; `make` alone lists what there is.
#
#   PYTHON=...  the interpreter that makes the environments (3.11)
#   VENV=...    the environment to use: .venv, or .venv-gpu for the GPU
#   ARGS=...    further arguments of demo, pytest or lock

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
ARGS ?=
LOCK := requirements$(if $(findstring gpu,$(notdir $(VENV))),-gpu).lock
IN_VENV := $(VENV)/bin/python -m
QUICK := tests/privacy tests/layering_test.py \
  tests/docstrings_test.py tests/public_names_test.py

# python3.11 where it runs, else python3: asked only by targets that need it.
PYTHON ?= $(shell for name in python3.11 python3; do \
  $$name -c '' >/dev/null 2>&1 && break; done; echo $$name)

# Evaluated at the head of a recipe: one line and the end, or nothing.
NEEDED := 3.11-linux-x86_64
found = $(shell $(PYTHON) -c 'import platform, sys; print("%d.%d-%s-%s" % \
  (sys.version_info[:2] + (sys.platform, platform.machine())))' 2>/dev/null)
check_python = $(if $(filter $(NEEDED),$(found)),,$(error tvdp_tf needs Python \
  $(NEEDED), but $(PYTHON) is $(or $(found),no Python that runs): set PYTHON))

.PHONY: help
help:  ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' \
	  Makefile

.PHONY: demo
demo: install  ## Paper, sound and no privacy compared, into runs/demo-<time>.
	@output=runs/demo-$$(date +%Y%m%d-%H%M%S) && mkdir -p runs && \
	  $(VENV)/bin/python binaries/compare.py --output_dir="$$output" $(ARGS)

# mypy has one core, and the tests have the others.
BESIDE_TYPES = --no-print-directory --jobs=2 --assume-old=install types

.PHONY: test
test: style  ## Everything that must hold: lint, then all tests.
	$(MAKE) $(BESIDE_TYPES) pytest

.PHONY: check
check: style  ## Lint, types and the tests that need no TensorFlow: a minute.
	$(MAKE) $(BESIDE_TYPES) quick

.PHONY: lint
lint: style types  ## Ruff (rules and format) and mypy.

.PHONY: style
style: install
	$(IN_VENV) ruff check .
	$(IN_VENV) ruff format --check .

.PHONY: types
types: install
	$(IN_VENV) mypy

.PHONY: quick
quick: install
	$(IN_VENV) pytest --numprocesses=auto --maxprocesses=4 $(QUICK) $(ARGS)

PYTEST = $(IN_VENV) pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal

.PHONY: pytest
pytest: install  ## The tests of `test` alone; ARGS='-k noise' for some of them.
	$(PYTEST) -m 'not long' $(ARGS)

.PHONY: test-long
test-long: install  ## The tests of tests/long_tests.txt: twenty minutes.
	$(PYTEST) -m long $(ARGS)

.PHONY: fuzz
fuzz: install  ## Ten times as many damaged files, new ones every time.
	$(IN_VENV) pytest --hypothesis-profile=new -k Fuzz \
	  --numprocesses=auto --maxprocesses=4 $(ARGS)

.PHONY: audit
audit: install  ## Known vulnerabilities of what the locks pin.
	$(IN_VENV) tools.audit $(ARGS)

.PHONY: faults
faults: install  ## Kills, damage, full disks: results/faults, 15 minutes.
	$(IN_VENV) tools.faults $(ARGS)

.PHONY: mutants
mutants: install  ## The guarantee's lines, broken: results/mutants, 20 minutes.
	$(IN_VENV) tools.mutants $(ARGS)

.PHONY: soak
soak: install  ## Four thousand rounds with faults: results/soak, two minutes.
	$(IN_VENV) tools.soak $(ARGS)

.PHONY: check-export
check-export: install  ## Exports, loaded where there is TensorFlow alone.
	$(PYTHON) -m venv .venv-plain
	.venv-plain/bin/pip install --quiet tensorflow-cpu==2.14.1
	PLAIN_PYTHON=.venv-plain/bin/python $(IN_VENV) pytest \
	  tests/training/export_test.py

.PHONY: core
core: install  ## The wheel without TensorFlow, on every Python that is found.
	sh tools/core.sh "$(VENV)" $(ARGS)

.PHONY: check-keras3
check-keras3:  ## Local training under Keras 3, without TFF, on Python 3.12.
	sh tools/keras3.sh $(ARGS)

.PHONY: check-examples
check-examples: install  ## Examples for Flower and pfl, where they are installed.
	sh tools/examples.sh "$(VENV)" "$(PYTHON)"

.PHONY: check-notebook
check-notebook: install  ## `fit` in a real Jupyter kernel, with pandas.
	sh tools/notebook.sh check "$(VENV)" "$(PYTHON)"

.PHONY: docs
docs: install  ## The site of docs/, its notebooks executed, in build/site.
	sh tools/notebook.sh docs "$(VENV)" "$(PYTHON)"

.PHONY: check-secagg
check-secagg: install  ## Secure sums by Flower's SecAgg+, a client lost midway.
	@$(check_python)sh tools/secagg.sh "$(VENV)" "$(PYTHON)"

.PHONY: check-claims
check-claims: install  ## Other tools' noise, audited: results/claims, minutes.
	sh benchmarks/install_peers.sh "$(PYTHON)" flower nvflare opacus
	$(IN_VENV) tools.check_claims $(ARGS)

.PHONY: install
install:  ## The environment .venv, from requirements.lock.
	@$(check_python)sh tools/install.sh "$(VENV)" "$(LOCK)" "$(PYTHON)"

.PHONY: install-gpu
install-gpu:  ## The environment .venv-gpu: TensorFlow with CUDA 11.8.
	@$(MAKE) --no-print-directory install VENV=.venv-gpu

.PHONY: lock
lock:  ## All locks, from *.in, overrides.txt and excludes*.txt.
	@$(check_python)sh tools/lock.sh "$(PYTHON)" $(ARGS)

.PHONY: peers
peers:  ## The libraries that binaries/benchmark.py compares with.
	@$(check_python)sh benchmarks/install_peers.sh "$(PYTHON)" $(ARGS)

.PHONY: clean
clean:  ## Remove environments, caches and build products; runs/ stays.
	rm -rf .venv .venv-gpu .venv-lock .venv-peers .venv-plain .venv-audit
	rm -rf .venv-notebook .venv-core .venv-secagg .venv-quickstart
	rm -rf .venv-keras3
	rm -rf build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
