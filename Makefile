# Every target sets up what it needs: a fresh clone plus Python 3.11 or newer is enough.
#   make demo   the main job: what SwinUNETR trains on a 24 GB card, predicted
#   make test   linters, types, import rules and the tests that need no GPU
#   make lint   the first half of that
#   make docs   docs/cli.md from --help, the pictures from real runs
# TORCH chooses the build, e.g. make test TORCH="torch==2.13.0+cpu".

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint docs setup clean

demo: $(READY)
	$(BIN)/segplan fit --model swinunetr --gpu rtx-3090

test: lint
	$(BIN)/python -m pytest -m "not gpu"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_pictures.py

setup: $(READY)

$(READY): pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	touch $(READY)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
