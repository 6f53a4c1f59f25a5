# Two commands: `make run` and `make test`. Each sets up what it needs (a virtual environment in .venv).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs

SELDOM := transformers/models/(?!auto|gpt2|llama)|/sympy/|/networkx/|/torch/(testing|distributed|_inductor)/|/pip/|/mypy

.PHONY: run test test-all quick snapshots lint format bench docs release-check clean

run: $(STAMP)
	$(BIN)/harness run scenarios/quickstart.yaml

# Three parts (tests/__main__.py): two processes for what starts none, three for what starts some, and what judges times.
test: $(STAMP)
	$(BIN)/python -m tests

# What is slow and rare besides: tests/__main__.py.
test-all: $(STAMP)
	$(BIN)/python -m tests quick processes alone nightly

quick: $(STAMP)
	$(BIN)/python -m tests quick

# Where a change of a whole page is meant: write what tests/harness/test_pages.py compares with, then read the diff.
snapshots: $(STAMP)
	$(BIN)/python -m pytest tests/harness/test_pages.py --snapshot-update

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-only

# The documentation site: warnings are errors, and nothing is fetched once the set-up is done.
docs: $(DOCS_STAMP)
	$(BIN)/python -m docs.generate build/docs
	$(BIN)/zensical build --clean --strict

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -e '.[docs]'
	@touch $(DOCS_STAMP)

# What is to be published: wheel and sdist as they are built, and the wheel in an environment of its own.
release-check:
	.ci/release-check $(PYTHON)

# The constraints pin what CI runs, torch's CPU build among it. On a machine with an NVIDIA device the versions that it
# brings are kept instead (torch is then looked for outside the environment), within the ranges of pyproject.toml.
ifeq ($(wildcard /dev/nvidiactl),)
VENV_FLAGS :=
PIP_FLAGS := -c constraints.txt
else
VENV_FLAGS := --system-site-packages
PIP_FLAGS :=
endif

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV): a few minutes, once"
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS) -e '.[dev]'
	@# pip compiles its 11,000 files one after the other, half a minute. Here all cores do, without the half that is never
	@# imported. Templates are no Python: let be.
	@$(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM)' $(VENV)/lib || true
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
