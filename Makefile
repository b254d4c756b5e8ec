# Short names for what is run by hand. Every target but `test` assumes the virtual environment that tools/test makes.
PYTHON ?= .venv/bin/python
SEEDS ?= 1000
JOBS ?= 2
# The modules in place, for a checkout that is not installed.
export PYTHONPATH := $(CURDIR)/.typing:$(PYTHONPATH)

.PHONY: check test generate sim hunt snapshot jepsen

# make check: style, types, the shape of the code, generated files. Half a minute; before every commit.
check:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m zenjun.tools.generate --check
	$(PYTHON) -m pytest -q tests/test_tidy.py

# make test: everything that CI runs (docs/HACKING.md says how long each stage takes).
test:
	tools/test

# make generate: the C header of the wire table, the tables and diagrams in docs/.
generate:
	$(PYTHON) -m zenjun.tools.generate

# make sim SEEDS=20000 [JOBS=4] [BASE=123] [BUS=1]: that many seeds; the base seed is printed first. Engine and simulator are
# compiled first if they have changed (tests/sim/compiled.py).
sim:
	$(PYTHON) -m tests.sim.compiled $(if $(BUS),--bus) --seeds $(SEEDS) --jobs $(JOBS) $(if $(BASE),--base $(BASE))

# make hunt MINUTES=30 [JOBS=4] [BASE=123] [BUS=1] [OUT=build/hunt]: profiles mixed, failures written down and made small (docs/simulation.md).
hunt:
	$(PYTHON) -m tests.sim.compiled $(if $(BUS),--bus) --hunt $(or $(MINUTES),10) --jobs $(JOBS) \
		--out $(or $(OUT),build/hunt) $(if $(BASE),--base $(BASE))

# make jepsen SECONDS=600 [SEED=4]: real daemons under faults for so long, histories of real programs judged (docs/jepsen.md).
jepsen:
	$(PYTHON) -m tests.jepsen --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

# Write the expected texts of the scenarios and the performance snapshot anew; the commit explains the difference.
snapshot:
	$(PYTHON) -m pytest -q tests/sim/test_scenarios.py tests/sim/test_snapshot.py --rewrite
