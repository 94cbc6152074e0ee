# PYTHON is the interpreter that makes .venv; PIP_ARGS goes to pip (for instance a mirror, or an index of CPU builds).
PYTHON ?= python3
PIP_ARGS ?=
BENCH ?= benchmarks/rounds.py

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-data bench peers lint format wire

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(STAMP)  ## a federation on this machine, in a minute
	$(BIN)/hansa demo

test: lint  ## everything that must hold before a commit
	$(BIN)/pytest

test-long: $(STAMP)  ## the grids that take minutes
	$(BIN)/pytest -m long

test-data: $(STAMP)  ## the published results, on data in HANSA_DATA_DIR
	@test -d "$$HANSA_DATA_DIR" || { echo "make test-data: set HANSA_DATA_DIR to the folder that holds the data sets" >&2; exit 2; }
	$(BIN)/pytest -m data

bench: $(STAMP)  ## measure (BENCH=path of a script in benchmarks/)
	$(BIN)/python $(BENCH)

peers: $(STAMP)  ## what benchmarks/simulation.py compares Hansa with, in .peers/
	$(BIN)/python benchmarks/peers/install.py $(PIP_ARGS)

lint: $(STAMP)  ## ruff, mypy and the arrows between the packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wire: $(STAMP)  ## generate the messages of hansa/wire/link.proto
	.ci/wire

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(PIP_ARGS) -c constraints.txt hatchling editables
	$(BIN)/pip install $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
