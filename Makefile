# On a bare Debian, `apt-get install make python3-venv` is all that must come before `make demo`.
PYTHON ?= python3
# The environment, a folder. Another Python needs another one: make test PYTHON=python3.13 VENV=.venv-newer
VENV ?= .venv
BIN := $(VENV)/bin
# The newest Python found besides the machine's own; it gets a newer JAX than Python 3.11 does.
NEWER ?= $(firstword $(foreach p,python3.14 python3.13 python3.12,$(if $(shell command -v $(p)),$(p))))
# Compiling dominates the tests and runs on one core: a process per core, few enough not to run out of memory.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-newer test-slow lint docs docs-run dist clean

demo: $(VENV)/.installed-all  ## the main job: Bayesian logistic regression on the digits, on every core
	$(BIN)/phalanx demo digits --out out/digits

test: $(VENV)/.installed-dev  ## the quick tests: all but those marked slow
	$(PYTEST)

test-newer:  ## the same on the newest Python there is, with the newest JAX that it allows
	@test -n '$(NEWER)' || { \
	  echo "no python3.12, python3.13 or python3.14 was found. Install one, or name it: make test-newer NEWER=..."; \
	  exit 1; }
	$(MAKE) test PYTHON='$(NEWER)' VENV=.venv-newer

test-slow: $(VENV)/.installed-dev  ## the tests marked slow, or those of some folders: make test-slow PART=tests/mesh
	$(PYTEST) -m slow $(PART)

lint: $(VENV)/.installed-dev  ## style, types, the direction of imports, words, and the shape of the code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/ruff format --check --line-length 88 README.md $$(find docs -name '*.md')
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/prose.py
	$(BIN)/python tests/counts.py

docs: $(VENV)/.installed-docs  ## the site, in out/site; PHALANX_DOCS_ONLINE=1 links to the sites of JAX, NumPyro and ArviZ
	$(BIN)/sphinx-build -W --keep-going -q -b html -d out/doctrees docs out/site

docs-run: $(VENV)/.installed-dev  ## runs every Python block of README.md and docs/*.md at full size
	$(BIN)/pytest -v -m "slow or not slow" -k "not few" tests/test_docs.py

dist: $(VENV)/.installed-release  ## wheel and source archive in dist/, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:  ## removes the environment and everything made
	rm -rf $(VENV) .venv-newer out build dist

# The stamps are redone when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing Phalanx and what it needs into $(VENV); the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

# The extra `dev` contains `all`.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing Phalanx and what it needs into $(VENV); the first time takes a minute or two"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(VENV)/.installed-all $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "phalanx needs Python 3.11 or newer as '$(PYTHON)'. Install it, or name another: make PYTHON=python3.12 ..."; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv $(VENV)' failed. On Debian and Ubuntu: apt-get install python3-venv, then run make again."; \
	  exit 1; }
