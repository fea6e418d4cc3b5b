# What a person or a machine does with a checkout. Needs git, make and Python >= 3.11. Everything else is installed
# into .venv by pip. Claude Code and the model go into the cache of the user, where `pilothouse` looks for them, too
# (PILOTHOUSE_CACHE names another place).
.POSIX:

VENV = .venv
# `make test VENV=.venv-3.12 PYTHONS=python3.12` tests with another Python.
PYTHONS = python3.14 python3.13 python3.12 python3.11 python3
BIN = $(VENV)/bin
PIP = $(BIN)/python tests/run_pip.py
# The tests have a HOME of their own, so they are told where the cache is.
CACHE = from pilothouse.provision.artifacts import cache_root; print(cache_root())
WITH_CACHE = PILOTHOUSE_CACHE="$$($(BIN)/python -c '$(CACHE)')"
# One worker more than there are cores: a third of the time, a test waits. More than four and the children of the tests,
# of 300 MB each, want more memory than there may be. WORKERS='-n 4 --dist worksteal' is a harder test on two cores:
# everything takes its turn at another moment.
WORKERS = -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 4 --dist worksteal
SKIP = $(BIN)/python -m tests.changes skip
FETCH = @$(BIN)/python -m pilothouse.provision cli model
# Small images of Debian lack a library that the local model needs. Installed as root.
GET_LIBGOMP = @$(BIN)/python -c 'import xllamacpp' >/dev/null 2>&1 || { \
	  echo "installing libgomp1"; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1; } >/dev/null 2>&1 || \
	    echo "make: could not install libgomp1; the local model may not load"; \
	}
