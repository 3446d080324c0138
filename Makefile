# All targets. `make help` lists them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PY := .venv/bin/python
PY14 := .venv14/bin/python
HOUSE := pyproject.toml constraints/test.txt scripts/venv.sh
# pytest workers: one more than cores, because most tests wait
WORKERS := $(shell echo $$((1 + $$(nproc))))
ARGS ?=
HYDRA = $$(grep -rl --include='test_*.py' 'mark\.hydra' tests)
LONG = $$(grep -rlE --include='test_*.py' 'hypothesis|mark\.long' tests)
# tests start thousands of processes, which must not recompile our modules
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help venv venv14 test test-unit test-cluster test-long test-hydra14 demo lint format docs site bench clean chaos cluster-up cluster-down

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22
	@echo; echo '  PYTHON=/path/to/python3 chooses the interpreter; ARGS="-k name -x" goes to pytest.'

.venv/.ready: $(HOUSE) constraints/hydra13.txt
	@sh scripts/venv.sh .venv constraints/hydra13.txt

.venv14/.ready: .venv/.ready constraints/hydra14.txt
	@sh scripts/venv.sh .venv14 .venv constraints/hydra14.txt

venv: .venv/.ready ## create .venv with this project (editable) and its test tools

venv14: .venv14/.ready ## create .venv14: the same on Hydra 1.4

test: .venv/.ready ## all that this machine can run; says at its end what it left out and why
	$(if $(strip $(ARGS)),$(PY) -m pytest $(ARGS),@sh scripts/test.sh $(PY))

test-unit: .venv/.ready ## without the real SLURM
	$(PY) -m pytest -m "not cluster" $(ARGS)

test-cluster: .venv/.ready ## only what needs the real SLURM (root on Debian: brought up and taken down)
	$(PY) -m pytest -m cluster $(ARGS)

test-long: .venv/.ready ## the tests on generated input, with many more examples; the pinned versions on each Python
	$(PY) -m pytest --hypothesis-profile=long $(LONG) -q -n $(WORKERS) $(ARGS)

test-hydra14: .venv14/.ready ## what Hydra can change (marked hydra), on Hydra 1.4 in its own .venv14
	$(PY14) -m pytest -m "hydra and not cluster" $(HYDRA) -q -n $(WORKERS) --dist worksteal $(ARGS)

demo: .venv/.ready ## a sweep of distributed training on this machine: 2 world sizes × 2 learning rates
	$(PY) train_examples/digits_ddp/train.py -m scheduler=local resources.procs_per_node=1,2 optim.lr=0.05,0.1 \
	  'hydra.sweep.dir=outputs/demo/$${now:%Y-%m-%d_%H-%M-%S}'

lint: .venv/.ready ## ruff, mypy --strict, syntax of the shell scripts
	@bad=0; run() { echo "$$*"; "$$@" || bad=1; }; \
	run $(PY) -m ruff check .; \
	run $(PY) -m ruff format --check .; \
	run $(PY) -m mypy; \
	for f in scripts/*.sh; do sh -n "$$f" || bad=1; done; \
	for f in .ci/run tests/cluster/slurm/*; do bash -n "$$f" || bad=1; done; \
	exit $$bad

format: .venv/.ready ## ruff's format and safe fixes, in place
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: site ## build the site, and run the commands of README and docs
	$(PY) -m pytest tests/unit/test_docs.py $(ARGS)

site: .venv/.ready ## build docs/ as a site, strictly and without a network (Python 3.11 or newer)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs -q build

bench: .venv/.ready ## side by side with the peers (each benchmark makes the environments that it needs)
	@bad=0; for f in benchmarks/[!_]*.py; do echo "$$f"; $(PY) "$$f" $(ARGS) || bad=1; done; exit $$bad

chaos: .venv/.ready ## random faults on clusters of their own (root on Debian): ROUNDS, SEED of the first, LANES
	$(PY) -m tests.chaos --rounds $(or $(ROUNDS),10) $(if $(SEED),--seed $(SEED)) --lanes $(or $(LANES),$(WORKERS)) $(ARGS)

cluster-up: ## start the 4-node SLURM of the tests and leave it running (root on Debian)
	bash tests/cluster/slurm/up

cluster-down: ## stop it
	bash tests/cluster/slurm/down

clean: ## remove what make, builds and tests left here; your own outputs/ and multirun/ stay
	rm -rf .venv .venv14 build dist site outputs/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
