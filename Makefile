# Two commands on a fresh machine: `make reproduce` (the main job) and `make test`.
# On Linux TORCH_INDEX=https://download.pytorch.org/whl/cpu takes torch from there, without CUDA, and nothing else.
PYTHON  ?= python3
PROFILE ?= quick
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
LOCKED  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes

unexport PYTHONDONTWRITEBYTECODE  # or each of hundreds of processes would compile the library anew

.PHONY: reproduce test test-all lab install clean
.DEFAULT_GOAL := reproduce

reproduce: install  ## run every declared item and write the report
	@$(BIN)/workbench reproduce --profile $(PROFILE)

test: install  ## run the test suite, side by side on the cores there are
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: install  ## also whole lessons, examples and trainings, and a real browser where there is one
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lab: install  ## open JupyterLab on the first notebook, in a working copy of the notebooks: results/lab
	@$(BIN)/workbench lab

install: $(READY)

$(READY): pyproject.toml $(wildcard locked/*.txt)
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f"workbench needs Python 3.11 to 3.13; {sys.executable} is {v.major}.{v.minor}: set PYTHON=/path/to/python3.11")'
	@echo "Creating $(VENV) and installing the pinned packages (a few minutes the first time)"
	@"$(PYTHON)" -m venv $(VENV)
ifdef TORCH_INDEX
	@$(LOCKED) --index-url "$(TORCH_INDEX)" -r locked/cpu.txt
else
	@$(LOCKED) -r locked/cpu.txt 2>/dev/null || true  # where pip is configured with a place that has it
endif
	@$(LOCKED) -r locked/install.txt
	@$(BIN)/python -m pip list --disable-pip-version-check --format=freeze | grep '^torch==.*+' >/dev/null || $(LOCKED) -r locked/cuda.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q workbench
	@touch $(READY)

clean:  ## remove the environment (results stay; see: workbench clean)
	rm -rf $(VENV)
