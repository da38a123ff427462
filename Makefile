# Everything a person or CI does with a checkout. PYTHON chooses the interpreter of the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBTPU := .libtpu
DOCS_VENV := .venv-docs

# What a test starts a thousand times need not be compiled a thousand times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test test-slow test-aot check simulate fuzz chaos vanishing mutants bench schema docs pages lock clean

install: $(STAMP)

# Debian splits ensurepip out of python3: there the venv gets its pip from the interpreter's own.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

run: install
	$(BIN)/supervise run examples/quickstart.yaml

# Three at once for two cores: tests wait for their processes for a third of the time.
test: install check
	$(BIN)/python -m pytest -n 3 --dist worksteal

# The storms and the longest runs of real training, one after the other: what compiles in the
# background gets a tenth of a core beside another of these. Here XLA optimises. CI does both. Where
# `test-aot` has installed libtpu, its answers are held against our tables, too: in a minute.
test-slow: install
	XLA_FLAGS= $(BIN)/python -m pytest -m slow
	$(if $(wildcard $(LIBTPU)/.installed),PYTHONPATH=$(CURDIR)/$(LIBTPU) $(BIN)/python -m pytest -m slow -k "not compiled" tests/aot)

# What the real libtpu answers without a chip: every generation and slice of one host is compiled, and
# its own errors are read. It is locked like the rest, and 213 MB: installed beside the environment,
# and not in CI. Run it after a change of the tables, of placement or of the lock.
test-aot: install $(LIBTPU)/.installed
	PYTHONPATH=$(CURDIR)/$(LIBTPU) $(BIN)/python -m pytest -m "" -n 2 tests/aot tests/processes/test_ahead_of_time.py

$(LIBTPU)/.installed: supervisor/provision/requirements-tpu.lock
	rm -rf $(LIBTPU) && mkdir $(LIBTPU)
	awk '/^[a-z]/ { wanted = /^libtpu==/ } wanted' $< > $(LIBTPU)/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $(LIBTPU) -r $(LIBTPU)/requirements.txt
	touch $@

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The decision core in a world that fails at random. SEED=K replays one history and tells all of it.
SEEDS ?= 10000
simulate: install
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

# All that is read and somebody else may have written, changed at random. SEED=K repeats a run.
SECONDS ?= 60
fuzz: install
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# One real JAX job in a storm of faults, about five minutes. SEED=K decides which, and when.
chaos: install
	$(BIN)/python -m tests.chaos --json runs/chaos.json $(if $(SEED),--seed $(SEED))

# The quickstart in an emulated bucket, on machines that vanish thirty times, about a quarter of an
# hour. SEED=K decides when.
vanishing: install
	$(BIN)/python -m tests.vanishing $(if $(SEED),--seed $(SEED))

# Whether the fast tests notice a change to the decision core: many minutes, not a part of CI.
mutants: install
	$(BIN)/python -m tests.mutation

# Side by side with what people use instead, each peer in an environment of its own; then the
# README's tables. Some hours, on a machine with nothing else to do. QUICK=1 only shows that it works.
BENCHMARKS := $(filter-out __init__ contest losses orbax_loop peers report tables training trivial,$(basename $(notdir $(wildcard benchmarks/*.py))))
bench: install $(BENCHMARKS:%=bench-%)
	$(BIN)/python -m benchmarks.tables

bench-%: install
	$(BIN)/python -m benchmarks.$* $(if $(QUICK),--quick) --json $(if $(QUICK),runs/benchmarks,benchmarks/results)/$*.json

# The JSON Schema of trainer.yaml, which the package ships; a test holds it equal to the code.
schema: install
	$(BIN)/python -m supervisor.config.json_schema

# The site, strictly: a broken link, an unknown anchor or a page that is in no table of contents
# fails. Its tools have an environment of their own, so that tests and jobs do without them.
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

$(DOCS_VENV)/.installed: docs/requirements.lock
	rm -rf $(DOCS_VENV)
	$(PYTHON) -m venv $(DOCS_VENV) 2>/dev/null || { rm -rf $(DOCS_VENV) && $(PYTHON) -m venv --without-pip $(DOCS_VENV) && $(PYTHON) -m pip --python $(DOCS_VENV)/bin/python install --quiet pip; }
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	touch $@

# The pages of the reference that the code writes; tests hold them equal to it.
pages: install
	$(BIN)/python -m supervisor.narrative.document > docs/reference/events.md
	$(BIN)/python -m supervisor.history.journal_page > docs/reference/journal.md
	$(BIN)/python -m supervisor.config.config_page > docs/reference/config.md
	$(BIN)/python -m supervisor.cli.cli_page > docs/reference/cli.md
	$(BIN)/python -m supervisor.cli.exit_code_page > docs/reference/exit-codes.md
	$(BIN)/python -m supervisor.cli.rules_page > docs/reference/rules.md
	$(BIN)/python -m tests.simulation.table

# Needs uv on the PATH. The lock holds names, versions, markers and hashes; no addresses.
LOCK := uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11
lock:
	$(LOCK) --extra trainer --extra dev pyproject.toml -o requirements.lock
	$(LOCK) --extra tpu --extra gcs --extra build pyproject.toml -o supervisor/provision/requirements-tpu.lock
	$(LOCK) --extra cuda --extra gcs --extra s3 --extra build pyproject.toml -o deploy/requirements-cuda.lock
	$(LOCK) --group docs -o docs/requirements.lock

clean:
	rm -rf $(VENV) $(DOCS_VENV) $(LIBTPU) docs/_build .peers runs
