# Every command of the project. Needs python3 (3.11 or newer) and make, nothing else.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

PYTHON ?= python3
PY := .venv/bin/python
SAM := SAM_CLI_TELEMETRY=0 .venv-sam/bin/sam
# Compiled once and kept, whatever the shell says: most of what the tests' many processes do first.
unexport PYTHONDONTWRITEBYTECODE
# The longest first: workers take files in this order, not by their number of tests, and the short ones fill the end.
SUITES = $(wildcard tests/integration tests/e2e tests/simulation tests/property tests/unit tests/browser)

# pip only brings uv, which fills an environment in seconds. uv does not know pip's own settings (a mirror, say), so
# pip does the same work from the same lock where uv cannot. pip comes from the interpreter that makes the
# environment: installing another one would be half of the set-up's time.
has_pip = $(PYTHON) -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("pip") is None)'
pip = if $(has_pip); then run="$(PYTHON) -m pip --python $(1)/bin/python"; else run="$(1)/bin/python -m pip"; fi; \
	$$run install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r $(2)
venv = if $(has_pip); then $(PYTHON) -m venv --clear --without-pip $(1); else $(PYTHON) -m venv --clear $(1); fi
install = .venv/bin/uv pip install --quiet --python $(1)/bin/python --no-deps --require-hashes -r $(2) \
	|| { $(call pip,$(1),$(2)); }
compile = .venv/bin/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate --upgrade

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
		printf '  make %-17s %s\n' "$$name" "$$text"; done

.PHONY: up
up: .venv/.local ## Start the whole service here (ARGS="--port 8001 --parameter AuthMode=iam"); Ctrl-C stops it
	@exec $(PY) -m infra.local up $(ARGS)

.PHONY: test
test: .venv/.dev ## Run every test; starts what it needs by itself (ARGS="-k name" passes options on)
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(SUITES) $(ARGS)

