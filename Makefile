# Everything sets itself up: a fresh machine needs Python 3.11, pip, gcc and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.installed
PYTHON_LOWEST ?= $(shell command -v python3.12 || echo $(PYTHON))
WORKERS ?= 2

# What the lowest versions have to pass: a file for each way in which transformers, diffusers and torch are used.
SMOKE := $(addprefix tests/,recorded captured/test_rules.py captured/test_text.py captured/test_other_targets.py \
	text/test_equals_stock.py text/test_enable.py text/test_user_caches.py text/test_wrappers.py text/test_pipeline.py \
	heads/test_equality.py heads/test_captured.py image/test_pipeline.py image/test_written_pipelines.py \
	continuous/test_continuous_pipeline.py continuous/test_speculative_denoising.py ssm/test_hosting.py \
	video/test_pipeline_video.py cli/test_commands.py)

# A minute: the signature on every modality (same seed, same output), the core's laws, and the house rules.
QUICK := $(addprefix tests/,registry core/test_decoder.py core/test_rules.py core/test_noise.py core/test_tree.py \
	core/test_imports.py core/test_no_whispers.py text/test_equals_stock.py heads/test_equality.py \
	image/test_joints.py image/test_pipeline.py continuous/test_continuous_exactness.py ssm/test_hosting.py \
	video/test_token_frames.py video/test_frames_target.py captured/test_mark.py)

# What has to hold on every processor: numbers of other people's classes, and of models that were saved and loaded.
ANYWHERE := $(addprefix tests/,text/test_linear.py text/test_loading.py heads/test_published.py continuous/test_mar.py \
	continuous/test_denoiser.py continuous/test_flow_denoising.py continuous/test_tempered.py image/test_janus.py \
	image/test_official_files.py image/test_saved_pipeline.py image/test_written_pipelines.py \
	video/test_next_frame.py video/test_oasis_actions.py video/test_pipeline_video.py video/test_convert_video.py)
# (`make test-old ANYWHERE=` runs all.) What a compiler kept for this processor has other instructions.
OLD := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/build/inductor-old

# One thread a worker: two pytest workers with a thread pool each are slower than two without.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: install demo quick fix test test-old test-all test-tools test-kernels test-real test-clients test-engines test-lowest fuzz lint types docs wheels clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

# Without network the shipped models answer alone.
demo: $(READY)
	$(BIN)/mmspec fetch smollm2 || true
	$(BIN)/mmspec demo
	@echo "to play:  $(BIN)/mmspec play       at http://127.0.0.1:8010/play/"
	@echo "to look:  $(BIN)/mmspec view text  at http://127.0.0.1:8011/text/"

quick: $(READY)
	$(THREADS) $(BIN)/python -m pytest -q -n $(WORKERS) $(QUICK)

fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS)

# Again as on an old processor: without AVX in torch, oneDNN as on SSE4.1, MKL in its compatible way.
test-old: $(READY)
	$(OLD) $(THREADS) $(BIN)/python -m pytest -n $(WORKERS) $(ANYWHERE)

test-all: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) -m "not clients and not engines and not fuzz and not real" --timeout=3600 tests tests/tools

# What made the shipped models and their figures (tools/): recipes in miniature, benchmarks on toys.
test-tools: $(READY)
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) tests/tools

# Triton's kernels, in its interpreter; without the extra these tests skip.
test-kernels: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,kernels]'
	TRITON_INTERPRET=1 $(THREADS) $(BIN)/python -m pytest -n $(WORKERS) tests/kernels

# A model that people run; the first time it is downloaded. After every change of the core.
test-real: $(READY)
	$(BIN)/mmspec fetch smollm2
	$(THREADS) $(BIN)/python -m pytest -m real tests/real

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

# The lowest versions that pyproject.toml admits, with another Python where there is one. torch comes from the registry
# then, which on Linux is its CUDA build (5 GB in the environment).
test-lowest: pyproject.toml tests/support/lowest.py
	test -x .venv-lowest/bin/python || $(PYTHON_LOWEST) -m venv .venv-lowest
	$(PYTHON) tests/support/lowest.py > .venv-lowest/pins.txt
	.venv-lowest/bin/python -m pip install --quiet -r .venv-lowest/pins.txt pytest pytest-timeout pytest-xdist peft
	.venv-lowest/bin/python -m pip install --quiet --no-deps -e .
	$(THREADS) .venv-lowest/bin/python -m pytest -n $(WORKERS) $(SMOKE)

# With SECONDS, claims about many are drawn for so long, from another SEED than CI's; CLAIMS=heads,folders draws these.
fuzz: $(READY)
ifdef SECONDS
	$(THREADS) $(BIN)/python -m tests.draws --seconds $(SECONDS) --seed $(or $(SEED),1) --workers $(WORKERS) $(if $(CLAIMS),--claims $(CLAIMS))
else
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) -m fuzz tests/fuzz
endif

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/ratchet.py

types: $(READY)
	$(BIN)/mypy

# What is rendered from code and measurements: the cards, the numbers of the README, and the site, in build/site.
docs: $(READY)
	$(BIN)/python -m tools.cards
	$(BIN)/python -m tools.cards --readme README.md --readme model_cards/README.md
	PYTHONPATH=. $(BIN)/python docs/site/papers.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Two distributions of one version: the code (mmspec), and the shipped models with their cards (mmspec-models).
wheels: $(READY)
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	$(BIN)/python -m build --wheel --no-isolation --outdir dist assets
	du -h dist/*.whl

clean:
	rm -rf .venv .venv-clients .venv-engines .venv-lowest build dist assets/build assets/dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find mmspec plugins tools tests -name __pycache__ -type d -prune -exec rm -rf {} +