PYTEST_FLAGS =
# `make test PACKAGE=fleet` runs the tests of pilothouse-fleet, `make test PACKAGE=pilothouse` those of the core.
PACKAGE =
TESTS_OF_PACKAGE = $(PACKAGE:%=packages/*%/tests)
# The extras that the tests need.
TESTED = pilothouse[images,langchain,local,mcp,objects,postgres,pydantic-ai,redis,schema,server]
VERSION = latest

help:
	@echo "make demo    show what it does, with the real CLI and a small local model"
	@echo "make test    the tests of every requirement, on all cores; PACKAGE=fleet for one package (pilothouse: the core),"
	@echo "             PYTEST_FLAGS='...' for some, '-n 0' for one process"
	@echo "make quick   format, lint, types and tests of what differs from HEAD"
	@echo "make test-matrix  all that 'make test' leaves out: test-combinations, -mutations, -elsewhere and -browser"
	@echo "make test-combinations  whole matrices of faults and inputs, both event loops, long simulations, a Ray cluster"
	@echo "make test-mutations  changes of one line of the source, which the tests have to notice"
	@echo "make test-elsewhere  children over a real ssh server and in real containers; installs both with apt"
	@echo "make test-browser  the console in a real Chromium; installs it with apt"
	@echo "make check   format, lint, import contracts, types, and a site without dead links; skips what has not changed"
	@echo "make docs    the site, into build/site/"
	@echo "make dist    the packages, into dist/, tried in a clean environment"
	@echo "make lock    newer versions of the development tools and libraries, into constraints.txt"
	@echo "make soak    full load, and ten minutes of mixed work; PILOTHOUSE_SOAK_SECONDS=... for another time"
	@echo "make fuzz    odd input, guided by coverage, for a minute; FUZZ_SECONDS=... for another time"
	@echo "make bench   the benchmarks, about fifteen minutes; make bench-short: about two, and writes no file"
	@echo "make bump-cli VERSION=...  pin another version of the CLI, and print what is new; latest: the newest one"
	@echo "make canary  the tests of the real CLI on the oldest tested and the newest version, VERSIONS='...' for others;"
	@echo "             and those of endpoints, front ends and tracers with the newest releases of their clients"
	@echo "make clean   remove what make made here; \`pilothouse install-cli --uninstall\` empties the cache"

demo: $(VENV)/demo.stamp
	@$(BIN)/pilothouse demo
	@if [ -e $(VENV)/began ]; then \
	  echo "The first time takes longer: $$(($$(date +%s) - $$(cat $(VENV)/began))) s with the environment."; \
	  rm $(VENV)/began; \
	fi

test: $(VENV)/dev.stamp
	$(FETCH)
	$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 $(BIN)/python -m pytest $(WORKERS) $(TESTS_OF_PACKAGE) $(PYTEST_FLAGS)

test-matrix: test-combinations test-mutations test-elsewhere test-browser

test-combinations: $(VENV)/ray.stamp
	$(FETCH)
	$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 PILOTHOUSE_REQUIRE_RAY=1 $(BIN)/python -m pytest $(WORKERS) -m matrix $(PYTEST_FLAGS)

test-mutations: $(VENV)/dev.stamp chromium
	$(FETCH)
	$(WITH_CACHE) $(BIN)/python -m tests.mutate

# Installs the programs as root on Debian; what is not there is skipped. The tests need neither root nor systemd.
test-elsewhere: $(VENV)/dev.stamp
	$(FETCH)
	@for program in sshd podman runc; do \
	  PATH="$$PATH:/usr/sbin" command -v $$program >/dev/null || { \
	    echo "installing an ssh server and podman"; \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends openssh-server podman runc; } || \
	      echo "make: could not install them; the tests that need them are skipped"; break; }; \
	done
	$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 $(BIN)/python -m pytest -n 2 -m elsewhere tests/elsewhere $(PYTEST_FLAGS)

test-browser: $(VENV)/dev.stamp chromium
	$(FETCH)
	$(WITH_CACHE) $(BIN)/python -m pytest -n 2 -m browser packages/pilothouse-host/tests/console $(PYTEST_FLAGS)

# Installs it as root on Debian. Where that fails, the tests are skipped, but not where everything must run.
chromium:
	@command -v chromium >/dev/null || { \
	  echo "installing chromium"; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || \
	    echo "make: could not install chromium; the tests of the console are skipped"; \
	}

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	@$(SKIP) generated packages docs -- $(BIN)/python docs/reference.py --check
	@$(SKIP) types packages tests docs benchmarks conftest.py pyproject.toml -- $(BIN)/pyright
	@$(SKIP) site packages docs '*.md' pyproject.toml -- $(BIN)/python docs/build_site.py

quick: $(VENV)/dev.stamp
	$(FETCH)
	@$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 $(BIN)/python -m tests.changes quick

docs: $(VENV)/dev.stamp
	@$(BIN)/python docs/build_site.py

# Which versions CI and contributors install. uv finds one set for all Pythons and systems; pip reads it.
lock: $(VENV)/made.stamp
	@$(PIP) install --group lock
	@echo '$(TESTED) pilothouse[ray]' | tr ' ' '\n' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --group dev packages.txt - | \
	  grep -v '^-e' > constraints.txt

dist: $(VENV)/dev.stamp
	@$(PIP) install --group dist
	@$(BIN)/python -m pilothouse.provision cli
	$(WITH_CACHE) $(BIN)/python -m tests.release

soak: $(VENV)/dev.stamp
	$(WITH_CACHE) $(BIN)/python -m pytest -m "slow or soak" -rP -o faulthandler_timeout=0 $(PYTEST_FLAGS)

fuzz: $(VENV)/dev.stamp
	@$(PIP) install --group fuzz
	$(BIN)/python tests/fuzz/fuzz_program.py "$${FUZZ_SECONDS:-60}"

# ripgrep is what a search is compared with; without it there is no floor.
bench: $(VENV)/dev.stamp
	$(FETCH)
	@command -v rg >/dev/null || { \
	  echo "installing ripgrep"; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends ripgrep; } || \
	    echo "make: could not install ripgrep; a search is compared with nothing"; \
	}
	$(BIN)/python -m benchmarks

bench-short: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks --short

bump-cli: $(VENV)/dev.stamp
	$(WITH_CACHE) $(BIN)/python -m tests.cli_versions drift $(VERSION)
	@$(BIN)/python -m tests.cli_versions bump $(VERSION)

canary: $(VENV)/dev.stamp
	@failed=0; \
	$(WITH_CACHE) $(BIN)/python -m tests.cli_versions canary $(VERSIONS) $(WORKERS) $(PYTEST_FLAGS) || failed=1; \
	$(WITH_CACHE) $(BIN)/python -m tests.newest_clients $(WORKERS) $(PYTEST_FLAGS) || failed=1; \
	exit $$failed

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/build
	find packages tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything `demo` needs. `began` holds when that was begun, until `demo` has said how long all of it took.
$(VENV)/demo.stamp: packages.txt constraints.txt packages/*/pyproject.toml $(VENV)/made.stamp
	@echo "installing pilothouse into $(VENV)"
	@[ -e $(VENV)/began ] || date +%s >$(VENV)/began
	@$(PIP) install -c constraints.txt -r packages.txt 'pilothouse[local]'
	$(GET_LIBGOMP)
	@touch $@

# Everything the tests and checks need. pyright[nodejs] brings its own node: no other download when there is none. The
# wheels of claude-agent-sdk carry a CLI of 170 MB, which nothing here runs: its source does.
$(VENV)/dev.stamp: packages.txt constraints.txt pyproject.toml packages/*/pyproject.toml $(VENV)/made.stamp
	@echo "installing pilothouse and the development tools into $(VENV)"
	@$(PIP) install -c constraints.txt -r packages.txt '$(TESTED)' --group dev --no-binary claude-agent-sdk
	$(GET_LIBGOMP)
	@rm -f $(VENV)/began
	@touch $@

# Ray has 70 MB, and only `make test-combinations` needs it. For a Python without wheels of it nothing is installed.
$(VENV)/ray.stamp: $(VENV)/dev.stamp
	@echo "installing Ray into $(VENV)"
	@$(PIP) install -c constraints.txt -r packages.txt 'pilothouse[ray]'
	@touch $@

# An environment that works is kept; else the first Python that is new enough makes one. pip 25.1 is the first that
# knows dependency groups.
$(VENV)/made.stamp:
	@began=$$(date +%s); \
	new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; found=; \
	for python in $(PYTHONS); do \
	  if "$$python" -c "$$new_enough" >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if ! $(BIN)/python -c "$$new_enough; import pip" >/dev/null 2>&1; then \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python 3.11 or newer on PATH (looked for $(PYTHONS))" >&2; exit 1; \
	  fi; \
	  if ! "$$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "make: $$found cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV) || exit 1; \
	fi; \
	echo "$$began" >$(VENV)/began
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

.PHONY: help demo test quick test-matrix test-combinations test-mutations test-elsewhere test-browser chromium check docs lock dist soak fuzz bench bench-short bump-cli canary clean
