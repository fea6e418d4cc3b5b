# What a person or a machine does with a checkout. Needs git, make and Python >= 3.11. Everything else is installed
# into .venv by pip. Claude Code and the model go into the cache of the user, where `pilothouse` looks for them, too
# (PILOTHOUSE_CACHE names another place).
.POSIX:

VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
# The tests have a HOME of their own, so they are told where the cache is.
CACHE = from pilothouse.provision.artifacts import cache_root; print(cache_root())
WITH_CACHE = PILOTHOUSE_CACHE="$$($(BIN)/python -c '$(CACHE)')"
# One worker a core. More than four and the children of the tests, of 300 MB each, want more memory than there may be.
# WORKERS='-n 4 --dist worksteal' is a harder test on two cores: everything takes its turn at another moment.
WORKERS = -n auto --maxprocesses 4 --dist worksteal
FETCH = @$(BIN)/python -m pilothouse.provision cli model
PYTEST_FLAGS =

help:
	@echo "make demo    show what it does, with the real CLI and a small local model"
	@echo "make test    the tests of every requirement, on all cores; PYTEST_FLAGS='...' for some, '-n 0' for one process"
	@echo "make test-matrix  whole matrices of faults and inputs, long simulations, and mutations of the source"
	@echo "make check   format, lint, import contracts, types"
	@echo "make soak    full load, and ten minutes of mixed work; PILOTHOUSE_SOAK_SECONDS=... for another time"
	@echo "make fuzz    odd input, guided by coverage, for a minute; FUZZ_SECONDS=... for another time"
	@echo "make bench   the benchmarks, about ten minutes; make bench-short: less than two, and writes no file"
	@echo "make clean   remove what make made here; \`pilothouse install-cli --uninstall\` empties the cache"

demo: $(VENV)/demo.stamp
	@$(BIN)/pilothouse demo

test: $(VENV)/dev.stamp
	$(FETCH)
	$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 $(BIN)/python -m pytest $(WORKERS) $(PYTEST_FLAGS)

test-matrix: $(VENV)/dev.stamp
	$(FETCH)
	$(WITH_CACHE) PILOTHOUSE_REQUIRE_CLI=1 $(BIN)/python -m pytest $(WORKERS) -m matrix $(PYTEST_FLAGS)
	$(WITH_CACHE) $(BIN)/python -m tests.mutate

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/pyright

soak: $(VENV)/dev.stamp
	$(WITH_CACHE) $(BIN)/python -m pytest -m "slow or soak" -rP -o faulthandler_timeout=0 $(PYTEST_FLAGS)

fuzz: $(VENV)/dev.stamp
	@$(PIP) install --group fuzz
	$(BIN)/python tests/fuzz/fuzz_program.py "$${FUZZ_SECONDS:-60}"

bench: $(VENV)/dev.stamp
	$(FETCH)
	$(BIN)/python -m benchmarks

bench-short: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks --short

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/build
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything `demo` needs.
$(VENV)/demo.stamp: pyproject.toml $(VENV)/made.stamp
	@echo "installing pilothouse into $(VENV)"
	@$(PIP) install -e '.[cli,local,testing]'
	@touch $@

# Everything the tests and checks need. pyright[nodejs] brings its own node: no other download when there is none. The
# wheels of claude-agent-sdk carry a CLI of 170 MB, which nothing here runs: its source does.
$(VENV)/dev.stamp: pyproject.toml $(VENV)/made.stamp
	@echo "installing pilothouse and the development tools into $(VENV)"
	@$(PIP) install -e '.[cli,local,testing]' --group dev --no-binary claude-agent-sdk
	@touch $@

# An environment that works is kept; else the first Python that is new enough makes one. pip 25.1 is the first that
# knows dependency groups.
$(VENV)/made.stamp:
	@new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; found=; \
	for python in python3.13 python3.12 python3.11 python3; do \
	  if "$$python" -c "$$new_enough" >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if ! $(BIN)/python -c "$$new_enough; import pip" >/dev/null 2>&1; then \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python 3.11 or newer on PATH (looked for python3.13, python3.12, python3.11, python3)" >&2; exit 1; \
	  fi; \
	  if ! "$$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "make: $$found cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

.PHONY: help demo test test-matrix check soak fuzz bench bench-short clean
