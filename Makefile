# On a bare Debian, `apt-get install make python3-venv` is all that must come before `make demo`.
PYTHON ?= python3
BIN := .venv/bin
# Compiling dominates the tests and runs on one core: a process per core, few enough not to run out of memory.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-slow lint docs clean

demo: .venv/.installed-all  ## the main job: Bayesian logistic regression on the digits, on every core
	$(BIN)/phalanx demo digits --out out/digits

test: .venv/.installed-dev  ## everything but the tests marked slow
	$(PYTEST)

test-slow: .venv/.installed-dev  ## only the tests marked slow
	$(PYTEST) -m slow

lint: .venv/.installed-dev  ## style, types, and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.installed-dev  ## runs every Python block of README.md and docs/*.md
	$(BIN)/pytest -v -m "slow or not slow" tests/test_docs.py

clean:  ## removes the environment and everything made
	rm -rf .venv out build dist

# The stamps are redone when pyproject.toml changes. The second extra contains the first.
.venv/.installed-all: pyproject.toml | .venv/bin/python
	@echo "installing Phalanx and what it needs into .venv; the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[all]'
	@touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	@echo "installing Phalanx and what it needs into .venv; the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch .venv/.installed-all $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "phalanx needs Python 3.11 or newer as '$(PYTHON)'. Install it, or name another: make PYTHON=python3.12 ..."; \
	  exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "'$(PYTHON) -m venv .venv' failed. On Debian and Ubuntu: apt-get install python3-venv, then run make again."; \
	  exit 1; }
