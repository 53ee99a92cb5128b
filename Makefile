# Two commands: `make run` and `make test`. Each installs what it needs into .venv the first time.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
MAKEFLAGS += --jobs=2
# Bytecode is made where a module is first imported, whatever the shell says: most of what is installed never is.
INSTALL = $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
export GRADIO_ANALYTICS_ENABLED = False
export HF_HUB_DISABLE_TELEMETRY = 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test suite lint style types bench clean browser nginx
.DEFAULT_GOAL := run

run: $(VENV)/.installed
	@exec $(BIN)/firstlight serve

# Types are checked beside the tests: those wait now and then.
test: types suite

suite: $(VENV)/.installed-test browser nginx style
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(or $(ARGS),tests --ignore tests/browser)
	$(if $(ARGS),,$(BIN)/python -m pytest tests/browser)

lint: style types

style: $(VENV)/.installed-test
	$(BIN)/ruff check .

types: style
	$(BIN)/mypy app core final_engine preview_engine sampling shared_cache styles benchmarks

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

$(VENV)/bin/pip:
	@echo "installing into $(VENV): about 2 GB, some minutes the first time"
	@command -v $(PYTHON) >/dev/null || { echo "Firstlight needs $(PYTHON): install it, or say make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) -e '.[test]'
	@touch $(VENV)/.installed $@

browser:
	@command -v chromium >/dev/null || { \
	  echo "installing chromium for the browser tests"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; }

# Unpacked into .venv, not installed: Debian's package would start a server of its own on port 80.
nginx: $(VENV)/bin/pip | browser
	@command -v nginx >/dev/null || test -x $(VENV)/nginx/usr/sbin/nginx || { \
	  echo "fetching nginx for the proxy tests"; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  cd $(VENV); \
	  apt-get download -qq nginx 2>/dev/null || { $$SUDO apt-get update -qq && apt-get download -qq nginx 2>/dev/null; }; \
	  dpkg -x nginx_*.deb nginx && rm nginx_*.deb; }

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
