# Each target sets up what it needs: a virtual environment in .venv with nocap and its tools, in the versions that were tested.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: train test gate test-slow soak fuzz gpu-day atlas check lint types contract format clean

train: $(VENV)/ready   ## a real GPT learns real text, in 2 to 3 minutes on two cores; ARGS="attention=gqa" for another
	$(BIN)/python -m nocap.train experiment=first_run $(ARGS)

test: $(VENV)/ready    ## the default suite
	$(BIN)/python -m tests.tools.retry -n 2 --dist loadfile -m "not slow and not gate and not fuzz"

gate: $(VENV)/ready    ## what only processes show: kills, ranks, a grid, a wheel, README, a browser, Ray
	$(BIN)/python -m tests.tools.retry -n 2 -m gate

test-slow: $(VENV)/ready   ## the rest, half an hour on two idle cores
	$(BIN)/python -m pytest -n 2 -m slow

soak: $(VENV)/ready    ## 1,000 random SIGKILLs, about an hour; the same command goes on; ARGS="--kills 20" for less
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak $(ARGS)

fuzz: $(VENV)/ready    ## 20,000 damaged records through every door, an hour at most; CASES=10 for 10 in each of 40 parts, not 500
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m fuzz tests/test_fuzz.py $(ARGS)

gpu-day:               ## 35 minutes of measurements on a GPU with the Python that is there; ARGS="bench --out DIR" for less
	$(or $(wildcard $(BIN)/python),$(PYTHON)) experiments/gpu_day/day.py $(ARGS)

ATLAS := $(BIN)/python experiments/atlas
atlas: $(VENV)/ready   ## all of experiments/atlas, some fourteen hours of a core; what is there is not trained again
	for phase in noise screen lengths parts large; do $(ATLAS)/atlas.py run $$phase || exit; done
	$(ATLAS)/atlas.py steps
	$(ATLAS)/atlas.py tell

check: lint types contract

lint: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/ready
	$(BIN)/mypy

contract: $(VENV)/ready
	$(BIN)/lint-imports

format: $(VENV)/ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV)
