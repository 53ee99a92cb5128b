#!/bin/sh
# What one GPU makes of SDXL at its full size, in eight minutes; prints a table and one JSON line, also where a part fails.
#
#   benchmarks/gpu_check.sh [--rehearse] [--keep] [section...]   --rehearse: a small model on the processor, in two minutes
#   benchmarks/gpu_check.sh --fetch FOLDER                       wheels for a machine that has torch and no network
#
# There: WHEELS=FOLDER benchmarks/gpu_check.sh. PYTHON names another python than python3.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
# What a machine with torch, transformers, accelerate and peft still lacks, for Python 3.12 on x86-64 Linux.
NEEDED="diffusers==0.42.1 compel>=2.5.1 redis>=8.1 pydantic>=2.12 pydantic-settings>=2.11 torchao>=0.18"
if [ "${1:-}" = --fetch ]; then
  # The newest releases that fit each other; dependencies that such a machine has are left out.
  mkdir -p "$2"
  for one in $NEEDED python-dotenv importlib-metadata; do set -- "$@" "$one"; done
  folder=$2; shift 2
  exec "$PYTHON" -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d "$folder" "$@" \
    "pydantic-core==$("$PYTHON" -c 'import pydantic_core; print(pydantic_core.__version__)')"
fi
if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$WHEELS"/*.whl
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
timeout -k 10 -s TERM 475 "$PYTHON" -m benchmarks.gpu_check "$@"
