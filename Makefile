PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test lint lab figures slow benchmark clean

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY)
	$(BIN)/python -m paper_figs.demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

lab: $(READY)
	$(BIN)/python -m jupyter lab notebooks

figures: $(READY)
	$(BIN)/python -m paper_figs.demo

slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

benchmark: $(READY)
	$(BIN)/python -m pytest -q -m benchmark --benchmark-only

clean:
	rm -rf .venv paper_figs/out
