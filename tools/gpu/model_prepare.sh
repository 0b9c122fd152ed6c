#!/usr/bin/env bash
# Before a lease over a model that people run, in the root of the repository:  bash tools/gpu/model_prepare.sh MODEL.gguf
# The model is cut in two, because a call carries 64 MiB: two calls on one warm machine, the second at once.
set -euo pipefail
GGUF=$(realpath "$1")
cd "$(git rev-parse --show-toplevel)"
rm -rf .gpu/a .gpu/b
MODELS="smollm2-eagle3" KEEP="mmspec plugins tools" EXTRA_WHEELS="gguf" bash tools/gpu/prepare.sh
mkdir -p .gpu/a .gpu/b
size=$(stat -c %s "$GGUF")
head -c $((size / 2)) "$GGUF" > .gpu/a/part
tail -c +$((size / 2 + 1)) "$GGUF" > .gpu/b/part
sha256sum < "$GGUF" | cut -d' ' -f1 > .gpu/b/sha256
du -h --apparent-size .gpu/a/part .gpu/b/part
echo "call 1, with .gpu/whl and .gpu/a, 120 s:            bash tools/gpu/model_lease.sh a"
echo "call 2, at once, with .gpu/b, 580 s:                STEPS="real train_head" bash tools/gpu/model_lease.sh b"
