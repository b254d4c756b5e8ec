# What is run by hand now and then; CI runs tools/test. Every target assumes the virtual environment that tools/test makes.
PYTHON ?= .venv/bin/python
SEEDS ?= 1000
JOBS ?= 2
# The modules in place, for a checkout that is not installed.
export PYTHONPATH := $(CURDIR)/.typing:$(PYTHONPATH)

.PHONY: sim hunt snapshot jepsen

# make sim SEEDS=20000 [JOBS=4] [BASE=123]: that many seeds; the base seed is printed first.
sim:
	$(PYTHON) -m tests.sim --seeds $(SEEDS) --jobs $(JOBS) $(if $(BASE),--base $(BASE))

# make hunt MINUTES=30 [BASE=123] [OUT=build/hunt]: profiles mixed, failures written down and made small (docs/simulation.md).
hunt:
	$(PYTHON) -m tests.sim --hunt $(or $(MINUTES),10) --out $(or $(OUT),build/hunt) $(if $(BASE),--base $(BASE))

# make jepsen SECONDS=600 [SEED=4]: real daemons under faults for so long, histories of real programs judged (docs/jepsen.md).
jepsen:
	$(PYTHON) -m tests.jepsen --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

# Write the expected texts of the scenarios and the performance snapshot anew; the commit explains the difference.
snapshot:
	$(PYTHON) -m pytest -q tests/sim/test_scenarios.py tests/sim/test_snapshot.py --rewrite
