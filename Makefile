# Everything is set up by the targets themselves; Python 3.11 or later is all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE := --quiet --universal --no-header --no-annotate --no-emit-index-url --generate-hashes --upgrade

.PHONY: run test check sanitize bench bench-quick lock format proto semconv clean

run: $(VENV)/.run        ## run the sidecar with the built-in document
	$(BIN)/sidecar run $(ARGS)

test: $(VENV)/.dev       ## run the tests
	bash tests/setup.sh
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev      ## lint, types, floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sanitize: $(VENV)/.dev   ## look for wrong memory accesses of the kernel, with random and broken requests
	$(BIN)/python hatch_build.py -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		$(BIN)/python -m pytest -q --hypothesis-profile=thorough --timeout=0 tests/unit/test_kernel_sound.py tests/unit/test_reading.py \
		tests/unit/test_processors_allowlist_wire.py tests/unit/test_processors_allowlist_canary.py $(ARGS); \
		status=$$?; $(BIN)/python hatch_build.py; exit $$status

bench: $(VENV)/.dev      ## measure beside other collectors, within five minutes; ARGS="--help" says what else
	$(BIN)/python -m bench $(ARGS)

bench-quick: $(VENV)/.dev ## within a minute: is anything slower than recorded?
	$(BIN)/python -m bench quick $(ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/pip requirements.lock pyproject.toml hatch_build.py $(wildcard sidecar/kernel/*.[ch])
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	touch $@

lock: $(VENV)/bin/pip    ## pin the newest versions that pyproject.toml allows
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile $(COMPILE) --group build --group dev --output-file requirements-dev.lock pyproject.toml
	$(BIN)/uv pip compile $(COMPILE) --group build --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile $(COMPILE) --output-file tests/test-agent.lock tests/test-agent.in

proto: $(VENV)/.dev      ## regenerate what protoc makes
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		sidecar/events/telemetry_event.proto exporters/datadog/wire/datadog.proto

semconv: $(VENV)/.dev    ## write the keys of the otel_semconv preset anew
	$(BIN)/python -m processors.allowlist.semconv

clean:
	rm -rf $(VENV)
