#!/usr/bin/env bash
# Everything that takes a GPU, in under 8 minutes, without a network:
#
#   benchmarks/gpu/run.sh [WHEELS]
#
# installs requirements/gpu.txt from the folder WHEELS (build/gpu/wheels), runs tests/gpu and the
# tables of benchmarks/gpu, and writes benchmarks/results/gpu.json. Where there is no GPU it says
# so, writes nothing and ends with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."
began=$SECONDS
wheels=${1:-build/gpu/wheels}
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  echo "not run: no device"
  exit 0
fi
if [ ! -d "$wheels" ]; then
  echo "no folder $wheels with wheels"
  echo "  fix: pip download -d $wheels --only-binary :all: -r requirements/gpu.txt"
  exit 1
fi
venv=build/gpu/venv
[ -x "$venv/bin/python" ] || python3.11 -m venv "$venv"
"$venv/bin/python" -m pip install -q --no-index --find-links "$wheels" -r requirements/gpu.txt
left=$((470 - SECONDS + began))
PYTHONPATH=src exec timeout --signal=INT "$left" "$venv/bin/python" -m benchmarks.gpu --seconds "$((left - 20))"
