# What is run by hand now and then; CI runs tools/test. Every target assumes the virtual environment that tools/test makes.
PYTHON ?= .venv/bin/python
SEEDS ?= 1000
JOBS ?= 2
# The modules in place, for a checkout that is not installed.
export PYTHONPATH := $(CURDIR)/.typing:$(PYTHONPATH)

.PHONY: sim snapshot

# make sim SEEDS=20000 [JOBS=4] [BASE=123]: that many seeds; the base seed is printed first.
sim:
	$(PYTHON) -m tests.sim --seeds $(SEEDS) --jobs $(JOBS) $(if $(BASE),--base $(BASE))

# Write the expected texts of the scenarios and the performance snapshot anew; the commit explains the difference.
snapshot:
	$(PYTHON) -m pytest -q tests/sim/test_scenarios.py tests/sim/test_snapshot.py --rewrite
