#!/usr/bin/env bash
# On the GPU machine: part a keeps the first half of the model and installs; part b joins the halves and runs STEPS:
# `real` (the model against transformers, 150 s), `train_head` (a head, which is left in $OUT, 400 s).
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
ALL=${SECONDS_ALL:-560} STEPS=${STEPS:-real} SECONDS=0
for step in $STEPS; do
    most=$((ALL - SECONDS))
    [[ $step == real && $STEPS != real ]] && most=150
    # A process that does not end at once, with all of its lines written, has not failed.
    timeout -k 5 "$((most + 10))" "$PY" -m "tools.gpu.$step" --out "$OUT" --seconds "$most" --home "$KEPT" ${DRY:+--dry} \
        || grep -q "\"section\": \"done\", \"step\": \"${step%%_*}\"" "$OUT/lines.jsonl" || exit 1
done
$PY -m tools.gpu.summary "$OUT"
