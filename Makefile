# Everything a person or CI does with a checkout. PYTHON chooses the interpreter of the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
STAMP := $(VENV)/.installed
LIBTPU := .libtpu
LAYOUTS := .layouts
INTEGRATIONS := .integrations
MANIFESTS := .manifests
DOCS_VENV := .venv-docs

# What a test starts a thousand times need not be compiled a thousand times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install run test test-slow test-aot test-layouts test-manifests test-integrations cluster matrix check simulate fuzz chaos vanishing mutants bench schema docs linkcheck pages picture dist lock clean

install: $(STAMP)

# Debian splits ensurepip out of python3: there the venv gets its pip from the interpreter's own.
new_venv = $(PYTHON) -m venv $(1) 2>/dev/null || { rm -rf $(1) && $(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
# Of ten modules that are installed, a run imports less than one, and Python compiles that itself.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

# What a job of our trainer needs, and what builds this project: no linter, emulator or test tool.
$(RUN_STAMP): requirements-run.lock pyproject.toml
	$(call new_venv,$(VENV))
	$(PIP_INSTALL) --require-hashes -r requirements-run.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# What tests, linters and debugging need besides, into the same environment.
$(STAMP): requirements.lock $(RUN_STAMP)
	$(PIP_INSTALL) --require-hashes -r requirements.lock
	touch $@

run: $(RUN_STAMP)
	$(BIN)/supervise run examples/quickstart.yaml

# Three at once for two cores: tests wait for their processes for a third of the time.
test: install check
	$(BIN)/python -m pytest -n 3 --dist worksteal

# The storms and the longest runs of real training. Here XLA optimises, but for trainers of tests
# that ask for `unoptimised` (`tests/conftest.py`). Three at once for two cores: the clusters, which do
# not run beside one another, wait most of their time. A file that has no such test is not even
# collected. CI runs all of them. Where `test-aot` has installed libtpu, its answers are held against
# our tables, too: in a minute.
test-slow: install
	XLA_FLAGS= $(BIN)/python -m pytest -m slow -n 3 --dist loadgroup $$(grep -rlw slow --include='test_*.py' tests)
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

# Every checkpoint layout as its real library writes it, and exported models as transformers computes
# them, in an environment of their own: 3 GB on the disk.
test-layouts: install $(LAYOUTS)/.installed
	LAYOUTS_VENV=$(CURDIR)/$(LAYOUTS) $(BIN)/python -m pytest -m slow tests/checkpoints tests/engines/test_closed_steps.py tests/processes/test_native_writers.py
	LAYOUTS_VENV=$(CURDIR)/$(LAYOUTS) $(BIN)/python -m pytest tests/training/test_export.py

$(LAYOUTS)/.installed: tests/checkpoints/requirements-layouts.txt
	rm -rf $(LAYOUTS)
	$(call new_venv,$(LAYOUTS))
	$(LAYOUTS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# A real Ray: its nodes as processes of this machine, then as namespaces, which vanish, freeze and lose
# their network. Needs root. About nine minutes: two clusters run side by side (`tests/conftest.py`), as
# hosts wait most of their time. In CI nothing else runs beside them: they count what a machine that is
# busy elsewhere would add to.
cluster: install
	$(BIN)/python -m pytest -m cluster -n 2 --dist loadgroup tests/fleet tests/cluster

# The Jobs of `supervise manifest` against the schemas of Kubernetes: no field that it does not know.
test-manifests: install $(MANIFESTS)/.installed
	KUBERNETES_VALIDATE=$(CURDIR)/$(MANIFESTS)/bin/kubernetes-validate $(BIN)/python -m pytest -m slow tests/deploy/test_manifest.py

$(MANIFESTS)/.installed:
	$(call new_venv,$(MANIFESTS))
	$(MANIFESTS)/bin/python -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0
	touch $@

# Twenty kills of each kind of training, and the same bits at the end: two to four minutes for each.
matrix: install
	XLA_FLAGS= $(BIN)/python -m pytest -m matrix tests/end_to_end

# The programs of examples/programs with their real libraries, each in an environment of its own and
# killed ten times: some minutes for each. ONLY=name runs one, SEED=K repeats the times of its kills.
test-integrations: install
	$(BIN)/python -m pytest -m integrations $(if $(ONLY),-k $(ONLY)) tests/integrations
	$(BIN)/python -m tests.integrations.table

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

# Whether the fast tests notice a change to the decision core: hours, not a part of CI.
mutants: install
	$(BIN)/python -m tests.mutation

# Side by side with what people use instead, each peer in an environment of its own; then the tables
# of the docs. Some hours, on a machine with nothing else to do. QUICK=1 only shows that it works.
BENCHMARKS := $(filter-out __init__ contest jax_trainer_driver losses many_hosts_rank orbax_loop peers report tables training trivial tunix_loop,$(basename $(notdir $(wildcard benchmarks/*.py))))
bench: install $(BENCHMARKS:%=bench-%)
	$(BIN)/python -m benchmarks.tables

bench-%: install
	$(BIN)/python -m benchmarks.$* $(if $(QUICK),--quick) --json $(if $(QUICK),runs/benchmarks,benchmarks/results)/$*.json

# The JSON Schema of trainer.yaml, which the package ships; a test holds it equal to the code.
schema: install
	$(BIN)/python -m supervisor.config.json_schema

# The site, strictly: a broken link, an unknown anchor or a page that is in no table of contents
# fails. Its tools have an environment of their own, so that tests and jobs do without them. Sphinx
# writes the pages with one process less than it is given.
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m sphinx -W --keep-going -n -q -j $$(($$(nproc) + 1)) -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Whether the links of the site to other sites still lead somewhere. It needs the network: not in CI.
linkcheck: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

$(DOCS_VENV)/.installed: docs/requirements.lock
	rm -rf $(DOCS_VENV)
	$(call new_venv,$(DOCS_VENV))
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	touch $@

# What the module $(1) prints, in the file $(2): it stays as it was if the module fails.
printed = $(BIN)/python -m $(1) > $(2).new && mv $(2).new $(2) || { rm -f $(2).new; exit 1; }

# The pages of the reference and the scripts of `supervise completion`, which the code writes; tests
# hold them equal to it.
pages: install
	$(call printed,supervisor.narrative.document,docs/reference/events.md)
	$(call printed,supervisor.history.journal_page,docs/reference/journal.md)
	$(call printed,supervisor.config.config_page,docs/reference/config.md)
	$(call printed,supervisor.cli.cli_page,docs/reference/cli.md)
	$(call printed,supervisor.cli.exit_code_page,docs/reference/exit-codes.md)
	$(call printed,supervisor.cli.rules_page,docs/reference/rules.md)
	$(call printed,supervisor.checkpoints.layouts_page,docs/reference/layouts.md)
	$(call printed,supervisor.web.metrics_page,docs/reference/metrics.md)
	$(BIN)/python -m supervisor.cli.completion_scripts
	$(BIN)/python -m supervisor.cli.cookbook_page docs/cookbook
	$(BIN)/python -m tests.integrations.table
	$(BIN)/python -m tests.simulation.table

# The picture of a session in the README; needs tmux.
picture: install
	$(BIN)/python docs/picture.py

# What a release consists of, in dist/: wheel, sdist, the wheel of supervise_worker, SBOM and digests.
# The only time in them is that of the commit, so the same commit gives the same bytes.
# `tests/packaging` holds that to account.
dist: $(RUN_STAMP)
	@test -z "$$(git status --porcelain)" || { echo "make dist: a release is made of a commit, and there are changes" >&2; exit 1; }
	rm -rf dist
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && $(BIN)/python -m hatchling build --directory dist && (cd deploy/worker && $(CURDIR)/$(BIN)/python -m hatchling build --target wheel --directory $(CURDIR)/dist) && $(BIN)/python -m deploy.sbom dist
	cd dist && sha256sum supervise_* > SHA256SUMS && cat SHA256SUMS

# Needs uv on the PATH. The locks hold names, versions, markers and hashes; no addresses. All have the
# versions of the first.
LOCK := uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11
AGREEING := $(LOCK) --constraint requirements-run.lock
lock:
	$(LOCK) --extra trainer --extra build pyproject.toml -o requirements-run.lock
	$(AGREEING) --extra trainer --extra dev pyproject.toml -o requirements.lock
	$(AGREEING) --extra trainer --extra gcs --extra s3 --extra build pyproject.toml -o deploy/requirements-cpu.lock
	$(AGREEING) --extra tpu --extra gcs --extra build pyproject.toml -o supervisor/provision/requirements-tpu.lock
	$(AGREEING) --extra cuda --extra gcs --extra s3 --extra build pyproject.toml -o deploy/requirements-cuda.lock
	$(LOCK) --group docs -o docs/requirements.lock

clean:
	rm -rf $(VENV) $(DOCS_VENV) $(LIBTPU) $(LAYOUTS) $(INTEGRATIONS) $(MANIFESTS) docs/_build dist .peers runs
