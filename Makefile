# The commands of the README.  Everything runs in .venv, which is made when it is missing.
PYTHON ?= python3
VENV = .venv
IN = $(VENV)/bin/python
NATIVE = setup.py pyproject.toml csrc/generate.py $(wildcard csrc/*.c csrc/*.h csrc/include/*.h csrc/kernels/*.inc)

.PHONY: demo test bench lint wheel clean

demo: $(VENV)/built
	$(IN) examples/train_gpt.py

test: $(VENV)/dev
	$(IN) -m pytest

bench: $(VENV)/dev
	$(IN) bench/run.py
	$(IN) bench/loader.py

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror csrc/*.c csrc/*.h csrc/include/*.h csrc/kernels/*.inc tests/c/*.c tests/c/*.h

wheel: $(VENV)/dev
	rm -rf dist
	$(IN) -m pip -q wheel --no-deps --no-build-isolation -w dist .

# rushlight itself, compiled in place; again when a native source has changed
$(VENV)/built: $(NATIVE)
	test -x $(IN) || $(PYTHON) -m venv $(VENV)
	$(IN) -m pip install -q "setuptools>=77" wheel
	$(IN) -m pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/dev: $(VENV)/built
	$(IN) -m pip install -q --no-build-isolation -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/rushlight/*.so src/*.egg-info
