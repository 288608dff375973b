PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ENGINE_TESTS = tests/index/test_approximate.py tests/index/test_databases.py tests/index/test_ray.py \
	tests/index/test_serving.py tests/embedding/test_neighbours.py \
	tests/data/readers/test_documents.py
BIN = $(VENV)/bin
CODE = docsplit tests benchmarks examples *.py

.PHONY: help install install-dev quickstart test test-all test-engines soak lint docs size fix bench gpu bench-scaling bench-micro-batches bench-loading bench-long bench-segmentation bench-probing bench-analyses clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/installed  ## make .venv and install this clone into it, so that changes of the code count at once

install-dev: $(VENV)/installed-dev  ## and what tests and linters need

$(VENV)/installed: requirements.txt constraints.txt pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e . -c constraints.txt
	touch $@

$(VENV)/installed-dev: requirements.txt requirements-dev.txt constraints.txt pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e . -r requirements-dev.txt -c constraints.txt
	touch $(VENV)/installed $@

$(VENV)/installed-engines: $(VENV)/installed-dev requirements-engines.txt
	$(BIN)/python -m pip install -r requirements-engines.txt -c constraints.txt
	touch $@

quickstart: export CUDA_VISIBLE_DEVICES =  # one process on the processor, whatever GPUs there are
quickstart: install  ## train an encoder from nothing, in minutes on two cores, and search with it
	$(BIN)/python run_docsplit_pretraining.py recipes/quickstart.yaml
	rm -rf outputs/quickstart.index
	$(BIN)/python search.py build python_docs:test --model outputs/quickstart --index_dir outputs/quickstart.index
	$(BIN)/python search.py query outputs/quickstart.index "shortest path between two nodes of a graph" --count 3
	$(BIN)/python explore.py outputs/quickstart.index --max_documents 1000

# Its processes import what others compiled, also where PYTHONDONTWRITEBYTECODE is set
test: install-dev  ## the default tests, WORKERS at a time, without GPUs: `python -m pytest -m gpu` is for these
	PYTHONDONTWRITEBYTECODE= CUDA_VISIBLE_DEVICES= OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: install-dev  ## and the slow ones
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -m "not gpu"

soak: install-dev  ## attack for hours: kills, full disks, damage, odd documents; goes on where it was stopped
	$(BIN)/python -m tests.soak

test-engines: $(VENV)/installed-engines  ## tests with Ray, Milvus, faiss and markitdown, which it installs
	CUDA_VISIBLE_DEVICES= OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m "not slow and not gpu" -rs $(ENGINE_TESTS)

lint: install-dev  ## ruff and mypy
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

docs: install-dev  ## the reference of the public names: outputs/reference/docsplit.html
	$(BIN)/python -c 'from docsplit import *; from pathlib import Path; import pdoc; \
		pdoc.render.configure(docformat="google", show_source=False); pdoc.pdoc("docsplit", output_directory=Path("outputs/reference"))'

size: install-dev  ## lines of code, modules and words, beside those of the commit before
	$(BIN)/python -m tests.size

fix: install-dev  ## what ruff can repair
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: install-dev  ## training and encoding beside what one would use instead; writes benchmarks/results
	$(BIN)/python -m benchmarks.speed.training

bench-scaling: install-dev  ## how the cost of a step grows with batch, length and processes
	$(BIN)/python -m benchmarks.speed.scaling

bench-micro-batches: install-dev  ## what cutting a batch into micro-batches costs
	$(BIN)/python -m benchmarks.speed.micro_batches

bench-loading: install-dev  ## drawing views, preprocessing, resuming
	$(BIN)/python -m benchmarks.speed.loading

bench-long: install-dev  ## attention to long documents, five encoders at 512 to 32,768 tokens
	$(BIN)/python -m benchmarks.speed.long_attention

bench-segmentation: install-dev  ## sentence splitters
	$(BIN)/python -m benchmarks.speed.segmentation

bench-probing: install-dev  ## heads on frozen embeddings
	$(BIN)/python -m benchmarks.speed.probing --shots 5

bench-analyses: install-dev  ## analyses of embeddings, beside embedding; needs a spaCy pipeline
	$(BIN)/python -m benchmarks.speed.analyses

gpu: install-dev  ## what is worth measuring on a GPU, in 9 minutes; the next call goes on
	$(BIN)/python -m benchmarks.gpu --minutes 9 --output_dir outputs/gpu

clean:  ## remove the environment and the caches of the tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build docsplit.egg-info
