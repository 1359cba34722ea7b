# Everything a person or CI does here. `make` alone lists it.
# A stamp file holds the state of the environment, so that a second run calls no pip at all.

.DEFAULT_GOAL := help
SHELL := /bin/bash
# What is installed here is compiled when first imported: a shell that forbids to keep that compiles it at every start.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
# The locks are made on 3.11, and hold on those that Airflow allows above it. Looked for once, and only where it is needed.
PYTHON ?= $(eval PYTHON := $$(shell for each in python3.11 python3.12 python3.13 python3; do $$$$each -c "" 2>/dev/null && echo $$$$each && break; done))$(PYTHON)
PIP := $(BIN)/python -m pip --disable-pip-version-check
FILL = $(BIN)/python scripts/environment.py $(@D)
# To install through a link would have another checkout run this one's code.
OWN = test ! -L $(@D) || { echo "$(@D) is a link to an environment of another checkout, and stays as it is: \
  make -o $@ uses it, and without the link make installs one here" >&2; exit 1; }
# Where pip finds torch, when not where it finds the rest. PyTorch's own index of CPU builds has the smallest.
TORCH_INDEX ?=
READY := $(VENV)/.ready
CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.ready
LAUNCHERS := .venv-launchers
LAUNCHERS_READY := $(LAUNCHERS)/.ready
PROGRAMS := .venv-programs
PROGRAMS_READY := $(PROGRAMS)/.ready
MUTANTS := .venv-mutants
MUTANTS_READY := $(MUTANTS)/.ready
# What a node may have at the oldest; Debian has it as PyPy.
PYTHON39 ?= $(shell python3.9 -c 'print("python3.9")' 2>/dev/null || echo pypy3)
OLDER := .venv-python39
TYPES39 := .venv-types39
MYPY39 = $(TYPES39)/bin/mypy --python-version 3.9 --python-executable $(BIN)/python --follow-imports skip --no-warn-return-any \
  --no-warn-unused-ignores --cache-dir .mypy_cache/3.9
SHORT39 := $(patsubst %,agent/%.py,test_agent test_guard test_imports join/test_ads_contract join/test_topology \
  monitor/test_process_logs monitor/test_usage prepare/test_code prepare/test_command prepare/test_inputs \
  save/test_formats save/test_outputs train/test_launch train/test_output train/test_shared_log) \
  launchers $(patsubst %,storage/test_%.py,local_store oci_upload stores)