.PHONY: check
check: .venv/.dev .venv-sam/.done .venv-checkov/.done ## Lint, types, import rules and templates
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/cfn-lint template.yaml infra/*.yaml
	$(SAM) validate --lint --region us-east-1
	.venv-checkov/bin/checkov --config-file .checkov.yaml

.PHONY: format
format: .venv/.dev ## Put the code into its form
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: setup
setup: .venv/.dev .venv-sam/.done .venv-checkov/.done ## Make all environments, for work without a network afterwards

.PHONY: build
build: .venv/.local .venv-sam/.done ## Build functions and layer with SAM
	@find functions layers -name __pycache__ -prune -exec rm -rf {} +
	PIP='"$(CURDIR)/.venv/bin/uv" pip' UV_PYTHON="$(CURDIR)/$(PY)" $(SAM) build

.PHONY: deploy-local
deploy-local: build ## Deploy with SAM to the emulator that `make up` started
	AWS_ENDPOINT_URL=$${AWS_ENDPOINT_URL:-http://127.0.0.1:4566} AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
		$(SAM) deploy --config-env local
	@$(PY) -m infra.local.deploy $${AWS_ENDPOINT_URL:-http://127.0.0.1:4566} tallymark

.PHONY: deploy
deploy: build ## Deploy to AWS with the credentials of the shell (ARGS="--parameter-overrides ...")
	$(SAM) deploy $(ARGS)

.PHONY: service-key
service-key: .venv/.local ## Print the service key of a deployed stack (STACK=tallymark)
	@$(PY) -m infra.service_key --stack $${STACK:-tallymark}

.PHONY: bench
bench: .venv/.dev ## Measure the pipeline under load; fails when a count is wrong
	@$(PY) -m tests.bench.load $(ARGS)

.PHONY: bench-cpu
bench-cpu: .venv/.dev ## Measure the CPU of our code per call, with the SDK's transport stubbed
	@$(PY) -m tests.bench.handler_cpu

.PHONY: bench-quotas
bench-quotas: .venv/.dev ## Measure grants out of one row and out of pools
	@$(PY) -m tests.bench.quota_pools

.PHONY: bench-top
bench-top: .venv/.dev ## Measure how many of the true top 100 the top lists know; fails below 0.98
	@$(PY) -m tests.bench.top_recall $(ARGS)

.PHONY: bench-storm
bench-storm: .venv/.dev ## Send 200,000 views of one item; fails when the total is wrong, late or dear
	@$(PY) -m tests.bench.view_storm $(ARGS)

.PHONY: bench-strategies
bench-strategies: .venv/.dev ## Compare the usual ways to count a hot item (ARGS=--write puts the figures into docs/)
	@$(PY) -m tests.bench.strategies $(ARGS)

# Proof of exactness: docs/exactness.md has what these showed.

.PHONY: simulate
simulate: .venv/.dev ## Run the real handlers through 2,000 worlds of faults (ARGS="--world 7 -v" repeats one)
	@$(PY) -m tests.simulation $(ARGS)

.PHONY: faults
faults: .venv/.dev ## Run them over the emulator's engine, with faults injected into the SDK
	@$(PY) -m tests.faults $(ARGS)

.PHONY: chaos
chaos: .venv/.dev ## Load a whole stack for ten minutes while its parts are killed
	@$(PY) -m tests.chaos $(ARGS)

.PHONY: quota-race
quota-race: .venv/.dev ## Let 200 callers at once take a limit of 50, 200 times, while calls fail and functions die
	@$(PY) -m tests.bench.quota_race $(ARGS)

.PHONY: drift
drift: .venv/.dev ## Make 1,000 of 10,000 counts wrong beside live traffic; the reconciler has to find and correct them
	@$(PY) -m tests.bench.drift $(ARGS)

.PHONY: fuzz
fuzz: .venv/.dev ## Make 20,000 random requests; every answer is what the document and a dictionary say
	@TALLYMARK_FUZZ=thorough $(PY) -m pytest -n 2 tests/e2e/test_fuzz.py tests/e2e/test_model.py $(ARGS)

.PHONY: mutants
mutants: .venv/.dev ## Take away one defence at a time; fails where no test notices (ARGS="row-condition")
	@$(PY) -m tests.mutants $(ARGS)

.PHONY: lock
lock: .venv/.dev ## Lock the newest allowed versions again, with their hashes
	$(compile) pyproject.toml --extra cli --extra local --extra build --extra dev \
		--no-emit-package pip --no-emit-package setuptools --no-emit-package wheel -o requirements/dev.txt
	$(compile) pyproject.toml --extra cli --extra local --extra build -c requirements/dev.txt \
		--no-emit-package pip --no-emit-package setuptools --no-emit-package wheel -o requirements/local.txt
	$(compile) pyproject.toml --no-deps --no-emit-package boto3 -c requirements/dev.txt -o requirements/layer.txt
	$(compile) --group uv -c requirements/dev.txt -o requirements/uv.txt
	$(compile) --group sam --no-emit-package pip -o requirements/sam.txt
	$(compile) --group checkov --no-emit-package pip --no-emit-package setuptools -o requirements/checkov.txt

.PHONY: clean
clean: ## Remove everything that these commands made
	rm -rf .venv .venv-sam .venv-checkov .aws-sam .tallymark .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find functions infra layers tests -name __pycache__ -prune -exec rm -rf {} +

.venv/.made: requirements/uv.txt
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(call venv,.venv)
	@$(call pip,.venv,requirements/uv.txt)
	@touch $@

.venv/.local: .venv/.made requirements/local.txt pyproject.toml
	@echo "Installing what the service needs"
	@$(call install,.venv,requirements/local.txt)
	@.venv/bin/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --offline -e .
	@touch $@

.venv/.dev: .venv/.local requirements/dev.txt
	@echo "Installing what the tests and checks need"
	@$(call install,.venv,requirements/dev.txt)
	@touch $@

.venv-sam/.done: .venv/.made requirements/sam.txt
	@echo "Installing the SAM command line into .venv-sam"
	@$(call venv,.venv-sam)
	@$(call install,.venv-sam,requirements/sam.txt)
	@touch $@

.venv-checkov/.done: .venv/.made requirements/checkov.txt
	@echo "Installing checkov into .venv-checkov"
	@$(call venv,.venv-checkov)
	@$(call install,.venv-checkov,requirements/checkov.txt)
	@touch $@
