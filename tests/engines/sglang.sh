#!/usr/bin/env bash
# Real SGLang on a CPU, a tiny model of random weights with Qwen3's tokenizer: installs both into scratch/, runs the cases
# of sglang.py (both page sizes, or the one that is named), and ends with a line of figures. Recipes, scripts and the
# tokenizer lie beside the repository; without them this is skipped with a note.
. "$(dirname "$0")/../lib.sh"
shared=${WARMROUTE_SHARED:-$PWD/../shared}
if [ ! -f "$shared/engines/serve_sglang.sh" ]; then
  echo "SGLang: skipped, no recipes at ../shared/engines"
  exit 0
fi
uv=$SCRATCH/uv/bin/uv
site=$SCRATCH/sglang/lib/python3.11/site-packages
if [ ! -x "$SCRATCH/sglang/bin/python" ]; then
  venv uv uv==0.13.8
  "$uv" venv --quiet --python 3.11 "$SCRATCH/sglang"
  "$uv" pip install --quiet --python "$SCRATCH/sglang/bin/python" --override "$shared/engines/sglang-overrides.txt" \
    sglang==0.5.23 dill
fi
# Its kernels are for GPUs only: a stub satisfies the import.
if [ ! -d "$site/sgl_kernel" ]; then
  mkdir -p "$site/sgl_kernel" "$site/sglang_kernel-0.4.10.dist-info"
  cp "$shared/engines/sgl_kernel_stub.py" "$site/sgl_kernel/__init__.py"
  printf 'Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.10\n' >"$site/sglang_kernel-0.4.10.dist-info/METADATA"
fi
[ -d "$SCRATCH/models/tiny-qwen3" ] ||
  (cd "$SCRATCH" && sglang/bin/python "$shared/engines/mk_models.py" models "$shared/tokenizers/qwen3")
python3 tests/engines/sglang.py "$WARMROUTE" "$shared" "$SCRATCH" "$@"
