#!/usr/bin/env bash
# On the GPU machine: part a keeps the first half of the model and installs; part b joins, trains, measures, and leaves
# the head in $OUT.
set -eu
PY=${PYTHON:-python3} OUT=${OUT:-$PWD/.gpu/out} KEPT=$PWD/.gpu/kept
mkdir -p "$KEPT/site" "$OUT"
export PYTHONPATH=$KEPT/site:$PWD:$PWD/plugins PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [[ $1 == a ]]; then
    $PY -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$KEPT/site" .gpu/whl/*.whl
    $PY tools/gpu/dist_info.py "$PWD" "$KEPT/site"
    cp .gpu/a/part "$KEPT/a"
    exec $PY -c "import torch, transformers, gguf, mmspec; print(torch.__version__, transformers.__version__, torch.cuda.is_available())"
fi
cat "$KEPT/a" .gpu/b/part > "$KEPT/model.gguf"
[[ $(sha256sum < "$KEPT/model.gguf" | cut -d' ' -f1) == $(cat .gpu/b/sha256) ]] || { echo "the halves do not join"; exit 1; }
exec $PY -m tools.gpu.train_head --out "$OUT" --seconds "${SECONDS_ALL:-560}" --home "$KEPT" ${DRY:+--dry}
