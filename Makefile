# Everything sets itself up: a fresh machine needs Python 3.11, pip, gcc and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.installed
WORKERS ?= 2

# One thread a worker: two pytest workers with a thread pool each are slower than two without.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: install demo test test-all test-kernels test-clients test-engines fuzz lint types docs wheels clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/mmspec demo
	@echo "to play:  $(BIN)/mmspec play       at http://127.0.0.1:8010/play/"
	@echo "to look:  $(BIN)/mmspec view text  at http://127.0.0.1:8011/text/"

test: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS)

test-all: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) -m "not clients and not engines and not fuzz" --timeout=3600

# Triton's kernels, in its interpreter; without the extra these tests skip.
test-kernels: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,kernels]'
	TRITON_INTERPRET=1 $(THREADS) $(BIN)/python -m pytest -n $(WORKERS) tests/kernels

# Other people's software brings a hundred packages, so it has an environment of its own.
test-clients: pyproject.toml constraints.txt tests/clients/constraints.txt
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet -c constraints.txt -c tests/clients/constraints.txt -e '.[dev,clients]'
	$(THREADS) .venv-clients/bin/python -m pytest -n $(WORKERS) -m clients tests/clients

# So does Ray; the server's slow tests run there too. One worker: a cluster of Ray takes the machine for itself.
test-engines: pyproject.toml constraints.txt tests/engines/constraints.txt
	test -x .venv-engines/bin/python || $(PYTHON) -m venv .venv-engines
	.venv-engines/bin/python -m pip install --quiet -c constraints.txt -c tests/engines/constraints.txt -e '.[dev,engines]'
	$(THREADS) .venv-engines/bin/python -m pytest -m "engines or slow" tests/engines tests/serving

fuzz: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) -m fuzz tests/fuzz

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# What is rendered from code and measurements: the cards, the numbers of the README, and the site, in build/site.
docs: $(READY)
	$(BIN)/mmspec card
	$(BIN)/mmspec card --readme README.md --readme model_cards/README.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Two distributions of one version: the code (mmspec), and the shipped models with their cards (mmspec-models).
wheels: $(READY)
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	$(BIN)/python -m build --wheel --no-isolation --outdir dist assets
	du -h dist/*.whl

clean:
	rm -rf .venv .venv-clients .venv-engines build dist assets/build assets/dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find mmspec plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +
