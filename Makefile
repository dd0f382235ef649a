.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
WORKERS ?= 2
SEEDS ?= 200
KILLS ?= 50

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# A .venv whose making was interrupted, or whose Python has left the machine, has no working pip: it is made anew.
# The stamp comes last, so an interrupted installation is repeated.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Stoker needs Python 3.11 or newer: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
		|| { echo "python3 -m venv failed: on Debian, install python3-venv" >&2; exit 1; }
	$(PY) -m pip install --quiet --no-input --disable-pip-version-check --editable '.[dev]'
	@$(PY) -m compileall -q src
	@touch $@

install: $(STAMP) ## install Stoker and what its checks need into .venv

quickstart: $(STAMP) ## a first look: a server in a temporary home runs examples/hello.yaml, and nothing is left behind
	STOKER=$(CURDIR)/$(BIN)/stoker sh examples/quickstart.sh

check: $(STAMP) ## ruff, mypy --strict, layers, tidy, generated pages fresh (under a minute)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(wildcard src tests bench docs)
	$(BIN)/lint-imports
	$(PY) -m pytest tests/test_tidy.py

test: $(STAMP) ## all tests, with the short forms of the campaigns; ARGS="-k name" for some
	$(PY) -m pytest -rs -n $(WORKERS) --dist loadgroup $(ARGS)

sim: $(STAMP) ## the simulation: make sim SEEDS=2000, or SEED=17 for one story
	$(PY) -m tests.sim --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

chaos: $(STAMP) ## kill -9 of engines and of PostgreSQL under load, fifty times: make chaos [KILLS=50] [SEED=1]
	STOKER_KILLS=$(KILLS) $(if $(SEED),STOKER_SEED=$(SEED)) $(PY) -m pytest -s tests/process/test_kill.py

chaos-swarm: MINUTES ?= 20
chaos-swarm: $(STAMP) ## workers and the server killed and frozen over 50,000 swarm tasks: make chaos-swarm [MINUTES=20] [TASKS=50000] [SEED=1]
	STOKER_MINUTES=$(MINUTES) $(if $(TASKS),STOKER_TASKS=$(TASKS)) $(if $(SEED),STOKER_SEED=$(SEED)) \
		$(PY) -m pytest -s -vv tests/process/test_swarm_chaos.py

chaos-hosts: MINUTES ?= 15
chaos-hosts: $(STAMP) ## links, engines, agents, hosts and the server hit over 200 runs on three hosts, as root: make chaos-hosts [MINUTES=15] [RUNS=200] [SEED=1]
	STOKER_MINUTES=$(MINUTES) $(if $(RUNS),STOKER_RUNS=$(RUNS)) $(if $(SEED),STOKER_SEED=$(SEED)) \
		$(PY) -m pytest -s -vv tests/hosts/test_chaos.py

bench: $(STAMP) ## measure, with limits; figures also in bench/results.json; PART=engine for one part
	$(PY) -m bench $(PART)

bench-swarm: $(STAMP) ## the swarm beside HyperQueue, Slurm and Celery; PART=chain for one part
	$(PY) -m bench.swarm $(PART)

gpu: $(STAMP) ## what needs a real NVIDIA GPU; fails where there is none
	STOKER_GPU=1 $(PY) -m pytest -rs tests/gpu $(ARGS)

bundle: $(STAMP) ## make the bundle of the agents in build/, or show it: what servers send to hosts and mount into containers
	$(BIN)/stoker --home build bundle

docs: $(STAMP) ## print the generated pages anew
	$(PY) -m docs.machines
	$(PY) -m docs.apis
	$(PY) -m docs.configurations

format: $(STAMP) ## let ruff put the code in order
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist

.PHONY: help install quickstart check test sim chaos chaos-swarm chaos-hosts bench bench-swarm gpu bundle docs format clean