OLDER_AIRFLOWS := $(patsubst requirements/airflow-%.txt,%,$(sort $(wildcard requirements/airflow-*.txt)))
OLDER_READY := $(OLDER_AIRFLOWS:%=.venv-airflow-%/.ready)
OWN_AIRFLOW := $(shell sed -nE 's/^apache-airflow==([0-9]+\.[0-9]+).*/\1/p' requirements/constraints.txt)
AIRFLOW ?= $(OLDER_AIRFLOWS)
AIRFLOW_READY = $(filter $(AIRFLOW:%=.venv-airflow-%/.ready),$(OLDER_READY))
TESTS ?=
MODULES ?=
# Most tests wait for programs, so that three files at a time keep two cores busy, of those that start more than they
# compute, four; tests/longest.py says which files come first.
FILES := --dist loadfile --no-loadscope-reorder
PARALLEL ?= -n 3 $(FILES)
MORE_PARALLEL ?= -n 4 $(FILES)
# Tests of tests/nights.toml are left to `.ci/nightly`, which has NIGHT=1; who names tests gets them.
NIGHT ?=
LEAVE_TO_NIGHT := $(if $(NIGHT)$(TESTS),,1)
GANGS := $(addprefix tests/,agent gangs operators sensors triggers walks)
HOMES := $(addprefix tests/,emulator/kubernetes emulator/runai backends/kubernetes backends/pytorchjob backends/trainjob backends/runai backends/test_kubernetes_contract.py homes)
ROWS ?=
CHAOS ?=
NODES ?=
# In CI, where every run has the same TEST_SEED, the few tests that fail are run again alone; what then passes is named.
PYTEST := $(BIN)/python -m scripts.run_tests
NEEDS := $(BIN)/python scripts/system_packages.py
LOGINS := openssh-client openssh-server openmpi-bin
COMPILER = g++ lib$(shell $(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-dev
CONTAINER_TOOLS := podman runc netavark aardvark-dns iptables mmdebstrap podman-compose iproute2
KUBECTL = $(if $(shell command -v kubectl),,kubernetes-client)
BROWSER := chromium iproute2 procps mount
# The short campaign of `make test-chaos`: its seed is always the same, so that a failure comes from the change.
SHORT_CHAOS := CHAOS_SEED=$(or $(CHAOS_SEED),1272) CHAOS_KILLS=12 CHAOS_SUBMISSIONS=2 CHAOS_DRILLS=4
SHORT_CHAOS_TESTS := "tests/chaos/test_chaos.py::test_whatever_is_killed_each_task_trains_once_and_leaves_nothing_behind[postgresql]" \
  tests/chaos/test_drills.py::test_whatever_happens_to_processes_of_this_machine_the_weights_are_the_same tests/chaos/test_submit.py
DEVICE ?=
BASE ?=
NAME ?=

test test-gangs test-homes test-airflow test-clients test-launchers test-containers test-python39: export LEAVE_TO_NIGHT := $(LEAVE_TO_NIGHT)

.PHONY: help demo up down test test-gangs test-homes test-k8s test-clients test-airflow test-launchers test-programs test-gpu test-matrix test-containers test-chaos drills test-python39 packages compiled environments fuzz-emulator mutants simulate simulate-mutants image check format bench lock clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: $(READY) ## train a GPT on two nodes from an Airflow DAG, on this machine, and show the result
	@$(BIN)/python -m scripts.demo run

up: $(READY) ## start the emulator and Airflow, trigger the demo's DAG, leave all running for the browser
	@$(BIN)/python -m scripts.demo up

down: ## end what `make up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m scripts.demo down; else echo "nothing is installed, so nothing runs"; fi

test: $(READY) ## run the test suite; TESTS=path runs a part, NIGHT=1 also what tests/nights.toml leaves to the night
	@$(if $(TESTS),,$(NEEDS) $(BROWSER) $(LOGINS))
	@$(PYTEST) $(MORE_PARALLEL) --durations 10 -m "not launchers" \
	  $(or $(TESTS),tests $(addprefix --ignore tests/,clients containers chaos e2e examples gpu older programs) $(addprefix --ignore ,$(GANGS) $(HOMES)))

test-gangs: $(READY) ## the life of a gang, from its task to its nodes, with real processes: started, killed, replaced, restored
	@$(NEEDS) $(BROWSER) $(LOGINS)
	@$(PYTEST) $(MORE_PARALLEL) --durations 10 -m "not launchers" $(GANGS)

test-homes: $(READY) ## Kubernetes and Run:ai: their stand-ins, and gangs that train there
	@$(PYTEST) $(MORE_PARALLEL) --durations 10 $(HOMES)

# K8S_BACKEND and K8S_CONNECTION are JSON: what the section `backend` and the connection need besides, so that nodes and
# those who wait reach K8S_WORK_DIR.
test-k8s: $(READY) ## Kubernetes alone, on the cluster of KUBECONFIG: K8S_WORK_DIR, K8S_NAMESPACE, K8S_IMAGE; nothing is left
	@[ -n "$(KUBECONFIG)" ] && [ -n "$(K8S_WORK_DIR)" ] || { \
	  echo "make test-k8s needs KUBECONFIG and K8S_WORK_DIR, a place that pods and this machine reach" >&2; exit 2; }
	@OCIDIST_TEST_K8S=1 $(PYTEST) --durations 10 tests/homes

test-airflow: $(READY) $(LAUNCHERS_READY) ## deferred, killed, cleared, restarted: in Airflow's own processes; and every example DAG
	@$(NEEDS) $(COMPILER)
	@$(PYTEST) -n 2 $(FILES) --durations 10 $(or $(TESTS),tests/e2e tests/examples)

test-clients: $(READY) $(CLIENTS_READY) ## the emulator under the real `oci` command line, Oracle ADS, ocifs and kubectl
	@$(NEEDS) $(KUBECTL)
	@$(PYTEST) $(PARALLEL) --durations 10 $(or $(TESTS),tests/clients)

test-launchers: $(READY) $(LAUNCHERS_READY) ## train with real accelerate, DeepSpeed and FSDP2, and let each fail
	@$(NEEDS) $(COMPILER) $(LOGINS)
	@$(PYTEST) $(PARALLEL) --durations 10 -m launchers $(or $(TESTS),tests/launchers tests/train)

# Each test takes minutes: they are dealt out one by one.
test-programs: $(READY) $(PROGRAMS_READY) ## train with Lightning, transformers, Accelerate and torchtitan: killed, resumed, compared
	@$(PYTEST) -n 2 --dist load --durations 10 $(or $(TESTS),tests/programs)

# One after another: what one does to the GPU is what another must not see.
test-gpu: $(READY) $(PROGRAMS_READY) ## on this machine's GPU: its use and health, CUDA's and NCCL's errors, hangs, saves, restarts
	@$(PYTEST) -n 0 --durations 10 $(or $(TESTS),tests/gpu)

# The minor that .venv holds is tested by `make test` and `make test-airflow`: here only when it is named.
test-matrix: $(READY) $(AIRFLOW_READY) ## what meets Airflow, on the newest patch of each older minor; AIRFLOW=3.1 names one
	@unknown="$(filter-out $(OLDER_AIRFLOWS) $(OWN_AIRFLOW),$(AIRFLOW))"; [ -z "$$unknown" ] || { \
	  echo "no Airflow $$unknown here: there are $(OLDER_AIRFLOWS) $(OWN_AIRFLOW)" >&2; exit 2; }
	@failed=; for minor in $(AIRFLOW); do \
	  environment=.venv-airflow-$$minor; [ $$minor != $(OWN_AIRFLOW) ] || environment=$(VENV); \
	  echo "Airflow $$minor, in $$environment"; \
	  $$environment/bin/python -m pytest -n 2 --dist loadfile --durations 10 -m "airflow and not launchers" \
	    $(or $(TESTS),tests $(addprefix --ignore tests/,clients containers chaos examples older programs)) || failed="$$failed $$minor"; \
	done; \
	[ -z "$$failed" ] || { echo "failed on Airflow$$failed" >&2; exit 1; }

test-containers: $(READY) ## the image, a gang in containers, three hosts that lose one another; as root
	@$(NEEDS) $(CONTAINER_TOOLS)
	@$(PYTEST) $(PARALLEL) --durations 10 $(or $(TESTS),tests/containers)

# The short form is CI's: a dozen kills on PostgreSQL, submissions that are killed, and four drills. Most of each is a wait.
test-chaos: $(READY) ## kill -9 of Airflow's processes, on SQLite and PostgreSQL; CHAOS=short, or CHAOS_SEED=7 CHAOS_KILLS=70 CHAOS_DRILLS=200
	@$(NEEDS) postgresql
	@$(if $(filter short,$(CHAOS)),$(SHORT_CHAOS)) $(PYTEST) --durations 10 \
	  $(if $(filter short,$(CHAOS)),$(SHORT_CHAOS_TESTS),tests/chaos)

# Four trainings at a time keep two cores busy: most of one is a wait, for the start of its processes or for a time-out.
drills: $(READY) ## 200 random faults at trainings of torchrun on this machine; DRILLS=20 CHAOS_SEED=7 JOB=drill_saves; the tables: build/drills*.md
	@mkdir -p build; folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m airflow_provider_ocidist.cli drill dags_examples/jobs/$(or $(JOB),drill).yaml --set work_dir="$$folder" \
	  --campaign $(or $(DRILLS),200) --seed $(or $(CHAOS_SEED),1272) --parallel 4 --report build/drills$(if $(JOB),-$(JOB)).md 2>"$$folder/log" || \
	{ code=$$?; tail -n 40 "$$folder/log" >&2; exit $$code; }

# The short form is CI's, under PyPy: whole nodes, and what meets processes, sockets, disks and OCI's clients, where
# interpreters differ. What only computes is left to the types, and to the whole, which takes CPython 3.9 nine minutes.
test-python39: $(READY) $(OLDER)/.ready $(TYPES39)/.ready ## what travels to nodes, under a Python 3.9: types, tests, gangs; PYTHON39=python3.9, NODES=short
	@$(MYPY39) $$($(BIN)/python -c 'from airflow_provider_ocidist.backends import bundle as b; print(*[b.PACKAGE / part for part in b.AGENT_PARTS])')
	@$(MYPY39) --ignore-missing-imports --allow-subclassing-any --allow-untyped-decorators --disable-error-code union-attr \
	  --scripts-are-modules dags_examples/train/*.py airflow_provider_ocidist/cli/templates/train/*.py
	@$(PYTEST) --durations 3 tests/older
	@OCIDIST_EMULATOR_PYTHON=$(CURDIR)/$(BIN)/python $(OLDER)/bin/python -m scripts.run_tests -c tests/python39.ini --rootdir . -q $(PARALLEL) \
	  --durations 10 -m "not launchers" \
	  $(or $(TESTS),$(addprefix tests/,$(if $(filter short,$(NODES)),$(SHORT39),agent launchers storage) \
	  test_backports.py model/test_masking.py oci_client/test_rest.py oci_client/test_clients.py))

fuzz-emulator: $(READY) ## send each API of the emulator what nobody should send: FUZZ_CASES=100000 SEED=7 DOOR=kubernetes; FIRST=123 begins later
	@$(BIN)/python -m tests.emulator.fuzz --door $(or $(DOOR),all) --cases $(or $(FUZZ_CASES),100000) $(if $(SEED),--seed $(SEED)) --first $(or $(FIRST),0)

mutants: $(READY) $(MUTANTS_READY) ## put faults into the code that decides, one at a time; MODULES="decisions journal" names some, SAMPLE=40 tries so many of each
	@$(BIN)/python -m scripts.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(MODULES)

simulate: $(READY) ## thousands of trainings in which everything goes wrong, each from a seed: SEEDS=10000 SEED=7
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --seed $(or $(SEED),1) $(if $(PROCESSES),--processes $(PROCESSES))

simulate-mutants: $(READY) ## put each known defect back, and see the simulation find it; ONLY="is newest" names some
	@$(BIN)/python -m tests.simulation --mutants --seeds $(or $(SEEDS),2000) --seed $(or $(SEED),1) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(ONLY),--only "$(ONLY)")

image: ## build a node's image with podman, buildah or docker; DEVICE=gpu, BASE=packages, NAME=... (docs/containers.md)
	@$(PYTHON) -m scripts.image $(if $(DEVICE),--device $(DEVICE)) $(if $(BASE),--base $(BASE)) $(if $(NAME),--name $(NAME))

check: $(READY) ## formatting, lint, types, import layers; whether each mutant of the simulation finds its lines
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.simulation.mutants

format: $(READY) ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) $(CLIENTS_READY) ## measure ours beside its peers; ROWS=P0,P7 runs some
	@$(BIN)/python -m benchmarks.run $(if $(ROWS),--rows $(ROWS))

lock: $(BIN)/python ## resolve all versions anew into requirements/
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "the locks are made on Python 3.11" >&2; exit 1; }
	@$(PIP) install -q -r requirements/pip.txt setuptools numpy
	@$(PIP) install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	DS_BUILD_OPS=0 $(BIN)/python scripts/lock.py

clean: down ## remove what make made: environments, the demo's folder, caches
	rm -rf $(VENV) .venv-* .demo build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python without ensurepip (Debian without python3-venv) still works where it has pip of its own.
%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "Python 3.11, 3.12 or 3.13 is needed$(PYTHON:%=, and % is none of them): make PYTHON=/path/to/one" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $*; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -m venv --without-pip $* && $(PYTHON) -m pip --python $@ install -qq pip; \
	else echo "this Python cannot make environments: apt-get install python3-venv" >&2; exit 1; fi

# Of all that CI runs, so that it is installed once, beside other things.
packages: $(READY) ## install the Debian packages that tests need; as root
	@$(NEEDS) $(BROWSER) $(LOGINS) $(COMPILER) $(KUBECTL) $(CONTAINER_TOOLS) postgresql $(if $(filter pypy3,$(PYTHON39)),pypy3 pypy3-venv)

# Four processes of tests would each compile the same modules at their first import, all at once.
compiled: $(READY) ## compile the modules of others that each test process imports
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && AIRFLOW_HOME="$$home" $(BIN)/python -c 'import airflow.api_fastapi.app, \
	  airflow.jobs.triggerer_job_runner, airflow.models.dagbag, airflow.sdk.execution_time.task_runner, oci.data_science, oci.logging, \
	  oci.object_storage, torch.distributed.checkpoint' >/dev/null

environments: $(CLIENTS_READY) $(LAUNCHERS_READY) $(OLDER)/.ready $(TYPES39)/.ready ## install the further environments that CI's tests need

$(READY): pyproject.toml requirements/pip.txt requirements/constraints.txt requirements/torch.txt | $(BIN)/python
	@$(OWN)
	@echo "installing into $(VENV): 1.5 GB, a minute or two; with PyTorch for CUDA, as PyPI has it, 5.2 GB, four minutes"
	@echo "(TORCH_INDEX=URL names another index for PyTorch, such as its own of CPU builds); later runs skip this"
	@$(PIP) install -q -r requirements/pip.txt
	@$(FILL) requirements/constraints.txt --torch $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) --ours
	@touch $@

# Real clients of OCI whose versions clash with Airflow's: the `oci` command line and Oracle ADS.
$(CLIENTS_READY): requirements/clients.txt requirements/torch.txt | $(READY) $(CLIENTS)/bin/python
	@$(OWN)
	@echo "installing into $(@D): half a minute; later runs skip this"
	@$(FILL) requirements/clients.txt --torch-from $(VENV)
	@touch $@

# What a node needs to train with each launcher, and the examples' data; its versions are the user's business, not Airflow's.
$(LAUNCHERS_READY): requirements/launchers.txt requirements/torch.txt | $(READY) $(LAUNCHERS)/bin/python
	@$(OWN)
	@echo "installing into $(@D): half a minute; later runs skip this"
	@$(FILL) requirements/launchers.txt --torch-from $(VENV)
	@touch $@

# Programs that nobody here wrote, as a node that runs them has them.
$(PROGRAMS_READY): requirements/programs.txt requirements/torch.txt | $(READY) $(PROGRAMS)/bin/python
	@$(OWN)
	@echo "installing into $(@D): a minute; later runs skip this"
	@$(FILL) requirements/programs.txt --torch-from $(VENV)
	@touch $@

$(OLDER)/.ready: requirements/python39.txt | $(READY)
	@$(OWN)
	@$(PYTHON39) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 9))' 2>/dev/null || $(NEEDS) pypy3 pypy3-venv
	@echo "installing into $(@D), with $$($(PYTHON39) --version | head -1): a minute; later runs skip this"
	@$(PYTHON39) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install -q --only-binary :all: -r $<
	@echo $(CURDIR) > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/ocidist.pth
	@touch $@

$(TYPES39)/.ready: requirements/python39-types.txt | $(READY) $(TYPES39)/bin/python
	@$(OWN)
	@$(FILL) requirements/python39-types.txt
	@touch $@

# What makes the mutants is no need of a test: it is kept apart from what tests run with.
$(MUTANTS_READY): requirements/mutants.txt | $(READY) $(MUTANTS)/bin/python
	@$(OWN)
	@$(FILL) requirements/mutants.txt
	@touch $@

# An older Airflow, and beside it what the tests need.
$(OLDER_READY): .venv-airflow-%/.ready: pyproject.toml requirements/airflow-%.txt requirements/torch.txt \
    | $(READY) .venv-airflow-%/bin/python
	@$(OWN)
	@echo "installing into $(@D): a minute; later runs skip this"
	@$(FILL) requirements/airflow-$*.txt --torch-from $(VENV) --ours
	@touch $@
